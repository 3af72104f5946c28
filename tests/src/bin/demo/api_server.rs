//! A real control plane: kubectl applies manifests, the controllers roll Deployments and write
//! EndpointSlices, and the agents follow the API server. Only kubelets and the scheduler are
//! played.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use lb_tests::{
    Balanced, Cluster, Family, Request,
    control_plane::{ClusterSpec, NAMESPACE},
    http_get,
};
use serde_json::json;

use super::{
    screen::Screen,
    world::{CLUSTER_IPS, HEALTH_CHECK_NODE_PORT, LOAD_BALANCER_IPS, Replica, World},
};

/// The Service and its Deployment.
const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin/demo/web.yaml");
/// How long terminating pods serve: enough for a look at them.
const GRACE: Duration = Duration::from_secs(5);

/// A lab that follows an API server.
pub struct ApiServer {
    cluster: Cluster,
    source: Vec<String>,
}

impl ApiServer {
    /// Starts the control plane and agents, and has kubectl apply [`MANIFEST`].
    pub fn up(screen: &Screen) -> Result<Self> {
        let spec = ClusterSpec {
            arguments: vec!["--xdp-mode=native".to_owned()],
            ..ClusterSpec::default()
        };
        let mut cluster = Cluster::up(spec).context("cannot bring the cluster up")?;
        cluster.kubelets.set_grace(GRACE);
        let front = cluster.front.address();
        let kubeconfig = cluster.control_plane.agent_kubeconfig(front)?;
        let mut world = Self {
            cluster,
            source: vec![format!("--kubeconfig={}", kubeconfig.display())],
        };
        world.kubectl(screen, &["get", "nodes"])?;
        world.apply(screen)?;
        Ok(world)
    }

    fn apply(&mut self, screen: &Screen) -> Result<()> {
        let said = self.kubectl_quietly(&["apply", "--filename", MANIFEST])?;
        screen.command("kubectl apply -f web.yaml", &said);
        // What a cloud's controller would do.
        let ingress = LOAD_BALANCER_IPS.map(|ip| json!({ "ip": ip }));
        let status = json!({ "status": { "loadBalancer": { "ingress": ingress } } }).to_string();
        self.kubectl_quietly(&[
            "patch",
            "service/web",
            "--subresource=status",
            "--type=merge",
            "--patch",
            &status,
        ])?;
        self.wait_until_rolled_out()?;
        let target = SocketAddr::new(CLUSTER_IPS[0].parse()?, 80);
        self.cluster
            .until(|cluster| Ok(Request::http(target).send(cluster.lab().node(1))?))?;
        self.kubectl(screen, &["get", "endpointslices"])
    }

    /// Runs kubectl and shows it.
    fn kubectl(&self, screen: &Screen, arguments: &[&str]) -> Result<()> {
        let said = self.kubectl_quietly(arguments)?;
        screen.command(format_args!("kubectl {}", arguments.join(" ")), &said);
        Ok(())
    }

    fn kubectl_quietly(&self, arguments: &[&str]) -> Result<String> {
        let namespace = ["--namespace", NAMESPACE];
        let arguments = [arguments, &namespace].concat();
        self.cluster.control_plane.kubectl(&arguments)
    }

    /// Waits until as many pods as wanted are of the newest version and ready, and there are no
    /// others.
    fn wait_until_rolled_out(&mut self) -> Result<()> {
        self.cluster.until(|cluster| {
            let web = cluster.client().of::<Deployment>().get("web")?;
            let web = web.context("no Deployment")?;
            let status = web.status.unwrap_or_default();
            let wanted = web.spec.and_then(|spec| spec.replicas);
            let seen = status.observed_generation == web.metadata.generation;
            ensure!(
                seen && status.updated_replicas == wanted && status.available_replicas == wanted,
                "not rolled out: {status:?}"
            );
            let pods = cluster.client().of::<Pod>().list("app=web")?.len();
            ensure!(
                usize::try_from(wanted.unwrap_or_default())? == pods,
                "{pods} pods"
            );
            Ok(())
        })
    }
}

impl World for ApiServer {
    fn ground(&self) -> &Balanced {
        &self.cluster.ground
    }

    fn ground_mut(&mut self) -> &mut Balanced {
        &mut self.cluster.ground
    }

    fn pods(&self) -> Result<Vec<Replica>> {
        let mut pods = self.cluster.client().of::<Pod>().list("app=web")?;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        let replica = |pod: Pod| Replica {
            name: pod.metadata.name.unwrap_or_default(),
            node: pod.spec.and_then(|spec| spec.node_name).unwrap_or_default(),
        };
        Ok(pods.into_iter().map(replica).collect())
    }

    fn roll(&mut self, screen: &Screen) -> Result<()> {
        self.kubectl(screen, &["rollout", "restart", "deployment/web"])?;
        self.wait_until_rolled_out()
    }

    fn terminate(&mut self, screen: &Screen) -> Result<()> {
        self.kubectl(screen, &["cordon", "node-1"])?;
        let pods = self.pods()?;
        let local = pods.iter().filter(|pod| pod.node == "node-1");
        let names = local.map(|pod| pod.name.as_str());
        let arguments: Vec<_> = ["delete", "--wait=false", "pod"]
            .into_iter()
            .chain(names)
            .collect();
        self.kubectl(screen, &arguments)?;
        let health = self
            .ground()
            .lab
            .node(1)
            .at(Family::V4, HEALTH_CHECK_NODE_PORT);
        self.cluster.until(|cluster| {
            let answer = http_get::get(cluster.lab().client(), health, "/")?;
            ensure!(answer.status == 503, "node-1 answers {}", answer.status);
            Ok(())
        })
    }

    fn replace(&mut self, screen: &Screen) -> Result<()> {
        self.kubectl(screen, &["uncordon", "node-1"])?;
        self.kubectl(screen, &["scale", "deployment/web", "--replicas=5"])?;
        self.wait_until_rolled_out()
    }

    fn source(&self) -> &[String] {
        &self.source
    }

    fn source_shown(&self) -> &'static str {
        "--kubeconfig KUBECONFIG"
    }

    fn end(self: Box<Self>, _keep: bool) -> Result<()> {
        let Cluster {
            kubelets,
            front,
            control_plane,
            ground,
        } = self.cluster;
        drop((kubelets, front, control_plane, ground.agents));
        ground.lab.down()
    }
}
