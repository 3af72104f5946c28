//! Real connections, with addresses, tokens and certificates that are wrong at first.

use std::{fs, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use node_lb::{
    config::ApiAccess,
    metrics::Metrics,
    source::{
        Batch, Event, Source as _,
        api::{ApiServers, ApiSource},
        health::SourceHealth,
    },
};
use tempfile::TempDir;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use crate::server::{Server, certificate};

const PATIENCE: Duration = Duration::from_secs(30);
const LOOPBACK: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A running source with a kubeconfig and the files that it names.
struct Client {
    files: TempDir,
    health: Arc<SourceHealth>,
    events: mpsc::Receiver<Batch>,
}

impl Client {
    async fn start(url: &str) -> Self {
        Self::trusting(&certificate().0, url).await
    }

    /// One that trusts this certificate.
    async fn trusting(authority: &str, url: &str) -> Self {
        Self::knowing(Arc::default(), authority, url).await
    }

    /// One that knows where the API server is besides.
    async fn knowing(servers: Arc<ApiServers>, authority: &str, url: &str) -> Self {
        let files = TempDir::new().unwrap();
        fs::write(files.path().join("token"), "old").unwrap();
        fs::write(files.path().join("ca.crt"), authority).unwrap();
        let kubeconfig = write_kubeconfig(&files, url);
        let access = ApiAccess {
            kubeconfig: Some(kubeconfig),
            master: None,
        };
        let metrics = Metrics::new().api;
        let source = ApiSource::open_with(access, servers, "node-1", metrics);
        let source = source.await.unwrap();
        let health = source.health();
        let (sender, events) = mpsc::channel(16);
        tokio::spawn(Box::new(source).run(sender));
        Self {
            files,
            health,
            events,
        }
    }

    /// Waits until the source reports this about Services.
    async fn says(&self, expected: &str) {
        let mut last = None;
        let said = timeout(PATIENCE, async {
            loop {
                last = self.health.states()[0].error.clone();
                if last.as_ref().is_some_and(|error| error.contains(expected)) {
                    return;
                }
                sleep(Duration::from_millis(10)).await;
            }
        });
        let said = said.await.is_ok();
        assert!(said, "{last:?} instead of {expected:?}");
    }

    async fn syncs(&mut self) {
        let batch = timeout(PATIENCE, self.events.recv())
            .await
            .expect("in time");
        assert_eq!(batch.map(|batch| batch.events), Some(vec![Event::Synced]));
    }
}

/// Waits until this holds.
async fn until(what: &str, patience: Duration, holds: impl Fn() -> bool) {
    let waited = timeout(patience, async {
        while !holds() {
            sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "not so: {what}");
}

fn write_kubeconfig(files: &TempDir, url: &str) -> PathBuf {
    let path = files.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: c, cluster: {{server: '{url}', certificate-authority: ca.crt}}}}]\n\
         users: [{{name: u, user: {{tokenFile: token}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
    );
    fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn server_that_is_away_is_waited_for() {
    let gone = Server::start(LOOPBACK, None).await;
    let address = gone.address;
    drop(gone);
    let mut client = Client::start(&format!("http://{address}")).await;
    client.says("Connection refused").await;
    let _server = Server::start(address, None).await;
    client.syncs().await;
}

#[tokio::test]
async fn rotated_token_is_read_again() {
    let server = Server::start(LOOPBACK, None).await;
    server.only_let_in("new");
    let mut client = Client::start(&format!("http://{}", server.address)).await;
    client.says("401").await;
    fs::write(client.files.path().join("token"), "new").unwrap();
    client.syncs().await;
}

/// Nobody notices: the request that is refused is sent again at once with what the files have now.
#[tokio::test]
async fn token_that_changes_between_watches_costs_no_failure_and_no_list() {
    let (authority, tls) = certificate();
    let server = Server::start(LOOPBACK, Some(tls)).await;
    server.only_let_in("old");
    let url = format!("https://{}", server.address);
    let mut client = Client::trusting(&authority, &url).await;
    client.syncs().await;
    fs::write(client.files.path().join("token"), "new").unwrap();
    server.only_let_in("new");
    server.end_watches();
    let begun = || server.requests().len() == 6;
    until("every watch goes on", PATIENCE, begun).await;
    let is_list = |asked: &&String| asked.contains("sendInitialEvents");
    assert_eq!(server.requests().iter().filter(is_list).count(), 3);
    let states = client.health.states();
    assert!(
        states.iter().all(|state| state.error.is_none()),
        "{states:?}"
    );
}

#[tokio::test]
async fn all_watches_share_a_connection_where_the_server_speaks_http2() {
    let (authority, tls) = certificate();
    let server = Server::start(LOOPBACK, Some(tls)).await;
    let url = format!("https://{}", server.address);
    let mut client = Client::trusting(&authority, &url).await;
    client.syncs().await;
    let one = || server.connections() == 1;
    until("one connection is left", PATIENCE, one).await;
    server.end_watches();
    until("three watches more", PATIENCE, || {
        server.requests().len() == 6
    })
    .await;
    assert_eq!(server.connections(), 1);

    let plain = Server::start(LOOPBACK, None).await;
    let mut client = Client::start(&format!("http://{}", plain.address)).await;
    client.syncs().await;
    assert_eq!(plain.connections(), 3, "HTTP/1.1 takes one for each");
}

/// Its kernel lives, so TCP sees nothing wrong; a PING is not answered.
#[tokio::test]
async fn server_that_hangs_is_left_within_45_seconds() {
    let (authority, tls) = certificate();
    let server = Server::start(LOOPBACK, Some(tls)).await;
    let url = format!("https://{}", server.address);
    let mut client = Client::trusting(&authority, &url).await;
    client.syncs().await;
    server.freeze();
    let again = || server.requests().len() == 6;
    until("new watches", Duration::from_secs(45), again).await;
    let is_list = |asked: &&String| asked.contains("sendInitialEvents");
    assert_eq!(server.requests().iter().filter(is_list).count(), 3);
}

/// The configured address is taken by somebody who never says anything, and the API server's own
/// Service has an impostor.
#[tokio::test]
async fn the_api_servers_endpoints_are_a_way_where_its_address_is_none() {
    let hanging = std::net::TcpListener::bind(LOOPBACK).unwrap();
    let impostor = Server::start(LOOPBACK, Some(certificate().1)).await;
    let (authority, tls) = certificate();
    let server = Server::start(LOOPBACK, Some(tls)).await;
    let servers = Arc::<ApiServers>::default();
    servers.set_service(&[], &[impostor.address, server.address]);
    let given = hanging.local_addr().unwrap();
    let url = format!("https://{given}");
    let mut client = Client::knowing(servers.clone(), &authority, &url).await;
    client.syncs().await;
    assert_eq!(impostor.requests(), Vec::<String>::new());
    let way = servers.last().expect("a way").to_string();
    let endpoint = format!("{}, an endpoint of default/kubernetes", server.address);
    assert_eq!(way, endpoint);

    // It stays known when the Service has only wrong ones.
    servers.set_service(&[], &[impostor.address]);
    let known = [given, impostor.address, server.address];
    assert_eq!(*servers.addresses().borrow(), known.into());
    let mut again = Client::knowing(servers, &authority, &url).await;
    again.syncs().await;
}

/// Nothing would prove that an endpoint is the API server.
#[tokio::test]
async fn without_certificates_only_the_configured_address_counts() {
    let gone = Server::start(LOOPBACK, None).await;
    let url = format!("http://{}", gone.address);
    drop(gone);
    let other = Server::start(LOOPBACK, None).await;
    let servers = Arc::<ApiServers>::default();
    servers.set_service(&[], &[other.address]);
    let client = Client::knowing(servers, &certificate().0, &url).await;
    client.says("Connection refused").await;
    assert_eq!(other.connections(), 0);
}

#[tokio::test]
async fn changed_certificate_authority_is_read_again() {
    let (authority, tls) = certificate();
    let server = Server::start(LOOPBACK, Some(tls)).await;
    let mut client = Client::start(&format!("https://{}", server.address)).await;
    client.says("does the configured CA belong").await;
    fs::write(client.files.path().join("ca.crt"), authority).unwrap();
    client.syncs().await;
}

#[tokio::test]
async fn changed_address_is_read_again() {
    let gone = Server::start(LOOPBACK, None).await;
    let url = format!("http://{}", gone.address);
    drop(gone);
    let mut client = Client::start(&url).await;
    client.says("cannot reach the API server").await;
    fs::write(client.files.path().join("kubeconfig"), "clusters: [").unwrap();
    client.says("kubeconfig").await;
    let server = Server::start(LOOPBACK, None).await;
    write_kubeconfig(&client.files, &format!("http://{}", server.address));
    client.syncs().await;
}

#[tokio::test]
async fn configuration_that_cannot_work_is_refused_at_once() {
    let missing = ApiAccess {
        kubeconfig: Some("/does/not/exist".into()),
        master: None,
    };
    for (access, expected) in [
        (missing, "/does/not/exist"),
        (ApiAccess::default(), "--kubeconfig"),
    ] {
        let opened = ApiSource::open(access, "node-1", Metrics::new().api).await;
        let error = opened.err().expect("an error");
        assert!(format!("{error:#}").contains(expected), "{error:#}");
    }
}
