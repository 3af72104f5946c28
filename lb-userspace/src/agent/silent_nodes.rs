//! Nodes none of whose endpoints answers: there it is not a pod that is broken, but the node or the
//! way to it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use super::{Agent, status};

/// Fewer endpoints of a node may well be broken themselves.
const ENDPOINTS: usize = 2;

/// What became of the latest connections to an endpoint.
#[derive(Clone, Copy, Debug)]
struct Tried<'a> {
    node: &'a str,
    address: IpAddr,
    answers: bool,
}

impl Agent {
    /// Looks for nodes that do not answer, among those with endpoints of Services that have failing
    /// ones. Reads counters, which takes time.
    pub(super) fn look_for_silent_nodes(&mut self) {
        let roster = self.syncer.roster();
        let mut failing = Vec::new();
        roster.tell(|key, counts| {
            if !counts.failing.is_empty() {
                failing.push(key.clone());
            }
        });
        let mut tried = Vec::new();
        for key in &failing {
            let slices = self.store.slices(&key.name.service);
            let endpoints = slices.flat_map(|slice| &slice.endpoints);
            let nodes: HashMap<IpAddr, &str> = endpoints
                .filter_map(|endpoint| Some((endpoint.address, endpoint.node_name.as_deref()?)))
                .collect();
            let endpoints = roster.endpoints(key).into_iter();
            let endpoints = endpoints.filter(|endpoint| endpoint.connections > 0);
            tried.extend(endpoints.filter_map(|endpoint| {
                let address = endpoint.address.ip();
                Some(Tried {
                    node: nodes.get(&address)?,
                    address,
                    answers: !endpoint.is_failing(),
                })
            }));
        }
        let elsewhere = tried
            .into_iter()
            .filter(|tried| *tried.node != *self.config.node_name);
        self.silent_nodes = silent(elsewhere);
    }
}

/// The nodes of which several endpoints have been tried, and none answers.
fn silent<'a>(tried: impl Iterator<Item = Tried<'a>>) -> Vec<status::SilentNode> {
    let mut nodes: BTreeMap<&str, (BTreeSet<IpAddr>, bool)> = BTreeMap::new();
    for Tried {
        node,
        address,
        answers,
    } in tried
    {
        let (endpoints, any_answers) = nodes.entry(node).or_default();
        endpoints.insert(address);
        *any_answers |= answers;
    }
    let silent = nodes.into_iter();
    silent
        .filter(|(_, (endpoints, any_answers))| !any_answers && endpoints.len() >= ENDPOINTS)
        .map(|(node, (endpoints, _))| status::SilentNode {
            node: node.to_owned(),
            endpoints: endpoints.len(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_silent_if_none_of_several_endpoints_answers() {
        let tried = |node, last: u8, answers| Tried {
            node,
            address: [10, 1, 0, last].into(),
            answers,
        };
        let found = silent(
            [
                tried("gone", 1, false),
                tried("gone", 2, false),
                // A pod with two ports is one endpoint.
                tried("one-pod", 3, false),
                tried("one-pod", 3, false),
                tried("one-dead-pod", 4, false),
                tried("one-dead-pod", 5, false),
                tried("one-dead-pod", 6, true),
            ]
            .into_iter(),
        );
        let gone = status::SilentNode {
            node: "gone".to_owned(),
            endpoints: 2,
        };
        assert_eq!(found, [gone]);
    }
}
