//! bpf-linker: turns the compiler's LLVM bitcode into a BPF object with BTF.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::Command,
};

use super::{Compiler, Release};

/// A bpf-linker and the LLVM it was made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linker {
    pub path: PathBuf,
    pub release: Release,
    /// Major version; LLVM reads the bitcode of its own and of older versions only.
    pub llvm: u32,
}

impl Linker {
    /// The release that set-up installs, and the oldest that is accepted.
    pub const PINNED: Release = Release::new(0, 13, 0);
    /// LLVM versions that release can be built against.
    pub const LLVM_VERSIONS: [u32; 3] = [21, 22, 23];
    /// The one inside the binaries its authors publish.
    pub const PUBLISHED_LLVM: u32 = 23;

    /// Examines the linker at `path`; `None` if it is missing, broken or too old.
    pub fn at(path: &Path) -> Option<Self> {
        if !path.is_file() {
            return None;
        }
        let version = run(path, "--version")?;
        let release = Release::parse(version.strip_prefix("bpf-linker ")?)?;
        if release < Self::PINNED {
            return None;
        }
        let libraries = run(Path::new("ldd"), path).unwrap_or_default();
        let llvm = shared_llvm(&libraries).unwrap_or(Self::PUBLISHED_LLVM);
        Some(Self {
            path: path.to_owned(),
            release,
            llvm,
        })
    }

    /// Whether it understands the output of `compiler`.
    pub fn reads(&self, compiler: &Compiler) -> bool {
        self.llvm >= compiler.llvm
    }
}

impl fmt::Display for Linker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "bpf-linker {} (LLVM {}) in {}",
            self.release,
            self.llvm,
            self.path.display()
        )
    }
}

/// Standard output of a command that succeeded.
fn run(program: &Path, argument: impl AsRef<std::ffi::OsStr>) -> Option<String> {
    let output = Command::new(program).arg(argument).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The LLVM in `ldd`'s answer: `libLLVM.so.22.1` since LLVM 18, `libLLVM-17.so.1` before.
fn shared_llvm(libraries: &str) -> Option<u32> {
    let name = libraries
        .split_whitespace()
        .find_map(|word| word.strip_prefix("libLLVM"))?;
    let number = name
        .strip_prefix(".so.")
        .or_else(|| name.strip_prefix('-'))?;
    Release::parse(number).map(|release| release.major)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llvm_is_read_from_the_shared_library() {
        let debian = "\tlinux-vdso.so.1 (0x00007f)\n\tlibLLVM.so.22.1 => /usr/lib/llvm-22/lib/\
                      libLLVM.so.22.1 (0x00007f)\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f)\n";
        assert_eq!(shared_llvm(debian), Some(22));
        assert_eq!(
            shared_llvm("\tlibLLVM-17.so.1 => /usr/lib/libLLVM-17.so.1 (0x0)"),
            Some(17)
        );
        assert_eq!(shared_llvm("\tstatically linked\n"), None);
        assert_eq!(shared_llvm(""), None);
    }
}
