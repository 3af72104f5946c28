//! The hooks in the kernel where node-lb's programs run.

use std::fmt;

use aya::programs::{ProgramError, SchedClassifier, TcAttachType};
use aya_obj::generated::bpf_attach_type;

/// Name of the XDP program for devices with packets from a wire.
pub const XDP_PROGRAM: &str = "xdp_ingress";

/// Name of the XDP program for virtual devices. Their packets may have incomplete checksums.
pub const XDP_VIRTUAL_PROGRAM: &str = "xdp_ingress_virtual";

/// The names of all programs. Which of them a node needs depends on its devices.
pub fn programs() -> Vec<&'static str> {
    [XDP_PROGRAM, XDP_VIRTUAL_PROGRAM]
        .into_iter()
        .chain(Framing::ALL.into_iter().flat_map(tc_programs))
        .chain(SocketHook::ALL.map(SocketHook::name))
        .collect()
}

/// The names of the TC programs for devices with packets that begin so.
pub fn tc_programs(framing: Framing) -> [&'static str; 2] {
    [Direction::Ingress, Direction::Egress].map(|direction| direction.program(framing))
}

/// Programs, and those that take their place while packets are traced. Others have nothing to tell.
const TRACING: [(&str, &str); 10] = [
    (XDP_PROGRAM, "trace_xdp_ingress"),
    (XDP_VIRTUAL_PROGRAM, "trace_xdp_ingress_virtual"),
    (
        Direction::Ingress.program(Framing::Ethernet),
        "trace_tc_ingress",
    ),
    (
        Direction::Egress.program(Framing::Ethernet),
        "trace_tc_egress",
    ),
    (
        Direction::Ingress.program(Framing::Ip),
        "trace_tc_ingress_l3",
    ),
    (Direction::Egress.program(Framing::Ip), "trace_tc_egress_l3"),
    (SocketHook::Connect4.name(), "trace_connect4"),
    (SocketHook::Connect6.name(), "trace_connect6"),
    (SocketHook::SendMsg4.name(), "trace_sendmsg4"),
    (SocketHook::SendMsg6.name(), "trace_sendmsg6"),
];

/// The names of the programs that take the place of others while packets are traced.
pub fn tracing_programs() -> Vec<&'static str> {
    TRACING.map(|(_, tracing)| tracing).to_vec()
}

/// The program that takes the place of the one named while packets are traced, if one does.
pub fn tracing(name: &str) -> Option<&'static str> {
    let found = TRACING.iter().find(|(program, _)| *program == name)?;
    Some(found.1)
}

/// How XDP runs on a device, best last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum XdpMode {
    /// Not at all: TC does the work.
    Off,
    /// In the stack, for drivers without XDP.
    Generic,
    /// In the driver.
    Native,
}

/// The direction of packets through a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// First, so that all other programs see translated packets.
    Ingress,
    /// Last, so that no other program sees packets that are translated back.
    Egress,
}

/// How the packets of a device begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Framing {
    /// With an Ethernet header.
    Ethernet,
    /// With the IP header: devices of layer 3 (WireGuard, IPIP, tun).
    Ip,
}

/// The system calls on sockets for which programs translate addresses, and a socket's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SocketHook {
    Connect4,
    Connect6,
    SendMsg4,
    SendMsg6,
    RecvMsg4,
    RecvMsg6,
    GetPeerName4,
    GetPeerName6,
    Release,
}

/// The system call that opens an attached program, as [`ProgramError`] names it.
const OPEN_PROGRAM: &str = "bpf_prog_get_fd_by_id";

/// How TC programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TcFlavor {
    /// By links, since Linux 6.6.
    Tcx,
    /// By filters on a clsact qdisc.
    Clsact,
}

impl TcFlavor {
    /// The way that this kernel supports.
    pub fn detect() -> Self {
        // Kernels without TCX cannot list its programs. Every namespace has the loopback device. To
        // open programs of others there takes CAP_SYS_ADMIN, which is not needed for this.
        match SchedClassifier::query_tcx("lo", TcAttachType::Ingress) {
            Ok(_) => Self::Tcx,
            Err(ProgramError::SyscallError(error)) if error.call == OPEN_PROGRAM => Self::Tcx,
            Err(_) => Self::Clsact,
        }
    }
}

impl Framing {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Ethernet, Self::Ip];
}

impl Direction {
    /// Name of the program for this direction, for packets that begin so.
    pub const fn program(self, framing: Framing) -> &'static str {
        match (self, framing) {
            (Self::Ingress, Framing::Ethernet) => "tc_ingress",
            (Self::Egress, Framing::Ethernet) => "tc_egress",
            (Self::Ingress, Framing::Ip) => "tc_ingress_l3",
            (Self::Egress, Framing::Ip) => "tc_egress_l3",
        }
    }

    /// The name that its filter on a clsact qdisc has, whatever the packets.
    pub const fn filter(self) -> &'static str {
        self.program(Framing::Ethernet)
    }
}

impl SocketHook {
    /// All hooks, in the order in which programs are attached: first the one that gives back what the
    /// others take.
    pub const ALL: [Self; 9] = [
        Self::Release,
        Self::Connect4,
        Self::Connect6,
        Self::SendMsg4,
        Self::SendMsg6,
        Self::RecvMsg4,
        Self::RecvMsg6,
        Self::GetPeerName4,
        Self::GetPeerName6,
    ];

    /// The hook's name, which is also the name of its program.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect4 => "connect4",
            Self::Connect6 => "connect6",
            Self::SendMsg4 => "sendmsg4",
            Self::SendMsg6 => "sendmsg6",
            Self::RecvMsg4 => "recvmsg4",
            Self::RecvMsg6 => "recvmsg6",
            Self::GetPeerName4 => "getpeername4",
            Self::GetPeerName6 => "getpeername6",
            Self::Release => "sock_release",
        }
    }

    /// The kernel's constant for this hook.
    pub(super) const fn attach_type(self) -> bpf_attach_type {
        match self {
            Self::Connect4 => bpf_attach_type::BPF_CGROUP_INET4_CONNECT,
            Self::Connect6 => bpf_attach_type::BPF_CGROUP_INET6_CONNECT,
            Self::SendMsg4 => bpf_attach_type::BPF_CGROUP_UDP4_SENDMSG,
            Self::SendMsg6 => bpf_attach_type::BPF_CGROUP_UDP6_SENDMSG,
            Self::RecvMsg4 => bpf_attach_type::BPF_CGROUP_UDP4_RECVMSG,
            Self::RecvMsg6 => bpf_attach_type::BPF_CGROUP_UDP6_RECVMSG,
            Self::GetPeerName4 => bpf_attach_type::BPF_CGROUP_INET4_GETPEERNAME,
            Self::GetPeerName6 => bpf_attach_type::BPF_CGROUP_INET6_GETPEERNAME,
            Self::Release => bpf_attach_type::BPF_CGROUP_INET_SOCK_RELEASE,
        }
    }
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Generic => "generic",
            Self::Native => "native",
        })
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        })
    }
}

impl fmt::Display for SocketHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
