//! Plays every node's kubelet and the scheduler, as far as Services depend on them: pods get a
//! node, a network namespace with a server, an address and conditions, and end like real pods.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};
use node_lb::agent::status::timestamp;
use serde_json::{Value, json};

use super::client::{Client, is_not_found};
use crate::{
    deployment::{DATAGRAMS, HTTP, LINES},
    lab::{self, Family, Lab},
    manifests,
    traffic::{Grace, RunningServer, Serve},
};

/// Plays kubelet on all nodes of a lab, by repeated calls of [`Kubelets::step`].
pub struct Kubelets {
    client: Client,
    running: BTreeMap<String, Running>,
    /// How many pods there have been so far.
    started: u32,
    /// How long a pod runs until it reports that it is ready: at least as long as a kubelet needs
    /// to notice.
    start_up: Duration,
    /// How long a pod goes on serving when it is told to end, as with a `preStop` sleep.
    grace: Duration,
    /// How long it still accepts new connections after its endpoint has stopped serving.
    lag: Duration,
}

/// A pod with a running server.
struct Running {
    pod: lab::Pod,
    server: RunningServer,
    stage: Stage,
}

/// Where a pod is in its life cycle.
enum Stage {
    /// Its network and its server have existed since then; this has not been reported yet.
    Starting(Instant),
    Ready,
    /// Terminating since then, and serving as before.
    Serving(Instant),
    /// Not ready since then.
    Unready(Instant),
}

impl Kubelets {
    /// Starts with nodes without pods.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            running: BTreeMap::new(),
            started: 0,
            start_up: Duration::from_secs(1),
            grace: Duration::from_secs(3),
            lag: Duration::from_secs(2),
        }
    }

    /// The lab's side of a pod that runs.
    pub fn pod(&self, name: &str) -> Option<&lab::Pod> {
        self.running.get(name).map(|running| &running.pod)
    }

    /// Sets how long pods go on serving when they are told to end.
    pub fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
    }

    /// Writes the Node object of each node of `lab`, as ready.
    ///
    /// # Errors
    /// If the API server refuses.
    pub fn register_nodes(&self, lab: &Lab) -> Result<()> {
        lab.nodes().iter().try_for_each(|node| self.register(node))
    }

    /// Writes the Node object of a node, as ready.
    ///
    /// # Errors
    /// If the API server refuses.
    pub fn register(&self, node: &lab::Node) -> Result<()> {
        let object = manifests::node_object(node);
        let mut status = object["status"].clone();
        status["conditions"] = json!([condition("Ready", true)]);
        // Topology hints weigh nodes by this.
        let capacity = json!({ "cpu": "2", "memory": "4Gi", "pods": "200" });
        status["allocatable"] = capacity.clone();
        status["capacity"] = capacity;
        self.client.cluster_wide::<Node>().create(object)?;
        let nodes = self.client.nodes();
        nodes.patch_status(node.name(), status).map(drop)
    }

    /// Does what is due now, for every pod.
    ///
    /// # Errors
    /// If the API server refuses, or the lab has no room.
    pub fn step(&mut self, lab: &Lab) -> Result<()> {
        let pods = self.client.of::<Pod>().list("")?;
        let mut present = Vec::new();
        for pod in pods {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let result = self.step_pod(lab, &name, &pod);
            match result {
                // It has been deleted meanwhile.
                Err(error) if is_not_found(&error) => {}
                result => result.with_context(|| format!("pod {name}"))?,
            }
            present.push(name);
        }
        // Pods that were deleted without waiting for this.
        self.running.retain(|name, _| present.contains(name));
        Ok(())
    }

    fn step_pod(&mut self, lab: &Lab, name: &str, pod: &Pod) -> Result<()> {
        let spec = pod.spec.as_ref().context("a pod without spec")?;
        let node = spec.node_name.as_deref();
        let is_ending = pod.metadata.deletion_timestamp.is_some();
        match (node, self.running.contains_key(name), is_ending) {
            (None, _, false) => self.schedule(name, spec),
            (Some(node), false, false) => self.start(lab, name, node),
            (_, true, true) => self.end(lab, name),
            (_, false, true) => self.client.of::<Pod>().delete_at_once(name),
            (_, true, false) => self.settle(name),
        }
    }

    /// Puts a pod on the node that it names, or on the one with the fewest pods that stay.
    fn schedule(&self, name: &str, spec: &PodSpec) -> Result<()> {
        let wanted = spec.node_selector.as_ref();
        if let Some(node) = wanted.and_then(|labels| labels.get("kubernetes.io/hostname")) {
            return self.client.bind(name, node);
        }
        let pods = self.client.of::<Pod>().list("")?;
        let load = |node: &str| {
            let stays = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none();
            let on_node = |pod: &&Pod| {
                let spec = pod.spec.as_ref();
                spec.and_then(|spec| spec.node_name.as_deref()) == Some(node)
            };
            pods.iter().filter(stays).filter(on_node).count()
        };
        let nodes = self.client.nodes().list("")?;
        let open = nodes.into_iter().filter(|node| {
            let spec = node.spec.as_ref();
            spec.and_then(|spec| spec.unschedulable) != Some(true)
        });
        let names = open.filter_map(|node| node.metadata.name);
        // As with the real scheduler, a pod waits if there is no node for it.
        match names.min_by_key(|node| load(node)) {
            Some(node) => self.client.bind(name, &node),
            None => Ok(()),
        }
    }

    fn start(&mut self, lab: &Lab, name: &str, node: &str) -> Result<()> {
        let mut nodes = lab.nodes().iter();
        let node = nodes
            .find(|candidate| candidate.name() == node)
            .with_context(|| format!("the lab has no {node}"))?;
        self.started += 1;
        // Names in the lab are short.
        let pod = lab.add_pod(node, &format!("p{}", self.started))?;
        let server = Serve::new(name).http(HTTP.1).tcp(LINES.1).udp(DATAGRAMS.1);
        let server = server.start(&pod)?;
        let ips = Family::BOTH.map(|family| json!({ "ip": pod.ip(family) }));
        let host_ips = Family::BOTH.map(|family| json!({ "ip": node.ip(family) }));
        let status = json!({
            "phase": "Running",
            "startTime": now(),
            "hostIP": node.ip(Family::V4),
            "hostIPs": host_ips,
            "podIP": pod.ip(Family::V4),
            "podIPs": ips,
            "conditions": conditions(false),
        });
        let running = Running {
            pod,
            server,
            stage: Stage::Starting(Instant::now()),
        };
        self.running.insert(name.to_owned(), running);
        let pods = self.client.of::<Pod>();
        pods.patch_status(name, status).map(drop)
    }

    /// Reports that a pod is ready, once it is.
    fn settle(&mut self, name: &str) -> Result<()> {
        let running = self.running.get_mut(name).context("a pod of nobody's")?;
        match running.stage {
            Stage::Starting(since) if since.elapsed() >= self.start_up => {
                running.stage = Stage::Ready;
                let status = json!({ "conditions": conditions(true) });
                self.client.of::<Pod>().patch_status(name, status).map(drop)
            }
            _ => Ok(()),
        }
    }

    fn end(&mut self, lab: &Lab, name: &str) -> Result<()> {
        let running = self.running.get_mut(name).context("a pod of nobody's")?;
        match running.stage {
            Stage::Starting(_) | Stage::Ready => running.stage = Stage::Serving(Instant::now()),
            Stage::Serving(since) if since.elapsed() >= self.grace => {
                running.stage = Stage::Unready(Instant::now());
                let status = json!({ "conditions": conditions(false) });
                self.client.of::<Pod>().patch_status(name, status)?;
            }
            Stage::Unready(since) if since.elapsed() >= self.lag => {
                if let Some(ended) = self.running.remove(name) {
                    ended.server.shut_down(Grace::SHORT)?;
                    lab.remove_pod(&ended.pod)?;
                }
                self.client.of::<Pod>().delete_at_once(name)?;
            }
            Stage::Serving(_) | Stage::Unready(_) => {}
        }
        Ok(())
    }
}

fn conditions(ready: bool) -> Value {
    json!([
        condition("PodScheduled", true),
        condition("Initialized", true),
        condition("ContainersReady", ready),
        condition("Ready", ready),
    ])
}

fn condition(kind: &str, holds: bool) -> Value {
    let status = if holds { "True" } else { "False" };
    json!({ "type": kind, "status": status, "lastTransitionTime": now() })
}

fn now() -> String {
    timestamp(SystemTime::now())
}
