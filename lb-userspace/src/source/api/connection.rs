//! How the API server is reached: address and credentials, and where they come from.

use std::{
    env, fs,
    hash::{Hash as _, Hasher as _},
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, bail};
use hyper::header::{HeaderValue, USER_AGENT};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use siphasher::sip::SipHasher13;

use super::transport;

/// The environment variable from which a pod gets the API server's address.
const HOST: &str = "KUBERNETES_SERVICE_HOST";

/// What the operator configured about the API server. If nothing is configured, the pod's service
/// account and environment are used, by the same rules as in kube-proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server; it takes precedence over the kubeconfig's.
    pub master: Option<hyper::Uri>,
}

impl Access {
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

    async fn client(&self) -> anyhow::Result<(Client, Fingerprint)> {
        let config = self.config().await?;
        let client = transport::client(&config);
        let client = client.context("cannot use the API server's configuration")?;
        Ok((client, Fingerprint::of(&config)))
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

/// A client that is made anew when the API server cannot be reached or does not accept it any more.
pub struct Connection {
    /// `None` if the client was given by the caller.
    access: Option<Access>,
    current: Mutex<Generation>,
}

/// A client, and how many came before it.
#[derive(Clone)]
pub struct Generation {
    number: u64,
    fingerprint: Fingerprint,
    pub client: Client,
}

impl Connection {
    /// Reads the configuration. The API server need not be there yet.
    ///
    /// # Errors
    /// If there is no usable configuration.
    pub async fn open(access: Access) -> anyhow::Result<Self> {
        let (client, fingerprint) = access.client().await?;
        Ok(Self {
            access: Some(access),
            current: Mutex::new(Generation {
                number: 0,
                fingerprint,
                client,
            }),
        })
    }

    /// A connection that keeps this client for ever.
    pub fn of(client: Client) -> Self {
        Self {
            access: None,
            current: Mutex::new(Generation {
                number: 0,
                fingerprint: Fingerprint::default(),
                client,
            }),
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
        let (client, fingerprint) = access.client().await?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.number == failed.number {
            *current = Generation {
                number: failed.number + 1,
                fingerprint,
                client,
            };
        }
        Ok(current.fingerprint != failed.fingerprint)
    }
}
