#![cfg_attr(target_arch = "bpf", no_std, no_main)]
//! node-lb's eBPF programs: entry points only.

mod family;
mod kernel;
mod maps;
mod resize;
mod socket;
mod steps;
mod tc;
mod trace;
mod xdp;

use core::ffi::c_void;

use aya_ebpf::{
    macros::{cgroup_sock, cgroup_sock_addr, classifier, xdp},
    programs::{SockAddrContext, SockContext, TcContext, XdpContext},
};
use lb_common::socket::Call;
use socket::{Inet, Inet6};

/// XDP ingress of external devices with packets from a wire.
#[xdp(frags)]
#[inline(always)]
pub fn xdp_ingress(ctx: XdpContext) -> u32 {
    xdp::ingress::<false, false>(ctx.ctx)
}

/// XDP ingress of virtual external devices. Their packets may have incomplete checksums.
#[xdp(frags)]
#[inline(always)]
pub fn xdp_ingress_virtual(ctx: XdpContext) -> u32 {
    xdp::ingress::<true, false>(ctx.ctx)
}

/// TC ingress of external and pod devices.
#[classifier]
#[inline(always)]
pub fn tc_ingress(ctx: TcContext) -> i32 {
    tc::ingress::<false, false>(ctx.skb.skb)
}

/// TC egress of external and pod devices.
#[classifier]
#[inline(always)]
pub fn tc_egress(ctx: TcContext) -> i32 {
    tc::egress::<false, false>(ctx.skb.skb)
}

/// TC ingress of devices whose packets have no Ethernet header.
#[classifier]
#[inline(always)]
pub fn tc_ingress_l3(ctx: TcContext) -> i32 {
    tc::ingress::<true, false>(ctx.skb.skb)
}

/// TC egress of devices whose packets have no Ethernet header.
#[classifier]
#[inline(always)]
pub fn tc_egress_l3(ctx: TcContext) -> i32 {
    tc::egress::<true, false>(ctx.skb.skb)
}

/// Copies flows from a table of another size. The agent runs it; it is not attached to anything.
#[classifier]
#[inline(always)]
pub fn copy_flows(ctx: TcContext) -> i32 {
    resize::copy_flows(ctx.skb.skb)
}

/// Ends a connection's wait for a seat. The agent runs it; it is not attached to anything.
#[classifier]
#[inline(always)]
pub fn end_wait(ctx: TcContext) -> i32 {
    tc::end_wait(ctx.skb.skb)
}

/// `connect` of IPv4 sockets.
#[cgroup_sock_addr(connect4)]
pub fn connect4(ctx: SockAddrContext) -> i32 {
    socket::outgoing::<Inet, false>(ctx.sock_addr, Call::Connect)
}

/// `connect` of IPv6 sockets.
#[cgroup_sock_addr(connect6)]
pub fn connect6(ctx: SockAddrContext) -> i32 {
    socket::outgoing::<Inet6, false>(ctx.sock_addr, Call::Connect)
}

/// `sendmsg` of unconnected UDP sockets, IPv4.
#[cgroup_sock_addr(sendmsg4)]
pub fn sendmsg4(ctx: SockAddrContext) -> i32 {
    socket::outgoing::<Inet, false>(ctx.sock_addr, Call::SendMsg)
}

/// `sendmsg` of unconnected UDP sockets, IPv6.
#[cgroup_sock_addr(sendmsg6)]
pub fn sendmsg6(ctx: SockAddrContext) -> i32 {
    socket::outgoing::<Inet6, false>(ctx.sock_addr, Call::SendMsg)
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

/// The end of sockets: the last descriptor is closed.
#[cgroup_sock(sock_release)]
pub fn sock_release(ctx: SockContext) -> i32 {
    socket::released(ctx.sock)
}

/// Lists what sockets hold. The agent reads it; it is not attached to anything.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/bpf_sk_storage_map")]
pub extern "C" fn list_seats(ctx: *mut c_void) -> i32 {
    socket::list_seats(ctx)
}

/// [`xdp_ingress`], while packets are traced. Those that take the place of others for that time are
/// programs of their own, so that the others have not one instruction for it.
#[xdp(frags)]
#[inline(always)]
pub fn trace_xdp_ingress(ctx: XdpContext) -> u32 {
    xdp::ingress::<false, true>(ctx.ctx)
}

/// [`xdp_ingress_virtual`], while packets are traced.
#[xdp(frags)]
#[inline(always)]
pub fn trace_xdp_ingress_virtual(ctx: XdpContext) -> u32 {
    xdp::ingress::<true, true>(ctx.ctx)
}

/// [`tc_ingress`], while packets are traced.
#[classifier]
#[inline(always)]
pub fn trace_tc_ingress(ctx: TcContext) -> i32 {
    tc::ingress::<false, true>(ctx.skb.skb)
}

/// [`tc_egress`], while packets are traced.
#[classifier]
#[inline(always)]
pub fn trace_tc_egress(ctx: TcContext) -> i32 {
    tc::egress::<false, true>(ctx.skb.skb)
}

/// [`tc_ingress_l3`], while packets are traced.
#[classifier]
#[inline(always)]
pub fn trace_tc_ingress_l3(ctx: TcContext) -> i32 {
    tc::ingress::<true, true>(ctx.skb.skb)
}

/// [`tc_egress_l3`], while packets are traced.
#[classifier]
#[inline(always)]
pub fn trace_tc_egress_l3(ctx: TcContext) -> i32 {
    tc::egress::<true, true>(ctx.skb.skb)
}

/// [`connect4`], while packets are traced.
#[cgroup_sock_addr(connect4)]
pub fn trace_connect4(ctx: SockAddrContext) -> i32 {
    socket::outgoing::<Inet, true>(ctx.sock_addr, Call::Connect)
}

/// [`connect6`], while packets are traced.
#[cgroup_sock_addr(connect6)]
pub fn trace_connect6(ctx: SockAddrContext) -> i32 {
    socket::outgoing::<Inet6, true>(ctx.sock_addr, Call::Connect)
}

/// [`sendmsg4`], while packets are traced.
#[cgroup_sock_addr(sendmsg4)]
pub fn trace_sendmsg4(ctx: SockAddrContext) -> i32 {
    socket::outgoing::<Inet, true>(ctx.sock_addr, Call::SendMsg)
}

/// [`sendmsg6`], while packets are traced.
#[cgroup_sock_addr(sendmsg6)]
pub fn trace_sendmsg6(ctx: SockAddrContext) -> i32 {
    socket::outgoing::<Inet6, true>(ctx.sock_addr, Call::SendMsg)
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
