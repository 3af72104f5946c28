//! Objects in files, which each node's agent watches.

use anyhow::{Context as _, Result};
use lb_tests::{
    Balanced, Condition, Deployment, Topology, balanced,
    deployment::{DATAGRAMS, HTTP},
};

use super::{
    inspect,
    screen::Screen,
    world::{CLUSTER_IPS, HEALTH_CHECK_NODE_PORT, LOAD_BALANCER_IPS, NODE_PORT, Replica, World},
};

/// A lab whose pods the demo itself starts and ends.
pub struct Manifests {
    // Dropped first: servers before the ground they stand on.
    web: Deployment,
    ground: Balanced,
    source: Vec<String>,
}

impl Manifests {
    /// Builds it. If the lab is to be kept, its servers are processes.
    pub fn up(keep: bool) -> Result<Self> {
        let ground = Balanced::up(Topology::default()).context("cannot bring the lab up")?;
        let mut web = Deployment::new("web");
        if keep {
            web = web.in_processes();
        }
        apply_service(&ground)?;
        web.add_all(&ground, &[1, 1, 2])?;
        let source = format!("--source=dir:{}", ground.lab.node(1).manifests().display());
        Ok(Self {
            web,
            ground,
            source: vec![source],
        })
    }

    /// The number of pods on node-1, which are the oldest.
    fn on_node_1(&self) -> usize {
        self.web.pods().filter(|pod| pod.node == "node-1").count()
    }
}

/// Writes the Service's manifest.
fn apply_service(ground: &Balanced) -> Result<()> {
    let mut service = ground.lab.service("web");
    for ip in CLUSTER_IPS {
        service = service.cluster_ip(ip);
    }
    service =
        service
            .tcp(HTTP.0, 80, HTTP.1)
            .node_port(NODE_PORT)
            .udp(DATAGRAMS.0, 53, DATAGRAMS.1);
    for ip in LOAD_BALANCER_IPS {
        service = service.load_balancer_ip(ip);
    }
    service
        .external_local()
        .set("healthCheckNodePort", HEALTH_CHECK_NODE_PORT)
        .apply()
}

impl World for Manifests {
    fn ground(&self) -> &Balanced {
        &self.ground
    }

    fn ground_mut(&mut self) -> &mut Balanced {
        &mut self.ground
    }

    fn pods(&self) -> Result<Vec<Replica>> {
        let replica = |pod: &lb_tests::Pod| Replica {
            name: pod.name().to_owned(),
            node: pod.node.clone(),
        };
        Ok(self.web.pods().map(replica).collect())
    }

    fn roll(&mut self, screen: &Screen) -> Result<()> {
        screen.say(
            "Each pod in turn: a new one is ready, the old one terminates but serves, then goes.",
        );
        self.web.roll(&self.ground)
    }

    fn terminate(&mut self, _: &Screen) -> Result<()> {
        let local = self.on_node_1();
        self.web
            .mark_oldest(&self.ground, local, Condition::Terminating)
    }

    fn replace(&mut self, _: &Screen) -> Result<()> {
        let old = self.on_node_1();
        self.web.add_all(&self.ground, &[1, 1])?;
        self.web.remove_oldest(&self.ground, old)
    }

    fn source(&self) -> &[String] {
        &self.source
    }

    fn source_shown(&self) -> &'static str {
        "--source dir:MANIFESTS"
    }

    fn end(self: Box<Self>, keep: bool) -> Result<()> {
        let Self { web, ground, .. } = *self;
        if keep {
            web.leave_running()?;
            inspect::how_to_poke(&ground, &balanced::node_lb()?);
            return ground.keep().map(drop);
        }
        drop(web);
        drop(ground.agents);
        ground.lab.down()
    }
}
