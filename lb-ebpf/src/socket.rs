//! The cgroup hooks: connections of the node's own processes, translated at the socket.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::{BPF_SK_STORAGE_GET_F_CREATE, bpf_sock, bpf_sock_addr},
    helpers::generated::{
        bpf_get_netns_cookie, bpf_get_socket_cookie, bpf_seq_write, bpf_set_retval,
        bpf_sk_storage_get,
    },
};
use lb_common::{
    abi::{OWN_SOCKET_PRIORITY, Socket, SocketKey, SocketSeats, config_flag},
    addr::{Address, Ip4, Ip6},
    parse::{TCP, Tuple, UDP},
    socket::{self, Call, Caller, Outcome},
    tables::Services,
    verdict::{Hook, Reason, Verdict},
};

use crate::{
    family::FamilyMaps,
    kernel::{Kernel, count},
    maps::{SOCKET_SEATS, SOCKETS},
    steps, trace,
};

/// The call may go on.
const ALLOW: i32 = 1;
/// The call fails with the value set.
const DENY: i32 = 0;
/// `-ECONNREFUSED`.
const REFUSED: i32 = -111;

/// Sends a `connect` or `sendmsg` to an endpoint instead of the service, if it is to one.
#[inline(always)]
pub fn outgoing<D: SocketAddress, const TRACES: bool>(ctx: *mut bpf_sock_addr, call: Call) -> i32 {
    let protocol = protocol(ctx);
    if protocol != TCP && protocol != UDP || is_agents_own(ctx) {
        return ALLOW;
    }
    if call == Call::Connect {
        // Wherever it goes now.
        give_back(seats(socket_of(ctx), 0), ctx.cast());
    }
    let Some(kernel) = Kernel::<_, true, false>::new(ctx, 0) else {
        return ALLOW;
    };
    let everywhere = Services::<Ip4>::config(&kernel).flags & config_flag::SOCKETS_OF_PODS != 0;
    // SAFETY: the program's own context.
    let netns = unsafe { bpf_get_netns_cookie(ctx.cast()) };
    let is_own = netns == Services::<Ip4>::config(&kernel).netns_cookie;
    if !everywhere && !is_own {
        return ALLOW;
    }
    match D::read(ctx) {
        Target::V4(address) if is_left_alone(ctx, address, is_own) => ALLOW,
        Target::V4(address) => {
            redirect::<Ip4, D, TRACES>(&kernel, &Asking { ctx, is_own }, address, protocol, call)
        }
        Target::V6(address) if is_left_alone(ctx, address, is_own) => ALLOW,
        Target::V6(address) => {
            redirect::<Ip6, D, TRACES>(&kernel, &Asking { ctx, is_own }, address, protocol, call)
        }
    }
}

/// Shows a socket the service that it believes to talk to: for `recvmsg` and `getpeername`.
#[inline(always)]
pub fn incoming<D: SocketAddress>(ctx: *mut bpf_sock_addr) -> i32 {
    let address = match D::read(ctx) {
        Target::V4(address) => address.to_mapped(),
        Target::V6(address) => address,
    };
    let key = key(ctx, address, port(ctx), protocol(ctx));
    // SAFETY: an entry is replaced as a whole.
    if let Some(socket) = unsafe { SOCKETS.get(key) } {
        D::write(ctx, socket.address);
        write_port(ctx, socket.port);
    }
    ALLOW
}

/// A socket goes: what it holds is free again.
#[inline(always)]
pub fn released(socket: *mut bpf_sock) -> i32 {
    give_back(seats(socket, 0), socket.cast());
    ALLOW
}

/// Tells the agent what a socket holds, which it asks of all that hold something.
#[inline(always)]
pub fn list_seats(ctx: *mut c_void) -> i32 {
    // SAFETY: `struct bpf_iter__bpf_sk_storage_map` is four pointers, the last one to the value. The first
    // one's target begins with a pointer to the file that is read. The verifier knows all of them.
    // Volatile: it takes whole words only.
    unsafe {
        let words = ctx.cast::<*mut *mut c_void>();
        let value = words.add(3).read_volatile().cast::<c_void>();
        if !value.is_null() {
            let file = words.read_volatile().read_volatile();
            bpf_seq_write(file.cast(), value, size_of::<SocketSeats>() as u32);
        }
    }
    0
}

/// What a socket holds; null if it has no such record. With `BPF_SK_STORAGE_GET_F_CREATE` it gets one,
/// unless it has no memory left.
#[inline(always)]
fn seats(socket: *mut bpf_sock, flags: u32) -> *mut SocketSeats {
    // SAFETY: the map, and the socket of the program's own context.
    unsafe {
        let map = (&raw const SOCKET_SEATS).cast_mut().cast();
        let none = core::ptr::null_mut();
        bpf_sk_storage_get(map, socket.cast(), none, flags.into()).cast()
    }
}

/// Gives back what the socket of a hook's context holds.
#[inline(always)]
fn give_back(held: *mut SocketSeats, ctx: *mut c_void) {
    // SAFETY: null or the socket's own record, which nobody else uses meanwhile: system calls on a socket
    // take turns, and the last one is over when it goes.
    if unsafe { held.as_ref() }.is_some_and(|held| held.endpoint != 0) {
        // SAFETY: the program's own context.
        steps::unseat_socket(held, unsafe { bpf_get_socket_cookie(ctx) });
    }
}

/// The socket of a hook's context.
#[inline(always)]
fn socket_of(ctx: *mut bpf_sock_addr) -> *mut bpf_sock {
    // SAFETY: the program's own context, which has a socket.
    unsafe { (*ctx).__bindgen_anon_1.sk }
}

/// Who asks.
struct Asking {
    ctx: *mut bpf_sock_addr,
    is_own: bool,
}

impl<A: FamilyMaps> Caller<A> for Asking {
    #[inline(always)]
    fn cookie(&self) -> u64 {
        cookie(self.ctx)
    }

    #[inline(always)]
    fn is_own(&self) -> bool {
        self.is_own
    }

    #[inline(always)]
    fn holds(&self, service: u32, endpoint: u32) -> bool {
        // SAFETY: null or the socket's own record: see `give_back`.
        let held = unsafe { seats(socket_of(self.ctx), 0).as_ref() };
        held.is_some_and(|held| held.endpoint == endpoint && held.service == service)
    }

    #[inline(always)]
    fn take_seats(&self, tuple: &Tuple<A>, endpoint: u32) -> Option<Reason> {
        let record = seats(socket_of(self.ctx), BPF_SK_STORAGE_GET_F_CREATE);
        give_back(record, self.ctx.cast());
        // SAFETY: null or the socket's own record: see `give_back`.
        let Some(held) = (unsafe { record.as_mut() }) else {
            return Some(Reason::ConcurrencyLimit);
        };
        let cookie = Caller::<A>::cookie(self);
        held.ports = cookie as u32;
        let refused = A::seat_socket(tuple, endpoint, record, cookie);
        [
            Reason::ConcurrencyLimit,
            Reason::EndpointLimit,
            Reason::FlowLimit,
        ]
        .into_iter()
        .find(|reason| *reason as u64 == refused)
    }
}

/// How a hook's context holds the address.
pub trait SocketAddress {
    fn read(ctx: *mut bpf_sock_addr) -> Target;
    /// Writes an address, IPv4 in its mapped form.
    fn write(ctx: *mut bpf_sock_addr, address: Ip6);
}

/// An address of either family.
pub enum Target {
    V4(Ip4),
    V6(Ip6),
}

/// Hooks of IPv4 sockets.
pub struct Inet;

/// Hooks of IPv6 sockets, which may talk to IPv4 addresses in their mapped form.
pub struct Inet6;

impl SocketAddress for Inet {
    #[inline(always)]
    fn read(ctx: *mut bpf_sock_addr) -> Target {
        // SAFETY: the program's own context.
        let address = unsafe { (*ctx).user_ip4 };
        Target::V4(Ip4 {
            octets: address.to_ne_bytes(),
        })
    }

    #[inline(always)]
    fn write(ctx: *mut bpf_sock_addr, address: Ip6) {
        let word = u32::from_ne_bytes(Ip4::from_mapped(address).octets);
        // SAFETY: the program's own context. Volatile: the kernel takes whole words only.
        unsafe { (&raw mut (*ctx).user_ip4).write_volatile(word) };
    }
}

impl SocketAddress for Inet6 {
    #[inline(always)]
    fn read(ctx: *mut bpf_sock_addr) -> Target {
        // SAFETY: the program's own context. Volatile: the kernel gives whole words only.
        let [a, b, c, d] = unsafe {
            let words = (&raw const (*ctx).user_ip6).cast::<u32>();
            [
                words.read_volatile(),
                words.add(1).read_volatile(),
                words.add(2).read_volatile(),
                words.add(3).read_volatile(),
            ]
        };
        if a == 0 && b == 0 && c == 0xffff_u32.to_be() {
            return Target::V4(Ip4 {
                octets: d.to_ne_bytes(),
            });
        }
        let mut octets = [0; 16];
        octets[..4].copy_from_slice(&a.to_ne_bytes());
        octets[4..8].copy_from_slice(&b.to_ne_bytes());
        octets[8..12].copy_from_slice(&c.to_ne_bytes());
        octets[12..].copy_from_slice(&d.to_ne_bytes());
        Target::V6(Ip6 { octets })
    }

    #[inline(always)]
    fn write(ctx: *mut bpf_sock_addr, address: Ip6) {
        let o = address.octets;
        // SAFETY: the program's own context. Volatile: the kernel takes whole words only.
        unsafe {
            let words = (&raw mut (*ctx).user_ip6).cast::<u32>();
            words.write_volatile(u32::from_ne_bytes([o[0], o[1], o[2], o[3]]));
            words
                .add(1)
                .write_volatile(u32::from_ne_bytes([o[4], o[5], o[6], o[7]]));
            words
                .add(2)
                .write_volatile(u32::from_ne_bytes([o[8], o[9], o[10], o[11]]));
            words
                .add(3)
                .write_volatile(u32::from_ne_bytes([o[12], o[13], o[14], o[15]]));
        }
    }
}

#[inline(always)]
fn redirect<A: FamilyMaps, D: SocketAddress, const TRACES: bool>(
    kernel: &Kernel<*mut bpf_sock_addr, true, false>,
    asking: &Asking,
    address: A,
    protocol: u8,
    call: Call,
) -> i32 {
    let ctx = asking.ctx;
    let tuple = Tuple {
        source: Services::<A>::config(kernel).node(),
        destination: address,
        source_port: 0,
        destination_port: port(ctx),
        protocol,
        pad: [0; 3],
    };
    if TRACES {
        trace::socket(&tuple);
    }
    let reason = match socket::destination(kernel, &tuple, call, asking) {
        Outcome::Keep(reason) => {
            if TRACES {
                trace::socket_end::<A>(Verdict::pass(reason), None);
            }
            reason
        }
        Outcome::Refuse(reason) => {
            if TRACES {
                trace::socket_end::<A>(Verdict::drop(reason), None);
            }
            count(Hook::Socket, reason);
            // SAFETY: a plain number.
            unsafe { bpf_set_retval(REFUSED) };
            return DENY;
        }
        Outcome::Replace {
            address: endpoint,
            port,
            service,
            is_known,
        } => {
            remember(ctx, &tuple, &(endpoint, port), service, is_known);
            D::write(ctx, endpoint.to_mapped());
            write_port(ctx, port);
            if TRACES {
                let verdict = Verdict::pass(Reason::SocketTranslated);
                trace::socket_end(verdict, Some((endpoint, port)));
            }
            Reason::SocketTranslated
        }
    };
    count(Hook::Socket, reason);
    ALLOW
}

/// Notes what a socket that is sent to an endpoint of a service believes to talk to. It is there already
/// with most datagrams. Out of line: what it takes of the stack is free afterwards.
#[inline(never)]
fn remember<A: Address>(
    ctx: *mut bpf_sock_addr,
    tuple: &Tuple<A>,
    &(endpoint, port): &(A, u16),
    service: u32,
    is_known: bool,
) {
    let key = key(ctx, endpoint.to_mapped(), port, tuple.protocol);
    let value = Socket {
        address: tuple.destination.to_mapped(),
        port: tuple.destination_port,
        pad: 0,
        service,
    };
    if !(is_known && says(&key, &value)) {
        // A full table of an LRU map makes room; nothing else can fail.
        let _ = SOCKETS.insert(key, value, 0);
    }
}

#[inline(always)]
fn key(ctx: *mut bpf_sock_addr, address: Ip6, port: u16, protocol: u8) -> SocketKey {
    SocketKey {
        cookie: cookie(ctx),
        address,
        port,
        protocol: u16::from(protocol),
        pad: 0,
    }
}

/// Whether a socket is known to believe just this.
#[inline(always)]
fn says(key: &SocketKey, value: &Socket) -> bool {
    // SAFETY: another thread's datagram may be writing it: then this one writes, too.
    let known = unsafe { SOCKETS.get(key) };
    known.is_some_and(|known| {
        (known.address, known.port, known.service) == (value.address, value.port, value.service)
    })
}

#[inline(always)]
fn cookie(ctx: *mut bpf_sock_addr) -> u64 {
    // SAFETY: the program's own context.
    unsafe { bpf_get_socket_cookie(ctx.cast()) }
}

#[inline(always)]
fn protocol(ctx: *mut bpf_sock_addr) -> u8 {
    // SAFETY: the program's own context.
    unsafe { (*ctx).protocol as u8 }
}

/// Whether a socket talks to itself alone: a pod's has a loopback device of its own, and one that has a
/// loopback address already would take it elsewhere.
#[inline(always)]
fn is_left_alone<A: Address>(ctx: *mut bpf_sock_addr, address: A, is_own: bool) -> bool {
    address.is_loopback() && !(is_own && !is_bound(ctx))
}

/// Whether a socket has an address already.
#[inline(always)]
fn is_bound(ctx: *mut bpf_sock_addr) -> bool {
    // SAFETY: the program's own context, which has a socket. Volatile: the kernel gives whole words only.
    unsafe {
        let socket = (*ctx).__bindgen_anon_1.sk;
        let ip6 = (&raw const (*socket).src_ip6).cast::<u32>();
        (&raw const (*socket).src_ip4).read_volatile() != 0
            || ip6.read_volatile() != 0
            || ip6.add(1).read_volatile() != 0
            || ip6.add(2).read_volatile() != 0
            || ip6.add(3).read_volatile() != 0
    }
}

/// Whether this is a connection by which the agent reaches the API server: no Service may lead that
/// elsewhere.
#[inline(always)]
fn is_agents_own(ctx: *mut bpf_sock_addr) -> bool {
    // SAFETY: the program's own context, which has a socket.
    unsafe { (*(*ctx).__bindgen_anon_1.sk).priority == OWN_SOCKET_PRIORITY }
}

/// The port in host order.
#[inline(always)]
fn port(ctx: *mut bpf_sock_addr) -> u16 {
    // SAFETY: the program's own context.
    u16::from_be(unsafe { (*ctx).user_port } as u16)
}

#[inline(always)]
fn write_port(ctx: *mut bpf_sock_addr, port: u16) {
    // SAFETY: the program's own context. Volatile: the kernel takes whole words only.
    unsafe { (&raw mut (*ctx).user_port).write_volatile(u32::from(port.to_be())) };
}
