//! Follows a directory: inotify says when to look, and a periodic scan finds what inotify cannot
//! see.

use std::{
    collections::{BTreeSet, HashSet},
    fs::Metadata,
    mem,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context;
use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode, ModifyKind},
};
use tokio::{
    sync::{Notify, mpsc},
    task,
    time::{self, Instant},
};

use super::{
    super::{Batch, Event, Source, SourceFuture},
    directory::{Directory, Look, is_manifest},
};

/// Changes within this time of each other are read together.
const QUIET: Duration = Duration::from_millis(50);
/// If changes never pause, the directory is read this often.
const MAX_DELAY: Duration = Duration::from_millis(250);
/// How often to check that the watched directory is still the one at the path.
const MOVED_CHECK: Duration = Duration::from_millis(500);
/// How often to scan without any notification.
const RESCAN: Duration = Duration::from_secs(10);
/// The same if inotify does not work.
const RESCAN_UNWATCHED: Duration = Duration::from_secs(1);

/// A directory of manifests that is followed; see [the module](super).
#[derive(Debug)]
pub struct DirSource {
    directory: Directory,
}

impl DirSource {
    /// Checks that the directory exists. It is read when the source runs.
    ///
    /// # Errors
    /// If `path` is not a directory that can be listed.
    pub fn open(path: impl AsRef<Path>) -> anyhow::Result<Self> {
        Directory::open(path.as_ref()).map(|directory| Self { directory })
    }
}

impl Source for DirSource {
    fn run(self: Box<Self>, events: mpsc::Sender<Batch>) -> SourceFuture {
        Box::pin(follow(self.directory, events))
    }
}

async fn follow(directory: Directory, events: mpsc::Sender<Batch>) -> anyhow::Result<()> {
    let activity = Arc::new(Activity::new(directory.path()));
    // Watching starts before reading, so that no change between the two is missed.
    let mut watches = Watches::new(&activity, directory.path());
    watches.update(&directory).await;
    let (mut directory, batch) = blocking(directory, Directory::read_all).await?;
    let mut batch = batch?;
    batch.push(Event::Synced);
    if events.send(received_now(batch)).await.is_err() {
        return Ok(());
    }

    let mut last_full = Instant::now();
    let mut again = None;
    loop {
        activity.follow_links(!directory.link_targets().is_empty());
        if watches.update(&directory).await {
            activity.look_everywhere();
        }
        let full_due = last_full + watches.rescan_interval();
        let due = again.map_or(full_due, |again: Instant| again.min(full_due));
        tokio::select! {
            () = events.closed() => return Ok(()),
            () = activity.changed.notified() => activity.quiet().await,
            () = time::sleep_until(due.min(Instant::now() + MOVED_CHECK)) => {
                if watches.moved().await {
                    activity.look_everywhere();
                } else if Instant::now() < due {
                    continue;
                }
            }
        }

        let mut look = activity.take();
        if Instant::now() >= full_due {
            last_full = Instant::now();
            look = Look::default();
        }
        let scan;
        (directory, scan) = blocking(directory, move |directory| directory.scan(&look)).await?;
        again = scan.again.map(|after| Instant::now() + after);
        if !scan.events.is_empty() && events.send(received_now(scan.events)).await.is_err() {
            return Ok(());
        }
    }
}

/// File events count as received once the files are read.
fn received_now(events: Vec<Event>) -> Batch {
    Batch {
        events,
        received: std::time::Instant::now(),
    }
}

/// Reads files without blocking other tasks.
async fn blocking<T: Send + 'static>(
    mut directory: Directory,
    work: impl FnOnce(&mut Directory) -> T + Send + 'static,
) -> anyhow::Result<(Directory, T)> {
    let work = task::spawn_blocking(move || {
        let result = work(&mut directory);
        (directory, result)
    });
    work.await
        .context("reading the manifest directory was cut off")
}

/// What inotify has reported since the last scan.
#[derive(Debug)]
struct Activity {
    path: PathBuf,
    changed: Notify,
    pending: Mutex<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    /// Manifests that may have changed.
    named: HashSet<PathBuf>,
    /// Whether any file may have changed.
    everywhere: bool,
    /// Files that were written to and are not closed yet: their contents may be incomplete.
    writing: HashSet<PathBuf>,
    /// Whether there are manifests that are links: then any file beside them may be part of one.
    has_links: bool,
}

impl Activity {
    fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            changed: Notify::new(),
            pending: Mutex::default(),
        }
    }

    fn note(&self, event: notify::Result<notify::Event>) {
        let Ok(event) = event else {
            return self.look_everywhere();
        };
        let mut pending = self.pending();
        if event.need_rescan() {
            pending.writing.clear();
            pending.everywhere = true;
        }
        match event.kind {
            EventKind::Modify(ModifyKind::Data(_)) => {
                let manifests = event.paths.into_iter().filter(|path| is_manifest(path));
                return pending.writing.extend(manifests);
            }
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => {}
            // Caused by our own reading.
            EventKind::Access(_) => return,
            _ => {}
        }
        let is_metadata = matches!(event.kind, EventKind::Modify(ModifyKind::Metadata(_)));
        for path in event.paths {
            if !is_metadata {
                pending.writing.remove(&path);
            }
            if path.parent() != Some(&self.path) {
                pending.everywhere = true;
            } else if is_manifest(&path) {
                pending.named.insert(path);
            } else {
                pending.everywhere |= pending.has_links;
            }
        }
        if pending.everywhere || !pending.named.is_empty() {
            self.changed.notify_one();
        }
    }

    fn look_everywhere(&self) {
        self.pending().everywhere = true;
        self.changed.notify_one();
    }

    fn follow_links(&self, has_links: bool) {
        self.pending().has_links = has_links;
    }

    /// What to look at now.
    fn take(&self) -> Look {
        let mut pending = self.pending();
        let named = mem::take(&mut pending.named);
        let everywhere = mem::take(&mut pending.everywhere);
        Look {
            named: (!everywhere).then_some(named),
            writing: pending.writing.clone(),
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until changes pause.
    async fn quiet(&self) {
        let latest = Instant::now() + MAX_DELAY;
        loop {
            let deadline = latest.min(Instant::now() + QUIET);
            let more = time::timeout_at(deadline, self.changed.notified()).await;
            if more.is_err() || Instant::now() >= latest {
                return;
            }
        }
    }
}

/// The inotify watches: on the directory, and on the targets of its links.
#[derive(Debug)]
struct Watches {
    path: PathBuf,
    /// `None` if inotify does not work.
    watcher: Option<RecommendedWatcher>,
    /// Device and inode of the watched directory.
    watched: Option<(u64, u64)>,
    link_targets: BTreeSet<PathBuf>,
}

impl Watches {
    fn new(activity: &Arc<Activity>, path: &Path) -> Self {
        let activity = activity.clone();
        let watcher = notify::recommended_watcher(move |event| activity.note(event));
        if let Err(error) = &watcher {
            warn_unwatched(path, error);
        }
        Self {
            path: path.to_owned(),
            watcher: watcher.ok(),
            watched: None,
            link_targets: BTreeSet::new(),
        }
    }

    fn rescan_interval(&self) -> Duration {
        match self.watched {
            Some(_) => RESCAN,
            None => RESCAN_UNWATCHED,
        }
    }

    /// Whether the path now leads to another directory than the watched one, or to none.
    async fn moved(&self) -> bool {
        self.watcher.is_some() && self.identity().await != self.watched
    }

    /// Watches the directory and the targets of its links where they are now. Returns whether
    /// something new is watched: that may have changed in between.
    async fn update(&mut self, directory: &Directory) -> bool {
        let identity = self.identity().await;
        let Some(watcher) = &mut self.watcher else {
            return false;
        };
        let mut added = false;
        if identity != self.watched {
            let _ = watcher.unwatch(&self.path);
            self.watched = None;
            if identity.is_some() {
                match watcher.watch(&self.path, RecursiveMode::NonRecursive) {
                    Ok(()) => {
                        self.watched = identity;
                        added = true;
                    }
                    Err(error) => {
                        warn_unwatched(&self.path, &error);
                        self.watcher = None;
                        return false;
                    }
                }
            }
        }
        if self.link_targets == *directory.link_targets() {
            return added;
        }
        for gone in self.link_targets.difference(directory.link_targets()) {
            let _ = watcher.unwatch(gone);
        }
        for new in directory.link_targets().difference(&self.link_targets) {
            // If one cannot be watched, the periodic scan finds its changes.
            added |= watcher.watch(new, RecursiveMode::NonRecursive).is_ok();
        }
        self.link_targets.clone_from(directory.link_targets());
        added
    }

    async fn identity(&self) -> Option<(u64, u64)> {
        let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
        tokio::fs::metadata(&self.path).await.ok().map(identity)
    }
}

fn warn_unwatched(path: &Path, error: &notify::Error) {
    tracing::warn!(
        "cannot watch {}, reading it every {} s instead: {error}",
        path.display(),
        RESCAN_UNWATCHED.as_secs(),
    );
}
