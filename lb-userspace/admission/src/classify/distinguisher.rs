//! Which flow of its schema a connection belongs to.

use std::{fmt, io::Write, net::IpAddr};

use ipnet::IpNet;

use super::{Connection, Identity};
use crate::{
    level::Level,
    schema::{DistinguisherMethod, Ingress, PrefixLengths, Schema},
};

/// The maximum length of a distinguisher's text, in octets: a service account with its namespace.
/// Longer text is cut off.
pub const MAX_DISTINGUISHER: usize = 63 + 1 + 253;

/// Where a distinguisher's text is written, so that no memory is allocated for it.
pub type TextBuffer = [u8; MAX_DISTINGUISHER];

/// What tells a flow apart from the others of its schema. Its text is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distinguisher<'a> {
    /// All connections of the schema are one flow.
    None,
    /// Everyone with an address of this network.
    Network(IpNet),
    Namespace(&'a str),
    ServiceAccount {
        namespace: &'a str,
        name: &'a str,
    },
    Node(&'a str),
    Service {
        namespace: &'a str,
        name: &'a str,
    },
}

impl<'a> Distinguisher<'a> {
    /// The distinguisher of a connection that `schema` takes and `level` serves. It matters only
    /// where connections wait in more than one queue, or flows have a limit; elsewhere there is
    /// none.
    pub fn new(schema: &Schema, level: &Level, connection: &Connection<'a>) -> Self {
        match schema.distinguisher {
            Some(method) if schema.tells_flows_apart(level) => Self::by(method, connection),
            _ => Self::None,
        }
    }

    /// The distinguisher of a connection by one method. A source without a known identity is told
    /// apart by its address: if all of these were one flow, any of them could starve the others.
    pub fn by(method: DistinguisherMethod, connection: &Connection<'a>) -> Self {
        match method {
            DistinguisherMethod::SourceIp => source_ip(connection),
            DistinguisherMethod::SourcePrefix(lengths) => {
                source_network(connection.source, lengths)
            }
            DistinguisherMethod::SourceNamespace
            | DistinguisherMethod::SourceServiceAccount
            | DistinguisherMethod::SourceNode => {
                let identity = connection.identity;
                let known = identity.and_then(|identity| Self::of_identity(method, identity));
                known.unwrap_or_else(|| unidentified(connection))
            }
            DistinguisherMethod::DestinationService => Self::Service {
                namespace: connection.destination.namespace,
                name: connection.destination.service,
            },
        }
    }

    /// The distinguisher of a pod's connections, by a method that depends on whose the pod is.
    pub(super) fn of_identity(method: DistinguisherMethod, identity: &'a Identity) -> Option<Self> {
        match method {
            DistinguisherMethod::SourceNamespace => Some(Self::Namespace(&identity.namespace)),
            DistinguisherMethod::SourceServiceAccount => Some(Self::ServiceAccount {
                namespace: &identity.namespace,
                name: &identity.service_account,
            }),
            DistinguisherMethod::SourceNode if !identity.node.is_empty() => {
                Some(Self::Node(&identity.node))
            }
            _ => None,
        }
    }

    /// The text, in a buffer.
    pub fn text<'b>(&self, buffer: &'b mut TextBuffer) -> &'b [u8] {
        let mut rest = &mut buffer[..];
        // Fails at the end of the buffer, so the text is cut off there.
        let _ = write!(rest, "{self}");
        let length = MAX_DISTINGUISHER - rest.len();
        &buffer[..length]
    }
}

/// By full address. Outside the cluster by /64, because that is what one IPv6 client has.
fn source_ip<'a>(connection: &Connection<'_>) -> Distinguisher<'a> {
    match connection.ingress {
        Ingress::External => {
            source_network(connection.source, PrefixLengths { ipv4: 32, ipv6: 64 })
        }
        Ingress::Pod | Ingress::Node => {
            Distinguisher::Network(connection.source.to_canonical().into())
        }
    }
}

fn unidentified<'a>(connection: &Connection<'_>) -> Distinguisher<'a> {
    Distinguisher::Network(source_of(connection.ingress, connection.source))
}

/// Who is behind an address, if nothing else is known: the address itself of a pod or the node. All
/// pods of a node are in one network, and each is somebody else. A source outside the cluster has
/// many addresses, so it is a network.
pub fn source_of(ingress: Ingress, address: IpAddr) -> IpNet {
    match ingress {
        Ingress::External => network(address, PrefixLengths::default()),
        Ingress::Pod | Ingress::Node => address.to_canonical().into(),
    }
}

fn source_network<'a>(source: IpAddr, lengths: PrefixLengths) -> Distinguisher<'a> {
    Distinguisher::Network(network(source, lengths))
}

fn network(source: IpAddr, lengths: PrefixLengths) -> IpNet {
    let source = source.to_canonical();
    let length = match source {
        IpAddr::V4(_) => lengths.ipv4,
        IpAddr::V6(_) => lengths.ipv6,
    };
    let network = IpNet::new(source, length).unwrap_or(source.into());
    network.trunc()
}

impl fmt::Display for Distinguisher<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                network.addr().fmt(f)
            }
            Self::Network(network) => network.fmt(f),
            Self::Namespace(name) | Self::Node(name) => f.write_str(name),
            Self::ServiceAccount { namespace, name } | Self::Service { namespace, name } => {
                write!(f, "{namespace}/{name}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::ServiceFrontend;
    use lb_objects::Protocol;

    fn connection<'a>(
        ingress: Ingress,
        source: &str,
        identity: Option<&'a Identity>,
    ) -> Connection<'a> {
        Connection {
            ingress,
            source: source.parse().unwrap(),
            identity,
            destination: ServiceFrontend {
                namespace: "shop",
                service: "web",
                port: 80,
                protocol: Protocol::Tcp,
                address: None,
            },
        }
    }

    #[test]
    fn sources_are_told_apart_by_identity_or_else_by_address() {
        use DistinguisherMethod::*;
        let cart = Identity {
            namespace: "shop".to_owned(),
            service_account: "cart".to_owned(),
            node: "worker-1".to_owned(),
            ..Identity::default()
        };
        let text = |method, connection| Distinguisher::by(method, &connection).to_string();
        let known = connection(Ingress::Pod, "10.0.0.9", Some(&cart));
        for (method, expected) in [
            (SourceIp, "10.0.0.9"),
            (
                SourcePrefix(PrefixLengths { ipv4: 26, ipv6: 60 }),
                "10.0.0.0/26",
            ),
            (SourceNamespace, "shop"),
            (SourceServiceAccount, "shop/cart"),
            (SourceNode, "worker-1"),
            (DestinationService, "shop/web"),
        ] {
            assert_eq!(text(method, known), expected, "{method:?}");
        }

        for (ingress, source, expected) in [
            (Ingress::Pod, "10.0.0.9", "10.0.0.9"),
            (Ingress::Pod, "fd00::9", "fd00::9"),
            (Ingress::Node, "10.0.0.9", "10.0.0.9"),
            (Ingress::External, "192.0.2.9", "192.0.2.0/24"),
            (
                Ingress::External,
                "2001:db8:1:2ff::9",
                "2001:db8:1:200::/56",
            ),
        ] {
            let unknown = connection(ingress, source, None);
            for method in [SourceNamespace, SourceServiceAccount, SourceNode] {
                assert_eq!(text(method, unknown), expected, "{method:?}");
            }
        }
        let external = |source| connection(Ingress::External, source, None);
        assert_eq!(text(SourceIp, external("192.0.2.9")), "192.0.2.9");
        assert_eq!(text(SourceIp, external("2001:db8::9")), "2001:db8::/64");
        assert_eq!(text(SourceIp, external("::ffff:192.0.2.9")), "192.0.2.9");
    }

    #[test]
    fn text_needs_no_more_room_than_there_is() {
        let mut buffer = [0; MAX_DISTINGUISHER];
        let (namespace, name) = ("n".repeat(63), "a".repeat(253));
        let longest = Distinguisher::ServiceAccount {
            namespace: &namespace,
            name: &name,
        };
        assert_eq!(
            longest.text(&mut buffer),
            format!("{namespace}/{name}").as_bytes()
        );
        let (namespace, name) = ("n".repeat(400), "a".repeat(400));
        let absurd = Distinguisher::ServiceAccount {
            namespace: &namespace,
            name: &name,
        };
        assert_eq!(
            absurd.text(&mut buffer),
            "n".repeat(MAX_DISTINGUISHER).as_bytes()
        );
        assert_eq!(Distinguisher::None.text(&mut buffer), b"");
    }
}
