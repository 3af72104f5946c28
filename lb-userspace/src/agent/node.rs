//! Facts about the agent's node for the planner, the map writer and the health checks.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use lb_objects::IpFamily;

use crate::{
    config::Config,
    health::addresses::ListenAddresses,
    map_writer::NodeFacts,
    plan::{LocalNode, NodePortAddresses},
    store::Store,
};

/// This node as the planner needs it.
pub fn local_node(config: &Config, store: &Store, addresses: &BTreeSet<IpAddr>) -> LocalNode {
    let mut node = config.this_node(store.node().map(Arc::as_ref));
    if node.addresses.is_empty() {
        // Nothing says which addresses are the node's, so those of its devices are taken.
        node.addresses = addresses
            .iter()
            .copied()
            .filter(|ip| is_global(*ip))
            .collect();
    }
    let addresses: Vec<_> = addresses.iter().copied().collect();
    LocalNode::new(&node, &addresses, &config.plan)
}

/// The facts about this node that are part of every service's entry.
pub fn facts(config: &Config, store: &Store, addresses: &BTreeSet<IpAddr>) -> NodeFacts {
    let node = config.this_node(store.node().map(Arc::as_ref));
    NodeFacts::new(config, &node, addresses.clone())
}

/// Where healthCheckNodePort servers listen.
pub fn listen_addresses(
    config: &Config,
    node: &LocalNode,
    addresses: &BTreeSet<IpAddr>,
) -> ListenAddresses {
    let networks = match &config.plan.node_port_addresses {
        NodePortAddresses::Networks(networks) => networks.clone(),
        NodePortAddresses::Primary => {
            let ips = [IpFamily::V4, IpFamily::V6]
                .into_iter()
                .filter_map(|f| node.ip(f));
            ips.map(Into::into).collect()
        }
    };
    ListenAddresses::select(&networks, Ok(addresses.iter().copied().collect()))
}

fn is_global(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}
