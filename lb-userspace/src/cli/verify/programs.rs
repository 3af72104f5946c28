//! The attached programs: whether each is still where it was attached, and of the same build as its
//! likes and as the copy that test packets ask.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::Path,
};

use anyhow::Context as _;
use aya::programs::loaded_programs;
use lb_datapath::{
    bpf::{Link, LinkTarget},
    pins::LinkPin,
};

use super::Difference;

/// What has been found.
#[derive(Debug, Default)]
pub struct Programs {
    /// Attached programs.
    pub number: usize,
    pub differences: BTreeSet<Difference>,
    /// Why instructions were not compared, if they were not.
    pub not_compared: Option<String>,
}

/// The kernel keeps so many bytes of a program's name.
const NAME_LENGTH: usize = 15;

/// Looks at the links that are pinned in a directory. `copies` are programs that should be the same as those of their
/// names, with the kernel's hash of their instructions.
///
/// # Errors
/// If they cannot be read.
pub fn compare(links: &Path, copies: &[(&str, u64)]) -> anyhow::Result<Programs> {
    let cannot = || format!("cannot read {}", links.display());
    let loaded = loaded_programs().collect::<Result<Vec<_>, _>>();
    let not_compared = loaded.as_ref().err();
    let not_compared = not_compared.map(|error| {
        format!("instructions of programs are not compared: {error} (this takes CAP_SYS_ADMIN)")
    });
    // The kernel's hash of the instructions.
    let loaded: HashMap<u32, (String, u64)> = loaded
        .unwrap_or_default()
        .iter()
        .map(|program| {
            let name = program.name_as_str().unwrap_or("(unnamed)").to_owned();
            (program.id(), (name, program.tag()))
        })
        .collect();
    let mut number = 0;
    let mut differences = BTreeSet::new();
    let mut builds: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for entry in fs::read_dir(links).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let Ok(pin) = name.parse::<LinkPin>() else {
            continue;
        };
        let link = Link::open(&path).and_then(|link| link.info());
        let info = link.with_context(|| format!("cannot open {}", path.display()))?;
        number += 1;
        let is_there = match (pin, info.target) {
            (LinkPin::Xdp { ifindex, .. } | LinkPin::Tcx { ifindex, .. }, target) => {
                target == LinkTarget::Device(ifindex)
            }
            (LinkPin::Socket(_), target) => matches!(target, LinkTarget::Cgroup(id) if id != 0),
        };
        if !is_there {
            differences.insert(Difference {
                subject: format!("program {name}"),
                what: "where it is attached".to_owned(),
                found: "nowhere".to_owned(),
                wanted: "at the place in its name".to_owned(),
            });
        }
        if let Some((program, tag)) = loaded.get(&info.program_id) {
            builds.entry(program).or_default().insert(*tag);
        }
    }
    for (program, tags) in builds {
        let is_it = |(name, _): &&(&str, u64)| &name[..name.len().min(NAME_LENGTH)] == program;
        let copy = copies.iter().find(is_it).map(|(_, tag)| *tag);
        if tags.len() == 1 && copy.is_none_or(|copy| tags.contains(&copy)) {
            continue;
        }
        let tags: Vec<_> = tags.iter().map(|tag| format!("{tag:016x}")).collect();
        differences.insert(Difference {
            subject: format!("program {program}"),
            what: "its instructions, by the kernel's tag".to_owned(),
            found: tags.join(", "),
            wanted: match copy {
                Some(copy) => format!("{copy:016x} everywhere, as in this node-lb"),
                None => "the same everywhere".to_owned(),
            },
        });
    }
    Ok(Programs {
        number,
        differences,
        not_compared,
    })
}
