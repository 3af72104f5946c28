#![no_std]
#![no_main]
//! node-lb's eBPF programs: entry points only.

use aya_ebpf::{
    bindings::xdp_action,
    btf_maps::{Array, HashMap},
    macros::{btf_map, cgroup_sock_addr, classifier, xdp},
    programs::{SockAddrContext, TcContext, XdpContext},
};

#[btf_map]
static STUB_COUNTS: Array<u64, 4> = Array::new();

#[btf_map]
static STUB_SEEN: HashMap<u32, u64, 1024> = HashMap::new();

/// XDP ingress of external devices.
#[xdp(frags)]
pub fn xdp_ingress(_ctx: XdpContext) -> u32 {
    seen(0);
    xdp_action::XDP_PASS
}

/// XDP ingress of virtual external devices.
#[xdp(frags)]
pub fn xdp_ingress_virtual(_ctx: XdpContext) -> u32 {
    seen(0);
    xdp_action::XDP_PASS
}

#[classifier]
pub fn tc_ingress(_ctx: TcContext) -> i32 {
    seen(1);
    -1
}

#[classifier]
pub fn tc_egress(_ctx: TcContext) -> i32 {
    seen(2);
    -1
}

macro_rules! sockets {
    ($($name:ident)*) => {$(
        #[cgroup_sock_addr($name)]
        pub fn $name(_ctx: SockAddrContext) -> i32 {
            seen(3);
            1
        }
    )*};
}

sockets!(connect4 connect6 sendmsg4 sendmsg6 recvmsg4 recvmsg6 getpeername4 getpeername6);

#[inline(always)]
fn seen(index: u32) {
    if let Some(count) = STUB_COUNTS.get_ptr_mut(index) {
        unsafe { *count += 1 };
    }
    let _ = STUB_SEEN.insert(&index, &1, 0);
}

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}
