//! The files with admission's objects: which there are, and when they change.

use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;

use super::objects::{Objects, Text};
use crate::source::dir::is_manifest;

/// The largest file that is read, in bytes.
const MAX_FILE: u64 = 16 << 20;

/// A file that changed so recently may change again without a visible difference, because file
/// times have steps of some milliseconds.
const UNSETTLED: Duration = Duration::from_millis(100);

/// The contents of the file, or of each of a directory's manifests, sorted by name.
///
/// # Errors
/// If a directory cannot be listed.
pub fn texts(path: &Path) -> anyhow::Result<Vec<Text>> {
    let files = files_of(path).with_context(|| format!("cannot list {}", path.display()))?;
    Ok(files.iter().map(|file| text(file)).collect())
}

/// The file itself, or a directory's manifests sorted by name.
fn files_of(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        if is_manifest(&file) {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// A file or directory of objects that is followed.
#[derive(Clone, Debug)]
pub struct Followed {
    path: PathBuf,
    objects: Objects,
    /// What the files looked like when they were read.
    stamps: Vec<Stamp>,
    /// Why the directory cannot be listed, if so.
    problem: Option<String>,
}

/// A value that changes when a file's contents change.
type Stamp = (PathBuf, Option<Looks>);
type Looks = (u64, u64, u64, (i64, i64), (i64, i64));

impl Followed {
    /// Nothing is read yet.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            objects: Objects::default(),
            stamps: Vec::new(),
            problem: None,
        }
    }

    /// Reads the files if they have changed. Whether they have. If they cannot be listed, everything
    /// stays as it was.
    pub fn look(&mut self) -> bool {
        let files = match files_of(&self.path) {
            Ok(files) => files,
            Err(error) => {
                let problem = format!("{}: cannot be listed: {error}", self.path.display());
                return self.problem.replace(problem.clone()) != Some(problem);
            }
        };
        let stamps: Vec<_> = files.into_iter().map(stamp).collect();
        let was_away = self.problem.take().is_some();
        if stamps == self.stamps && !was_away {
            return false;
        }
        self.objects.read(stamps.iter().map(|(path, _)| text(path)));
        let settled = stamps.iter().all(|(_, looks)| looks.is_none_or(is_settled));
        // They are read again otherwise.
        self.stamps = if settled { stamps } else { Vec::new() };
        true
    }

    /// What the files hold.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// What is wrong with them.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let errors = self.objects.errors.iter().map(ToString::to_string);
        self.problem.clone().into_iter().chain(errors)
    }
}

/// A file's contents, or why they cannot be read.
fn text(path: &Path) -> Text {
    let read = || match fs::metadata(path) {
        Ok(metadata) if metadata.len() > MAX_FILE => Err("it is larger than 16 MiB".to_owned()),
        Ok(_) => fs::read(path).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    (path.to_owned(), read())
}

/// Whether the file will look otherwise after the next change.
fn is_settled((.., changed): Looks) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let at = |(seconds, nanoseconds): (i64, i64)| {
        let seconds = Duration::from_secs(seconds.max(0) as u64);
        seconds + Duration::from_nanos(nanoseconds.max(0) as u64)
    };
    now.unwrap_or_default() > at(changed) + UNSETTLED
}

fn stamp(path: PathBuf) -> Stamp {
    let looks = |m: Metadata| {
        let (modified, changed) = ((m.mtime(), m.mtime_nsec()), (m.ctime(), m.ctime_nsec()));
        (m.dev(), m.ino(), m.len(), modified, changed)
    };
    let metadata = fs::metadata(&path).ok();
    (path, metadata.map(looks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_when_they_change() {
        let directory = tempfile::tempdir().unwrap();
        let mut followed = Followed::new(directory.path().to_owned());
        assert!(!followed.look(), "there is none");
        let file = directory.path().join("a.yaml");
        fs::write(&file, "kind: Other").unwrap();
        assert!(followed.look());
        assert_eq!(followed.objects().others.len(), 1);
        std::thread::sleep(UNSETTLED * 2);
        assert!(followed.look(), "it may have changed meanwhile");
        assert!(!followed.look());
        fs::write(directory.path().join(".hidden.yaml"), "{").unwrap();
        assert!(!followed.look());
        fs::write(&file, "kind: [").unwrap();
        assert!(followed.look());
        assert_eq!(followed.problems().count(), 1);

        // Without the directory everything stays.
        let elsewhere = directory.path().with_extension("moved");
        fs::rename(directory.path(), &elsewhere).unwrap();
        assert!(followed.look(), "the file is missing");
        fs::rename(&elsewhere, directory.path()).unwrap();
        assert!(followed.look());
    }
}
