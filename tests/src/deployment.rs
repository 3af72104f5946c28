//! A minimal Deployment: pods with servers behind a Service, replaced in the steps of the
//! Deployment controller, the kubelet and the EndpointSlice controller.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::lab::{Host, Pod};
use crate::traffic::RunningServer;
use crate::{Balanced, Endpoint, Grace, Serve, patient};

/// Port names and numbers that every pod serves, and every slice has: HTTP, lines over TCP, UDP.
pub const HTTP: (&str, u16) = ("http", 8080);
/// See [`HTTP`].
pub const LINES: (&str, u16) = ("lines", 9090);
/// See [`HTTP`].
pub const DATAGRAMS: (&str, u16) = ("datagrams", 9090);

/// Pods behind the Service `default/NAME`.
#[derive(Debug)]
pub struct Deployment {
    service: String,
    replicas: Vec<Replica>,
    /// How many pods there have been so far.
    started: u32,
    /// How long a pod goes on serving after it terminates, and after new traffic has stopped.
    grace: Duration,
    processes: bool,
}

/// The condition of a pod's endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Ready,
    /// Terminating, and serving.
    Terminating,
    /// Terminating, and no longer serving.
    Gone,
}

#[derive(Debug)]
struct Replica {
    pod: Pod,
    server: RunningServer,
    condition: Condition,
}

impl Deployment {
    /// Starts without pods, for `service`.
    pub fn new(service: &str) -> Self {
        Self {
            service: service.to_owned(),
            replicas: Vec::new(),
            started: 0,
            grace: Duration::from_millis(500),
            processes: false,
        }
    }

    /// Runs servers in separate processes, so that a lab can be left with them.
    pub fn in_processes(mut self) -> Self {
        self.processes = true;
        self
    }

    /// The pods, oldest first.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.replicas.iter().map(|replica| &replica.pod)
    }

    /// Starts a pod on node number `node`, waits until it serves, and makes it ready.
    pub fn add(&mut self, ground: &Balanced, node: usize) -> Result<()> {
        self.start_pod(ground, node)?;
        self.publish(ground)
    }

    /// Starts a pod on each of these nodes, and makes all ready at once.
    pub fn add_all(&mut self, ground: &Balanced, nodes: &[usize]) -> Result<()> {
        for node in nodes {
            self.start_pod(ground, *node)?;
        }
        self.publish(ground)
    }

    /// Replaces every pod there is by a new one on the same node, one after another.
    pub fn roll(&mut self, ground: &Balanced) -> Result<()> {
        (0..self.replicas.len()).try_for_each(|_| self.replace_oldest(ground))
    }

    /// Replaces the oldest pod: a new one becomes ready, then the old one terminates.
    pub fn replace_oldest(&mut self, ground: &Balanced) -> Result<()> {
        let node = &self.replicas.first().context("no pod is left")?.pod.node;
        let index = ground
            .lab
            .nodes()
            .iter()
            .find(|candidate| candidate.name() == node)
            .context("the pod is of another lab")?
            .index;
        self.add(ground, index.into())?;
        self.retire(ground, 1)
    }

    /// Ends the `count` oldest pods: terminating but serving, then not serving, then gone.
    pub fn retire(&mut self, ground: &Balanced, count: usize) -> Result<()> {
        self.mark_oldest(ground, count, Condition::Terminating)?;
        thread::sleep(patient(self.grace));
        self.remove_oldest(ground, count)
    }

    /// Ends the `count` oldest pods, after traffic has been moved away from them.
    pub fn remove_oldest(&mut self, ground: &Balanced, count: usize) -> Result<()> {
        self.mark_oldest(ground, count, Condition::Gone)?;
        // UDP flows leave an endpoint soon after the maps have changed, not at the same instant.
        let leaving: Vec<&Host> = self.pods().take(count).map(|pod| &**pod).collect();
        ground.wait_until_datagrams_leave(&leaving)?;
        thread::sleep(patient(self.grace));
        let old: Vec<_> = self.replicas.drain(..count).collect();
        let mut pods = Vec::new();
        for Replica { pod, server, .. } in old {
            server.shut_down(Grace::SHORT)?;
            pods.push(pod);
        }
        self.publish(ground)?;
        pods.iter().try_for_each(|pod| ground.lab.remove_pod(pod))
    }

    /// Sets the endpoints of the `count` oldest pods to `condition`.
    pub fn mark_oldest(
        &mut self,
        ground: &Balanced,
        count: usize,
        condition: Condition,
    ) -> Result<()> {
        self.set_oldest(count, condition);
        self.publish(ground)
    }

    /// Like [`Deployment::mark_oldest`], but agents learn of it only from [`Deployment::write`].
    pub fn set_oldest(&mut self, count: usize, condition: Condition) {
        for replica in &mut self.replicas[..count] {
            replica.condition = condition;
        }
    }

    /// Writes the endpoints, and waits until every agent has them in the maps.
    pub fn publish(&self, ground: &Balanced) -> Result<()> {
        ground.change(|| self.write(ground))
    }

    /// Writes the endpoints without waiting.
    pub fn write(&self, ground: &Balanced) -> Result<()> {
        let endpoints = self.replicas.iter().map(|replica| {
            let of = match replica.condition {
                Condition::Ready => Endpoint::ready,
                Condition::Terminating => Endpoint::terminating,
                Condition::Gone => Endpoint::gone,
            };
            of(&replica.pod)
        });
        let slices = ground.lab.endpoints(&self.service);
        let slices = slices.tcp(HTTP.0, HTTP.1).tcp(LINES.0, LINES.1);
        slices
            .udp(DATAGRAMS.0, DATAGRAMS.1)
            .with_all(endpoints)
            .apply()
    }

    /// Lets the servers run on, for a lab that is kept.
    pub fn leave_running(self) -> Result<()> {
        let mut servers = self.replicas.into_iter().map(|replica| replica.server);
        servers.try_for_each(RunningServer::leave_running)
    }

    fn start_pod(&mut self, ground: &Balanced, node: usize) -> Result<()> {
        self.started += 1;
        let name = format!("{}-{}", self.service, self.started);
        let mut pod = ground.lab.add_pod(ground.lab.node(node), &name)?;
        if self.processes {
            pod = pod.with_processes();
        }
        let server = Serve::new(&name).http(HTTP.1).tcp(LINES.1).udp(DATAGRAMS.1);
        self.replicas.push(Replica {
            server: server.start(&pod)?,
            pod,
            condition: Condition::Ready,
        });
        Ok(())
    }
}
