//! Which chains the older iptables has, read by its socket options
//! (linux/netfilter_ipv4/ip_tables.h), because the container has no iptables program.

use std::{fs, io, os::fd::OwnedFd};

use lb_datapath::socket_option;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// The chains with which kube-proxy serves Services. Those of the kubelet (`KUBE-KUBELET-CANARY`)
/// exist on nodes without kube-proxy, too.
const CHAINS: [&str; 3] = ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"];

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`; IPv6 has the same numbers.
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;
/// `XT_TABLE_MAXNAMELEN`.
const NAME: usize = 32;
/// Size of `struct ipt_getinfo`, and the place of the entries' size in it.
const INFO: usize = 84;
const INFO_SIZE: usize = 80;
/// What comes before the entries in `struct ipt_get_entries`: name, size, and padding.
const ENTRIES: usize = NAME + 8;

/// Whether kube-proxy made the chain.
pub fn is_kube_proxy_chain(name: &str) -> bool {
    CHAINS.contains(&name)
}

/// The tables with such chains, such as `table ip nat (older iptables)`.
///
/// # Errors
/// The kernel's.
pub fn kube_proxy_tables() -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for (family, list, domain, level) in [
        (
            "ip",
            "/proc/net/ip_tables_names",
            AddressFamily::Inet,
            libc::IPPROTO_IP,
        ),
        (
            "ip6",
            "/proc/net/ip6_tables_names",
            AddressFamily::Inet6,
            libc::IPPROTO_IPV6,
        ),
    ] {
        // A request for a table that is not in use would load it.
        let Ok(tables) = fs::read_to_string(list) else {
            continue;
        };
        for table in tables.lines() {
            let socket = socket(domain, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
            if has_chain(&entries(&socket, level, table)?) {
                found.push(format!("table {family} {table} (older iptables)"));
            }
        }
    }
    Ok(found)
}

/// Whether a table's rules contain the head of such a chain, the only place with its name.
fn has_chain(entries: &[u8]) -> bool {
    CHAINS.iter().any(|chain| {
        let name = [chain.as_bytes(), &[0]].concat();
        entries.windows(name.len()).any(|window| window == name)
    })
}

/// The rules of a table in the kernel's format.
fn entries(socket: &OwnedFd, level: libc::c_int, table: &str) -> io::Result<Vec<u8>> {
    let mut info = named(table, INFO);
    socket_option::read(socket, level, GET_INFO, &mut info)?;
    let size = &info[INFO_SIZE..];
    let length = u32::from_ne_bytes([size[0], size[1], size[2], size[3]]) as usize;
    let mut entries = named(table, ENTRIES + length);
    entries[NAME..NAME + 4].copy_from_slice(size);
    socket_option::read(socket, level, GET_ENTRIES, &mut entries)?;
    Ok(entries.split_off(ENTRIES))
}

/// `length` octets that start with a table's name, which is cut if it is too long.
fn named(table: &str, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let name = &table.as_bytes()[..table.len().min(NAME - 1)];
    bytes[..name.len()].copy_from_slice(name);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_found_by_their_whole_name() {
        assert!(has_chain(b"..ERROR\0\0KUBE-SERVICES\0\0"));
        assert!(!has_chain(b"..KUBE-SERVICES-OTHER\0.."));
        assert!(!has_chain(b"KUBE-SERVICES"));
        assert!(is_kube_proxy_chain("KUBE-NODEPORTS"));
        assert!(!is_kube_proxy_chain("KUBE-KUBELET-CANARY"));
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(named(&"n".repeat(40), INFO)[NAME - 1], 0);
    }
}
