//! How the API server is reached: address and credentials, and where they come from.

use std::{
    env, fs,
    future::pending,
    hash::{Hash as _, Hasher as _},
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, bail};
use hyper::{
    header::{HeaderValue, USER_AGENT},
    http::uri::Authority,
};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use siphasher::sip::SipHasher13;
use tokio::time::{sleep, timeout};

use super::{
    backoff::up_to,
    dial::{Dialer, resolve},
    servers::ApiServers,
    transport,
};
use crate::config::ApiAccess;

/// Within such a time, at random, all agents look at new endpoints.
const PROOF: Duration = Duration::from_secs(10);
/// After so long they look again at those that have shown no certificate.
const PROOF_AGAIN: Duration = Duration::from_secs(60);

/// The environment variable from which a pod gets the API server's address.
const HOST: &str = "KUBERNETES_SERVICE_HOST";

impl ApiAccess {
    /// The API server's host: a name or an address.
    ///
    /// # Errors
    /// If there is no usable configuration.
    pub async fn host(&self) -> anyhow::Result<String> {
        let url = self.config().await?.cluster_url;
        let host = url.host().context("the API server's URL has no host")?;
        Ok(host.trim_matches(['[', ']']).to_owned())
    }

    async fn config(&self) -> anyhow::Result<Config> {
        let mut config = match (&self.kubeconfig, &self.master) {
            (Some(path), _) => kubeconfig(path).await?,
            (None, Some(master)) => Config::new(master.clone()),
            (None, None) if env::var_os(HOST).is_some_and(|host| host.is_empty()) => bail!(
                "{HOST} is empty: set it to the API server's own address, which must work before \
                 Services do (in the ConfigMap node-lb-api-server; with Helm, apiServer.host)"
            ),
            (None, None) => Config::incluster().context(
                "not in a pod with a service account; pass --kubeconfig PATH, --master URL or \
                 --source dir:PATH",
            )?,
        };
        if let Some(master) = &self.master {
            config.cluster_url = master.clone();
        }
        let agent = concat!("node-lb/", env!("CARGO_PKG_VERSION"));
        let agent = HeaderValue::from_static(agent);
        config.headers.push((USER_AGENT, agent));
        Ok(config)
    }

    /// The addresses at which the API server is configured to be, as far as they are known now.
    ///
    /// # Errors
    /// If there is no usable configuration, or its host has no address.
    pub async fn addresses(&self) -> anyhow::Result<Vec<SocketAddr>> {
        let url = self.config().await?.cluster_url;
        resolve(&url).await.map_err(anyhow::Error::from_boxed)
    }

    async fn client(&self, servers: &Arc<ApiServers>) -> anyhow::Result<(Reach, Fingerprint)> {
        let config = self.config().await?;
        let reach = Reach::new(&config, servers);
        let reach = reach.context("cannot use the API server's configuration")?;
        Ok((reach, Fingerprint::of(&config)))
    }
}

async fn kubeconfig(path: &PathBuf) -> anyhow::Result<Config> {
    let what = || format!("cannot use the kubeconfig {}", path.display());
    let kubeconfig = Kubeconfig::read_from(path).with_context(what)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    config.with_context(what)
}

/// Tells whether address, certificates or credentials have changed, without keeping them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fingerprint(u64);

impl Fingerprint {
    fn of(config: &Config) -> Self {
        let mut hasher = SipHasher13::new();
        config.cluster_url.hash(&mut hasher);
        config.root_cert.hash(&mut hasher);
        let auth = &config.auth_info;
        serde_json::to_vec(auth)
            .unwrap_or_default()
            .hash(&mut hasher);
        let files = [&auth.token_file, &auth.client_certificate, &auth.client_key];
        for file in files.into_iter().flatten() {
            // One that cannot be read is as good as an empty one.
            fs::read(file).unwrap_or_default().hash(&mut hasher);
        }
        Self(hasher.finish())
    }
}

/// A client, and what opens its connections.
struct Reach {
    client: Client,
    host: Arc<str>,
    dialer: Dialer,
}

impl Reach {
    fn new(config: &Config, servers: &Arc<ApiServers>) -> anyhow::Result<Self> {
        let dialer = Dialer::new(config, servers.clone())?;
        Ok(Self {
            client: transport::client(config, dialer.clone())?,
            host: config
                .cluster_url
                .authority()
                .map_or("", Authority::as_str)
                .into(),
            dialer,
        })
    }
}

/// A client that is made anew when the API server cannot be reached or does not accept it any more.
pub struct Connection {
    /// `None` if the client was given by the caller.
    access: Option<ApiAccess>,
    servers: Arc<ApiServers>,
    current: Mutex<Generation>,
}

/// A client, and how many came before it.
#[derive(Clone)]
pub struct Generation {
    number: u64,
    fingerprint: Fingerprint,
    pub client: Client,
    /// Host and port in the API server's URL; empty if the client was given by the caller.
    pub host: Arc<str>,
    /// What opens the client's connections, if that is known.
    dialer: Option<Dialer>,
}

impl Connection {
    /// Reads the configuration. The API server need not be there yet. What is known of its
    /// addresses is kept in `servers`.
    ///
    /// # Errors
    /// If there is no usable configuration.
    pub async fn open(access: ApiAccess, servers: Arc<ApiServers>) -> anyhow::Result<Self> {
        let (reach, fingerprint) = access.client(&servers).await?;
        Ok(Self {
            access: Some(access),
            servers,
            current: Mutex::new(Generation {
                number: 0,
                fingerprint,
                client: reach.client,
                host: reach.host,
                dialer: Some(reach.dialer),
            }),
        })
    }

    /// A connection that keeps this client for ever.
    pub fn of(client: Client) -> Self {
        Self {
            access: None,
            servers: Arc::default(),
            current: Mutex::new(Generation {
                number: 0,
                fingerprint: Fingerprint::default(),
                client,
                host: Arc::default(),
                dialer: None,
            }),
        }
    }

    /// Looks for endpoints that prove to be the API server, as long as the agent depends on its own
    /// Services to reach it. Never ends.
    pub async fn find_servers(&self) {
        let mut addresses = self.servers.addresses();
        loop {
            let unproven = self.servers.unproven();
            if !unproven.is_empty() {
                // The agents of all nodes hear of new endpoints at the same time.
                sleep(up_to(PROOF)).await;
            }
            let dialer = self.current().dialer;
            for way in unproven {
                if let Some(dialer) = &dialer {
                    dialer.prove(way).await;
                }
            }
            // Again, if an endpoint is not there yet.
            let changed = addresses.changed();
            if let Ok(Err(_)) = timeout(PROOF_AGAIN, changed).await {
                return pending().await;
            }
        }
    }

    /// The client to use for the next request.
    pub fn current(&self) -> Generation {
        let current = self.current.lock();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces a client that failed, unless another request has already done so: tokens,
    /// certificates and addresses are read again. Says whether any of these is another one, so that
    /// the request may succeed now.
    ///
    /// # Errors
    /// If the configuration is no longer usable; the old client stays.
    pub async fn renew(&self, failed: &Generation) -> anyhow::Result<bool> {
        let Some(access) = &self.access else {
            return Ok(false);
        };
        let (reach, fingerprint) = access.client(&self.servers).await?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.number == failed.number {
            *current = Generation {
                number: failed.number + 1,
                fingerprint,
                client: reach.client,
                host: reach.host,
                dialer: Some(reach.dialer),
            };
        }
        Ok(current.fingerprint != failed.fingerprint)
    }
}
