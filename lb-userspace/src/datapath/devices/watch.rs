//! Following the devices over netlink.

use std::{collections::BTreeSet, io, time::Duration};

use futures_util::{FutureExt as _, TryStreamExt as _};
use netlink_packet_core::{NetlinkBuffer, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{RouteNetlinkMessage, route::RouteMessage};
use netlink_sys::{
    AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket, protocols::NETLINK_ROUTE,
};
use nix::sys::socket::{setsockopt, sockopt};
use rtnetlink::{Handle, IpVersion, MulticastGroup, RouteMessageBuilder};
use thiserror::Error;
use tokio::time::{Instant, sleep_until};

use super::{
    Devices, Event,
    message::{Update, default_devices},
    neighbours::Neighbours,
};

/// What is followed.
const GROUPS: [MulticastGroup; 8] = [
    MulticastGroup::Link,
    MulticastGroup::Neigh,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
];

/// Room for messages that come faster than they are read: some ten thousand.
const SOCKET_BUFFER: usize = 8 << 20;
const MESSAGE_BUFFER: usize = 64 << 10;

/// Messages read at a time before events are handed out.
const BATCH: usize = 256;

/// Changes of routes and neighbours are told of at most this often, since they come in swarms.
const INTERVAL: Duration = Duration::from_millis(50);

/// Follows this network namespace's devices, addresses, routes and neighbours.
pub struct Watcher {
    socket: TokioSocket,
    buffer: Vec<u8>,
    devices: Devices,
    neighbours: Neighbours,
    events: Vec<Event>,
    /// Messages were lost: everything has to be read anew.
    stale: bool,
    next_hops: Throttle,
    default_routes: Throttle,
}

/// Why the devices cannot be followed.
#[derive(Debug, Error)]
pub enum WatchError {
    #[error("cannot follow network devices: {0}")]
    Socket(#[from] io::Error),
    #[error("cannot list {what}: {source}")]
    List {
        what: &'static str,
        source: rtnetlink::Error,
    },
}

impl Watcher {
    /// Subscribes and reads the present state, in the network namespace of the calling thread and on
    /// its tokio runtime.
    ///
    /// # Errors
    ///
    /// If netlink is not to be had.
    pub async fn start() -> Result<Self, WatchError> {
        let mut watcher = Self {
            socket: subscribe()?,
            buffer: Vec::with_capacity(MESSAGE_BUFFER),
            devices: Devices::default(),
            neighbours: Neighbours::default(),
            events: Vec::new(),
            stale: false,
            next_hops: Throttle::default(),
            default_routes: Throttle::default(),
        };
        watcher.resync().await?;
        watcher.events.clear();
        watcher.next_hops.done();
        Ok(watcher)
    }

    /// The devices after the events handed out so far.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Waits for changes, at least one. May be cancelled at any time without losing any.
    ///
    /// If messages were lost because they came too fast, everything is read anew and the events are
    /// the differences.
    ///
    /// # Errors
    ///
    /// If the state has to be read and cannot be; calling again tries again.
    pub async fn next(&mut self) -> Result<Vec<Event>, WatchError> {
        loop {
            if self.stale {
                self.resync().await?;
            }
            if self.default_routes.is_due() {
                self.read_default_routes().await?;
            }
            if self.next_hops.is_due() {
                self.next_hops.done();
                self.events.push(Event::NextHopsChanged);
            }
            if !self.events.is_empty() {
                return Ok(std::mem::take(&mut self.events));
            }
            self.receive().await?;
        }
    }

    /// Waits for messages, or until something held back is due.
    async fn receive(&mut self) -> io::Result<()> {
        let due = self
            .next_hops
            .due()
            .into_iter()
            .chain(self.default_routes.due())
            .min();
        self.buffer.clear();
        let mut received = tokio::select! {
            received = self.socket.recv(&mut self.buffer) => received,
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => return Ok(()),
        };
        for _ in 0..BATCH {
            match received {
                Ok(()) => self.take_messages(),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.stale = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            self.buffer.clear();
            match self.socket.recv(&mut self.buffer).now_or_never() {
                Some(next) => received = next,
                None => break,
            }
        }
        Ok(())
    }

    /// Reads the messages in the buffer, of which there may be several.
    fn take_messages(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        let mut rest = buffer.as_slice();
        while let Ok(header) = NetlinkBuffer::new_checked(rest) {
            let length = (header.length() as usize).next_multiple_of(4);
            match NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) {
                Ok(NetlinkMessage {
                    payload: NetlinkPayload::InnerMessage(message),
                    ..
                }) => {
                    if let Some(update) = Update::parse(message) {
                        self.apply(update);
                    }
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "a netlink message could not be read");
                    self.next_hops.touch();
                }
            }
            rest = rest.get(length..).unwrap_or_default();
        }
        self.buffer = buffer;
    }

    fn apply(&mut self, update: Update) {
        match update {
            Update::Link(device) => {
                let running = |devices: &Devices| {
                    devices
                        .get(device.index)
                        .map(|device| (device.up, device.carrier))
                };
                let before = running(&self.devices);
                let after = Some((device.up, device.carrier));
                self.devices.put(device, &mut self.events);
                if before.is_some() && before != after {
                    self.routes_may_be_gone();
                }
            }
            Update::LinkGone(index) => {
                self.devices.remove(index, &mut self.events);
                self.neighbours.forget(index);
                self.routes_may_be_gone();
            }
            Update::Address(index, address) => {
                self.devices.put_address(index, address, &mut self.events);
            }
            Update::AddressGone(index, address) => {
                self.devices
                    .remove_address(index, address, &mut self.events);
            }
            Update::Neighbour(index, ip, link_layer) => {
                if self.neighbours.note(index, ip, link_layer) {
                    self.next_hops.touch();
                }
            }
            Update::Route { default } => {
                self.next_hops.touch();
                if default {
                    self.default_routes.touch();
                }
            }
            Update::Other => self.next_hops.touch(),
        }
    }

    /// Routes vanish with their device, and the kernel does not tell of each.
    fn routes_may_be_gone(&mut self) {
        self.next_hops.touch();
        self.default_routes.touch();
    }

    /// Reads everything; what changed meanwhile is told by messages to come.
    async fn resync(&mut self) -> Result<(), WatchError> {
        let netlink = connect()?;
        let mut now = Devices::default();
        let mut unused = Vec::new();
        let mut neighbours = Neighbours::default();
        let links = netlink
            .link()
            .get()
            .execute()
            .map_ok(RouteNetlinkMessage::NewLink);
        let addresses = netlink
            .address()
            .get()
            .execute()
            .map_ok(RouteNetlinkMessage::NewAddress);
        let neighbour_list = netlink
            .neighbours()
            .get()
            .execute()
            .map_ok(RouteNetlinkMessage::NewNeighbour);
        let mut links = std::pin::pin!(updates("devices", links));
        let mut addresses = std::pin::pin!(updates("addresses", addresses));
        let mut neighbour_list = std::pin::pin!(updates("neighbours", neighbour_list));

        while let Some(update) = links.try_next().await? {
            if let Update::Link(device) = update {
                now.put(device, &mut unused);
            }
        }
        while let Some(update) = addresses.try_next().await? {
            if let Update::Address(index, address) = update {
                now.put_address(index, address, &mut unused);
            }
        }
        while let Some(update) = neighbour_list.try_next().await? {
            if let Update::Neighbour(index, ip, link_layer) = update {
                neighbours.note(index, ip, link_layer);
            }
        }
        let through = default_routes(&netlink).await?;

        self.devices.become_like(now, &mut self.events);
        self.devices.set_default_routes(&through, &mut self.events);
        self.neighbours = neighbours;
        self.default_routes.done();
        self.next_hops.touch();
        self.stale = false;
        Ok(())
    }

    async fn read_default_routes(&mut self) -> Result<(), WatchError> {
        let through = default_routes(&connect()?).await?;
        self.default_routes.done();
        self.devices.set_default_routes(&through, &mut self.events);
        Ok(())
    }
}

/// Holds changes back so that they are told of at once, but not too often.
#[derive(Debug, Default)]
struct Throttle {
    touched: bool,
    last: Option<Instant>,
}

impl Throttle {
    fn touch(&mut self) {
        self.touched = true;
    }

    fn done(&mut self) {
        self.touched = false;
        self.last = Some(Instant::now());
    }

    /// When to tell, if there is something to be told.
    fn due(&self) -> Option<Instant> {
        self.touched
            .then(|| self.last.map_or_else(Instant::now, |last| last + INTERVAL))
    }

    fn is_due(&self) -> bool {
        self.due().is_some_and(|due| due <= Instant::now())
    }
}

fn subscribe() -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
    let netlink = socket.socket_mut();
    netlink.bind(&SocketAddr::new(0, 0))?;
    // More than the limit for ordinary processes; without the privilege the limit has to do.
    if setsockopt(netlink, sockopt::RcvBufForce, &SOCKET_BUFFER).is_err() {
        netlink.set_rx_buf_sz(SOCKET_BUFFER as libc::c_int)?;
    }
    for group in GROUPS {
        netlink.add_membership(group as u32)?;
    }
    Ok(socket)
}

/// A connection for requests, which ends with its handle.
fn connect() -> io::Result<Handle> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    tokio::spawn(connection);
    Ok(handle)
}

fn updates(
    what: &'static str,
    messages: impl futures_util::Stream<Item = Result<RouteNetlinkMessage, rtnetlink::Error>>,
) -> impl futures_util::Stream<Item = Result<Update, WatchError>> {
    messages
        .map_err(move |source| WatchError::List { what, source })
        .try_filter_map(async |message| Ok(Update::parse(message)))
}

/// Indices of the devices that default routes go through.
async fn default_routes(netlink: &Handle) -> Result<BTreeSet<u32>, WatchError> {
    let mut through = BTreeSet::new();
    for version in [IpVersion::V4, IpVersion::V6] {
        let request = match version {
            IpVersion::V4 => RouteMessageBuilder::<std::net::Ipv4Addr>::new().build(),
            IpVersion::V6 => RouteMessageBuilder::<std::net::Ipv6Addr>::new().build(),
        };
        let mut routes = std::pin::pin!(netlink.route().get(request).execute());
        while let Some(route) = next_route(&mut routes).await? {
            through.extend(default_devices(&route));
        }
    }
    Ok(through)
}

async fn next_route(
    routes: &mut (impl futures_util::Stream<Item = Result<RouteMessage, rtnetlink::Error>> + Unpin),
) -> Result<Option<RouteMessage>, WatchError> {
    routes.try_next().await.map_err(|source| WatchError::List {
        what: "routes",
        source,
    })
}
