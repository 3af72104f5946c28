//! The XDP hook: for packets that can be sent on without ever becoming a kernel packet.

use aya_ebpf::{
    bindings::{xdp_action, xdp_md},
    helpers::generated::{
        bpf_redirect, bpf_xdp_adjust_head, bpf_xdp_adjust_tail, bpf_xdp_get_buff_len,
        bpf_xdp_load_bytes,
    },
};
use lb_common::{
    addr::{Address, Ip4, Ip6},
    checksum::Difference,
    flow::queue::{KEPT, kept},
    frame::{Frame, change_checksum_in_place},
    packet::Packet,
    parse::{self, Network},
    pipeline,
    verdict::{Action, Hook, Reason, Verdict},
};

use crate::{
    family::FamilyMaps,
    kernel::{Kernel, count},
    steps, trace,
};

/// Handles a frame. `VIRTUAL` says that the device may deliver incomplete checksums, `TRACES` that
/// what is decided is logged.
#[inline(always)]
pub fn ingress<const VIRTUAL: bool, const TRACES: bool>(ctx: *mut xdp_md) -> u32 {
    let mut frame = XdpFrame::<VIRTUAL> { ctx };
    let Some(kernel) = Kernel::<_, false, TRACES>::new(ctx, frame.ifindex()) else {
        return xdp_action::XDP_PASS;
    };
    let verdict = match parse::ethertype(frame.packet()) {
        Some(Ip4::ETHERTYPE) => family::<Ip4, VIRTUAL, TRACES>(&kernel, &mut frame),
        Some(Ip6::ETHERTYPE) => family::<Ip6, VIRTUAL, TRACES>(&kernel, &mut frame),
        _ => Verdict::pass(Reason::NotIp),
    };
    count(Hook::Xdp, verdict.reason);
    match verdict.action {
        Action::Pass => xdp_action::XDP_PASS,
        Action::Redirect if verdict.ifindex == frame.ifindex() => xdp_action::XDP_TX,
        // SAFETY: plain numbers.
        Action::Redirect => unsafe { bpf_redirect(verdict.ifindex, 0) as u32 },
        Action::Answer => xdp_action::XDP_TX,
        Action::Resolve | Action::Drop => xdp_action::XDP_DROP,
    }
}

#[inline(always)]
fn family<A: FamilyMaps, const VIRTUAL: bool, const TRACES: bool>(
    kernel: &Kernel<*mut xdp_md, false, TRACES>,
    frame: &mut XdpFrame<VIRTUAL>,
) -> Verdict {
    let Some(work) = A::work(Hook::Xdp) else {
        return Verdict::pass(Reason::NotIp);
    };
    // SAFETY: the element is this CPU's and this hook's.
    let work = unsafe { &mut *work };
    let verdict = pipeline::ingress(kernel, frame, work);
    if TRACES {
        trace::packet(work, Hook::Xdp, frame.ifindex(), verdict);
    }
    verdict
}

struct XdpFrame<const VIRTUAL: bool> {
    ctx: *mut xdp_md,
}

impl<const VIRTUAL: bool> Frame for XdpFrame<VIRTUAL> {
    const MAY_BE_PARTIAL: bool = VIRTUAL;

    #[inline(always)]
    fn packet(&self) -> Packet {
        // SAFETY: the kernel gives the frame's bounds, and nobody else has the frame. Volatile,
        // since LLVM must neither keep the bounds over a change nor pass them between functions.
        unsafe {
            let data = (&raw const (*self.ctx).data).read_volatile() as usize;
            let end = (&raw const (*self.ctx).data_end).read_volatile() as usize;
            Packet::new(data, end)
        }
    }

    #[inline(always)]
    fn ifindex(&self) -> u32 {
        // SAFETY: the program's own context.
        unsafe { (*self.ctx).ingress_ifindex }
    }

    #[inline(always)]
    fn is_for_host(&self) -> Option<bool> {
        None
    }

    #[inline(always)]
    fn wire_length(&self, network: &Network) -> u32 {
        network.length
    }

    #[inline(always)]
    fn change_checksum<A: Address>(
        &mut self,
        offset: usize,
        pseudo: Difference,
        covered: Difference,
        udp: bool,
    ) -> Option<()> {
        change_checksum_in_place(self.packet(), offset, pseudo.and(covered), udp)
    }

    #[inline(always)]
    fn copy_to(&self, bytes: &mut [u8; KEPT]) -> Option<u32> {
        // SAFETY: the program's own context, and memory as long as said.
        unsafe {
            let length = bpf_xdp_get_buff_len(self.ctx) as u32;
            (bpf_xdp_load_bytes(self.ctx, 0, bytes.as_mut_ptr().cast(), kept(length)) == 0)
                .then_some(length)
        }
    }

    #[inline(always)]
    fn changed_crc(checksum: u32, old: u32, new: u32, length: u32) -> u32 {
        steps::changed_crc(checksum, old, new, length)
    }

    #[inline(always)]
    fn crc_of([first, second, third, fourth]: [u32; 4]) -> u32 {
        steps::crc_of(first, second, third, fourth)
    }

    #[inline(always)]
    fn reshape(&mut self, front: usize, length: usize) -> Option<()> {
        // SAFETY: the program's own context; the bounds are read again afterwards.
        unsafe {
            if bpf_xdp_adjust_head(self.ctx, -(front as i32)) != 0 {
                return None;
            }
            let packet = self.packet();
            let cut = length as i32 - packet.len() as i32;
            (bpf_xdp_adjust_tail(self.ctx, cut) == 0).then_some(())
        }
    }
}
