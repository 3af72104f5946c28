//! The node that packets pass, in a network namespace of the calling thread.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

pub use lb_oracle::scene::*;
use nix::{
    net::if_::if_nametoindex,
    sched::{CloneFlags, unshare},
};

/// Moves the calling thread to a new network namespace and makes it the node.
pub fn enter() {
    unshare(CloneFlags::CLONE_NEWNET)
        .expect("these tests make network namespaces: run them as root");
    for setting in [
        "ipv4/ip_forward",
        "ipv6/conf/all/forwarding",
        "ipv6/conf/default/forwarding",
    ] {
        fs::write(format!("/proc/sys/net/{setting}"), "1").unwrap();
    }
    ip(SETUP);
}

/// Commands for `ip`, one per line.
pub fn ip(commands: &str) {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(commands.as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success(), "{commands}");
}

pub fn index(device: &str) -> u32 {
    if_nametoindex(device).unwrap()
}

const SETUP: &str = "\
link add ext0 address 02:00:00:00:01:02 type veth peer name ext1
link add pod0 address 02:00:00:00:02:01 type veth peer name pod1
link add narrow0 address 02:00:00:00:03:02 mtu 1400 type veth peer name narrow1
link set ext0 up
link set ext1 up
link set pod0 up
link set pod1 up
link set narrow0 up
link set narrow1 up
addr add 192.0.2.2/24 dev ext0
addr add 192.0.3.2/24 dev narrow0
addr add 2001:db8:1::2/64 dev ext0 nodad
addr add 2001:db8:3::2/64 dev narrow0 nodad
neigh add 192.0.2.1 lladdr 02:00:00:00:01:01 dev ext0 nud permanent
neigh add 192.0.2.3 lladdr 02:00:00:00:01:03 dev ext0 nud permanent
neigh add 192.0.3.1 lladdr 02:00:00:00:03:01 dev narrow0 nud permanent
neigh add 10.1.0.5 lladdr 02:00:00:00:02:05 dev pod0 nud permanent
neigh add 2001:db8:1::1 lladdr 02:00:00:00:01:01 dev ext0 nud permanent
neigh add 2001:db8:1::3 lladdr 02:00:00:00:01:03 dev ext0 nud permanent
neigh add 2001:db8:3::1 lladdr 02:00:00:00:03:01 dev narrow0 nud permanent
neigh add fd00:1::5 lladdr 02:00:00:00:02:05 dev pod0 nud permanent
route add default via 192.0.2.1
route add 10.1.0.0/24 dev pod0
route add 10.2.0.0/16 via 192.0.2.3
route add 10.3.0.0/16 via 192.0.3.1
route add 10.4.0.0/16 via 192.0.2.9
route add unreachable 10.5.0.0/16
route add default via 2001:db8:1::1
route add fd00:1::/64 dev pod0
route add fd00:2::/64 via 2001:db8:1::3
route add fd00:3::/64 via 2001:db8:3::1
route add fd00:4::/64 via 2001:db8:1::9
route add unreachable fd00:5::/64
";
