//! The Service that a connection goes to, in the form of the command line.

use std::str::FromStr;

use lb_objects::Protocol;

const FORM: &str = "write NAMESPACE/SERVICE, and :PORT or :PORT/PROTOCOL behind it if you like";

/// `NAMESPACE/SERVICE[:PORT[/PROTOCOL]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub namespace: String,
    pub service: String,
    pub port: Option<u16>,
    pub protocol: Option<Protocol>,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        };
        let (namespace, service) = name.split_once('/').ok_or(FORM)?;
        if namespace.is_empty() || service.is_empty() || service.contains('/') {
            return Err(FORM.to_owned());
        }
        let (port, protocol) = match port.map(|port| port.split_once('/').unwrap_or((port, ""))) {
            Some((port, protocol)) => (Some(port), protocol),
            None => (None, ""),
        };
        let protocol = match protocol.to_ascii_lowercase().as_str() {
            "" => None,
            "tcp" => Some(Protocol::Tcp),
            "udp" => Some(Protocol::Udp),
            "sctp" => Some(Protocol::Sctp),
            other => return Err(format!("unknown protocol {other:?}; {FORM}")),
        };
        let port = match port.map(str::parse) {
            None => None,
            Some(Ok(0)) => return Err(format!("port 0 cannot be a destination; {FORM}")),
            Some(Ok(port)) => Some(port),
            Some(Err(_)) => return Err(FORM.to_owned()),
        };
        Ok(Self {
            namespace: namespace.to_owned(),
            service: service.to_owned(),
            port,
            protocol,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_and_protocol_are_optional() {
        for (text, port, protocol) in [
            ("shop/web", None, None),
            ("shop/web:80", Some(80), None),
            ("shop/web:53/udp", Some(53), Some(Protocol::Udp)),
            ("shop/web:443/TCP", Some(443), Some(Protocol::Tcp)),
        ] {
            let target = Target {
                namespace: "shop".to_owned(),
                service: "web".to_owned(),
                port,
                protocol,
            };
            assert_eq!(text.parse(), Ok(target));
        }
        for text in [
            "",
            "web",
            "/web",
            "shop/",
            "shop/web/80",
            "shop/web:",
            "shop/web:0",
            "shop/web:x",
            "shop/web:1/quic",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
