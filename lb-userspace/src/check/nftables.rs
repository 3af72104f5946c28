//! Which nftables rules exist, read by netlink, because the container has no `nft` program.

use std::io;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST};
use netlink_sys::{Socket, protocols::NETLINK_NETFILTER};

/// The nf_tables subsystem of nfnetlink, in the upper half of message types
/// (linux/netfilter/nfnetlink.h).
const NFNL_SUBSYS_NFTABLES: u16 = 10 << 8;
/// linux/netfilter/nf_tables.h.
const NFT_MSG_GETTABLE: u16 = NFNL_SUBSYS_NFTABLES | 1;
const NFT_MSG_GETCHAIN: u16 = NFNL_SUBSYS_NFTABLES | 4;
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;

/// Length of `struct nlmsghdr` and of `struct nfgenmsg` after it.
const HEADER: usize = 16;
const GENERIC: usize = 4;

/// The table of kube-proxy's nftables mode, and tables in which iptables-nft keeps the chains of
/// its iptables mode. Each is named like `ip kube-proxy`.
///
/// # Errors
/// If the kernel refuses. A kernel without nftables is no error.
pub fn kube_proxy_tables() -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for message in dump(NFT_MSG_GETTABLE)? {
        if let Some("kube-proxy") = message.text(NFTA_TABLE_NAME) {
            found.push(format!("table {} kube-proxy", message.family()));
        }
    }
    for message in dump(NFT_MSG_GETCHAIN)? {
        let chain = message.text(NFTA_CHAIN_NAME);
        if chain.is_some_and(super::iptables::is_kube_proxy_chain) {
            let table = message.text(NFTA_CHAIN_TABLE).unwrap_or("?");
            let table = format!("table {} {table} (iptables)", message.family());
            if !found.contains(&table) {
                found.push(table);
            }
        }
    }
    Ok(found)
}

/// An object of a listing: the bytes after the netlink header.
struct Message(Vec<u8>);

impl Message {
    /// The name of the family in `nft`.
    fn family(&self) -> &'static str {
        match self.0.first().map(|family| i32::from(*family)) {
            Some(libc::NFPROTO_IPV4) => "ip",
            Some(libc::NFPROTO_IPV6) => "ip6",
            Some(libc::NFPROTO_INET) => "inet",
            _ => "?",
        }
    }

    /// An attribute that is text.
    fn text(&self, kind: u16) -> Option<&str> {
        let mut rest = self.0.get(GENERIC..)?;
        while rest.len() >= 4 {
            let length = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
            let found = u16::from_ne_bytes([rest[2], rest[3]]);
            let value = rest.get(4..length)?;
            if found == kind {
                return std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok();
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        None
    }
}

/// Lists objects of all families.
fn dump(kind: u16) -> io::Result<Vec<Message>> {
    let mut socket = match Socket::new(NETLINK_NETFILTER) {
        Ok(socket) => socket,
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    socket.bind_auto()?;
    let mut request = Vec::with_capacity(HEADER + GENERIC);
    request.extend((HEADER as u32 + GENERIC as u32).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    request.extend([0; 8]);
    request.extend([libc::AF_UNSPEC as u8, 0, 0, 0]);
    socket.send(&request, 0)?;

    let mut messages = Vec::new();
    loop {
        let (received, _) = socket.recv_from_full()?;
        if read(&received, &mut messages)? {
            return Ok(messages);
        }
    }
}

/// Reads the objects of a datagram. Returns whether it was the last one.
fn read(mut received: &[u8], messages: &mut Vec<Message>) -> io::Result<bool> {
    while let Some(header) = received.get(..HEADER) {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = i32::from(u16::from_ne_bytes([header[4], header[5]]));
        let Some(body) = received.get(HEADER..length) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        match kind {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let code = body
                    .first_chunk()
                    .map_or(0, |code| i32::from_ne_bytes(*code));
                return match -code {
                    // There is no such subsystem: the kernel has no nftables.
                    0 | libc::EINVAL | libc::EOPNOTSUPP => Ok(true),
                    code => Err(io::Error::from_raw_os_error(code)),
                };
            }
            _ => messages.push(Message(body.to_vec())),
        }
        received = received
            .get(length.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer with one table `kube-proxy` of family ip, and the end.
    fn answer() -> Vec<u8> {
        let mut body = vec![libc::NFPROTO_IPV4 as u8, 0, 0, 0];
        body.extend([8_u16.to_ne_bytes(), 2_u16.to_ne_bytes()].concat());
        body.extend([0; 4]);
        body.extend([15_u16.to_ne_bytes(), 1_u16.to_ne_bytes()].concat());
        body.extend(b"kube-proxy\0\0");
        let header = |length: usize, kind: u16| {
            let mut header = (length as u32).to_ne_bytes().to_vec();
            header.extend(kind.to_ne_bytes());
            header.extend([0; 10]);
            header
        };
        let mut answer = header(HEADER + body.len(), NFNL_SUBSYS_NFTABLES);
        answer.extend(body);
        answer.extend(header(HEADER, libc::NLMSG_DONE as u16));
        answer
    }

    #[test]
    fn names_are_read_after_other_attributes() {
        let mut messages = Vec::new();
        assert!(read(&answer(), &mut messages).unwrap());
        assert_eq!(messages.len(), 1);
        assert_eq!(messages[0].family(), "ip");
        assert_eq!(messages[0].text(NFTA_TABLE_NAME), Some("kube-proxy"));
        assert_eq!(messages[0].text(9), None);
    }

    #[test]
    fn an_answer_cut_anywhere_does_no_harm() {
        let answer = answer();
        for end in 0..answer.len() {
            let mut messages = Vec::new();
            assert!(!matches!(read(&answer[..end], &mut messages), Ok(true)));
            assert!(messages.iter().all(|message| message.text(9).is_none()));
        }
    }
}
