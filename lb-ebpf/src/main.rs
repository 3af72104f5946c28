#![cfg_attr(target_arch = "bpf", no_std, no_main)]
//! node-lb's eBPF programs: entry points only.

mod family;
mod kernel;
mod maps;
mod resize;
mod socket;
mod steps;
mod tc;
mod xdp;

use aya_ebpf::{
    macros::{cgroup_sock_addr, classifier, xdp},
    programs::{SockAddrContext, TcContext, XdpContext},
};
use socket::{Inet, Inet6};

/// XDP ingress of external devices with packets from a wire.
#[xdp(frags)]
pub fn xdp_ingress(ctx: XdpContext) -> u32 {
    xdp::ingress::<false>(ctx.ctx)
}

/// XDP ingress of virtual external devices. Their packets may have incomplete checksums.
#[xdp(frags)]
pub fn xdp_ingress_virtual(ctx: XdpContext) -> u32 {
    xdp::ingress::<true>(ctx.ctx)
}

/// TC ingress of external and pod devices.
#[classifier]
pub fn tc_ingress(ctx: TcContext) -> i32 {
    tc::ingress(ctx.skb.skb)
}

/// TC egress of external and pod devices.
#[classifier]
pub fn tc_egress(ctx: TcContext) -> i32 {
    tc::egress(ctx.skb.skb)
}

/// Copies flows from a table of another size. The agent runs it; it is not attached to anything.
#[classifier]
pub fn copy_flows(ctx: TcContext) -> i32 {
    resize::copy_flows(ctx.skb.skb)
}

/// `connect` of IPv4 sockets.
#[cgroup_sock_addr(connect4)]
pub fn connect4(ctx: SockAddrContext) -> i32 {
    socket::outgoing::<Inet>(ctx.sock_addr)
}

/// `connect` of IPv6 sockets.
#[cgroup_sock_addr(connect6)]
pub fn connect6(ctx: SockAddrContext) -> i32 {
    socket::outgoing::<Inet6>(ctx.sock_addr)
}

/// `sendmsg` of unconnected UDP sockets, IPv4.
#[cgroup_sock_addr(sendmsg4)]
pub fn sendmsg4(ctx: SockAddrContext) -> i32 {
    socket::outgoing::<Inet>(ctx.sock_addr)
}

/// `sendmsg` of unconnected UDP sockets, IPv6.
#[cgroup_sock_addr(sendmsg6)]
pub fn sendmsg6(ctx: SockAddrContext) -> i32 {
    socket::outgoing::<Inet6>(ctx.sock_addr)
}

/// `recvmsg` of UDP sockets, IPv4.
#[cgroup_sock_addr(recvmsg4)]
pub fn recvmsg4(ctx: SockAddrContext) -> i32 {
    socket::incoming::<Inet>(ctx.sock_addr)
}

/// `recvmsg` of UDP sockets, IPv6.
#[cgroup_sock_addr(recvmsg6)]
pub fn recvmsg6(ctx: SockAddrContext) -> i32 {
    socket::incoming::<Inet6>(ctx.sock_addr)
}

/// `getpeername` of IPv4 sockets.
#[cgroup_sock_addr(getpeername4)]
pub fn getpeername4(ctx: SockAddrContext) -> i32 {
    socket::incoming::<Inet>(ctx.sock_addr)
}

/// `getpeername` of IPv6 sockets.
#[cgroup_sock_addr(getpeername6)]
pub fn getpeername6(ctx: SockAddrContext) -> i32 {
    socket::incoming::<Inet6>(ctx.sock_addr)
}

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

// Helpers such as `bpf_fib_lookup` are open to programs under a license compatible with the GPL.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// For editors, which check this on the host: it has to be a program there.
#[cfg(not(target_arch = "bpf"))]
fn main() {}
