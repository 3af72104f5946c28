//! The TC hooks: any device, with Ethernet headers or without, neighbours the kernel resolves,
//! checksums that are not complete yet.

use aya_ebpf::{
    bindings::{
        __sk_buff, BPF_F_INGRESS, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, TC_ACT_SHOT,
        TC_ACT_UNSPEC, bpf_adj_room_mode::BPF_ADJ_ROOM_MAC, bpf_hdr_start_off::BPF_HDR_START_MAC,
    },
    helpers::generated::{
        bpf_clone_redirect, bpf_csum_update, bpf_l4_csum_replace, bpf_redirect, bpf_redirect_neigh,
        bpf_skb_adjust_room, bpf_skb_change_head, bpf_skb_change_tail, bpf_skb_load_bytes,
        bpf_skb_load_bytes_relative, bpf_skb_pull_data, bpf_skb_store_bytes,
    },
};
use lb_common::{
    abi::{OWN_SOCKET_PRIORITY, turn_word},
    addr::{Address, Family, Ip4, Ip6},
    checksum::Difference,
    flow::queue::{KEPT, kept},
    frame::Frame,
    packet::Packet,
    parse::{self, ETHERNET, Network, SCTP, UDP},
    pipeline, settled,
    verdict::{Action, Hook, Reason, Verdict},
    work::Work,
};

use crate::{
    family::FamilyMaps,
    kernel::{Kernel, count},
    steps,
};

/// Bytes that are made accessible directly: Ethernet, IPv6 with extensions, an ICMP error and what
/// it quotes.
const HEADERS: u32 = 192;
/// What a packet that was sent on from here has in `tc_index`: it is translated already, and the
/// egress hook of the device that it leaves by need not look at it.
const SENT_ON: u32 = 0x4e4c;
/// Bit of `tc_index` that says that the rest is a token: see [`Frame::give_token`].
const TOKEN: u32 = 1 << 15;
/// `gso_size` of a packet whose segments differ in length (linux/skbuff.h).
const GSO_BY_FRAGS: u32 = 0xffff;
/// Of a frame to another host's address (linux/if_packet.h).
const PACKET_OTHERHOST: u32 = 3;

/// Handles a packet that came in on a device. `L3` says that the device's packets begin with the
/// IP header, `TRACES` that what is decided is logged.
#[inline(always)]
pub fn ingress<const L3: bool, const TRACES: bool>(skb: *mut __sk_buff) -> i32 {
    run::<Ingress, L3, TRACES>(skb)
}

/// Handles a packet that leaves by a device.
#[inline(always)]
pub fn egress<const L3: bool, const TRACES: bool>(skb: *mut __sk_buff) -> i32 {
    run::<Egress, L3, TRACES>(skb)
}

/// A direction's half of the pipeline.
trait Direction {
    const HOOK: Hook;
    fn handle<A: FamilyMaps, const L3: bool, const TRACES: bool>(
        kernel: &Kernel<*mut __sk_buff, true, TRACES>,
        frame: &mut SkbFrame<L3>,
        work: &mut Work<A>,
    ) -> Verdict;
}

struct Ingress;

impl Direction for Ingress {
    const HOOK: Hook = Hook::TcIngress;

    #[inline(always)]
    fn handle<A: FamilyMaps, const L3: bool, const TRACES: bool>(
        kernel: &Kernel<*mut __sk_buff, true, TRACES>,
        frame: &mut SkbFrame<L3>,
        work: &mut Work<A>,
    ) -> Verdict {
        pipeline::ingress(kernel, frame, work)
    }
}

struct Egress;

impl Direction for Egress {
    const HOOK: Hook = Hook::TcEgress;

    #[inline(always)]
    fn handle<A: FamilyMaps, const L3: bool, const TRACES: bool>(
        kernel: &Kernel<*mut __sk_buff, true, TRACES>,
        frame: &mut SkbFrame<L3>,
        work: &mut Work<A>,
    ) -> Verdict {
        pipeline::egress(kernel, frame, work)
    }
}

/// Ends the wait of a connection whose SYN this is, as the words of the context say: gives it a flow, and
/// has the SYN come in again by its device; or tells its client that it is refused.
#[inline(always)]
pub fn end_wait(skb: *mut __sk_buff) -> i32 {
    // SAFETY: the program's own context.
    let (command, detail) = unsafe {
        let words = &(*skb).cb;
        (words[turn_word::COMMAND], words[turn_word::DETAIL])
    };
    let mut frame = SkbFrame::<false> { skb };
    let Some(kernel) = Kernel::<_, true, false>::new(skb, frame.ifindex()) else {
        return 0;
    };
    let reason = match frame.ethertype() {
        _ if command == turn_word::ASK_AGAIN => Reason::Malformed,
        Some(Ip4::ETHERTYPE) => end_wait_of::<Ip4>(&kernel, &mut frame, command, detail),
        Some(Ip6::ETHERTYPE) => end_wait_of::<Ip6>(&kernel, &mut frame, command, detail),
        _ => Reason::NotIp,
    };
    // SAFETY: the program's own context.
    let device = unsafe {
        (*skb).cb[turn_word::REASON] = reason as u32;
        (*skb).cb[turn_word::IFINDEX]
    };
    if device != 0 && !reason.is_limit() {
        frame.send_copy(device, BPF_F_INGRESS.into());
    }
    0
}

/// Lets a connection in, or tells its client that it is refused. Returns why it has no flow, or that it has
/// one.
#[inline(always)]
fn end_wait_of<A: FamilyMaps>(
    kernel: &Kernel<*mut __sk_buff, true, false>,
    frame: &mut SkbFrame<false>,
    command: u32,
    detail: u32,
) -> Reason {
    let Some(work) = A::turn_work() else {
        return Reason::NotIp;
    };
    // SAFETY: the element is this CPU's, and nobody else uses it while this program runs.
    let work = unsafe { &mut *work };
    if command == turn_word::LET_IN {
        return pipeline::let_in(kernel, frame, work, detail);
    }
    let reason = match command {
        reason if reason == Reason::FlowLimit as u32 => Reason::FlowLimit,
        reason if reason == Reason::QueueFull as u32 => Reason::QueueFull,
        _ => Reason::TimeOut,
    };
    let reason = settled(reason, &mut work.reason);
    let verdict = pipeline::turn_away(kernel, frame, work, detail, reason);
    if verdict.action == Action::Answer {
        // SAFETY: the program's own context.
        unsafe { (*frame.skb).tc_index = SENT_ON };
        frame.send_copy(frame.ifindex(), 0);
    }
    reason
}

#[inline(always)]
fn run<D: Direction, const L3: bool, const TRACES: bool>(skb: *mut __sk_buff) -> i32 {
    let mut frame = SkbFrame::<L3> { skb };
    // On ingress it comes from another network namespace of this machine, where it meant something.
    if frame.was_sent_on() && D::HOOK == Hook::TcEgress {
        return TC_ACT_UNSPEC;
    }
    if D::HOOK == Hook::TcIngress {
        frame.take_token();
    }
    let Some(kernel) = Kernel::<_, true, TRACES>::new(skb, frame.ifindex()) else {
        return TC_ACT_UNSPEC;
    };
    let ethertype = match D::HOOK {
        Hook::TcIngress => Some(received_ethertype::<L3>(skb)),
        _ => frame.ethertype(),
    };
    let verdict = match ethertype {
        Some(Ip4::ETHERTYPE) => family::<Ip4, D, L3, TRACES>(&kernel, &mut frame),
        Some(Ip6::ETHERTYPE) => family::<Ip6, D, L3, TRACES>(&kernel, &mut frame),
        _ => Verdict::pass(Reason::NotIp),
    };
    count(D::HOOK, verdict.reason);
    act::<D, L3>(verdict, &frame)
}

#[inline(always)]
fn family<A: FamilyMaps, D: Direction, const L3: bool, const TRACES: bool>(
    kernel: &Kernel<*mut __sk_buff, true, TRACES>,
    frame: &mut SkbFrame<L3>,
) -> Verdict {
    let Some(work) = A::work(D::HOOK) else {
        return Verdict::pass(Reason::NotIp);
    };
    // SAFETY: the element is this CPU's and this hook's.
    let work = unsafe { &mut *work };
    let mut verdict = D::handle::<A, L3, TRACES>(kernel, frame, work);
    if D::HOOK == Hook::TcEgress && verdict.action == Action::Drop && frame.is_agents_own() {
        verdict = Verdict::pass(Reason::NotService);
    }
    if TRACES {
        work.end_trail(D::HOOK, frame.ifindex(), verdict);
        log(work);
    }
    verdict
}

/// Logs a packet if it is to be. Out of line: what is kept between the calls in there would be on
/// the hook's stack, which with what opening a flow takes is all that Linux 6.1 has.
#[inline(never)]
fn log<A: FamilyMaps>(work: &mut Work<A>) {
    A::trace(&mut work.trail);
}

#[inline(always)]
fn act<D: Direction, const L3: bool>(verdict: Verdict, frame: &SkbFrame<L3>) -> i32 {
    // An answer to what leaves comes in by the device, as if the next hop had sent it.
    let answers_to = match D::HOOK {
        Hook::TcEgress => BPF_F_INGRESS.into(),
        _ => 0,
    };
    let leaves = matches!(
        verdict.action,
        Action::Redirect | Action::Resolve | Action::Answer
    );
    if leaves && D::HOOK != Hook::TcEgress {
        // SAFETY: the program's own context.
        unsafe { (*frame.skb).tc_index = SENT_ON };
    }
    // SAFETY: plain numbers; no parameters for the neighbour means that the kernel looks it up.
    unsafe {
        match verdict.action {
            Action::Pass => TC_ACT_UNSPEC,
            Action::Redirect => bpf_redirect(verdict.ifindex, 0) as i32,
            Action::Resolve => {
                bpf_redirect_neigh(verdict.ifindex, core::ptr::null_mut(), 0, 0) as i32
            }
            Action::Answer => bpf_redirect(frame.ifindex(), answers_to) as i32,
            Action::Drop => TC_ACT_SHOT,
        }
    }
}

struct SkbFrame<const L3: bool> {
    skb: *mut __sk_buff,
}

impl<const L3: bool> SkbFrame<L3> {
    /// Whether this is of a connection by which the agent reaches the API server: no Service may
    /// have that dropped.
    #[inline(always)]
    fn is_agents_own(&self) -> bool {
        // SAFETY: the program's own context.
        unsafe { (*self.skb).priority == OWN_SOCKET_PRIORITY }
    }

    /// Whether the packet has the mark of [`SENT_ON`]. The mark is removed.
    #[inline(always)]
    fn was_sent_on(&self) -> bool {
        // SAFETY: the program's own context.
        unsafe {
            let sent_on = (*self.skb).tc_index == SENT_ON;
            if sent_on {
                (*self.skb).tc_index = 0;
            }
            sent_on
        }
    }

    /// Has a copy of the frame leave by a device or, with `BPF_F_INGRESS`, come in by it.
    #[inline(always)]
    fn send_copy(&self, ifindex: u32, flags: u64) {
        // SAFETY: the program's own context, and plain numbers. Without memory, the copy is lost like any
        // packet.
        unsafe { bpf_clone_redirect(self.skb, ifindex, flags) };
    }

    /// Adds bytes in front of the packet, which are to become an IP header on devices without
    /// Ethernet headers: for those, the kernel must know where it begins. Not 0 if that failed.
    #[inline(always)]
    fn add_front(&mut self, front: usize) -> i64 {
        // SAFETY: the program's own context; the caller reads the bounds again.
        unsafe {
            match L3 {
                true if front == 0 => 0,
                true => bpf_skb_adjust_room(self.skb, front as i32, BPF_ADJ_ROOM_MAC, 0),
                false => bpf_skb_change_head(self.skb, front as u32, 0),
            }
        }
    }

    /// The EtherType, once the headers can be accessed. Packets with a VLAN tag belong to the
    /// VLAN's device.
    #[inline(always)]
    fn ethertype(&self) -> Option<u16> {
        // SAFETY: the program's own context.
        unsafe {
            if (*self.skb).vlan_present != 0 {
                return None;
            }
            let length = (*self.skb).len;
            if (self.packet().len() as u32) < HEADERS && self.packet().len() as u32 != length {
                let wanted = if length < HEADERS { length } else { HEADERS };
                bpf_skb_pull_data(self.skb, wanted);
            }
        }
        match L3 {
            // SAFETY: the program's own context.
            true => Some(u16::from_be(unsafe { (*self.skb).protocol } as u16)),
            false => parse::ethertype(self.packet()),
        }
    }
}

/// The EtherType of a packet that arrived, or 0. A separate function, so that its stack counts only
/// while it runs.
///
/// Where generic XDP copied the packet to make room, the kernel (6.18 does) forgets the length of
/// its Ethernet header and shows TC what comes after it.
#[inline(never)]
fn received_ethertype<const L3: bool>(skb: *mut __sk_buff) -> u16 {
    let frame = SkbFrame::<L3> { skb };
    let found = frame.ethertype().unwrap_or(0);
    // SAFETY: the program's own context.
    let protocol = u16::from_be(unsafe { (*skb).protocol } as u16);
    let is_ip = protocol == Ip4::ETHERTYPE || protocol == Ip6::ETHERTYPE;
    if L3 || found == protocol || !is_ip || !uncover_ethernet(skb) {
        return found;
    }
    frame.ethertype().unwrap_or(0)
}

/// Makes a packet begin with its Ethernet header again, which is still there in front of it.
#[inline(always)]
fn uncover_ethernet(skb: *mut __sk_buff) -> bool {
    let mut header = [0_u8; ETHERNET];
    let length = ETHERNET as u32;
    // SAFETY: the program's own context, and memory as long as said.
    unsafe {
        bpf_skb_load_bytes_relative(
            skb.cast(),
            0,
            header.as_mut_ptr().cast(),
            length,
            BPF_HDR_START_MAC,
        ) == 0
            && bpf_skb_change_head(skb, length, 0) == 0
            && bpf_skb_store_bytes(skb, 0, header.as_ptr().cast(), length, 0) == 0
    }
}

impl<const L3: bool> Frame for SkbFrame<L3> {
    const LINK_HEADER: usize = if L3 { 0 } else { ETHERNET };
    const MAY_BE_PARTIAL: bool = false;

    #[inline(always)]
    fn packet(&self) -> Packet {
        // SAFETY: the kernel gives the packet's bounds, and nobody else has the packet.
        unsafe {
            let data = (&raw const (*self.skb).data).read_volatile() as usize;
            let end = (&raw const (*self.skb).data_end).read_volatile() as usize;
            Packet::new(data, end)
        }
    }

    #[inline(always)]
    fn ifindex(&self) -> u32 {
        // SAFETY: the program's own context.
        unsafe { (*self.skb).ifindex }
    }

    #[inline(always)]
    fn is_for_host(&self) -> Option<bool> {
        // SAFETY: the program's own context.
        Some(unsafe { (*self.skb).pkt_type } != PACKET_OTHERHOST)
    }

    #[inline(always)]
    fn may_be_kept_back(&self) -> bool {
        self.is_for_host() == Some(true) && !self.is_agents_own()
    }

    #[inline(always)]
    fn wire_length(&self, network: &Network) -> u32 {
        // SAFETY: the program's own context.
        let segment = unsafe { (*self.skb).gso_size };
        if segment == 0 {
            return network.length;
        }
        // TCP's shortest: too big is only said of what surely is.
        let (transport, segment) = match network.protocol {
            UDP => (8, segment),
            // Its sender has cut it to size.
            SCTP if segment == GSO_BY_FRAGS => (12, 0),
            SCTP => (12, segment),
            _ => (20, segment),
        };
        (network.payload - network.offset) as u32 + transport + segment
    }

    #[inline(always)]
    fn change_checksum<A: Address>(
        &mut self,
        offset: usize,
        pseudo: Difference,
        covered: Difference,
        udp: bool,
    ) -> Option<()> {
        let flags = if udp {
            u64::from(BPF_F_MARK_MANGLED_0)
        } else {
            0
        };
        // Where a device will complete the checksum, it holds the pseudo header's sum only: the
        // kernel knows, and leaves the other change out.
        // SAFETY: the program's own context; the offset is checked by the helper.
        unsafe {
            let pseudo_flags = flags | u64::from(BPF_F_PSEUDO_HDR);
            if bpf_l4_csum_replace(
                self.skb,
                offset as u32,
                0,
                pseudo.to_u32().into(),
                pseudo_flags,
            ) != 0
                || bpf_l4_csum_replace(self.skb, offset as u32, 0, covered.to_u32().into(), flags)
                    != 0
            {
                return None;
            }
        }
        if A::FAMILY == Family::V6 {
            // The kernel takes the new addresses off its sum of the packet's bytes, as if a header
            // checksum had made up for them, which only IPv4 has.
            self.change_sum(pseudo);
        }
        Some(())
    }

    #[inline(always)]
    fn change_sum(&mut self, change: Difference) {
        // SAFETY: the program's own context. It fails where the kernel has no sum.
        unsafe { bpf_csum_update(self.skb, change.to_u32()) };
    }

    #[inline(always)]
    fn give_token(&mut self, token: u16) {
        // SAFETY: the program's own context.
        unsafe { (*self.skb).tc_index = TOKEN | u32::from(token) };
    }

    #[inline(always)]
    fn take_token(&mut self) -> Option<u16> {
        // SAFETY: the program's own context.
        unsafe {
            let index = (*self.skb).tc_index;
            if index & TOKEN == 0 {
                return None;
            }
            (*self.skb).tc_index = 0;
            Some((index & !TOKEN) as u16)
        }
    }

    #[inline(always)]
    fn copy_to(&self, bytes: &mut [u8; KEPT]) -> Option<u32> {
        // SAFETY: the program's own context, and memory as long as said.
        unsafe {
            let length = (*self.skb).len;
            (bpf_skb_load_bytes(self.skb.cast(), 0, bytes.as_mut_ptr().cast(), kept(length)) == 0)
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
            if bpf_skb_change_tail(self.skb, (length - front) as u32, 0) != 0
                || self.add_front(front) != 0
                || bpf_skb_pull_data(self.skb, length as u32) != 0
            {
                return None;
            }
        }
        Some(())
    }

    #[inline(always)]
    fn add_ethernet(&mut self) -> Option<()> {
        // SAFETY: the program's own context; the bounds are read again afterwards.
        let refused = unsafe { bpf_skb_change_head(self.skb, ETHERNET as u32, 0) };
        (refused == 0).then_some(())
    }
}
