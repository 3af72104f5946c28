#![cfg_attr(target_arch = "bpf", no_std, no_main)]
//! The programs around node-lb's in the benchmark; nothing of this is in the agent.
//!
//! `BPF_PROG_TEST_RUN` gives each repetition the packet that the previous one left behind. A
//! harness writes the headers that node-lb may have changed, takes the flow from a trace, and
//! tail-calls the program in `TARGET`. The other programs measure the harness's own cost and the
//! floors.

use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, xdp_action},
    btf_maps::{Array, HashMap, ProgramArray},
    helpers::generated::{bpf_ktime_get_ns, bpf_xdp_adjust_head},
    macros::{btf_map, xdp},
    programs::XdpContext,
};
use lb_common::{
    harness::{Control, ETHERNET, Key, Network4, Network6, Step, TABLE, TRACE},
    packet::Packet,
};

/// In the section that the benchmark finds it by.
#[unsafe(no_mangle)]
static mut CONTROL: Control = Control {
    random: 0,
    key_mask: 0,
    next: 0,
    trace_mask: 0,
    pad: 0,
};

/// Bytes that an ICMP answer puts in front of a frame: an IPv4 and an ICMP header.
const ANSWER_FRONT: i32 = 28;
const MMAP: usize = BPF_F_MMAPABLE as usize;

/// The packets of a run, one after the other and around again.
#[btf_map]
static TRACE4: Array<Step<Network4>, { TRACE as usize }, MMAP> = Array::new();
#[btf_map]
static TRACE6: Array<Step<Network6>, { TRACE as usize }, MMAP> = Array::new();

/// The program that is measured.
#[btf_map]
static TARGET: ProgramArray<1> = ProgramArray::new();

/// What floors look up.
#[btf_map]
static LOOKUP_TABLE: HashMap<Key, Key, { TABLE as usize }> = HashMap::new();

/// Before a program that sees IPv4 frames.
#[xdp(frags)]
pub fn harness4(ctx: XdpContext) -> u32 {
    let packet = view(&ctx);
    let written = TRACE4.get(next_packet()).and_then(|step| {
        write_ethernet(packet)?;
        packet.store(22, step.network[0])?;
        packet.store(30, step.network[1])?;
        packet.store(usize::from(step.checksum_offset & 0x7f), step.checksum)
    });
    call(&ctx, written)
}

/// Before a program that sees IPv6 frames. All addresses agree in their upper halves.
#[xdp(frags)]
pub fn harness6(ctx: XdpContext) -> u32 {
    let packet = view(&ctx);
    let written = TRACE6.get(next_packet()).and_then(|step| {
        let [source, destination, rest] = step.network;
        write_ethernet(packet)?;
        packet.store(18, rest as u32)?;
        packet.store(30, source)?;
        packet.store(46, destination)?;
        packet.store(54, (rest >> 32) as u32)?;
        packet.store(usize::from(step.checksum_offset & 0x7f), step.checksum)
    });
    call(&ctx, written)
}

/// Before a program that turns IPv4 frames into ICMP answers, always to the same packet.
#[xdp(frags)]
pub fn harness_answer(ctx: XdpContext) -> u32 {
    let is_answer = view(&ctx).load::<u8>(23) == Some(1);
    // SAFETY: the program's own context; the bounds are read again afterwards.
    if is_answer && unsafe { bpf_xdp_adjust_head(ctx.ctx, ANSWER_FRONT) } != 0 {
        return xdp_action::XDP_ABORTED;
    }
    let packet = view(&ctx);
    let written = write_ethernet(packet).and_then(|()| packet.store(12, 0x0800_u16.to_be()));
    call(&ctx, written)
}

/// Stands for the program behind `harness_answer`: makes room for an answer, and looks like one.
#[xdp(frags)]
pub fn fake_answer(ctx: XdpContext) -> u32 {
    // SAFETY: the program's own context; the bounds are read again afterwards.
    if unsafe { bpf_xdp_adjust_head(ctx.ctx, -ANSWER_FRONT) } != 0 {
        return xdp_action::XDP_ABORTED;
    }
    match view(&ctx).store(23, 1_u8) {
        Some(()) => xdp_action::XDP_TX,
        None => xdp_action::XDP_ABORTED,
    }
}

/// Half of what this takes over `empty` is the one call in `fake_answer` that is not the harness's.
#[xdp(frags)]
pub fn adjust_twice(ctx: XdpContext) -> u32 {
    // SAFETY: the program's own context; the bounds are not used afterwards.
    let failed = unsafe {
        bpf_xdp_adjust_head(ctx.ctx, -ANSWER_FRONT) != 0
            || bpf_xdp_adjust_head(ctx.ctx, ANSWER_FRONT) != 0
    };
    if failed {
        return xdp_action::XDP_ABORTED;
    }
    xdp_action::XDP_TX
}

/// Floor: nothing.
#[xdp(frags)]
pub fn empty(_ctx: XdpContext) -> u32 {
    xdp_action::XDP_TX
}

/// Floor: the clock.
#[xdp(frags)]
pub fn ktime(_ctx: XdpContext) -> u32 {
    // SAFETY: no arguments.
    match unsafe { bpf_ktime_get_ns() } {
        0 => xdp_action::XDP_ABORTED,
        _ => xdp_action::XDP_TX,
    }
}

/// Floor: one lookup in a hash map with a key of 16 bytes.
#[xdp(frags)]
pub fn hash_lookup(_ctx: XdpContext) -> u32 {
    // SAFETY: the benchmark runs one program at a time.
    let key = unsafe {
        let control = &raw mut CONTROL;
        let random = (&raw const (*control).random).read_volatile();
        let random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (&raw mut (*control).random).write_volatile(random);
        [(random >> 33) as u32 & (*control).key_mask, 0, 0, 0]
    };
    // SAFETY: the value is not read.
    match unsafe { LOOKUP_TABLE.get(key) } {
        Some(_) => xdp_action::XDP_TX,
        None => xdp_action::XDP_ABORTED,
    }
}

/// Index of the next packet in the trace.
#[inline(always)]
fn next_packet() -> u32 {
    // SAFETY: the benchmark runs one program at a time.
    unsafe {
        let control = &raw mut CONTROL;
        let next = (&raw const (*control).next).read_volatile();
        (&raw mut (*control).next).write_volatile(next.wrapping_add(1));
        next & (&raw const (*control).trace_mask).read_volatile()
    }
}

/// Stores wide enough for every later load to be served from one of them.
#[inline(always)]
fn write_ethernet(packet: Packet) -> Option<()> {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = ETHERNET;
    packet.store(0, u64::from_ne_bytes([a, b, c, d, e, f, g, h]))?;
    packet.store(8, u32::from_ne_bytes([i, j, k, l]))
}

#[inline(always)]
fn call(ctx: &XdpContext, written: Option<()>) -> u32 {
    if written.is_some() {
        // SAFETY: returns only if there is no target.
        unsafe { TARGET.tail_call(ctx, 0) };
    }
    xdp_action::XDP_ABORTED
}

#[inline(always)]
fn view(ctx: &XdpContext) -> Packet {
    // SAFETY: the kernel gives the frame's bounds, and nobody else has the frame. Volatile, since
    // LLVM must not keep the bounds over a change.
    unsafe {
        let data = (&raw const (*ctx.ctx).data).read_volatile() as usize;
        let end = (&raw const (*ctx.ctx).data_end).read_volatile() as usize;
        Packet::new(data, end)
    }
}

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// For editors, which check this on the host: it has to be a program there.
#[cfg(not(target_arch = "bpf"))]
fn main() {}
