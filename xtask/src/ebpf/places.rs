//! The places where compilers and linkers are looked for.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use super::{Linker, TOOLCHAIN_VARIABLE};

/// The directories of a machine that may hold the eBPF toolchain.
#[derive(Clone, Debug)]
pub struct Places {
    /// A rustup toolchain's name or an absolute prefix, if one compiler is demanded.
    pub chosen: Option<OsString>,
    /// rustup's home; holds `toolchains/`.
    pub rustup_home: PathBuf,
    /// Prefix of the distribution's own compiler.
    pub system_prefix: PathBuf,
    /// Directories that may hold a bpf-linker, best first.
    pub linker_directories: Vec<PathBuf>,
    /// The directory where set-up puts what it builds for this project.
    pub cache: PathBuf,
}

impl Places {
    /// The places of this machine, from the environment.
    pub fn from_env() -> Self {
        let home = env::home_dir().unwrap_or_else(|| PathBuf::from("/root"));
        let directory = |variable, default: &str| {
            env::var_os(variable).map_or_else(|| home.join(default), PathBuf::from)
        };
        let path = env::var_os("PATH").unwrap_or_default();
        Self {
            chosen: env::var_os(TOOLCHAIN_VARIABLE).filter(|chosen| !chosen.is_empty()),
            rustup_home: directory("RUSTUP_HOME", ".rustup"),
            system_prefix: PathBuf::from("/usr"),
            linker_directories: env::split_paths(&path)
                .chain([directory("CARGO_HOME", ".cargo").join("bin")])
                .collect(),
            cache: directory("XDG_CACHE_HOME", ".cache").join("node-lb"),
        }
    }

    /// Prefixes that may hold a fit compiler, best first: rustup's nightly, then the system's.
    pub fn compiler_prefixes(&self) -> Vec<PathBuf> {
        if let Some(chosen) = &self.chosen {
            let mut prefixes = self.toolchains(&format!("{}-", chosen.to_string_lossy()));
            // An absolute path replaces the path that it is joined to.
            let named = self.rustup_home.join("toolchains").join(chosen);
            if named.is_dir() || prefixes.is_empty() {
                prefixes.insert(0, named);
            }
            return prefixes;
        }
        let mut prefixes = self.toolchains(&format!("nightly-{}", env::consts::ARCH));
        prefixes.push(self.system_prefix.clone());
        prefixes
    }

    /// Whether a compiler's prefix is a toolchain of rustup's.
    pub fn is_of_rustup(&self, prefix: &Path) -> bool {
        prefix.starts_with(&self.rustup_home)
    }

    /// Linkers that are recent enough, best first.
    pub fn linkers(&self) -> Vec<Linker> {
        let built = Linker::LLVM_VERSIONS.map(|llvm| self.linker_root(Some(llvm)).join("bin"));
        let mut seen = Vec::new();
        for directory in self
            .linker_directories
            .iter()
            .chain(&built)
            .chain([&self.linker_root(None).join("bin")])
        {
            let path = directory.join("bpf-linker");
            if !seen.contains(&path) {
                seen.push(path);
            }
        }
        seen.iter().filter_map(|path| Linker::at(path)).collect()
    }

    /// Where set-up installs the linker that it builds for `llvm`, or the published binary.
    pub fn linker_root(&self, llvm: Option<u32>) -> PathBuf {
        let kind = llvm.map_or_else(|| "published".to_owned(), |llvm| format!("llvm-{llvm}"));
        self.cache
            .join(format!("bpf-linker-{}-{kind}", Linker::PINNED))
    }

    /// The directory of the programs of a Kubernetes cluster, with those of its control plane.
    pub fn cluster_programs(&self) -> PathBuf {
        env::var_os("NODE_LB_CLUSTER_BIN")
            .map_or_else(|| self.cache.join("cluster/bin"), PathBuf::from)
    }

    /// rustup toolchains whose name starts with `prefix`.
    fn toolchains(&self, prefix: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.rustup_home.join("toolchains"));
        let mut found: Vec<_> = entries
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
            .map(|entry| entry.path())
            .collect();
        found.sort();
        found
    }
}

/// Cargo's target directory, from a path inside it. Cargo tags it, and the directories inside it for
/// other architectures.
pub fn target_directory(inside: &Path) -> Option<&Path> {
    inside
        .ancestors()
        .skip_while(|directory| !is_tagged(directory))
        .take_while(|directory| is_tagged(directory))
        .last()
}

/// Whether cargo has tagged a directory. Other programs tag theirs, too.
fn is_tagged(directory: &Path) -> bool {
    let tag = fs::read_to_string(directory.join("CACHEDIR.TAG"));
    tag.is_ok_and(|tag| tag.contains("cargo"))
}
