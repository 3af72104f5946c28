//! Requests over netlink, and notifications from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    pin::pin,
};

use futures_util::{Stream, TryStreamExt as _};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkXdp},
    route::RouteAttribute,
};
use netlink_sys::{AsyncSocket as _, SocketAddr, TokioSocket, protocols::NETLINK_ROUTE};
use nix::sys::socket::{setsockopt, sockopt};
use rtnetlink::{Handle, MulticastGroup, RouteMessageBuilder};
use thiserror::Error;

use super::message::{Update, default_devices};

/// The groups of messages that are followed.
const GROUPS: [MulticastGroup; 9] = [
    MulticastGroup::Link,
    MulticastGroup::Neigh,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
    MulticastGroup::Ipv4Netconf,
];

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

/// A socket that gets all messages of [`GROUPS`], with a buffer of so many bytes.
pub(super) fn subscribe(buffer: usize) -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
    let netlink = socket.socket_mut();
    netlink.bind(&SocketAddr::new(0, 0))?;
    // More than ordinary processes may have. Without the privilege, their limit has to do.
    if setsockopt(netlink, sockopt::RcvBufForce, &buffer).is_err() {
        netlink.set_rx_buf_sz(libc::c_int::try_from(buffer).unwrap_or(libc::c_int::MAX))?;
    }
    for group in GROUPS {
        netlink.add_membership(group as u32)?;
    }
    Ok(socket)
}

/// A connection for requests. It ends with its handle.
pub(super) fn connect() -> io::Result<Handle> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    tokio::spawn(connection);
    Ok(handle)
}

/// The updates in the answer to a listing.
pub(super) async fn updates(
    what: &'static str,
    messages: impl Stream<Item = Result<RouteNetlinkMessage, rtnetlink::Error>>,
) -> Result<Vec<Update>, WatchError> {
    messages
        .try_filter_map(async |message| Ok(Update::parse(message)))
        .try_collect()
        .await
        .map_err(|source| WatchError::List { what, source })
}

/// Indices of the devices of default routes.
pub(super) async fn default_routes(netlink: &Handle) -> Result<BTreeSet<u32>, WatchError> {
    let mut through = BTreeSet::new();
    let requests = [
        RouteMessageBuilder::<Ipv4Addr>::new().build(),
        RouteMessageBuilder::<Ipv6Addr>::new().build(),
    ];
    for request in requests {
        let mut routes = pin!(netlink.route().get(request).execute());
        while let Some(route) = routes.try_next().await.map_err(|source| WatchError::List {
            what: "routes",
            source,
        })? {
            through.extend(default_devices(&route));
        }
    }
    Ok(through)
}

/// Asks this network namespace's routes and devices. It needs the runtime that it was opened in.
pub struct Routes(Handle);

impl Routes {
    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// If there is no netlink.
    pub fn open() -> io::Result<Self> {
        connect().map(Self)
    }

    /// Index of the device by which packets to an address leave; `None` if there is no way.
    pub async fn device_towards(&self, address: IpAddr) -> Option<u32> {
        let request = match address {
            IpAddr::V4(ip) => RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(ip, Ipv4Addr::BITS as u8)
                .build(),
            IpAddr::V6(ip) => RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(ip, Ipv6Addr::BITS as u8)
                .build(),
        };
        let mut routes = pin!(self.0.route().get(request).execute());
        // The kernel's answer to a packet that it cannot send is an error.
        let route = routes.try_next().await.ok()??;
        route
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                RouteAttribute::Oif(index) => Some(*index),
                _ => None,
            })
    }

    /// Indexes of the devices that are ports of another one, as of a bridge.
    ///
    /// # Errors
    ///
    /// If the devices cannot be listed.
    pub async fn ports(&self, device: u32) -> Result<BTreeSet<u32>, WatchError> {
        let is_port = |attribute: &LinkAttribute| *attribute == LinkAttribute::Controller(device);
        let links = self.0.link().get().execute();
        let links = links.map_err(|source| WatchError::List {
            what: "devices",
            source,
        });
        links
            .try_filter_map(async |link| {
                let is_one = link.attributes.iter().any(is_port);
                Ok(is_one.then_some(link.header.index))
            })
            .try_collect()
            .await
    }
}

/// Ids of the XDP programs on this network namespace's devices, by interface index.
///
/// # Errors
///
/// If the devices cannot be listed.
pub async fn xdp_programs() -> Result<BTreeMap<u32, u32>, WatchError> {
    let netlink = connect()?;
    let mut links = pin!(netlink.link().get().execute());
    let mut programs = BTreeMap::new();
    while let Some(link) = links.try_next().await.map_err(|source| WatchError::List {
        what: "devices",
        source,
    })? {
        let xdp = link
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::Xdp(xdp) => Some(xdp),
                _ => None,
            });
        let id = xdp.into_iter().flatten().find_map(|part| match part {
            LinkXdp::ProgId(id) | LinkXdp::DrvProgId(id) | LinkXdp::SkbProgId(id) => Some(*id),
            _ => None,
        });
        programs.extend(id.map(|id| (link.header.index, id)));
    }
    Ok(programs)
}
