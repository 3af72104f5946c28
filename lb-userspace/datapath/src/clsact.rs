//! TC filters on the clsact qdisc, for kernels before 6.6, which have no TCX links.
//!
//! Filters of node-lb have a fixed priority and handle, by which they are recognised. They stay
//! attached when the agent ends, as pinned links do.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{
        TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcHeader, TcMessage,
        TcOption,
    },
};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};

use super::hooks::Direction;

const QDISC: &str = "clsact";

/// "LB". Filters of the same priority differ by their handles.
const HANDLE: TcHandle = TcHandle {
    major: 0,
    minor: 0x4c42,
};

/// Attaches a direct-action filter, first on ingress and last on egress. If there is one, its
/// program is replaced without a moment in which a packet sees none. Returns whether it replaced.
///
/// # Errors
///
/// The kernel's: `ENODEV` if the device is gone.
pub fn attach(
    ifindex: u32,
    direction: Direction,
    program: BorrowedFd<'_>,
    name: &str,
) -> io::Result<bool> {
    let mut netlink = Netlink::open()?;
    netlink.acknowledged(
        RouteNetlinkMessage::NewQueueDiscipline(qdisc(ifindex)),
        NLM_F_CREATE | NLM_F_EXCL,
        libc::EEXIST,
    )?;

    let mut message = filter(ifindex, direction);
    message.attributes = vec![
        TcAttribute::Kind(TcFilterBpf::KIND.to_owned()),
        TcAttribute::Options(vec![
            TcOption::Bpf(TcFilterBpfOption::ProgFd(program.as_raw_fd() as u32)),
            TcOption::Bpf(TcFilterBpfOption::ProgName(name.to_owned())),
            TcOption::Bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
        ]),
    ];
    let created = netlink.acknowledged(
        RouteNetlinkMessage::NewTrafficFilter(message.clone()),
        NLM_F_CREATE | NLM_F_EXCL,
        libc::EEXIST,
    )?;
    if !created {
        netlink.acknowledged(RouteNetlinkMessage::NewTrafficFilter(message), 0, 0)?;
    }
    Ok(!created)
}

/// Removes node-lb's filters from a device, and the qdisc if no filters are left on it. Returns how
/// many of node-lb's there were.
///
/// # Errors
///
/// The kernel's. It is no error if the device is gone.
pub fn remove(ifindex: u32) -> io::Result<usize> {
    let mut netlink = Netlink::open()?;
    let mut ours = 0;
    let mut others = 0;
    for direction in [Direction::Ingress, Direction::Egress] {
        for present in netlink.filters(ifindex, direction)? {
            // The list of each priority also has a head, without a handle.
            if present.header.handle == TcHandle::UNSPEC {
                continue;
            }
            if !is_ours(&present, direction) {
                others += 1;
                continue;
            }
            ours += 1;
            netlink.acknowledged(
                RouteNetlinkMessage::DelTrafficFilter(filter(ifindex, direction)),
                0,
                libc::ENOENT,
            )?;
        }
    }
    if ours > 0 && others == 0 {
        netlink.acknowledged(
            RouteNetlinkMessage::DelQueueDiscipline(qdisc(ifindex)),
            0,
            libc::ENOENT,
        )?;
    }
    Ok(ours)
}

/// The kernel's number of the program in node-lb's filter on a device, if there is one.
///
/// # Errors
///
/// The kernel's. It is no error if the device is gone.
pub fn program(ifindex: u32, direction: Direction) -> io::Result<Option<u32>> {
    let filters = Netlink::open()?.filters(ifindex, direction)?;
    let ours = filters.iter().find(|filter| is_ours(filter, direction));
    let attributes = ours.into_iter().flat_map(|filter| &filter.attributes);
    let options = attributes.filter_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    });
    let mut ids = options.flatten().filter_map(|option| match option {
        TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => Some(*id),
        _ => None,
    });
    Ok(ids.next())
}

/// [`remove`] for all devices of this network namespace but those to `keep`. Returns how many
/// filters there were.
///
/// # Errors
///
/// The kernel's.
pub fn remove_except(keep: impl Fn(u32) -> bool) -> io::Result<usize> {
    let mut removed = 0;
    // A device with several names is listed several times, but has filters to remove only once.
    for device in &nix::net::if_::if_nameindex()? {
        if !keep(device.index()) {
            removed += remove(device.index())?;
        }
    }
    Ok(removed)
}

/// Whether a filter is node-lb's.
fn is_ours(filter: &TcMessage, direction: Direction) -> bool {
    let TcHeader { handle, info, .. } = filter.header;
    handle == HANDLE && info >> 16 == u32::from(priority(direction))
}

/// On each hook, the lowest priority runs first.
fn priority(direction: Direction) -> u16 {
    match direction {
        Direction::Ingress => 1,
        Direction::Egress => u16::MAX,
    }
}

fn qdisc(ifindex: u32) -> TcMessage {
    let mut message = TcMessage::with_index(ifindex as i32);
    message.header.parent = TcHandle::CLSACT;
    message.header.handle = TcHandle {
        major: TcHandle::CLSACT.major,
        minor: 0,
    };
    message.attributes = vec![TcAttribute::Kind(QDISC.to_owned())];
    message
}

fn filter(ifindex: u32, direction: Direction) -> TcMessage {
    let mut message = TcMessage::with_index(ifindex as i32);
    message.header.parent = parent(direction);
    message.header.handle = HANDLE;
    message.header.info =
        u32::from(priority(direction)) << 16 | u32::from((libc::ETH_P_ALL as u16).to_be());
    message
}

fn parent(direction: Direction) -> TcHandle {
    TcHandle {
        major: TcHandle::CLSACT.major,
        minor: match direction {
            Direction::Ingress => TcHandle::MIN_INGRESS,
            Direction::Egress => TcHandle::MIN_EGRESS,
        },
    }
}

/// A socket for requests that are answered at once.
struct Netlink(Socket);

impl Netlink {
    fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        Ok(Self(socket))
    }

    /// Sends a request and waits until it is done. Returns false if it was refused with the error
    /// `tolerated`.
    fn acknowledged(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
        tolerated: i32,
    ) -> io::Result<bool> {
        let mut done = Ok(true);
        self.request(request, flags | NLM_F_ACK, |payload| {
            if let NetlinkPayload::Error(error) = payload {
                done = match error.to_io() {
                    _ if error.code.is_none() => Ok(true),
                    error if error.raw_os_error() == Some(tolerated) => Ok(false),
                    error => Err(error),
                };
            }
        })?;
        done
    }

    /// The filters of a device in one direction; none if the device has no such qdisc or is gone.
    fn filters(&mut self, ifindex: u32, direction: Direction) -> io::Result<Vec<TcMessage>> {
        let mut message = TcMessage::with_index(ifindex as i32);
        message.header.parent = parent(direction);
        let mut filters = Vec::new();
        let mut failure = None;
        self.request(
            RouteNetlinkMessage::GetTrafficFilter(message),
            NLM_F_DUMP,
            |payload| match payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewTrafficFilter(filter)) => {
                    filters.push(filter);
                }
                NetlinkPayload::Error(error) if error.code.is_some() => {
                    failure = Some(error.to_io());
                }
                _ => {}
            },
        )?;
        match failure {
            Some(error)
                if !matches!(
                    error.raw_os_error(),
                    Some(libc::ENOENT | libc::ENODEV | libc::EINVAL)
                ) =>
            {
                Err(error)
            }
            _ => Ok(filters),
        }
    }

    /// Sends a request and passes on the answers until their end.
    fn request(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
        mut answer: impl FnMut(NetlinkPayload<RouteNetlinkMessage>),
    ) -> io::Result<()> {
        let mut message = NetlinkMessage::from(request);
        message.header.flags = NLM_F_REQUEST | flags;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, 0)?;

        loop {
            let (received, _) = self.0.recv_from_full()?;
            let mut rest = received.as_slice();
            while !rest.is_empty() {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                let length = (message.header.length as usize).next_multiple_of(4);
                rest = rest.get(length..).unwrap_or_default();
                let last = matches!(
                    message.payload,
                    NetlinkPayload::Done(_) | NetlinkPayload::Error(_)
                );
                answer(message.payload);
                if last {
                    return Ok(());
                }
            }
        }
    }
}
