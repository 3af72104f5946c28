//! What somebody wants traced, as flags and as a request's query.

use std::{fmt, net::IpAddr, str::FromStr, time::Duration};

use ipnet::IpNet;
use lb_common::{
    addr::Family,
    parse::{SCTP, TCP, UDP},
    trace::{Filter, family_number},
    verdict::Reason,
};
use lb_objects::ObjectName;

/// Packets that one trace may tell.
pub const MOST_PACKETS: u32 = 1000;
/// How long a trace may last.
const LONGEST: Duration = Duration::from_secs(300);

/// Which packets are traced, how many, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    pub from: Option<Side>,
    pub to: Option<Side>,
    pub service: Option<ServiceRef>,
    pub reason: Option<Reason>,
    pub protocol: Option<Protocol>,
    pub limit: u32,
    pub duration: Duration,
}

/// One side of a connection: a network, a port, or both. `IP[/LENGTH][:PORT]`, or `:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    pub network: Option<IpNet>,
    pub port: Option<u16>,
}

/// A Service, or one of its ports by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRef {
    pub service: ObjectName,
    pub port: Option<String>,
}

/// A protocol by its name. ICMP is that of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol(pub u8);

impl Ask {
    /// Reads a request's parameters; absent ones are asked for by `value` as well.
    ///
    /// # Errors
    ///
    /// Names the parameter that is wrong.
    pub fn from_query(value: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let ask = Self {
            from: parameter(&value, "from")?,
            to: parameter(&value, "to")?,
            service: parameter(&value, "service")?,
            reason: match value("reason") {
                Some(name) => Some(reason(&name).map_err(|error| format!("reason: {error}"))?),
                None => None,
            },
            protocol: parameter(&value, "protocol")?,
            limit: parameter(&value, "limit")?.unwrap_or(20),
            duration: Duration::from_secs(parameter(&value, "seconds")?.unwrap_or(30)),
        };
        ask.check()?;
        Ok(ask)
    }

    /// The parameters that [`Self::from_query`] reads.
    pub fn to_query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let mut add = |name, value: Option<String>| {
            if let Some(value) = value {
                query.append_pair(name, &value);
            }
        };
        add("from", self.from.map(|side| side.to_string()));
        add("to", self.to.map(|side| side.to_string()));
        add("service", self.service.as_ref().map(ToString::to_string));
        add("reason", self.reason.map(|reason| reason.name().to_owned()));
        add(
            "protocol",
            self.protocol.map(|protocol| protocol.to_string()),
        );
        add("limit", Some(self.limit.to_string()));
        add("seconds", Some(self.duration.as_secs().to_string()));
        query.finish()
    }

    /// How many events a trace has at most: its packets, one a second while none comes, and its
    /// beginning and end.
    pub fn most_events(&self) -> usize {
        self.limit as usize + self.duration.as_secs() as usize + 16
    }

    /// What is wrong with the parameters together.
    ///
    /// # Errors
    ///
    /// A sentence.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=MOST_PACKETS).contains(&self.limit) {
            return Err(format!("limit: from 1 to {MOST_PACKETS} packets"));
        }
        if self.duration.is_zero() || self.duration > LONGEST {
            return Err(format!("seconds: from 1 to {}", LONGEST.as_secs()));
        }
        let family = |side: Option<Side>| side?.network.map(|network| network.addr().is_ipv4());
        match (family(self.from), family(self.to)) {
            (Some(from), Some(to)) if from != to => {
                Err("from and to: both have to be of the same address family".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// For the kernel, but for service ids.
    pub fn filter(&self) -> Filter {
        let mut filter = Filter {
            reason: self.reason.map_or(0, |reason| reason as u32 + 1),
            protocol: self.protocol.map_or(0, |protocol| protocol.0.into()),
            ..Filter::default()
        };
        let networks = [self.from, self.to].map(|side| side.and_then(|side| side.network));
        for network in networks.into_iter().flatten() {
            filter.family = family_number(match network {
                IpNet::V4(_) => Family::V4,
                IpNet::V6(_) => Family::V6,
            });
        }
        if let Some(network) = networks[0] {
            (filter.from, filter.from_prefix) =
                (network.addr().into(), network.prefix_len().into());
        }
        if let Some(network) = networks[1] {
            (filter.to, filter.to_prefix) = (network.addr().into(), network.prefix_len().into());
        }
        filter.from_port = self.from.and_then(|side| side.port).unwrap_or(0);
        filter.to_port = self.to.and_then(|side| side.port).unwrap_or(0);
        filter
    }
}

/// The reason of a name.
///
/// # Errors
///
/// Says which there are.
pub fn reason(name: &str) -> Result<Reason, String> {
    let found = Reason::ALL.iter().find(|reason| reason.name() == name);
    found.copied().ok_or_else(|| {
        let names: Vec<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        format!(
            "there is no reason {name:?}; there are {}",
            names.join(", ")
        )
    })
}

fn parameter<T: FromStr<Err: fmt::Display>>(
    value: impl Fn(&str) -> Option<String>,
    name: &str,
) -> Result<Option<T>, String> {
    let Some(text) = value(name) else {
        return Ok(None);
    };
    match text.parse() {
        Ok(value) => Ok(Some(value)),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

impl FromStr for Side {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is not IP[/LENGTH][:PORT] or :PORT, as 10.0.0.0/8:80 or [2001:db8::1]:80"
            )
        };
        // An IPv6 address with a port is in brackets, as in a URL.
        let (address, length, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, rest) = rest.split_once(']').ok_or_else(wrong)?;
                let (length, port) = match rest.rsplit_once(':') {
                    Some((length, port)) => (length, Some(port)),
                    None => (rest, None),
                };
                let length = match length {
                    "" => None,
                    length => Some(length.strip_prefix('/').ok_or_else(wrong)?),
                };
                (address, length, port)
            }
            None => {
                let is_v6 = text.matches(':').count() > 1;
                let (network, port) = match text.rsplit_once(':').filter(|_| !is_v6) {
                    Some((network, port)) => (network, Some(port)),
                    None => (text, None),
                };
                match network.split_once('/') {
                    Some((address, length)) => (address, Some(length), port),
                    None => (network, None, port),
                }
            }
        };
        let port = match port.map(str::parse) {
            None => None,
            Some(Ok(0)) | Some(Err(_)) => return Err(wrong()),
            Some(Ok(port)) => Some(port),
        };
        if address.is_empty() && length.is_none() && port.is_some() {
            return Ok(Self {
                network: None,
                port,
            });
        }
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let network = match length {
            None => IpNet::from(address),
            Some(length) => {
                let length = length.parse().map_err(|_| wrong())?;
                IpNet::new(address, length).map_err(|_| wrong())?
            }
        };
        Ok(Self {
            network: Some(network),
            port,
        })
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network {
            Some(IpNet::V6(network)) => write!(f, "[{}]/{}", network.addr(), network.prefix_len())?,
            Some(network) => network.fmt(f)?,
            None => {}
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl FromStr for ServiceRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (service, port) = match text.split_once(':') {
            Some((service, port)) => (service, Some(port.to_owned())),
            None => (text, None),
        };
        match ObjectName::parse(service) {
            Some(service) => Ok(Self { service, port }),
            None => Err(format!("{text:?} is not NAMESPACE/NAME[:PORT-NAME]")),
        }
    }
}

impl fmt::Display for ServiceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.service.fmt(f)?;
        match &self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl Protocol {
    const NAMES: [(u8, &str); 4] = [(TCP, "tcp"), (UDP, "udp"), (SCTP, "sctp"), (1, "icmp")];
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text);
        let number = found.map(|(number, _)| Self(*number));
        number.ok_or_else(|| format!("{text:?} is not tcp, udp, sctp or icmp"))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMES.iter().find(|(number, _)| *number == self.0) {
            Some((_, name)) => f.write_str(name),
            None => self.0.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::query_value;

    fn asked(uri: &hyper::Uri) -> Result<Ask, String> {
        Ask::from_query(|name| Some(query_value(uri, name)?.into_owned()))
    }

    #[test]
    fn sides_are_networks_and_ports() {
        for (text, shown) in [
            ("10.0.0.1", "10.0.0.1/32"),
            ("10.0.0.0/8:80", "10.0.0.0/8:80"),
            (":443", ":443"),
            ("2001:db8::1", "[2001:db8::1]/128"),
            ("2001:db8::/32", "[2001:db8::]/32"),
            ("[2001:db8::1]:80", "[2001:db8::1]/128:80"),
            ("[2001:db8::]/32:80", "[2001:db8::]/32:80"),
        ] {
            let side: Side = text.parse().unwrap();
            assert_eq!(side.to_string(), shown, "{text}");
            assert_eq!(shown.parse(), Ok(side), "{shown}");
        }
        for wrong in [
            "",
            ":",
            ":0",
            "10.0.0",
            "10.0.0.0/33",
            "10.0.0.1:x",
            "[::1",
            "web",
        ] {
            assert!(wrong.parse::<Side>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_asked_survives_the_query() {
        let ask = Ask {
            from: Some("[fd00::]/8:40000".parse().unwrap()),
            to: Some(":80".parse().unwrap()),
            service: Some("shop/web:http".parse().unwrap()),
            reason: Some(Reason::NoEndpoints),
            protocol: Some("tcp".parse().unwrap()),
            limit: 7,
            duration: Duration::from_secs(9),
        };
        let uri = format!("/trace?{}", ask.to_query()).parse().unwrap();
        assert_eq!(asked(&uri), Ok(ask));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (query, named) in [
            ("from=web", "from: "),
            ("reason=because", "reason: there is no reason \"because\""),
            ("service=web", "service: "),
            ("protocol=gre", "protocol: "),
            ("limit=0", "limit: "),
            ("limit=many", "limit: "),
            ("seconds=301", "seconds: "),
            ("from=10.0.0.1&to=fd00::1", "from and to: "),
        ] {
            let uri = format!("/trace?{query}").parse().unwrap();
            let error = asked(&uri).unwrap_err();
            assert!(error.starts_with(named), "{query}: {error}");
        }
    }

    #[test]
    fn the_kernel_gets_networks_in_their_own_lengths() {
        let ask = |from: &str| Ask {
            from: Some(from.parse().unwrap()),
            to: None,
            service: None,
            reason: None,
            protocol: None,
            limit: 1,
            duration: LONGEST,
        };
        let v4 = ask("10.0.0.0/8").filter();
        assert_eq!((v4.family, v4.from_prefix), (1, 8));
        let v6 = ask("fd00::/16").filter();
        assert_eq!((v6.family, v6.from_prefix), (2, 16));
        assert_eq!(ask(":80").filter().family, 0);
    }
}
