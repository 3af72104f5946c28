//! The destination of a connection, as the command line and requests have it.

use std::{fmt, net::SocketAddr, str::FromStr};

use lb_objects::Protocol;

const FORM: &str = "write IP:PORT or [IPV6]:PORT, and /tcp, /udp or /sctp behind it if you like";

/// `IP:PORT[/PROTOCOL]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub address: SocketAddr,
    pub protocol: Protocol,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, protocol) = match text.split_once('/') {
            Some((address, protocol)) => (address, protocol.to_ascii_lowercase()),
            None => (text, "tcp".to_owned()),
        };
        let protocol = match protocol.as_str() {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            other => return Err(format!("unknown protocol {other:?}; {FORM}")),
        };
        let address: SocketAddr = address.parse().map_err(|_| FORM)?;
        match address.port() {
            0 => Err(format!("port 0 cannot be a destination; {FORM}")),
            _ => Ok(Self { address, protocol }),
        }
    }
}

impl fmt::Display for Target {
    /// As it is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol.to_string().to_ascii_lowercase();
        write!(f, "{}/{protocol}", self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protocol_is_optional() {
        for (text, address, protocol) in [
            ("192.0.2.1:80", "192.0.2.1:80", Protocol::Tcp),
            ("192.0.2.1:53/udp", "192.0.2.1:53", Protocol::Udp),
            ("[2001:db8::1]:443/TCP", "[2001:db8::1]:443", Protocol::Tcp),
            ("[::1]:9/sctp", "[::1]:9", Protocol::Sctp),
        ] {
            let address = address.parse().unwrap();
            let target = Target { address, protocol };
            assert_eq!(text.parse(), Ok(target), "{text}");
            assert_eq!(target.to_string().parse(), Ok(target), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "192.0.2.1",
            "192.0.2.1:0",
            "192.0.2.1:80/",
            "192.0.2.1:80/icmp",
            "192.0.2.1:65536",
            "2001:db8::1:80",
            "web:80",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
