//! A directory to write into, and a store that follows it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use lb_objects::{Kind, ObjectName};
use node_lb::{
    source::{Batch, Event, Source, dir::DirSource},
    store::Store,
};
use tempfile::TempDir;
use tokio::{sync::mpsc, task::JoinHandle, time};

/// Far longer than a change takes, for machines that are busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Dir(TempDir);

impl Dir {
    pub fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    pub fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path().join(from), self.path().join(to)).unwrap();
    }

    pub fn mkdir(&self, name: &str) {
        fs::create_dir(self.path().join(name)).unwrap();
    }
}

pub struct Watched {
    store: Store,
    events: mpsc::Receiver<Batch>,
    source: JoinHandle<anyhow::Result<()>>,
    /// All events since the start.
    pub later: Vec<Event>,
}

impl Watched {
    /// Follows a directory; returns once the store has everything.
    pub async fn start(path: &Path) -> Self {
        let (sender, mut events) = mpsc::channel(4);
        let source = Box::new(DirSource::open(PathBuf::from(path)).unwrap());
        let source = tokio::spawn(source.run(sender));
        let mut store = Store::new("node-1");
        while !store.is_synced() {
            store.apply(events.recv().await.expect("a running source").events);
        }
        Self {
            store,
            events,
            source,
            later: Vec::new(),
        }
    }

    /// Takes events until the store is as it should be.
    pub async fn until(&mut self, is_done: impl Fn(&Self) -> bool) {
        let deadline = time::Instant::now() + PATIENCE;
        while !is_done(self) {
            let batch = time::timeout_at(deadline, self.events.recv()).await;
            let batch = batch.expect("the change in time");
            let events = batch.expect("a running source").events;
            self.later.extend(events.iter().cloned());
            self.store.apply(events);
        }
    }

    pub async fn end(self) {
        drop(self.events);
        let ended = time::timeout(PATIENCE, self.source).await.expect("an end");
        ended.unwrap().unwrap();
    }

    pub fn has(&self, service: &str) -> bool {
        self.store.service(&name(service)).is_some()
    }

    pub fn cluster_ip(&self, service: &str) -> Option<String> {
        let service = self.store.service(&name(service))?;
        Some(service.cluster_ips[0].to_string())
    }

    pub fn problems(&self) -> Vec<String> {
        self.store.problems().map(ToString::to_string).collect()
    }

    pub fn never_deleted(&self, service: &str) -> bool {
        let is_deletion = |event: &Event| match event {
            Event::Delete(gone) => gone.kind == Kind::Service && gone.name == name(service),
            _ => false,
        };
        !self.later.iter().any(is_deletion)
    }
}

pub fn service(name: &str, cluster_ip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  clusterIP: {cluster_ip}\n"
    )
}

/// A slice without endpoints yet: `endpoints:` is the last line.
pub fn slice(service: &str, number: u32) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {service}-{number}\n  \
         labels:\n    kubernetes.io/service-name: {service}\naddressType: IPv4\nports:\n\
         - {{name: \"\", port: 80}}\nendpoints:\n"
    )
}

fn name(name: &str) -> ObjectName {
    ObjectName::new("default", name)
}
