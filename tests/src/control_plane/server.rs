//! The control plane's processes on their host, and access to them.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};

pub use super::rights::AGENT_ACCOUNT;
use super::{
    client::Client,
    etcd,
    keys::{ADMIN_TOKEN, Keys, MANAGER_TOKEN},
    rights::{self, AGENT_NAMESPACE},
    runtime::HostRuntime,
};
use crate::{
    lab::{
        Family, Host, Lab,
        address::SERVICES,
        daemon::{self, Daemon},
        host::output_of,
    },
    patience::patient,
};

/// The properties of the API server.
#[derive(Clone, Debug, Default)]
pub struct ControlPlaneSpec {
    /// Whether the API server has an older minor version: the one that `tests/cluster/mods/older`
    /// names.
    pub older: bool,
    /// As for `--feature-gates`, for example `WatchList=false`.
    pub feature_gates: Vec<String>,
    /// Whether `default/kubernetes` has the API server's address. Without it, agents know no way
    /// around a [`Front`](super::Front).
    pub endpoints: bool,
}

/// A running control plane, with everything it started. Dropped, it ends at once.
pub struct ControlPlane {
    // Dropped first, so that no program sees its server vanish.
    manager: Option<Daemon>,
    api: Option<Daemon>,
    etcd: Option<Daemon>,
    spec: ControlPlaneSpec,
    host: Host,
    directory: PathBuf,
    keys: Keys,
    client: Client,
    runtime: HostRuntime,
}

/// The number of the control plane's host on the node network.
const HOST_NUMBER: u8 = 2;
/// The ClusterIP of `default/kubernetes`: the first address of [`SERVICES`].
pub const CLUSTER_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// The API server's port.
const API_PORT: u16 = 6443;
/// How long a program may take to get ready, on a machine that others use as well.
const START_DEADLINE: Duration = Duration::from_secs(90);

impl ControlPlane {
    /// Starts a control plane on a host of its own in `lab`, and waits until its controllers work.
    ///
    /// # Errors
    /// If its programs have not been built or do not get ready in time.
    pub fn start(lab: &Lab, spec: ControlPlaneSpec) -> Result<Self> {
        let host = lab.add_host("control", HOST_NUMBER)?;
        let directory = lab.id().dir().join("control-plane");
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let addresses = [
            host.ip(Family::V4),
            host.ip(Family::V6),
            Ipv4Addr::LOCALHOST.into(),
            CLUSTER_IP.into(),
        ];
        let keys = Keys::make(&directory, &addresses)?;
        let runtime = HostRuntime::start(&host)?;
        let url = format!("https://{}", host.at(Family::V4, API_PORT));
        let admin = keys.kubeconfig(&url, &format!("{{ token: {ADMIN_TOKEN} }}"));
        keys.write("admin.kubeconfig", &admin)?;
        let manager = keys.kubeconfig(&url, &format!("{{ token: {MANAGER_TOKEN} }}"));
        keys.write("manager.kubeconfig", &manager)?;
        let client = Client::new(&runtime, &admin)?;
        let mut control_plane = Self {
            etcd: Some(etcd::start(&host, &directory)?),
            manager: None,
            api: None,
            spec,
            host,
            directory,
            keys,
            client,
            runtime,
        };
        control_plane.start_api()?;
        control_plane.start_manager()?;
        rights::grant(&control_plane)?;
        Ok(control_plane)
    }

    /// An administrator's access.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// An administrator's kubeconfig.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.keys.path("admin.kubeconfig")
    }

    /// Keys and kubeconfigs.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Threads on the control plane's host.
    pub fn runtime(&self) -> &HostRuntime {
        &self.runtime
    }

    /// The API server's address.
    pub fn address(&self) -> SocketAddr {
        self.host.at(Family::V4, API_PORT)
    }

    /// Another address of the control plane's host.
    pub fn port(&self, port: u16) -> SocketAddr {
        self.host.at(Family::V4, port)
    }

    /// Kills the API server (SIGKILL). Its clients can no longer connect.
    ///
    /// # Errors
    /// If that fails.
    pub fn kill_api(&mut self) -> Result<()> {
        self.api.take().map_or(Ok(()), Daemon::kill)
    }

    /// Starts the API server, after [`ControlPlane::kill_api`] or anew, and waits until it is
    /// ready.
    ///
    /// # Errors
    /// If it does not get ready in time.
    pub fn start_api(&mut self) -> Result<()> {
        self.kill_api()?;
        let program = match self.spec.older {
            true => "kube-apiserver-older",
            false => "kube-apiserver",
        };
        let api = Daemon::start(&self.host, program, &self.api_arguments(), &self.directory);
        self.api = Some(api?);
        self.wait_until_ready()
    }

    /// Kills etcd (SIGKILL). The API server runs on without its objects.
    ///
    /// # Errors
    /// If that fails.
    pub fn kill_etcd(&mut self) -> Result<()> {
        self.etcd.take().map_or(Ok(()), Daemon::kill)
    }

    /// Starts etcd after [`ControlPlane::kill_etcd`], with what it had.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_etcd(&mut self) -> Result<()> {
        self.kill_etcd()?;
        self.etcd = Some(etcd::start(&self.host, &self.directory)?);
        Ok(())
    }

    /// Waits until the API server is ready.
    ///
    /// # Errors
    /// If that takes too long.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        self.wait_until("the API server is ready", |client| {
            Ok(client.text("/readyz")? == "ok")
        })
    }

    /// Starts the API server anew with other feature gates.
    ///
    /// # Errors
    /// If it does not get ready in time.
    pub fn restart_api_with(&mut self, spec: ControlPlaneSpec) -> Result<()> {
        self.spec = spec;
        self.start_api()
    }

    /// Removes the API server's history: watches from an older version get 410 from an API server
    /// that is started afterwards.
    ///
    /// # Errors
    /// If etcd does not do so.
    pub fn compact_history(&self) -> Result<u64> {
        etcd::compact(&self.runtime)
    }

    /// Writes a token for the agent to a file, which replaces an older one, and its path.
    ///
    /// # Errors
    /// If the API server gives none.
    pub fn renew_agent_token(&self) -> Result<PathBuf> {
        let token = self.client.token(AGENT_NAMESPACE, AGENT_ACCOUNT)?;
        self.keys.write("agent.token", &token)
    }

    /// A kubeconfig for the agent, at this address of the API server; it replaces an older one.
    ///
    /// # Errors
    /// If the API server gives no token, or files cannot be written.
    pub fn agent_kubeconfig(&self, server: SocketAddr) -> Result<PathBuf> {
        let token = self.renew_agent_token()?;
        let user = format!("{{ tokenFile: '{}' }}", token.display());
        let text = self.keys.kubeconfig(&format!("https://{server}"), &user);
        self.keys.write("agent.kubeconfig", &text)
    }

    /// Invalidates all tokens of the agent, by creating its account again.
    ///
    /// # Errors
    /// If the API server refuses.
    pub fn revoke_agent_tokens(&self) -> Result<()> {
        let accounts = self.client.of_namespace::<ServiceAccount>(AGENT_NAMESPACE);
        accounts.delete(AGENT_ACCOUNT)?;
        rights::make_account(self)
    }

    /// What kubectl prints for these arguments, run by an administrator.
    ///
    /// # Errors
    /// If it fails, with what it says.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = daemon::command(&self.host, "kubectl")?;
        command
            .env("HOME", &self.directory)
            .env("KUBECONFIG", self.keys.path("admin.kubeconfig"))
            .args(arguments);
        output_of(command, "").with_context(|| format!("kubectl {}", arguments.join(" ")))
    }

    fn start_manager(&mut self) -> Result<()> {
        let services = format!("{},{}", SERVICES.v4, SERVICES.v6);
        let arguments = [
            format!(
                "--kubeconfig={}",
                self.keys.path("manager.kubeconfig").display()
            ),
            self.key_file("--service-account-private-key-file", "service-accounts.key"),
            self.key_file("--root-ca-file", "ca.crt"),
            format!("--service-cluster-ip-range={services}"),
            "--use-service-account-credentials".to_owned(),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            // Nodes that are only objects have no kubelet to renew their leases.
            "--node-monitor-grace-period=1h".to_owned(),
        ];
        let manager = Daemon::start(
            &self.host,
            "kube-controller-manager",
            &arguments,
            &self.directory,
        );
        self.manager = Some(manager?);
        self.wait_until("there is a default service account", |client| {
            let account = client.of::<ServiceAccount>().get("default")?;
            let namespace = client.cluster_wide::<Namespace>().get(AGENT_NAMESPACE)?;
            Ok(account.is_some() && namespace.is_some())
        })
    }

    fn api_arguments(&self) -> Vec<String> {
        let services = format!("{},{}", SERVICES.v4, SERVICES.v6);
        let address = self.host.ip(Family::V4);
        let mut arguments = vec![
            format!("--etcd-servers=http://{}", etcd::ADDRESS),
            format!("--advertise-address={address}"),
            format!("--secure-port={API_PORT}"),
            format!("--service-cluster-ip-range={services}"),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            self.key_file("--tls-cert-file", "api.crt"),
            self.key_file("--tls-private-key-file", "api.key"),
            self.key_file("--service-account-key-file", "service-accounts.pub"),
            self.key_file("--service-account-signing-key-file", "service-accounts.key"),
            self.key_file("--token-auth-file", "tokens.csv"),
            "--authorization-mode=RBAC".to_owned(),
            "--allow-privileged".to_owned(),
        ];
        if !self.spec.endpoints {
            arguments.push("--endpoint-reconciler-type=none".to_owned());
        }
        if !self.spec.feature_gates.is_empty() {
            let gates = self.spec.feature_gates.join(",");
            arguments.push(format!("--feature-gates={gates}"));
        }
        arguments
    }

    fn key_file(&self, flag: &str, name: &str) -> String {
        format!("{flag}={}", self.keys.path(name).display())
    }

    /// Waits until `done` succeeds, as long as all programs run.
    fn wait_until(&mut self, what: &str, done: impl Fn(&Client) -> Result<bool>) -> Result<()> {
        let start = Instant::now();
        loop {
            let daemons = [&mut self.api, &mut self.manager];
            daemons.into_iter().flatten().try_for_each(Daemon::check)?;
            let answer = done(&self.client);
            if matches!(answer, Ok(true)) {
                return Ok(());
            }
            ensure!(
                start.elapsed() < patient(START_DEADLINE),
                "not so after {START_DEADLINE:?}: {what} ({answer:?})"
            );
            thread::sleep(Duration::from_millis(50));
        }
    }
}
