//! How the API server is reached: address and credentials, and where they come from.

use std::{
    env,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, bail};
use hyper::header::{HeaderValue, USER_AGENT};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

/// How long it may take to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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
        // The reflectors decide what is tried again and when.
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        let agent = concat!("node-lb/", env!("CARGO_PKG_VERSION"));
        let agent = HeaderValue::from_static(agent);
        config.headers.push((USER_AGENT, agent));
        Ok(config)
    }

    async fn client(&self) -> anyhow::Result<Client> {
        let config = self.config().await?;
        Client::try_from(config).context("cannot use the API server's configuration")
    }
}

async fn kubeconfig(path: &PathBuf) -> anyhow::Result<Config> {
    let what = || format!("cannot use the kubeconfig {}", path.display());
    let kubeconfig = Kubeconfig::read_from(path).with_context(what)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    config.with_context(what)
}

/// A client that is replaced when the API server cannot be reached or no longer accepts it.
pub struct Connection {
    /// `None` if the client was given by the caller.
    access: Option<Access>,
    current: Mutex<Generation>,
}

/// A client, and how many came before it.
#[derive(Clone)]
pub struct Generation {
    number: u64,
    pub client: Client,
}

impl Connection {
    /// Reads the configuration. The API server need not be there yet.
    ///
    /// # Errors
    /// If there is no usable configuration.
    pub async fn open(access: Access) -> anyhow::Result<Self> {
        let client = access.client().await?;
        Ok(Self {
            access: Some(access),
            ..Self::of(client)
        })
    }

    /// A connection that keeps this client for ever.
    pub fn of(client: Client) -> Self {
        Self {
            access: None,
            current: Mutex::new(Generation { number: 0, client }),
        }
    }

    /// The client to use for the next request.
    pub fn current(&self) -> Generation {
        let current = self.current.lock();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces a client that failed, unless another request has already done so. Tokens,
    /// certificates and addresses are read again.
    ///
    /// # Errors
    /// If the configuration is no longer usable. The old client stays.
    pub async fn renew(&self, failed: &Generation) -> anyhow::Result<()> {
        let Some(access) = &self.access else {
            return Ok(());
        };
        let client = access.client().await?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.number == failed.number {
            let number = failed.number + 1;
            *current = Generation { number, client };
        }
        Ok(())
    }
}
