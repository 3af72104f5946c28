//! Rules for destinations.

use ipnet::IpNet;
use lb_objects::{Protocol, kubernetes::field, quoted};

use super::{ANY, Path, label, listed, listed_names};
use crate::{
    objects::{
        finding::Findings,
        rule::{DestinationSpec, PortSpec},
    },
    schema::{Destination, PortSpan, Services},
};

pub fn destination(
    path: &Path,
    spec: &DestinationSpec,
    findings: &mut Findings,
) -> Option<Destination> {
    let at = |name: &str| path.field(name);
    let addresses = listed(
        &at("addresses"),
        spec.addresses.as_deref(),
        |text| text == ANY,
        |path: &Path, text: &String, findings: &mut Findings| -> Option<IpNet> {
            findings.check(field::cidr(path, text))
        },
        findings,
    );
    Some(Destination {
        service: services(path, spec, findings),
        ports: listed(
            &at("ports"),
            spec.ports.as_deref(),
            |port| matches!(port, PortSpec::Text(text) if text == ANY),
            port_span,
            findings,
        ),
        protocols: listed(
            &at("protocols"),
            spec.protocols.as_deref(),
            |text| text == ANY,
            |path: &Path, text: &String, findings: &mut Findings| -> Option<Protocol> {
                findings.check(field::protocol(path, Some(text)))
            },
            findings,
        ),
        addresses,
    })
}

/// A destination must name namespaces or addresses, so that a list that is empty by mistake does
/// not match everything.
fn services(path: &Path, spec: &DestinationSpec, findings: &mut Findings) -> Option<Services> {
    let (namespaces, services) = (path.field("namespaces"), path.field("services"));
    if spec.namespaces.is_none() {
        if spec.addresses.is_none() {
            let message = "must have at least one entry unless addresses are given";
            findings.error(&namespaces, message);
        }
        if spec.services.is_some() {
            findings.error(&services, "must not be given without namespaces");
        }
        return None;
    }
    Some(Services {
        namespaces: listed_names(&namespaces, spec.namespaces.as_deref(), label, findings),
        names: listed_names(&services, spec.services.as_deref(), label, findings),
    })
}

fn port_span(path: &Path, port: &PortSpec, findings: &mut Findings) -> Option<PortSpan> {
    let (text, span) = match port {
        PortSpec::Number(number) => (
            number.to_string(),
            u16::try_from(*number).ok().map(|port| (port, port)),
        ),
        PortSpec::Text(text) => {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            (quoted(text), first.parse().ok().zip(last.parse().ok()))
        }
    };
    match span {
        Some((first, last)) if 0 < first && first <= last => Some(PortSpan { first, last }),
        _ => {
            let rule = "must be a port from 1 to 65535, or a range FIRST-LAST of them";
            findings.error(path, format!("{text} {rule}"));
            None
        }
    }
}
