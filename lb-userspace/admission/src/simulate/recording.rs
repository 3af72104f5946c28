//! What a recording says of a connection: all that flow schemas ask for, so that it can be
//! classified by any of them.

use std::net::IpAddr;

use lb_objects::Protocol;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{
    classify::{Connection, Identities, ServiceFrontend},
    schema::Ingress,
};

/// A connection to a Service that a node has had. As JSON, it is a line of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// When it was opened, in nanoseconds since the recording began.
    pub t_ns: u64,
    /// How long it lasted, in nanoseconds.
    pub hold_ns: u64,
    /// Address of the client.
    pub source: IpAddr,
    /// Where it entered the node.
    pub ingress: Ingress,
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub service: String,
    /// Port of the Service, not its node port.
    pub port: u16,
    #[serde(serialize_with = "write_protocol", deserialize_with = "read_protocol")]
    pub protocol: Protocol,
    /// The address that the client connected to.
    pub address: IpAddr,
}

impl Recorded {
    /// What the connection's first packet said of it.
    pub fn connection<'a>(&'a self, identities: &'a Identities) -> Connection<'a> {
        Connection {
            ingress: self.ingress,
            source: self.source,
            identity: identities.get(self.source),
            destination: ServiceFrontend {
                namespace: &self.namespace,
                service: &self.service,
                port: self.port,
                protocol: self.protocol,
                address: Some(self.address),
            },
        }
    }

    /// When it ended, in nanoseconds since the recording began.
    pub fn ended(&self) -> u64 {
        self.t_ns.saturating_add(self.hold_ns)
    }
}

fn write_protocol<S: Serializer>(protocol: &Protocol, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(protocol)
}

fn read_protocol<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Protocol, D::Error> {
    let name = String::deserialize(deserializer)?;
    let known = Protocol::from_name(&name);
    known.ok_or_else(|| D::Error::custom("protocol must be TCP, UDP or SCTP"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_all_that_schemas_ask_for() {
        let line = r#"{"t_ns":7,"hold_ns":9,"source":"10.244.1.7","ingress":"Pod","namespace":"shop","service":"web","port":80,"protocol":"UDP","address":"10.96.0.10"}"#;
        let recorded: Recorded = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_string(&recorded).unwrap(), line);
        assert_eq!(recorded.ended(), 16);
        let identities = Identities::default();
        let connection = recorded.connection(&identities);
        assert_eq!(connection.ingress, Ingress::Pod);
        assert_eq!(connection.destination.protocol, Protocol::Udp);
        for wrong in [
            line.replace("\"UDP\"", "\"udp\""),
            line.replace("\"Pod\"", "\"pod\""),
            line.replace("10.244.1.7", "10.244.1"),
            line.replace("\"port\":80,", ""),
        ] {
            assert!(serde_json::from_str::<Recorded>(&wrong).is_err(), "{wrong}");
        }
    }
}
