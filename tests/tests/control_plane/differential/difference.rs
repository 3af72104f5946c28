//! What the twins have not done alike, and how it is told.

use std::{collections::BTreeSet, fmt};

use serde_json::Value;

use super::{
    message::Message,
    opening::Opening,
    seen::{Fields, get},
};

/// What the twins have not done alike.
#[derive(Clone, Debug)]
pub struct Difference {
    pub opening: Opening,
    /// What was sent last.
    pub step: String,
    pub message: Option<Message>,
    /// The Service that was asked, and its slices.
    pub objects: Option<Vec<Value>>,
    pub kube_proxy: Vec<Fields>,
    pub node_lb: Vec<Fields>,
}

impl Difference {
    /// In a few words, the same for all of its kind.
    pub fn kind(&self) -> String {
        let names = |packets: &[Fields]| packets.iter().map(what).collect::<BTreeSet<_>>();
        let (ours, theirs) = (names(&self.kube_proxy), names(&self.node_lb));
        let sent = match &self.sent().shape {
            shape if shape.fragments.is_some() => " of fragments",
            shape if shape.is_damaged => " with a wrong checksum",
            shape if shape.ttl < 2 => " with TTL 1",
            _ => "",
        };
        let step = match self.step.starts_with("ICMP") {
            true => "ICMP error about",
            false if self.message.is_none() => "first packet of",
            false => "later packet of",
        };
        let fields = match ours == theirs && self.kube_proxy.len() == self.node_lb.len() {
            true => format!(", {:?}", self.differing()),
            false => String::new(),
        };
        let kind = self.opening.kind;
        format!("{step} {kind:?}{sent}: {ours:?} against {theirs:?}{fields}")
    }

    /// The message that was sent last, or before the ICMP error.
    pub fn sent(&self) -> &Message {
        self.message.as_ref().unwrap_or(&self.opening.message)
    }

    /// The fields that differ.
    pub fn differing(&self) -> BTreeSet<&str> {
        let mut fields = BTreeSet::new();
        for (one, other) in self.kube_proxy.iter().zip(&self.node_lb) {
            let names = one.keys().chain(other.keys());
            fields.extend(
                names
                    .filter(|name| one.get(*name) != other.get(*name))
                    .map(String::as_str),
            );
        }
        fields
    }
}

/// What a packet is, in a few words.
fn what(fields: &Fields) -> String {
    let get = |name| get(fields, name);
    match get("protocol") {
        "6" => format!("TCP {} to {:?}", get("flags"), get("wire")),
        "17" => format!("UDP to {:?}", get("wire")),
        "132" => format!("SCTP to {:?}", get("wire")),
        "1" | "58" => format!("ICMP {}", get("kind")),
        other => format!("protocol {other}"),
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opening = &self.opening;
        writeln!(
            f,
            "{}\n  {:?} from {} on {:?} to {:?}\n  {:?}",
            self.kind(),
            opening.kind,
            opening.from,
            opening.wire,
            opening.to,
            opening.message
        )?;
        writeln!(f, "  at: {} {:?}", self.step, self.message)?;
        for object in self.objects.iter().flatten() {
            writeln!(f, "  {object}")?;
        }
        let fields = self.differing();
        for (name, packets) in [("kube-proxy", &self.kube_proxy), ("node-lb", &self.node_lb)] {
            writeln!(f, "  {name}:")?;
            for packet in packets {
                let (differ, same): (Vec<_>, Vec<_>) = packet
                    .iter()
                    .partition(|(name, _)| fields.contains(name.as_str()));
                writeln!(f, "    {}: {differ:?}; {same:?}", what(packet))?;
            }
        }
        Ok(())
    }
}
