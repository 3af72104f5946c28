//! Loads the eBPF object: new programs around the maps that earlier agents pinned.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::{Path, PathBuf},
};

use aya::{
    Btf, Ebpf, EbpfError, EbpfLoader, Pod,
    maps::{Map, MapData, MapError, PerCpuArray},
    programs::{Program, ProgramError},
};
use thiserror::Error;

use super::{
    bpf::bytes_of,
    heap,
    pins::{MapPins, PinError, Pins},
    socket_seats,
};

mod ahead;
mod shape;

pub use ahead::Ahead;
pub use shape::MapShape;

/// The eBPF object that this binary was built with.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/lb"));

/// Maps that are only pinned where settings say so. Nothing in them lasts: programs use the first
/// four as memory while they handle a packet, the next two while flow tables change their size, and
/// the others while packets are traced.
const SCRATCH: [&str; 8] = [
    "WORK4",
    "WORK6",
    "TURN_WORK4",
    "TURN_WORK6",
    "OTHER_FLOWS4",
    "OTHER_FLOWS6",
    "TRACE",
    LOG_RING,
];

/// The map that programs log to, of the crate aya-log-ebpf.
pub(crate) const LOG_RING: &str = "AYA_LOGS";

/// The ending of pin names of maps that are to replace others.
const NEXT: &str = "_NEXT";

/// The ending of pin names of maps that others are to replace.
pub const BEFORE: &str = "_BEFORE";

/// How many lines of the verifier's log an error shows: those at its end, where the refusal is.
const LOG_LINES: usize = 25;

/// What is fixed when the object is loaded.
#[derive(Clone, Debug, Default)]
pub struct Settings<'a> {
    globals: BTreeMap<&'a str, &'a [u8]>,
    max_entries: BTreeMap<&'a str, u32>,
    pins: BTreeMap<&'a str, &'a str>,
    /// The only maps that are pinned, if not all are.
    shared: Option<&'a [&'a str]>,
}

/// Programs in the kernel, not yet attached, and the maps they use.
#[derive(Debug)]
pub struct Loaded {
    ebpf: Ebpf,
    /// Pins of the maps, by name.
    maps: BTreeMap<String, PathBuf>,
}

/// The shapes of maps, by their names.
type Shapes = BTreeMap<String, MapShape>;

/// Why the object could not be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    #[error("the eBPF object is broken: {0}")]
    Object(#[from] EbpfError),
    #[error("the eBPF object has no {kind} named {name}; it is not of this build")]
    Missing { kind: &'static str, name: String },
    #[error("program {name} is of a kind that node-lb does not use")]
    Kind { name: String },
    #[error(
        "map {name}, kept at {} by an earlier start, is {found}, but this one needs {expected}: go \
         back to the earlier settings, run `node-lb cleanup` (which ends connections through \
         node-lb), or give another --bpf-root",
        path.display()
    )]
    MapDiffers {
        name: String,
        path: PathBuf,
        found: MapShape,
        expected: MapShape,
    },
    #[error("cannot open the pinned map {}: {source}", path.display())]
    Pinned { path: PathBuf, source: MapError },
    #[error("cannot create map {name} ({expected}): {source}")]
    Create {
        name: String,
        expected: MapShape,
        source: io::Error,
    },
    #[error("the kernel refuses program {name}: {source}\n{log}")]
    Refused {
        name: String,
        source: io::Error,
        /// The end of the verifier's explanation.
        log: String,
    },
    #[error("program {name}: {source}")]
    Program { name: String, source: ProgramError },
    #[error(transparent)]
    Pins(#[from] PinError),
}

impl<'a> Settings<'a> {
    /// Sets a read-only global. Branches that its value excludes are not even verified.
    pub fn global<T: Pod>(mut self, name: &'a str, value: &'a T) -> Self {
        self.globals.insert(name, bytes_of(value));
        self
    }

    /// Sets the number of entries of a map.
    pub fn max_entries(mut self, map: &'a str, entries: u32) -> Self {
        self.max_entries.insert(map, entries);
        self
    }

    /// Pins a map under another name than its own.
    pub fn pinned_as(mut self, map: &'a str, pin: &'a str) -> Self {
        self.pins.insert(map, pin);
        self
    }

    /// Shares only these maps with other programs, by their pins. The others are new, and of these
    /// programs alone.
    pub(crate) fn sharing_only(mut self, maps: &'a [&'a str]) -> Self {
        self.shared = Some(maps);
        self
    }

    /// The name under which a map is pinned; `None` if it is not pinned.
    fn pin<'n>(&'n self, map: &'n str) -> Option<&'n str> {
        if self.shared.is_some_and(|shared| !shared.contains(&map)) {
            return None;
        }
        match self.pins.get(map) {
            Some(pin) => Some(pin),
            None if SCRATCH.contains(&map) => None,
            None => Some(map),
        }
    }
}

/// Creates the maps of `object`, adopting those that are pinned, and loads the named `programs`.
/// Nothing is attached or replaced. If it fails, the present programs go on.
///
/// `object` must be aligned to four bytes, as [`aya::include_bytes_aligned`] does.
///
/// # Errors
///
/// If a pinned map has another shape, the kernel refuses a map or a program, or the object lacks
/// something that `settings` or `programs` name.
pub fn load(
    object: &[u8],
    pins: &Pins,
    programs: &[&str],
    settings: &Settings<'_>,
) -> Result<Loaded, LoadError> {
    let shapes = shapes(object, settings)?;
    load_around(object, &pins.of_maps(), programs, settings, &shapes)
}

/// [`load()`] without the lock of the pins, with the [`shapes`] of these settings.
fn load_around(
    object: &[u8],
    pins: &MapPins,
    programs: &[&str],
    settings: &Settings<'_>,
    shapes: &Shapes,
) -> Result<Loaded, LoadError> {
    let pinned = pins.names()?;
    // Who shares only some of them is not asked for the others.
    for name in pinned.iter().filter(|_| settings.shared.is_none()) {
        let known = shapes.contains_key(name) || SCRATCH.contains(&name.as_str());
        if !known && !name.ends_with(NEXT) && !name.ends_with(BEFORE) {
            tracing::info!(map = name, "a pinned map is of another version");
        }
    }
    for (name, expected) in shapes {
        if let Some(pin) = settings.pin(name).filter(|pin| pinned.contains(*pin)) {
            check_pinned(pin, pins, *expected)?;
        }
    }

    let maps: BTreeMap<String, PathBuf> = shapes
        .keys()
        .filter_map(|name| Some((name.clone(), pins.path(settings.pin(name)?))))
        .collect();
    let mut loader = EbpfLoader::new();
    for (name, path) in &maps {
        loader.map_pin_path(name, path.as_path());
    }
    for (name, value) in &settings.globals {
        loader.override_global(name, *value, true);
    }
    // One page, unless programs are loaded that log: every program has it.
    loader.map_max_entries(LOG_RING, 1);
    for (name, entries) in &settings.max_entries {
        loader.map_max_entries(name, *entries);
    }
    let mut ebpf = loader
        .load(object)
        .map_err(|error| map_refusal(error, shapes))?;
    for name in programs {
        load_program(&mut ebpf, name)?;
    }
    // To parse the object took far more than what is kept of it.
    heap::give_back();
    Ok(Loaded { ebpf, maps })
}

impl Loaded {
    /// A loaded program, to attach.
    ///
    /// # Errors
    ///
    /// If it is not in the object or was not among those to load.
    pub fn program(&self, name: &str) -> Result<BorrowedFd<'_>, LoadError> {
        let program = self
            .ebpf
            .program(name)
            .ok_or_else(|| missing("program", name))?;
        match program.fd() {
            Ok(fd) => Ok(fd.as_fd()),
            Err(source) => Err(LoadError::Program {
                name: name.to_owned(),
                source,
            }),
        }
    }

    /// Loads a program that was not among those to load.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it.
    pub fn ensure(&mut self, name: &str) -> Result<(), LoadError> {
        let source = match self.program(name) {
            Err(LoadError::Program { source, .. }) => source,
            found => return found.map(drop),
        };
        match source {
            ProgramError::NotLoaded => load_program(&mut self.ebpf, name),
            source => Err(LoadError::Program {
                name: name.to_owned(),
                source,
            }),
        }
    }

    /// A loaded program, to test.
    ///
    /// # Errors
    ///
    /// If it is not in the object.
    pub fn tested(&self, name: &str) -> Result<&Program, LoadError> {
        self.ebpf
            .program(name)
            .ok_or_else(|| missing("program", name))
    }

    /// A loaded program, to attach in other ways than [`super::Attacher`] does.
    ///
    /// # Errors
    ///
    /// If it is not in the object.
    pub fn program_mut(&mut self, name: &str) -> Result<&mut Program, LoadError> {
        self.ebpf
            .program_mut(name)
            .ok_or_else(|| missing("program", name))
    }

    /// A map that is not pinned, and is of these programs alone.
    pub(crate) fn own_map(&self, name: &str) -> Result<&MapData, LoadError> {
        match self.ebpf.map(name) {
            Some(Map::Array(map)) => Ok(map),
            _ => Err(missing("map", name)),
        }
    }

    /// Hands over a map of counters that is of these programs alone.
    pub(crate) fn take_own_counters(
        &mut self,
        name: &str,
    ) -> Result<PerCpuArray<MapData, u64>, LoadError> {
        let map = self.ebpf.take_map(name);
        let counters = map.and_then(|map| PerCpuArray::try_from(map).ok());
        counters.ok_or_else(|| missing("map", name))
    }

    /// The maps that are pinned, and where.
    pub(crate) fn pins(&self) -> impl Iterator<Item = (&str, &Path)> {
        let pins = self.maps.iter();
        pins.map(|(name, path)| (name.as_str(), path.as_path()))
    }

    /// Pins a map once more, at `path`.
    pub(crate) fn pin_map(&self, name: &str, path: &Path) -> io::Result<()> {
        let Some(map) = self.ebpf.map(name) else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no such map"));
        };
        map.pin(path).map_err(|error| match error {
            aya::pin::PinError::SyscallError(error) => error.io_error,
            error => io::Error::other(error),
        })
    }

    pub(crate) fn ebpf_mut(&mut self) -> &mut Ebpf {
        &mut self.ebpf
    }

    /// A handle of its own to a map.
    ///
    /// # Errors
    ///
    /// If the object has no such map.
    pub fn map(&self, name: &str) -> Result<MapData, LoadError> {
        let path = self.maps.get(name).ok_or_else(|| missing("map", name))?;
        MapData::from_pin(path).map_err(|source| LoadError::Pinned {
            path: path.clone(),
            source,
        })
    }
}

/// The shapes of the object's maps that are pinned, as they will be created: all maps without
/// sections of global data and those of [`SCRATCH`] that the settings do not name.
fn shapes(object: &[u8], settings: &Settings<'_>) -> Result<Shapes, LoadError> {
    let object = aya_obj::Object::parse(&without_lines(object)).map_err(EbpfError::from)?;
    if let Some(name) = settings
        .max_entries
        .keys()
        .find(|name| !object.maps.contains_key(**name))
    {
        return Err(missing("map", name));
    }
    Ok(object
        .maps
        .iter()
        .filter(|(name, _)| !name.starts_with('.') && settings.pin(name).is_some())
        .map(|(name, map)| {
            let max_entries = settings
                .max_entries
                .get(name.as_str())
                .copied()
                .unwrap_or(map.max_entries());
            (name.clone(), MapShape::of(map, max_entries))
        })
        .collect())
}

/// A copy of an object that does not say which lines of source its instructions are from. To parse these takes most of the
/// time and hundreds of megabytes, because each function gets room for those of all others.
fn without_lines(object: &[u8]) -> Vec<u8> {
    const SECTION: &[u8] = b".BTF.ext\0";
    const IGNORED: &[u8] = b".BTF.not\0";
    // The allocator aligns it as an object has to be.
    let mut copy = object.to_vec();
    let names = object.windows(SECTION.len()).enumerate();
    for (at, _) in names.filter(|(_, name)| *name == SECTION) {
        copy[at..at + IGNORED.len()].copy_from_slice(IGNORED);
    }
    copy
}

/// Number of entries of a pinned map; `None` if it is not pinned.
///
/// # Errors
///
/// If it is pinned and cannot be opened.
pub fn pinned_entries(pins: &Pins, name: &str) -> Result<Option<u32>, LoadError> {
    if !pins.maps()?.contains(name) {
        return Ok(None);
    }
    let path = pins.map(name);
    match MapData::from_pin(&path).and_then(|map| map.info()) {
        Ok(info) => Ok(Some(info.max_entries())),
        Err(source) => Err(LoadError::Pinned { path, source }),
    }
}

fn check_pinned(name: &str, pins: &MapPins, expected: MapShape) -> Result<(), LoadError> {
    let path = pins.path(name);
    let info = match MapData::from_pin(&path).and_then(|map| map.info()) {
        Ok(info) => info,
        Err(source) => return Err(LoadError::Pinned { path, source }),
    };
    let found = MapShape::of_created(&info);
    if found == expected {
        return Ok(());
    }
    Err(LoadError::MapDiffers {
        name: name.to_owned(),
        path,
        found,
        expected,
    })
}

fn load_program(ebpf: &mut Ebpf, name: &str) -> Result<(), LoadError> {
    let program = ebpf
        .program_mut(name)
        .ok_or_else(|| missing("program", name))?;
    let result = match program {
        Program::Xdp(program) => program.load(),
        Program::SchedClassifier(program) => program.load(),
        Program::CgroupSockAddr(program) => program.load(),
        Program::CgroupSock(program) => program.load(),
        Program::Iter(program) => Btf::from_sys_fs()
            .map_err(ProgramError::from)
            .and_then(|kernel| program.load(socket_seats::SUBJECT, &kernel)),
        _ => {
            return Err(LoadError::Kind {
                name: name.to_owned(),
            });
        }
    };
    result.map_err(|error| match error {
        ProgramError::LoadError {
            io_error,
            verifier_log,
        } => LoadError::Refused {
            name: name.to_owned(),
            source: io_error,
            log: log_end(&verifier_log.to_string()),
        },
        source => LoadError::Program {
            name: name.to_owned(),
            source,
        },
    })
}

/// Says which map the kernel refused, and how large it should have been.
fn map_refusal(error: EbpfError, shapes: &Shapes) -> LoadError {
    match error {
        EbpfError::MapError(MapError::CreateError { name, io_error })
            if shapes.contains_key(&name) =>
        {
            LoadError::Create {
                expected: shapes[&name],
                name,
                source: io_error,
            }
        }
        error => LoadError::Object(error),
    }
}

fn missing(kind: &'static str, name: &str) -> LoadError {
    LoadError::Missing {
        kind,
        name: name.to_owned(),
    }
}

fn log_end(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    let skipped = lines.len().saturating_sub(LOG_LINES);
    let end = lines[skipped..].join("\n");
    match skipped {
        0 => end,
        _ => format!("[{skipped} lines left out]\n{end}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_without_lines_has_the_same_maps() {
        let without = without_lines(OBJECT);
        let [with, without] = [OBJECT, &without].map(|object| {
            let object = aya_obj::Object::parse(object).unwrap();
            let functions = object.functions.values();
            let lines: usize = functions
                .map(|function| function.line_info.line_info.len())
                .sum();
            let maps = object.maps.iter();
            let shapes =
                maps.map(|(name, map)| (name.clone(), MapShape::of(map, map.max_entries())));
            (lines, shapes.collect::<Shapes>())
        });
        assert!(with.0 > 0 && without.0 == 0);
        assert_eq!(with.1, without.1);
    }

    #[test]
    fn a_long_log_is_cut_to_its_end() {
        let log: String = (0..100).map(|line| format!("line {line}\n\n")).collect();
        let end = log_end(&log);
        assert!(end.starts_with("[75 lines left out]\nline 75\n"), "{end}");
        assert!(end.ends_with("line 99"), "{end}");
        assert_eq!(log_end("R0 invalid\n"), "R0 invalid");
    }
}
