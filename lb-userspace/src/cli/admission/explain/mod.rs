//! `node-lb admission explain`: which flow a connection belongs to, and why.

use std::net::IpAddr;

use anyhow::bail;
use clap::{Args, ValueEnum};
use lb_admission::{
    classify::{Connection, ServiceFrontend},
    schema::Ingress,
};
use lb_objects::Protocol;

use self::{report::Report, target::Target};
use super::{
    cluster::{self, Cluster},
    files::{Files, warn},
};
use crate::cli::{output::json, print};

mod reason;
mod report;
mod target;

/// Show which flow schema takes a connection, and why the schemas before it do not
///
/// Pods in the files give the identity of the source address. Services in the files give ports and
/// addresses.
#[derive(Args, Debug)]
pub struct Command {
    #[command(flatten)]
    files: Files,

    /// Source address
    #[arg(long, value_name = "IP")]
    from: IpAddr,

    /// Service; the protocol is tcp, udp or sctp. An omitted part comes from the Service's object
    #[arg(long, value_name = "NAMESPACE/SERVICE[:PORT[/PROTOCOL]]")]
    to: Target,

    /// Where the connection enters the node [default: pod if a Pod has the source address, else
    /// external]
    #[arg(long, value_name = "KIND", value_enum)]
    ingress: Option<IngressKind>,

    /// Address that the client connects to [default: the Service's cluster IP]
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,

    /// Format of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum IngressKind {
    /// From outside the node, including other nodes
    External,
    /// From a pod of the node
    Pod,
    /// From the node itself, or a pod on its network
    Node,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// Text for people
    Text,
    Json,
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        let loaded = self.files.load()?;
        for error in &loaded.errors {
            warn(error);
        }
        let cluster = Cluster::new(loaded.others);
        let identity = cluster.identities.get(self.from);
        let ingress = match self.ingress {
            Some(IngressKind::External) => Ingress::External,
            Some(IngressKind::Pod) => Ingress::Pod,
            Some(IngressKind::Node) => Ingress::Node,
            None if identity.is_some() => Ingress::Pod,
            None => Ingress::External,
        };
        let connection = Connection {
            ingress,
            source: self.from,
            identity,
            destination: frontend(&self.to, self.address, self.from, &cluster)?,
        };

        let in_force = loaded.configuration.in_force();
        let report = Report::new(&in_force, self.files.concurrency, &connection)?;
        let text = match self.output {
            Output::Text => report.text(),
            Output::Json => json(&report)?,
        };
        print(&text)
    }
}

/// The target, completed by the Service's object if there is one.
fn frontend<'a>(
    target: &'a Target,
    address: Option<IpAddr>,
    source: IpAddr,
    cluster: &Cluster,
) -> anyhow::Result<ServiceFrontend<'a>> {
    let mut frontend = ServiceFrontend {
        namespace: &target.namespace,
        service: &target.service,
        port: target.port.unwrap_or_default(),
        protocol: target.protocol.unwrap_or(Protocol::Tcp),
        address,
    };
    let Some(service) = cluster.service(&target.namespace, &target.service) else {
        return Ok(frontend);
    };
    if address.is_none() {
        let mut addresses = service.cluster_ips.iter().copied();
        frontend.address = addresses.find(|ip| ip.is_ipv4() == source.is_ipv4());
    }
    let fits = |port: &&lb_objects::ServicePort| {
        target.port.is_none_or(|number| number == port.port)
            && target
                .protocol
                .is_none_or(|protocol| protocol == port.protocol)
    };
    let fitting: Vec<_> = service.ports.iter().filter(fits).collect();
    match fitting.as_slice() {
        [] => warn(&format_args!(
            "{} has no such port, only {}",
            service.name,
            cluster::ports(service)
        )),
        [port] => (frontend.port, frontend.protocol) = (port.port, port.protocol),
        _ if target.port.is_some() => {
            frontend.protocol = target.protocol.unwrap_or(Protocol::Tcp);
        }
        _ => bail!(
            "{} has several ports: write one of {} behind --to",
            service.name,
            cluster::ports(service)
        ),
    }
    Ok(frontend)
}
