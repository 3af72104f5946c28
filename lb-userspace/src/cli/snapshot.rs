//! The objects of a source at one moment, for commands that answer from manifests alone.

use anyhow::bail;

use crate::{
    config::Config,
    model::Node,
    plan::{LocalNode, ServicePlan, plan},
    source::{Event, SourceSpec, dir},
    store::Store,
};

/// What a source has at the moment, and this node as configured.
pub struct Snapshot {
    store: Store,
    node: Node,
    local_node: LocalNode,
}

impl Snapshot {
    /// Reads the source once; what it refuses is told on standard error.
    ///
    /// # Errors
    /// If the source cannot be read at all.
    pub fn load(config: &Config) -> anyhow::Result<Self> {
        let SourceSpec::Dir(path) = &config.source else {
            bail!("this command reads manifests only; pass --source dir:PATH");
        };
        let (objects, problems) = dir::load(path)?;
        for problem in problems {
            warn(&problem);
        }
        let mut store = Store::new(&config.node_name);
        store.apply(objects.into_iter().map(Event::Apply));

        if store.node().is_none() {
            warn(&format_args!(
                "no Node {:?} in the source: only what --node-address says is known of this node",
                config.node_name
            ));
        }
        let node = config.this_node(store.node().map(AsRef::as_ref));
        if node.addresses.is_empty() {
            warn(&"no address of this node is known, so node ports are accepted nowhere");
        }
        Ok(Self {
            local_node: LocalNode::new(&node, &node.addresses, &config.plan),
            node,
            store,
        })
    }

    /// This node, with all its addresses.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// This node as the plans see it.
    pub fn local_node(&self) -> &LocalNode {
        &self.local_node
    }

    /// The plan of every Service, in the order of their names.
    pub fn plans(&self) -> Vec<ServicePlan> {
        let mut services: Vec<_> = self.store.services().collect();
        services.sort_by_key(|service| &service.name);
        services
            .into_iter()
            .map(|service| {
                let slices: Vec<_> = self.store.slices(&service.name).collect();
                plan(service, &slices, &self.local_node)
            })
            .collect()
    }
}

fn warn(what: &dyn std::fmt::Display) {
    eprintln!("warning: {what}");
}
