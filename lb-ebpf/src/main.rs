#![no_std]
#![no_main]
//! node-lb's eBPF programs: entry points only.

use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};

/// XDP ingress of external devices.
#[xdp]
pub fn xdp_ingress(_ctx: XdpContext) -> u32 {
    xdp_action::XDP_PASS
}

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}
