//! Rust compilers that can build `core` for the BPF target.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::Command,
};

use super::Release;

/// A rustc and cargo under one prefix, with the standard library's source beside them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiler {
    /// Directory that holds `bin/rustc`, `bin/cargo` and `lib/rustlib/src`.
    pub prefix: PathBuf,
    pub release: Release,
    /// Major version of the LLVM inside; the linker's must not be older.
    pub llvm: u32,
}

impl Compiler {
    /// The oldest release with a `core` and a cargo that are known to work: the workspace's
    /// rust-version.
    pub const OLDEST: Release = Release::new(1, 91, 0);

    /// Looks at the compiler under `prefix`.
    ///
    /// # Errors
    /// [`Unfit`] says what keeps it from building for BPF.
    pub fn at(prefix: &Path) -> Result<Self, Unfit> {
        let unfit = |lack| Unfit {
            prefix: prefix.to_owned(),
            lack,
        };
        if !prefix.join("bin/rustc").is_file() || !prefix.join("bin/cargo").is_file() {
            return Err(unfit(Lack::Compiler));
        }
        let output = Command::new(prefix.join("bin/rustc")).arg("-vV").output();
        let (release, llvm) = output
            .ok()
            .and_then(|output| parse_version(&String::from_utf8_lossy(&output.stdout)))
            .ok_or_else(|| unfit(Lack::Version))?;
        if release < Self::OLDEST {
            return Err(unfit(Lack::Age(release)));
        }
        // Cargo's -Zbuild-std starts from this file.
        if !prefix
            .join("lib/rustlib/src/rust/library/Cargo.lock")
            .is_file()
        {
            return Err(unfit(Lack::Source(release)));
        }
        Ok(Self {
            prefix: prefix.to_owned(),
            release,
            llvm,
        })
    }

    pub fn rustc(&self) -> PathBuf {
        self.prefix.join("bin/rustc")
    }

    pub fn cargo(&self) -> PathBuf {
        self.prefix.join("bin/cargo")
    }

    /// cargo-clippy, which not every compiler comes with.
    pub fn clippy(&self) -> PathBuf {
        self.prefix.join("bin/cargo-clippy")
    }
}

impl fmt::Display for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rustc {} (LLVM {}) in {}",
            self.release,
            self.llvm,
            self.prefix.display()
        )
    }
}

/// A compiler that cannot build for BPF, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    prefix: PathBuf,
    lack: Lack,
}

impl Unfit {
    /// Whether the standard library's source is all that is missing.
    pub fn lacks_only_source(&self) -> bool {
        matches!(self.lack, Lack::Source(_))
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = self.prefix.display();
        match self.lack {
            Lack::Compiler => write!(f, "{prefix}: no bin/rustc and bin/cargo"),
            Lack::Version => write!(f, "{prefix}: bin/rustc -vV does not say its version"),
            Lack::Age(release) => {
                write!(
                    f,
                    "{prefix}: rustc {release} is older than {}",
                    Compiler::OLDEST
                )
            }
            Lack::Source(release) => {
                write!(
                    f,
                    "rustc {release} in {prefix}: no source of the standard library"
                )
            }
        }
    }
}

impl std::error::Error for Unfit {}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Lack {
    Compiler,
    Version,
    Age(Release),
    Source(Release),
}

/// The release and the LLVM major version that `rustc -vV` printed.
fn parse_version(text: &str) -> Option<(Release, u32)> {
    let field = |name| {
        text.lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    let release = Release::parse(field("release:")?)?;
    let llvm = Release::parse(field("LLVM version:")?)?;
    Some((release, llvm.major))
}
