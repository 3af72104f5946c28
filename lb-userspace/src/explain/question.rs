//! What somebody wants explained, as flags and as a request's query.

use std::net::IpAddr;

use super::{
    Target,
    decision::{Decision, FirstPacket},
    limits::InUse,
};
use crate::memory::ProgrammedTables;

/// The longest name of a device: the kernel's `IFNAMSIZ`, without the zero.
const LONGEST_NAME: usize = 15;

/// The connection whose first packet is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub from: IpAddr,
    pub to: Target,
    /// The device that the packet arrives on, if the node tells pods by it.
    pub interface: Option<String>,
}

impl Question {
    /// Reads a request's parameters; absent ones are asked for by `value` as well.
    ///
    /// # Errors
    ///
    /// Names the parameter that is wrong, and the form that it takes.
    pub fn from_query(value: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let from = value("from").unwrap_or_default();
        let from = from
            .parse()
            .map_err(|_| "from: write the source as an IP address")?;
        let to = value("to").unwrap_or_default();
        let to = to.parse().map_err(|error| format!("to: {error}"))?;
        // A form sends its empty fields as well.
        let interface = value("interface").filter(|name| !name.is_empty());
        if interface
            .as_ref()
            .is_some_and(|name| name.len() > LONGEST_NAME)
        {
            return Err(format!(
                "interface: write the name of a device, which has {LONGEST_NAME} bytes at most"
            ));
        }
        let question = Self {
            from,
            to,
            interface,
        };
        match question.is_of_one_family() {
            true => Ok(question),
            false => Err("from and to: write addresses of one IP family".to_owned()),
        }
    }

    /// The parameters that [`Self::from_query`] reads.
    pub fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("from", &self.from.to_string());
        query.append_pair("to", &self.to.to_string());
        if let Some(interface) = &self.interface {
            query.append_pair("interface", interface);
        }
        query.finish()
    }

    /// Whether both addresses are of one family, without which there is no such packet.
    pub fn is_of_one_family(&self) -> bool {
        self.from.is_ipv4() == self.to.address.is_ipv4()
    }

    /// Has the pipeline decide. `tables` have everything but the numbers `in_use`; `node_limit` is
    /// the most connections of the node, 0 without a limit. Both addresses are of one family.
    pub fn ask<'a>(
        &self,
        tables: &'a mut ProgrammedTables,
        node_limit: u32,
        in_use: &InUse,
    ) -> Decision<'a> {
        let interface = self.interface.as_deref();
        let packet = FirstPacket {
            source: self.from,
            destination: self.to.address,
            protocol: self.to.protocol,
            ifindex: interface.map_or(0, |name| tables.add_device(name, 0)),
        };
        in_use.write(tables, node_limit);
        Decision::new(tables, packet, in_use)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_as_it_was_meant() {
        for (from, to, interface) in [
            ("192.0.2.1", "192.0.2.2:53/udp", None),
            ("2001:db8::1", "[2001:db8::2]:80", Some("veth+7&to=%")),
        ] {
            let question = Question {
                from: from.parse().unwrap(),
                to: to.parse().unwrap(),
                interface: interface.map(str::to_owned),
            };
            let query = question.query();
            let value = |name: &str| {
                let mut pairs = form_urlencoded::parse(query.as_bytes());
                let (_, value) = pairs.find(|(key, _)| key == name)?;
                Some(value.into_owned())
            };
            assert_eq!(Question::from_query(value), Ok(question));
        }
    }
}
