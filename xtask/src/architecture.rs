//! The processor architectures that tests run on.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// A processor architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Architecture {
    Amd64,
    Arm64,
}

impl Architecture {
    /// Its name in Debian, and in container images.
    pub fn debian(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Its name in programs of GNU and of QEMU.
    fn processor(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// This machine's.
    pub fn here() -> Self {
        match env::consts::ARCH {
            "aarch64" => Self::Arm64,
            _ => Self::Amd64,
        }
    }

    /// Whether it is this machine's.
    pub fn is_here(self) -> bool {
        self == Self::here()
    }

    /// What rustc compiles for.
    pub fn target(self) -> String {
        format!("{}-unknown-linux-gnu", self.processor())
    }

    /// The directory of its C toolchain's libraries, if it is not this machine's.
    fn sysroot(self) -> PathBuf {
        Path::new("/usr").join(self.libraries())
    }

    /// The name of its directories of libraries.
    pub fn libraries(self) -> String {
        format!("{}-linux-gnu", self.processor())
    }

    /// A program of its C toolchain, such as `gcc`.
    pub fn tool(self, name: &str) -> String {
        format!("{}-{name}", self.libraries())
    }

    /// The program that emulates a machine of it.
    pub fn emulator(self) -> String {
        format!("qemu-system-{}", self.processor())
    }

    /// Runs a program on this machine, which may be of another architecture. Then this machine's
    /// kernel serves it, so it shows nothing about kernels.
    pub fn command(self, program: &Path) -> Command {
        if self.is_here() {
            return Command::new(program);
        }
        let mut command = Command::new(format!("qemu-{}", self.processor()));
        // The libraries of the C toolchain.
        command.arg("-L").arg(self.sysroot()).arg(program);
        command
    }
}
