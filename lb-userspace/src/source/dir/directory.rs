//! Finds out which files of a directory have changed, and reads them.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    ffi::OsStr,
    fs::{self, Metadata},
    io::{self, Read},
    mem,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use lb_objects::{Object, Problem, Refused, text::Broken};

use super::{
    super::Event,
    ledger::{Ledger, Update},
    manifest::Documents,
};

/// The largest file that is read, in bytes.
const MAX_FILE: u64 = 64 << 20;

/// How long a file must be missing, or newly empty, before its objects are removed: some editors
/// save by moving the old file away first.
const GRACE: Duration = Duration::from_millis(300);

/// A file that changed so recently may change again without a visible difference, because file
/// times have steps of some milliseconds.
const UNSETTLED: Duration = Duration::from_millis(100);

/// A directory of manifests and what was last read from it.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    files: HashMap<PathBuf, Known>,
    /// Files that have disappeared, and since when. They may come back soon.
    missing: HashMap<PathBuf, Instant>,
    ledger: Ledger,
    /// How many times the directory was scanned.
    scans: u64,
    /// Why the directory cannot be listed at the moment.
    problem: Option<Problem>,
    link_targets: BTreeSet<PathBuf>,
}

/// What a scan is to look at.
#[derive(Debug, Default)]
pub struct Look {
    /// The files to look at; `None` for all.
    pub named: Option<HashSet<PathBuf>>,
    /// Files that are still being written. They are read when that is done.
    pub writing: HashSet<PathBuf>,
}

/// The result of one scan of the directory.
#[derive(Debug, Default)]
pub struct Scan {
    pub events: Vec<Event>,
    /// When to scan again, because something is not decided yet.
    pub again: Option<Duration>,
}

#[derive(Debug)]
struct Known {
    stamp: Stamp,
    /// Whether an equal stamp will mean equal contents.
    settled: bool,
    /// The last scan that found it.
    scan: u64,
    documents: Documents,
}

/// A value that changes when a file's contents change.
#[derive(Debug, PartialEq, Eq)]
enum Stamp {
    File {
        device_and_inode: (u64, u64),
        size: u64,
        modified: (i64, i64),
        changed: (i64, i64),
    },
    Unreadable(String),
}

impl Directory {
    /// Checks that the directory can be read, without reading it.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let path = std::path::absolute(path)
            .with_context(|| format!("manifest directory {}", path.display()))?;
        fs::read_dir(&path)
            .with_context(|| format!("cannot read manifest directory {}", path.display()))?;
        Ok(Self {
            path,
            files: HashMap::new(),
            missing: HashMap::new(),
            ledger: Ledger::default(),
            scans: 0,
            problem: None,
            link_targets: BTreeSet::new(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Directories outside this one that contain targets of its links.
    pub fn link_targets(&self) -> &BTreeSet<PathBuf> {
        &self.link_targets
    }

    /// All objects in force.
    pub fn objects(&self) -> Vec<Object> {
        self.ledger.objects()
    }

    /// All present problems.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems: Vec<_> = self.problem.iter().cloned().collect();
        problems.extend(self.ledger.problems());
        problems
    }

    /// The first scan, which must succeed.
    pub fn read_all(&mut self) -> anyhow::Result<Vec<Event>> {
        let scan = self
            .try_scan(&Look::default())
            .with_context(|| format!("cannot read manifest directory {}", self.path.display()))?;
        Ok(scan.events)
    }

    /// Reads what has changed. If the directory cannot be listed, everything stays.
    pub fn scan(&mut self, look: &Look) -> Scan {
        let (mut scan, problem) = match self.try_scan(look) {
            Ok(scan) => (scan, None),
            Err(error) => {
                self.missing.clear();
                let problem = Problem {
                    refused: Refused::Directory,
                    object: None,
                    file: Some(self.path.clone()),
                    line: None,
                    message: format!("cannot be listed: {error}"),
                };
                (Scan::default(), Some(problem))
            }
        };
        if problem != self.problem {
            match &problem {
                Some(problem) => tracing::warn!("{problem}"),
                None => tracing::info!("{} can be listed again", self.path.display()),
            }
            self.problem.clone_from(&problem);
            scan.events.push(Event::Problems {
                origin: self.path.display().to_string(),
                problems: problem.into_iter().collect(),
            });
        }
        scan
    }

    fn try_scan(&mut self, look: &Look) -> io::Result<Scan> {
        let paths = match &look.named {
            None => self.list()?,
            Some(named) => {
                // If the directory is gone, its files do not count as gone.
                fs::read_dir(&self.path)?;
                named.iter().chain(self.missing.keys()).cloned().collect()
            }
        };
        self.scans += 1;
        let mut updates = Vec::new();
        for path in &paths {
            if look.writing.contains(path) {
                self.see(path);
            } else if let Some(stamp) = stamp(path)
                && !(stamp.is_empty() && self.ledger.has_content(path))
            {
                updates.extend(self.look(path, stamp));
            }
        }

        let is_unseen = |known: &Known| known.scan != self.scans;
        let unseen: Vec<_> = match &look.named {
            None => {
                let unseen = self.files.iter().filter(|(_, known)| is_unseen(known));
                unseen.map(|(path, _)| path.clone()).collect()
            }
            Some(_) => {
                let unseen = |path: &PathBuf| self.files.get(path).is_some_and(is_unseen);
                paths.into_iter().filter(unseen).collect()
            }
        };
        let now = Instant::now();
        for path in unseen {
            let since = *self.missing.entry(path.clone()).or_insert(now);
            if now - since >= GRACE {
                self.missing.remove(&path);
                self.files.remove(&path);
                updates.push((path, Update::Gone));
            }
        }
        let oldest = self.missing.values().min();
        Ok(Scan {
            events: self.ledger.update(updates),
            again: oldest.map(|since| GRACE.saturating_sub(now - *since)),
        })
    }

    /// Reads a file, unless it has been read in this state.
    fn look(&mut self, path: &Path, stamp: Stamp) -> Option<(PathBuf, Update)> {
        let mut documents = Documents::default();
        if let Some(known) = self.see(path) {
            if known.settled && known.stamp == stamp {
                return None;
            }
            documents = mem::take(&mut known.documents);
        }
        let mut known = Known {
            settled: stamp.is_settled(SystemTime::now()),
            stamp,
            scan: self.scans,
            documents,
        };
        let update = known.read(path);
        self.files.insert(path.to_owned(), known);
        Some((path.to_owned(), update))
    }

    /// Notes that a file exists.
    fn see(&mut self, path: &Path) -> Option<&mut Known> {
        self.missing.remove(path);
        let known = self.files.get_mut(path)?;
        known.scan = self.scans;
        Some(known)
    }

    /// The paths of the directory's manifests.
    fn list(&mut self) -> io::Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        let mut link_targets = BTreeSet::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let path = entry.path();
            if !is_manifest(&path) {
                continue;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_symlink())
                && let Ok(target) = path.canonicalize()
            {
                link_targets.extend(target.parent().map(Path::to_owned));
            }
            paths.push(path);
        }
        self.link_targets = link_targets;
        Ok(paths)
    }
}

/// Whether a file's name is that of a manifest: not hidden, and not an editor's leftover.
pub fn is_manifest(path: &Path) -> bool {
    let is_hidden = path
        .file_name()
        .is_none_or(|name| matches!(name.as_encoded_bytes().first(), Some(b'.' | b'#')));
    let extension = path.extension().and_then(OsStr::to_str);
    !is_hidden && matches!(extension, Some("yaml" | "yml" | "json"))
}

impl Known {
    fn read(&mut self, path: &Path) -> Update {
        let broken = |message: String| {
            Update::Broken(Broken {
                line: None,
                message,
            })
        };
        let size = match &self.stamp {
            Stamp::File { size, .. } => *size,
            Stamp::Unreadable(error) => return broken(format!("cannot be read: {error}")),
        };
        let mut text = Vec::new();
        if size <= MAX_FILE {
            // The file may have grown since its stamp was taken.
            let file = fs::File::open(path);
            let result = file.and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut text));
            if let Err(error) = result {
                return broken(format!("cannot be read: {error}"));
            }
        }
        if size.max(text.len() as u64) > MAX_FILE {
            return broken("is larger than 64 MiB".to_owned());
        }
        match self.documents.parse(path, &text) {
            Ok(manifest) => Update::Parsed(manifest),
            Err(broken) => Update::Broken(broken),
        }
    }
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self::File {
            device_and_inode: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::File { size: 0, .. })
    }

    fn is_settled(&self, now: SystemTime) -> bool {
        let Self::File { changed, .. } = self else {
            return true;
        };
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = u64::try_from(changed.0).unwrap_or_default();
        let nanoseconds = u32::try_from(changed.1).unwrap_or_default();
        since_epoch > Duration::new(seconds, nanoseconds) + UNSETTLED
    }
}

/// `None` if the file does not exist (any more), or is not a file.
fn stamp(path: &Path) -> Option<Stamp> {
    match fs::metadata(path) {
        Ok(metadata) => metadata.is_file().then(|| Stamp::of(&metadata)),
        // It has disappeared since it was listed. A link without a target still exists.
        Err(_) if path.symlink_metadata().is_err() => None,
        Err(error) => Some(Stamp::Unreadable(error.to_string())),
    }
}
