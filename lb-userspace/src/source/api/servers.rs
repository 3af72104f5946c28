//! Where the API server is: the configured address, and behind it the endpoints of
//! `default/kubernetes`, so that no object can cut the agent off from the API server for good.
//!
//! If the agent was given the ClusterIP of `default/kubernetes`, it would depend on what it has
//! programmed itself: with wrong endpoints there, it could not even learn of better ones. So it
//! remembers endpoints that have shown the API server's certificate, also in a file for its next
//! start, and connects to them directly.

use std::{
    collections::{BTreeSet, HashMap},
    fmt, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

/// How many addresses of each kind are tried and remembered.
const MOST: usize = 8;
/// So long after a failure others are tried first.
const AVOIDED: Duration = Duration::from_secs(60);

/// A way to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Way {
    pub address: SocketAddr,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The configured address, to which no Service leads elsewhere.
    Configured,
    /// An endpoint of `default/kubernetes`, past all Services as well.
    Endpoint,
    /// The configured address as any other process of the node reaches it: perhaps a Service has
    /// it.
    ThroughServices,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address;
        match self.kind {
            Kind::Configured => write!(f, "{address}"),
            Kind::Endpoint => write!(f, "{address}, an endpoint of default/kubernetes"),
            Kind::ThroughServices => write!(f, "{address}, through a Service"),
        }
    }
}

/// What is known of the API server's addresses.
#[derive(Debug, Default)]
pub struct ApiServers {
    known: Mutex<Known>,
    /// Where proven endpoints are kept for the next agent.
    file: Option<PathBuf>,
    addresses: watch::Sender<BTreeSet<SocketAddr>>,
}

#[derive(Debug, Default)]
struct Known {
    configured: Vec<SocketAddr>,
    /// As `default/kubernetes` has them.
    cluster_ips: Vec<SocketAddr>,
    endpoints: Vec<SocketAddr>,
    /// Endpoints that have shown the API server's certificate, the latest first.
    proven: Vec<SocketAddr>,
    failed: HashMap<Way, Instant>,
    /// By which way the latest connection came about.
    last: Option<Way>,
    /// How many lists of ways there have been: each begins with another endpoint.
    turns: usize,
}

impl ApiServers {
    /// Those that an agent before this one has written to a file, where later ones go as well.
    pub fn remembering(file: &Path) -> Self {
        let text = fs::read_to_string(file).unwrap_or_default();
        let proven = text.lines().filter_map(|line| line.parse().ok());
        let servers = Self {
            known: Mutex::new(Known {
                proven: proven.take(MOST).collect(),
                ..Known::default()
            }),
            file: Some(file.to_owned()),
            ..Self::default()
        };
        servers.publish(&servers.lock());
        servers
    }

    /// Every address at which the API server is, or may be, reached past all Services; and later
    /// ones.
    pub fn addresses(&self) -> watch::Receiver<BTreeSet<SocketAddr>> {
        self.addresses.subscribe()
    }

    /// By which way the API server was reached last.
    pub fn last(&self) -> Option<Way> {
        self.lock().last
    }

    /// Takes over what `default/kubernetes` has by now: its ClusterIPs, and its endpoints.
    pub fn set_service(&self, cluster_ips: &[SocketAddr], endpoints: &[SocketAddr]) {
        let mut known = self.lock();
        known.cluster_ips = cluster_ips.to_vec();
        known.endpoints = endpoints.iter().copied().take(MOST).collect();
        self.publish(&known);
    }

    /// The ways to try, in order: the configured address first, and last of all what failed lately.
    /// `configured` are its present addresses, empty if its name is not known at the moment.
    /// Endpoints are used only where a certificate proves that they are the API server.
    pub(super) fn ways(&self, configured: &[SocketAddr], proves: bool) -> Vec<Way> {
        let mut known = self.lock();
        if !configured.is_empty() {
            known.configured = configured.iter().copied().take(MOST).collect();
            self.publish(&known);
        }
        known.turns = known.turns.wrapping_add(1);
        let way = |kind| {
            move |address: &SocketAddr| Way {
                address: *address,
                kind,
            }
        };
        let mut ways: Vec<_> = known.configured.iter().map(way(Kind::Configured)).collect();
        if proves {
            let others = known.endpoints.iter();
            let mut others: Vec<_> = others.filter(|at| !known.proven.contains(at)).collect();
            if !others.is_empty() {
                let first = known.turns % others.len();
                others.rotate_left(first);
            }
            let endpoints = known.proven.iter().chain(others);
            ways.extend(endpoints.map(way(Kind::Endpoint)));
        }
        let through = known.configured.iter().map(way(Kind::ThroughServices));
        ways.extend(through);
        known.failed.retain(|_, at| at.elapsed() < AVOIDED);
        ways.sort_by_key(|way| known.failed.contains_key(way));
        ways
    }

    /// Endpoints that nobody has seen a certificate of, if the agent depends on Services without
    /// them: on its own, or on those of another node that ClusterIPs are routed to.
    pub(super) fn unproven(&self) -> Vec<Way> {
        let known = self.lock();
        let is_through = |way: Way| way.kind == Kind::ThroughServices;
        let mut configured = known.configured.iter();
        let depends = known.last.is_some_and(is_through)
            || configured.any(|address| known.cluster_ips.contains(address));
        if !depends {
            return Vec::new();
        }
        let endpoints = known.endpoints.iter();
        endpoints
            .filter(|address| !known.proven.contains(address))
            .map(|address| Way {
                address: *address,
                kind: Kind::Endpoint,
            })
            .collect()
    }

    /// A connection has come about by this way.
    pub(super) fn reached(&self, way: Way) {
        self.prove(way);
        let mut known = self.lock();
        known.failed.remove(&way);
        if known.last.replace(way) != Some(way) {
            tracing::info!("the API server is reached at {way}");
        }
    }

    /// An endpoint has shown the API server's certificate.
    pub(super) fn prove(&self, way: Way) {
        let mut known = self.lock();
        if way.kind != Kind::Endpoint || known.proven.contains(&way.address) {
            return;
        }
        known.proven.insert(0, way.address);
        known.proven.truncate(MOST);
        self.publish(&known);
        if let Err(error) = self.write(&known.proven) {
            tracing::warn!("cannot keep where the API server is for the next start: {error}");
        }
    }

    /// No connection has come about by this way, or not in time.
    pub(super) fn failed(&self, way: Way) {
        self.lock().failed.insert(way, Instant::now());
    }

    fn publish(&self, known: &Known) {
        let all = [&known.configured, &known.endpoints, &known.proven];
        let all: BTreeSet<_> = all.into_iter().flatten().copied().collect();
        self.addresses.send_if_modified(|published| {
            let is_other = *published != all;
            *published = all;
            is_other
        });
    }

    fn write(&self, proven: &[SocketAddr]) -> std::io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let lines: String = proven
            .iter()
            .map(|address| format!("{address}\n"))
            .collect();
        let fresh = file.with_extension("new");
        fs::write(&fresh, lines)?;
        fs::rename(&fresh, file)
    }

    // Whole at any time, so that a panic elsewhere has not spoiled it.
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn kinds(ways: &[Way]) -> Vec<(SocketAddr, Kind)> {
        ways.iter().map(|way| (way.address, way.kind)).collect()
    }

    const CLUSTER_IP: &str = "10.96.0.1:443";

    #[test]
    fn what_failed_lately_comes_last_and_endpoints_need_a_certificate() {
        let servers = ApiServers::default();
        let given = at(CLUSTER_IP);
        let through = (given, Kind::ThroughServices);
        let plain = kinds(&servers.ways(&[given], false));
        assert_eq!(plain, [(given, Kind::Configured), through]);

        let endpoint = at("192.0.2.2:6443");
        servers.set_service(&[], &[endpoint]);
        assert_eq!(kinds(&servers.ways(&[given], false)), plain);
        let ways = servers.ways(&[given], true);
        let direct = (endpoint, Kind::Endpoint);
        assert_eq!(kinds(&ways), [(given, Kind::Configured), direct, through]);
        servers.failed(ways[0]);
        servers.reached(ways[1]);
        let ways = servers.ways(&[given], true);
        assert_eq!(kinds(&ways), [direct, through, (given, Kind::Configured)]);
    }

    #[test]
    fn proven_endpoints_outlive_wrong_ones_and_the_agent() {
        let directory = tempfile::TempDir::new().unwrap();
        let file = directory.path().join("api-servers");
        let servers = ApiServers::remembering(&file);
        let (good, wrong) = (at("192.0.2.2:6443"), at("203.0.113.66:6443"));
        servers.set_service(&[], &[good]);
        servers.reached(Way {
            address: good,
            kind: Kind::Endpoint,
        });
        servers.set_service(&[], &[wrong]);
        let later = ApiServers::remembering(&file);
        later.set_service(&[], &[wrong]);
        for servers in [servers, later] {
            let ways = servers.ways(&[at(CLUSTER_IP)], true);
            assert_eq!(
                kinds(&ways)[1..3],
                [(good, Kind::Endpoint), (wrong, Kind::Endpoint)]
            );
            let addresses = servers.addresses().borrow().clone();
            assert_eq!(addresses, [at(CLUSTER_IP), good, wrong].into());
        }
    }

    #[test]
    fn only_who_depends_on_services_looks_for_proof() {
        let servers = ApiServers::default();
        servers.set_service(&[], &[at("192.0.2.2:6443")]);
        let reach = |kind| {
            servers.reached(Way {
                address: at(CLUSTER_IP),
                kind,
            });
            servers.unproven().len()
        };
        assert_eq!(
            (reach(Kind::Configured), reach(Kind::ThroughServices)),
            (0, 1)
        );
        servers.prove(servers.unproven()[0]);
        assert_eq!(servers.unproven(), []);

        // The way is another node's Service.
        let servers = ApiServers::default();
        servers.ways(&[at(CLUSTER_IP)], true);
        servers.set_service(&[at(CLUSTER_IP)], &[at("192.0.2.2:6443")]);
        assert_eq!(servers.unproven().len(), 1);
    }
}
