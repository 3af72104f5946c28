//! Kubernetes objects for the agents of a lab, written as files the way an editor or a ConfigMap
//! mount writes them: whole, by an atomic rename.

pub mod admission;
mod endpoints;
mod service;

use std::fs;
use std::io;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

pub use self::endpoints::{Endpoint, EndpointSlices};
pub use self::service::Service;
use crate::lab::{Family, Node};

/// Directories of manifests that always get the same files.
#[derive(Clone, Debug)]
pub struct Manifests {
    dirs: Vec<PathBuf>,
}

impl Manifests {
    /// Writes to each of `dirs`, which exist.
    pub fn new(dirs: impl IntoIterator<Item = PathBuf>) -> Self {
        Self {
            dirs: dirs.into_iter().collect(),
        }
    }

    /// Begins a Service `default/NAME`.
    pub fn service(&self, name: &str) -> Service<'_> {
        Service::new(self, name)
    }

    /// Begins the EndpointSlices of the Service `default/SERVICE`, one slice per family.
    pub fn endpoints(&self, service: &str) -> EndpointSlices<'_> {
        EndpointSlices::new(self, service)
    }

    /// Writes an object to a file named after its kind and name.
    pub fn apply(&self, object: &Value) -> Result<()> {
        let kind = object["kind"].as_str().context("an object without kind")?;
        let name = object["metadata"]["name"]
            .as_str()
            .context("an object without name")?;
        self.write(&file_name(kind, name), object.to_string().as_bytes())
    }

    /// Writes many objects to one file, as a `List`: one event for a watcher.
    pub fn apply_list(&self, file: &str, objects: &[Value]) -> Result<()> {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        self.write(file, list.to_string().as_bytes())
    }

    /// Removes the file of an object that [`Manifests::apply`] wrote; missing is fine.
    pub fn delete(&self, kind: &str, name: &str) -> Result<()> {
        for dir in &self.dirs {
            let path = dir.join(file_name(kind, name));
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(e).with_context(|| format!("cannot remove {}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes any bytes as a file, for manifests that are broken on purpose.
    pub fn write(&self, file: &str, contents: &[u8]) -> Result<()> {
        for dir in &self.dirs {
            let fresh = dir.join(format!(".{file}.new"));
            let path = dir.join(file);
            fs::write(&fresh, contents)
                .and_then(|()| fs::rename(&fresh, &path))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// The Node object of a lab's node.
pub fn node_object(node: &Node) -> Value {
    let pods = node.pod_networks;
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name(),
            "labels": {
                "kubernetes.io/hostname": node.name(),
                "topology.kubernetes.io/zone": format!("zone-{}", node.index),
            },
        },
        "spec": { "podCIDR": pods.v4, "podCIDRs": [pods.v4.to_string(), pods.v6.to_string()] },
        "status": {
            "addresses": [
                { "type": "InternalIP", "address": node.ip(Family::V4) },
                { "type": "InternalIP", "address": node.ip(Family::V6) },
                { "type": "Hostname", "address": node.name() },
            ],
        },
    })
}

fn file_name(kind: &str, name: &str) -> String {
    format!("{}-{name}.json", kind.to_lowercase())
}
