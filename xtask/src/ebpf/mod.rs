//! Builds the eBPF object. Only this module chooses its compiler and linker.
//!
//! `lb-userspace/datapath/build.rs` and every `cargo xtask` command use it, so their choices agree.

mod compiler;
mod linker;
mod object;
mod places;
mod release;

use std::fmt;

pub use self::{
    compiler::{Compiler, Unfit},
    linker::Linker,
    object::{HARNESS, PROGRAMS, TARGET, build_object, lint, strip_debug_info},
    places::{Places, target_directory},
    release::Release,
};

/// Environment variable: an eBPF object to embed instead of building one.
pub const OBJECT_VARIABLE: &str = "NODE_LB_BPF_OBJECT";
/// Environment variable: the compiler to use, as a rustup toolchain's name or an absolute prefix
/// (`/usr`).
pub const TOOLCHAIN_VARIABLE: &str = "NODE_LB_BPF_TOOLCHAIN";

/// A compiler and a linker that fit each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tools {
    pub compiler: Compiler,
    pub linker: Linker,
}

impl Tools {
    /// The first compiler of `places`, in order of preference, that a linker there fits.
    ///
    /// # Errors
    /// [`NotReady`] lists what each place lacks.
    pub fn find(places: &Places) -> Result<Self, NotReady> {
        let linkers = places.linkers();
        let mut lacks = Vec::new();
        for prefix in places.compiler_prefixes() {
            let compiler = match Compiler::at(&prefix) {
                Ok(compiler) => compiler,
                Err(unfit) => {
                    lacks.push(unfit.to_string());
                    continue;
                }
            };
            match linkers.iter().find(|linker| linker.reads(&compiler)) {
                Some(linker) => {
                    return Ok(Self {
                        compiler,
                        linker: linker.clone(),
                    });
                }
                None => lacks.push(format!(
                    "{compiler}: no bpf-linker {} or later made with LLVM {} or later",
                    Linker::PINNED,
                    compiler.llvm
                )),
            }
        }
        Err(NotReady { lacks })
    }
}

impl fmt::Display for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.compiler, self.linker)
    }
}

/// No compiler and linker for eBPF on this machine yet.
#[derive(Debug)]
pub struct NotReady {
    /// What each possible place lacks.
    pub lacks: Vec<String>,
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the eBPF toolchain is not set up on this machine; run `cargo xtask setup`")?;
        self.lacks
            .iter()
            .try_for_each(|lack| write!(f, "\n  - {lack}"))
    }
}

impl std::error::Error for NotReady {}
