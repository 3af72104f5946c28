//! The Services that frontends belong to, as the agent tells them.

use std::{
    collections::HashMap,
    io::BufRead as _,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail};
use lb_objects::Protocol;
use serde::Deserialize;

use crate::cli::local_api::LocalApi;

/// The agent says something at least every ten seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait before the agent is asked again, for example while it is replaced.
const PAUSE: Duration = Duration::from_secs(1);
/// The agent's stream of Services.
const WATCH: &str = "/api/v1/services?watch=true";

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub namespace: String,
    pub service: String,
    /// The Service's own port, whatever the frontend's is; 0 if it is not known.
    pub port: u16,
}

/// All Services that the agent has known since the recording began: a connection may be longer
/// there than its Service.
#[derive(Clone, Debug, Default)]
pub struct Services(Arc<Mutex<Known>>);

/// By address and protocol.
type Known = HashMap<(SocketAddr, Protocol), Arc<Port>>;

/// A line of the agent's stream.
#[derive(Deserialize)]
struct Event {
    r#type: String,
    object: Option<Object>,
}

/// What is read of a Service.
#[derive(Deserialize)]
struct Object {
    namespace: String,
    name: String,
    ports: Vec<ServicePort>,
}

#[derive(Deserialize)]
struct ServicePort {
    protocol: String,
    frontends: Vec<Frontend>,
}

#[derive(Deserialize)]
struct Frontend {
    kind: String,
    address: SocketAddr,
}

impl Services {
    /// Asks the agent for all Services and, once they are known, goes on to follow their changes on
    /// a thread.
    ///
    /// # Errors
    /// If no agent answers, or it does not know all Services yet.
    pub fn follow(agent: LocalApi) -> anyhow::Result<Self> {
        let services = Self::default();
        let (tell, told) = mpsc::channel();
        let followed = services.clone();
        thread::spawn(move || {
            loop {
                let ended = followed.read(&agent, &tell);
                // Of interest only until all are known; later the agent may well be replaced.
                if tell.send(ended).is_err() {
                    thread::sleep(PAUSE);
                }
            }
        });
        told.recv().context("nobody follows the Services")??;
        Ok(services)
    }

    /// The port of a Service at an address.
    pub fn at(&self, address: SocketAddr, protocol: Protocol) -> Option<Arc<Port>> {
        self.lock().get(&(address, protocol)).cloned()
    }

    /// Takes what the agent says until it says no more; tells when all Services are known.
    fn read(
        &self,
        agent: &LocalApi,
        tell: &mpsc::Sender<anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        for line in agent.stream(PATIENCE, WATCH)?.lines() {
            let line = line.context("the agent says nothing any more")?;
            let event: Event = serde_json::from_str(&line)
                .context("the agent's answer is no Service; is it of another version?")?;
            match (event.r#type.as_str(), event.object) {
                ("ADDED" | "MODIFIED", Some(object)) => self.learn(&object),
                ("BOOKMARK", _) => drop(tell.send(Ok(()))),
                _ => {}
            }
        }
        bail!("the agent broke off; is it still running?")
    }

    fn learn(&self, object: &Object) {
        let mut known = self.lock();
        for port in &object.ports {
            let Some(protocol) = Protocol::from_name(&port.protocol) else {
                continue;
            };
            let own = port
                .frontends
                .iter()
                .find(|frontend| frontend.kind != "NodePort");
            let service = Arc::new(Port {
                namespace: object.namespace.clone(),
                service: object.name.clone(),
                port: own.map_or(0, |frontend| frontend.address.port()),
            });
            for frontend in &port.frontends {
                known.insert((frontend.address, protocol), service.clone());
            }
        }
    }

    // Whole after each change, so a thread that panicked leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ports_belong_to_the_port_of_the_service() {
        let line = r#"{"namespace":"shop","name":"web","ports":[{"port":"http","protocol":"TCP","hasEndpoints":true,
            "frontends":[{"kind":"NodePort","address":"192.0.2.1:30080","policy":"Cluster","verdict":"forward"},
                         {"kind":"ClusterIP","address":"[fd00::10]:80","policy":"Cluster","verdict":"forward"}]}]}"#;
        let services = Services::default();
        services.learn(&serde_json::from_str(line).unwrap());
        let web = Port {
            namespace: "shop".to_owned(),
            service: "web".to_owned(),
            port: 80,
        };
        for address in ["192.0.2.1:30080", "[fd00::10]:80"] {
            let found = services.at(address.parse().unwrap(), Protocol::Tcp);
            assert_eq!(found.as_deref(), Some(&web), "{address}");
        }
        let udp = services.at("[fd00::10]:80".parse().unwrap(), Protocol::Udp);
        assert_eq!(udp, None);
    }
}
