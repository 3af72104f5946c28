//! New connections: where they may go, and what happens to them.

use lb_common::{
    abi::{FrontendKind, endpoint_flag, plan_flag},
    addr::{Address as _, Ip4, Ip6},
    parse, select,
    verdict::Reason,
};
use lb_packet::tcp_flag;
use node_lb::map_writer::maglev;

use super::{Address, Flow, Model, Segment, Side, Tuple, tcp::opens};
use crate::{
    scene::SNAT_PORT,
    service::{Class, EndpointSpec, MAGLEV_ROWS, TCP},
};

/// Endpoints that a new connection may go to.
pub(super) struct Route {
    /// Index of the service.
    service: usize,
    endpoints: Vec<EndpointSpec>,
    masquerade: bool,
}

/// What happens to a connection that goes nowhere.
pub(super) enum Refusal {
    Pass(Reason),
    Drop(Reason),
    Reject,
}

/// New connections.
impl Model {
    pub(super) fn route(&self, tuple: Tuple, flags: u8) -> Result<Route, Refusal> {
        let (protocol, source, destination) = tuple;
        let frontend = self
            .services
            .iter()
            .enumerate()
            .find_map(|(index, service)| {
                let mut frontends = service.frontends.iter();
                let found =
                    frontends.find(|(_, address, port)| (*address, *port) == destination)?;
                (service.protocol == protocol).then_some((index, found.0))
            });
        let Some((index, kind)) = frontend else {
            return Err(Refusal::Pass(Reason::NotService));
        };
        let service = &self.services[index];
        let ranges = &service.source_ranges;
        if kind == FrontendKind::LoadBalancerIp
            && !ranges.is_empty()
            && !ranges.iter().any(|range| range.0 == source.0)
        {
            return Err(Refusal::Drop(Reason::SourceRange));
        }
        if service.endpoints.is_empty() {
            return Err(Refusal::Reject);
        }
        let from_pod = source.0 == self.scene.local;
        let from_node = source.0 == self.scene.node;
        let external_local = service.flags & plan_flag::EXTERNAL_LOCAL != 0;
        let local = match kind {
            FrontendKind::ClusterIp => service.flags & plan_flag::INTERNAL_LOCAL != 0,
            _ => external_local && !from_pod && !from_node,
        };
        // Topology hints narrow only the set of ready endpoints in the whole cluster.
        let hinted = service.flags & plan_flag::HINTED != 0 && !local;
        let of = |wanted: &dyn Fn(Class) -> bool| {
            let endpoints = service.endpoints.iter().copied();
            let wanted = endpoints.filter(|e| wanted(e.class));
            wanted
                .filter(|e| !local || e.class.is_local())
                .collect::<Vec<_>>()
        };
        let ready = of(&|class| !class.is_terminating() && (!hinted || class.is_hinted()));
        let endpoints = match ready.is_empty() {
            true => of(&Class::is_terminating),
            false => ready,
        };
        if endpoints.is_empty() {
            return Err(Refusal::Drop(Reason::NoLocalEndpoints));
        }
        if protocol == TCP && flags & tcp_flag::RST != 0 {
            return Err(Refusal::Pass(Reason::StrayReset));
        }
        let masquerade = match kind {
            FrontendKind::ClusterIp => !from_pod,
            _ if external_local => from_node,
            _ => true,
        };
        Ok(Route {
            service: index,
            endpoints,
            masquerade,
        })
    }

    /// The endpoints of a route that a connection may go to: with session affinity those that its
    /// client has used; the one in the lookup table, if there is one; otherwise all.
    fn may_serve(&self, route: &Route, (protocol, client, frontend): Tuple) -> Vec<EndpointSpec> {
        let service = &self.services[route.service];
        let endpoints = route.endpoints.iter().copied();
        if let Some(visited) = self.visited.get(&(route.service, client.0)) {
            let again: Vec<_> = endpoints
                .clone()
                .filter(|endpoint| visited.contains(&place(endpoint)))
                .collect();
            if !again.is_empty() {
                return again;
            }
        }
        if service.maglev {
            let places: Vec<_> = endpoints.clone().map(|e| place(&e).into()).collect();
            let row = maglev_hash(protocol, client, frontend) % MAGLEV_ROWS;
            let table = maglev::table(&places, &[], 0, MAGLEV_ROWS);
            return vec![route.endpoints[usize::from(table[row as usize])]];
        }
        endpoints.collect()
    }

    pub(super) fn open(
        &mut self,
        tuple: Tuple,
        segment: &Segment,
        route: &Route,
        chosen: (Address, Address),
    ) -> Result<(), String> {
        let (protocol, client, frontend) = tuple;
        let (source, destination) = chosen;
        let may_serve = self.may_serve(route, tuple);
        let mut endpoints = may_serve.iter();
        let endpoint = endpoints
            .find(|endpoint| place(endpoint) == destination)
            .ok_or_else(|| format!("{destination:?} is none of {may_serve:?}"))?;
        if self.services[route.service].affinity_seconds != 0 {
            let visited = self.visited.entry((route.service, client.0)).or_default();
            visited.push(destination);
        }
        let host = endpoint.flags & endpoint_flag::HOST != 0;
        let masquerade = !host && (route.masquerade || client.0 == endpoint.address);
        let wanted = if masquerade {
            self.scene.node
        } else {
            client.0
        };
        if source.0 != wanted {
            return Err(format!("the source became {source:?}, not {wanted}"));
        }
        let answers = (protocol, destination, source);
        let taken = (protocol, destination, client);
        let syn = opens(tuple, segment.flags);
        let picked_up = protocol == TCP && !syn;
        let taken = self
            .flows
            .get(&taken)
            .is_some_and(|flow| !(syn && self.is_closed(flow)));
        if let Some(flow) = self.flows.get(&answers)
            && syn
            && self.is_closed(flow)
        {
            self.remove(answers);
        }
        if self.flows.contains_key(&answers) {
            return Err(format!("{answers:?} is another connection's"));
        }
        let ports = SNAT_PORT..SNAT_PORT + self.ports;
        let may = match masquerade || taken {
            true => ports.contains(&source.1),
            false => source.1 == client.1,
        };
        if !may {
            return Err(format!("port {} is not to be used", source.1));
        }
        let within = endpoint_flag::LOCAL | endpoint_flag::IN_CLUSTER;
        if self.is_full() && !picked_up {
            return Err("a connection was let in above the limit".to_owned());
        }
        let forward = !host && (masquerade || self.bypass && endpoint.flags & within != 0);
        let limited = self.limit != 0;
        let flow = |to, reply, peer| Flow {
            to,
            reply,
            forward,
            peer,
            half: !reply,
            picked_up,
            seated: reply && limited,
            side: Side::default(),
        };
        let mut there = flow(chosen, false, answers);
        there.side.note(segment);
        self.flows.insert(tuple, there);
        self.flows
            .insert(answers, flow((frontend, client), true, tuple));
        Ok(())
    }
}

fn place(endpoint: &EndpointSpec) -> Address {
    (endpoint.address, endpoint.port)
}

/// The hash that selects the row of a lookup table.
fn maglev_hash(protocol: u8, from: Address, to: Address) -> u32 {
    let (source, destination) = (Ip6::from(from.0), Ip6::from(to.0));
    let pad = [0; 3];
    match from.0.is_ipv4() {
        true => select::maglev_hash(&parse::Tuple {
            source: Ip4::from_mapped(source),
            destination: Ip4::from_mapped(destination),
            source_port: from.1,
            destination_port: to.1,
            protocol,
            pad,
        }),
        false => select::maglev_hash(&parse::Tuple {
            source,
            destination,
            source_port: from.1,
            destination_port: to.1,
            protocol,
            pad,
        }),
    }
}
