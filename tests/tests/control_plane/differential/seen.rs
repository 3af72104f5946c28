//! What a twin has sent, field by field, with the names of what the twins need not have in common.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use lb_packet::{
    Fragment, Read, SCTP, TCP, UDP, crc32c, internet_checksum, tcp_flag, transport_sum,
};

use super::{ground::is_nodes, wires::Sent};

/// A packet's fields.
pub type Fields = BTreeMap<String, String>;

/// Who takes part in a conversation at one of the twins.
pub struct Names<'a> {
    pub client: SocketAddr,
    /// Ports that are the same at both twins.
    pub fixed: &'a dyn Fn(SocketAddr) -> bool,
}

/// TTL of ICMP errors that are sent here, by which they are known.
pub const RELAYED: u8 = 99;
/// Identification of the packets that are sent here.
const ID: u16 = 0x4321;

/// A field's value, empty if the packet does not have it.
pub fn get<'a>(fields: &'a Fields, name: &str) -> &'a str {
    fields.get(name).map_or("", String::as_str)
}

/// The fields of packets, in an order of their own.
pub fn describe(sent: &[Sent], names: &Names) -> Vec<Fields> {
    let mut all: Vec<_> = whole(sent)
        .iter()
        .map(|(sent, parts)| fields(sent, *parts, names))
        .collect();
    all.sort();
    all
}

/// Packets, with fragments put together, and of how many each was made.
fn whole(sent: &[Sent]) -> Vec<(Sent, usize)> {
    let mut found = Vec::new();
    let mut parts: BTreeMap<_, Vec<&Sent>> = BTreeMap::new();
    for one in sent {
        let read = Read::packet(&one.packet);
        match read.fragment {
            Some(Fragment { id, .. }) => {
                // Its fragments have these in common.
                let of = (one.wire, read.source, read.destination, id);
                parts.entry(of).or_default().push(one);
            }
            None => found.push((one.clone(), 1)),
        }
    }
    for ((wire, ..), parts) in parts {
        match join(&parts) {
            Some(packet) => found.push((Sent { wire, packet }, parts.len())),
            None => found.extend(parts.into_iter().map(|part| (part.clone(), 1))),
        }
    }
    found
}

/// The packet that fragments are parts of, if all are there. Its IPv6 extension headers are left out.
fn join(sent: &[&Sent]) -> Option<Vec<u8>> {
    let parts = sent.iter().map(|sent| Read::packet(&sent.packet));
    let mut parts: Vec<_> = parts
        .filter_map(|read| Some((read.fragment?, read)))
        .collect();
    parts.sort_by_key(|(fragment, _)| fragment.offset);
    let mut body: Vec<u8> = Vec::new();
    for (fragment, read) in &parts {
        if usize::from(fragment.offset) * 8 != body.len() {
            return None;
        }
        body.extend(read.payload());
    }
    if parts.last()?.0.more {
        return None;
    }
    let (_, first) = parts.first()?;
    let mut whole = match first.source {
        IpAddr::V4(_) => first.bytes[..first.transport].to_vec(),
        IpAddr::V6(_) => first.bytes[..40].to_vec(),
    };
    if first.source.is_ipv4() {
        let length = whole.len() + body.len();
        whole[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        whole[6..8].fill(0);
        whole[10..12].fill(0);
        let checksum = internet_checksum(0, &whole);
        whole[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        whole[4..6].copy_from_slice(&(body.len() as u16).to_be_bytes());
        whole[6] = first.protocol;
    }
    whole.extend(body);
    Some(whole)
}

fn fields(sent: &Sent, parts: usize, names: &Names) -> Fields {
    let mut fields = Fields::new();
    fields.insert("wire".to_owned(), format!("{:?}", sent.wire));
    if parts > 1 {
        fields.insert("fragments".to_owned(), parts.to_string());
    }
    packet(&sent.packet, "", false, names, &mut fields);
    fields
}

/// Adds the fields of a packet, or of what an error quotes.
fn packet(bytes: &[u8], prefix: &str, is_quote: bool, names: &Names, fields: &mut Fields) {
    let mut set = |name: &str, value: String| {
        fields.insert(format!("{prefix}{name}"), value);
    };
    let read = Read::packet(bytes);
    let body = read.bytes.get(read.transport..).unwrap_or_default();
    let kind = body.first().copied().unwrap_or_default();
    let is_error = match read.protocol {
        1 => matches!(kind, 3 | 4 | 5 | 11 | 12),
        58 => kind < 128,
        _ => false,
    };
    if is_error && !is_quote && !(RELAYED - 10..=RELAYED).contains(&read.ttl) {
        own_error(&read, body, names, fields);
        return;
    }
    set("ttl", read.ttl.to_string());
    set("protocol", read.protocol.to_string());
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    if read.source.is_ipv4() {
        set("total length", word(2).to_string());
        set("class", format!("{:#x}", bytes[1]));
        set("DF", (word(6) & 0x4000 != 0).to_string());
        set("id", if word(4) == ID { "kept" } else { "own" }.to_owned());
        set("options", format!("{:x?}", &bytes[20..read.transport]));
        if !is_quote {
            let is_right = internet_checksum(0, &bytes[..read.transport]) == 0;
            set("header checksum", is_right.to_string());
        }
    } else {
        set("payload length", word(4).to_string());
        set("class", format!("{:#x}", word(0) >> 4 & 0xff));
        set("extensions", format!("{:x?}", &bytes[40..read.transport]));
    }
    if read.fragment.is_some() && !(is_quote && has_transport(&read)) {
        set("fragment", format!("{:x?}", &bytes[..bytes.len().min(48)]));
        return;
    }
    let [source, destination] = names.ends(&read);
    set("source", source);
    set("destination", destination);
    if !is_quote {
        set("checksum", checksum(&read, body));
    }
    match read.protocol {
        TCP if body.len() >= 20 => {
            set("sequence", format!("{:?}", &body[4..8]));
            let is_reset = body[13] & tcp_flag::RST != 0;
            set("acknowledged", format!("{:?}", &body[8..12]));
            set("flags", format!("{:#x}", body[13]));
            let window = match is_reset {
                true => "any".to_owned(),
                false => format!("{:?}", &body[14..16]),
            };
            set("window", window);
            set("rest", summary(&body[18..]));
        }
        // The ports and the numbers that tell clients apart are above.
        TCP if body.len() >= 8 => set("sequence", format!("{:?}", &body[4..8])),
        UDP if body.len() >= 8 => {
            set("UDP length", format!("{:?}", &body[4..6]));
            set("rest", summary(&body[8..]));
        }
        SCTP if body.len() >= 12 => {
            set("tag", format!("{:?}", &body[4..8]));
            set("rest", summary(&body[12..]));
        }
        1 | 58 if body.len() >= 8 => {
            set("kind", format!("{}/{}", body[0], body[1]));
            if is_error && !is_quote {
                set("word", format!("{:?}", &body[4..8]));
                set("quoted", (body.len() - 8).to_string());
                if body.len() > 28 {
                    packet(&body[8..], "quoted ", true, names, fields);
                }
            } else {
                set("rest", summary(&body[6..]));
            }
        }
        _ => set("rest", summary(body)),
    }
}

/// Whether the transport's header is in there, and not in an earlier fragment.
fn has_transport(read: &Read) -> bool {
    read.fragment.is_none_or(|fragment| fragment.offset == 0)
}

/// Whether a packet says that another one was too big for the way to its endpoint.
pub fn is_too_big(fields: &Fields) -> bool {
    matches!(get(fields, "kind"), "2/0" | "3/4")
}

/// Adds what matters of an error that the node has sent itself. It may come from any of its addresses
/// or from the one that was asked, and quotes more or less.
fn own_error(read: &Read, body: &[u8], names: &Names, fields: &mut Fields) {
    let mut set = |name: &str, value: String| fields.insert(name.to_owned(), value);
    set("protocol", read.protocol.to_string());
    set("kind", format!("{}/{}", body[0], body[1]));
    set("destination", names.of_address(read.destination));
    set("checksum", checksum(read, body));
    if body.len() > 28 {
        let quoted = Read::packet(&body[8..]);
        set("quoted protocol", quoted.protocol.to_string());
        let [source, destination] = names.ends(&quoted);
        set("quoted source", source);
        set("quoted destination", destination);
    }
}

fn summary(bytes: &[u8]) -> String {
    match bytes.len() {
        0..=40 => format!("{bytes:x?}"),
        length => format!("{length} bytes, {:x}", crc32c(bytes)),
    }
}

fn checksum(read: &Read, body: &[u8]) -> String {
    let is_right = match read.protocol {
        UDP if body.get(6..8) == Some(&[0, 0]) => return "none".to_owned(),
        SCTP if body.len() >= 12 => {
            let mut copy = body.to_vec();
            copy[8..12].fill(0);
            crc32c(&copy).to_le_bytes() == body[8..12]
        }
        TCP | UDP | 1 | 58 => {
            let sum = transport_sum(read.source, read.destination, read.protocol, body);
            sum == 0xffff
        }
        _ => return "none".to_owned(),
    };
    if is_right { "right" } else { "wrong" }.to_owned()
}

impl Names<'_> {
    /// Source and destination.
    fn ends(&self, read: &Read) -> [String; 2] {
        let is_known = matches!(read.protocol, TCP | UDP | SCTP) && has_transport(read);
        match is_known && read.payload().len() >= 4 {
            true => [read.from(), read.to()].map(|end| self.of(end)),
            false => [read.source, read.destination].map(|address| self.of_address(address)),
        }
    }

    fn of_address(&self, address: IpAddr) -> String {
        match address == self.client.ip() {
            true => "the client".to_owned(),
            false => address.to_string(),
        }
    }

    fn of(&self, end: SocketAddr) -> String {
        if end == self.client {
            "the client".to_owned()
        } else if end.ip() == self.client.ip() && !(self.fixed)(end) {
            "the client at another port".to_owned()
        } else if is_nodes(end.ip()) && !(self.fixed)(end) {
            "the node, at some port".to_owned()
        } else {
            end.to_string()
        }
    }
}
