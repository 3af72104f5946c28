//! Follows the devices over netlink.

use std::{io, time::Duration};

use futures_util::{FutureExt as _, TryStreamExt as _};
use netlink_packet_core::{NetlinkBuffer, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{AsyncSocket as _, AsyncSocketExt as _, TokioSocket};
use tokio::time::{Instant, sleep_until};

use super::{
    Device, Devices, Event,
    message::Update,
    neighbours::Neighbours,
    netlink::{WatchError, connect, default_routes, subscribe, updates},
    sources::{self, SETTING_CHANGED, SourceRules},
};

/// Buffer in bytes for messages that come faster than they are read: some ten thousand messages.
const SOCKET_BUFFER: usize = 8 << 20;
const MESSAGE_BUFFER: usize = 64 << 10;

/// The most messages that are read before events are returned.
const BATCH: usize = 256;

/// Changes of routes and neighbours come in swarms, so they are reported at most this often.
const INTERVAL: Duration = Duration::from_millis(50);

/// Follows this network namespace's devices, addresses, routes and neighbours.
pub struct Watcher {
    socket: TokioSocket,
    buffer: Vec<u8>,
    devices: Devices,
    neighbours: Neighbours,
    events: Vec<Event>,
    /// Messages were lost, so everything must be read again.
    stale: bool,
    overflows: u64,
    route_listings: u64,
    next_hops: Throttle,
    default_routes: Throttle,
}

impl Watcher {
    /// Subscribes and reads the present state, in the network namespace of the calling thread and
    /// on its tokio runtime.
    ///
    /// # Errors
    ///
    /// If netlink cannot be used.
    pub async fn start() -> Result<Self, WatchError> {
        Self::with_buffer(SOCKET_BUFFER).await
    }

    /// [`Self::start`] with a buffer of `bytes` for messages that are not read yet.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub async fn with_buffer(bytes: usize) -> Result<Self, WatchError> {
        let mut watcher = Self {
            socket: subscribe(bytes)?,
            buffer: Vec::with_capacity(MESSAGE_BUFFER),
            devices: Devices::default(),
            neighbours: Neighbours::default(),
            events: Vec::new(),
            stale: false,
            overflows: 0,
            route_listings: 0,
            next_hops: Throttle::default(),
            default_routes: Throttle::default(),
        };
        watcher.resync().await?;
        watcher.events.clear();
        watcher.next_hops.done();
        Ok(watcher)
    }

    /// The devices as they are after the events that have been returned.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// How often messages were lost because they came too fast.
    pub fn overflows(&self) -> u64 {
        self.overflows
    }

    /// How often all routes were listed.
    pub fn route_listings(&self) -> u64 {
        self.route_listings
    }

    /// Waits for changes, at least one. The future may be dropped at any time; no change is lost.
    ///
    /// If messages were lost because they came too fast, everything is read again, and the events
    /// are the differences.
    ///
    /// # Errors
    ///
    /// If the state must be read and cannot be. The next call tries again.
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

    /// Waits for messages, or until a delayed event is due.
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
                    self.overflows += 1;
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
            if header.message_type() == SETTING_CHANGED {
                if let Some((index, way_back)) = sources::changed(header.payload()) {
                    self.apply(Update::WayBack(index, way_back));
                }
                rest = rest.get(length..).unwrap_or_default();
                continue;
            }
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
                let known = self.devices.get(device.index);
                let runs_otherwise =
                    |known: &Device| (known.up, known.carrier) != (device.up, device.carrier);
                if known.is_some_and(runs_otherwise) {
                    self.routes_may_be_gone(device.index);
                }
                self.devices.put(device, &mut self.events);
            }
            Update::LinkGone(index) => {
                self.routes_may_be_gone(index);
                self.devices.remove(index, &mut self.events);
                self.neighbours.forget(index);
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
            Update::WayBack(index, way_back) => {
                self.devices.set_way_back(index, way_back, &mut self.events);
            }
            Update::Other => self.next_hops.touch(),
        }
    }

    /// Routes vanish with their device, and the kernel does not report each of them. Those that come
    /// are reported. So a device without a default route is no reason to list all routes, of which
    /// there are several for each pod.
    fn routes_may_be_gone(&mut self, index: u32) {
        self.next_hops.touch();
        let device = self.devices.get(index);
        if device.is_some_and(|device| device.default_route) {
            self.default_routes.touch();
        }
    }

    /// Reads everything. Changes in the meantime are reported by later messages.
    async fn resync(&mut self) -> Result<(), WatchError> {
        self.discard_messages()?;
        let netlink = connect()?;
        let mut now = Devices {
            sources: SourceRules::of_all(),
            ..Devices::default()
        };
        let mut unused = Vec::new();
        let mut neighbours = Neighbours::default();
        // One after the other, because the kernel carries out one listing per socket at a time.
        let links = netlink.link().get().execute();
        for update in updates("devices", links.map_ok(RouteNetlinkMessage::NewLink)).await? {
            if let Update::Link(device) = update {
                now.put(device, &mut unused);
            }
        }
        let addresses = netlink.address().get().execute();
        for update in updates(
            "addresses",
            addresses.map_ok(RouteNetlinkMessage::NewAddress),
        )
        .await?
        {
            if let Update::Address(index, address) = update {
                now.put_address(index, address, &mut unused);
            }
        }
        let list = netlink.neighbours().get().execute();
        for update in updates("neighbours", list.map_ok(RouteNetlinkMessage::NewNeighbour)).await? {
            if let Update::Neighbour(index, ip, link_layer) = update {
                neighbours.note(index, ip, link_layer);
            }
        }
        self.route_listings += 1;
        let through = default_routes(&netlink).await?;

        self.devices.become_like(now, &mut self.events);
        self.devices.set_default_routes(&through, &mut self.events);
        self.neighbours = neighbours;
        self.default_routes.done();
        self.next_hops.touch();
        self.stale = false;
        Ok(())
    }

    /// Drops the messages received so far. If they were applied after what is read from now on,
    /// they would bring back devices whose removal was among the lost messages.
    fn discard_messages(&mut self) -> io::Result<()> {
        loop {
            self.buffer.clear();
            match self.socket.socket_ref().recv(&mut self.buffer, 0) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    async fn read_default_routes(&mut self) -> Result<(), WatchError> {
        self.route_listings += 1;
        let through = default_routes(&connect()?).await?;
        self.default_routes.done();
        self.devices.set_default_routes(&through, &mut self.events);
        Ok(())
    }
}

/// Delays changes so that the first one is reported at once, but later ones not too often.
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

    /// When to report; `None` if there is nothing to report.
    fn due(&self) -> Option<Instant> {
        self.touched
            .then(|| self.last.map_or_else(Instant::now, |last| last + INTERVAL))
    }

    fn is_due(&self) -> bool {
        self.due().is_some_and(|due| due <= Instant::now())
    }
}
