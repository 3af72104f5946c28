//! The TCP sockets on which the agent listens, and how another process goes on with the same ones.
//!
//! A socket listens as long as any process has a descriptor of it. While one process stops
//! accepting and another one starts, clients wait in the socket's queue: nobody is refused.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::net::{ipproto, sockopt};
use socket2::SockRef;
use tokio::sync::watch;

use super::{Bind, listen};

/// Listening sockets taken over from another process that have not been used yet.
const MOST_INHERITED: usize = 8192;

/// The sockets on which this process listens, and those that it has from another process and may
/// use in place of new ones.
#[derive(Debug, Default)]
pub struct Listeners {
    table: Mutex<Table>,
    /// The number of the last socket.
    last: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Table {
    /// By numbers that rise.
    open: BTreeMap<u64, Arc<tokio::net::TcpListener>>,
    inherited: BTreeMap<Bound, TcpListener>,
}

/// What a socket is bound to. No two that listen have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Bound {
    address: SocketAddr,
    /// Whether a socket of IPv6 takes IPv4 as well.
    both_families: bool,
}

impl Listeners {
    /// Takes a socket over from another process, to be used as soon as one with its address is
    /// wanted.
    ///
    /// # Errors
    ///
    /// If it is no TCP socket that listens, or there are too many.
    pub fn inherit(&self, socket: OwnedFd) -> io::Result<()> {
        let protocol = sockopt::socket_protocol(&socket)?;
        if protocol != Some(ipproto::TCP) || !listens(&socket) {
            let message = "this is no TCP socket that listens";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let listener = TcpListener::from(socket);
        listener.set_nonblocking(true)?;
        let bound = Bound::of(&listener)?;
        let mut table = self.table();
        if table.inherited.len() >= MOST_INHERITED {
            return Err(io::Error::other("there are too many listening sockets"));
        }
        table.inherited.insert(bound, listener);
        Ok(())
    }

    /// Whether there are sockets from another process that have not been used yet.
    pub fn has_inherited(&self) -> bool {
        !self.table().inherited.is_empty()
    }

    /// Closes, in all processes, what was taken over and is not wanted.
    pub fn close_inherited(&self) {
        for listener in std::mem::take(&mut self.table().inherited).into_values() {
            tracing::debug!("nobody listens on {:?} any more", listener.local_addr());
            close(&listener);
        }
    }

    /// Notes that a server is to accept on a non-blocking socket. Needs a Tokio runtime.
    ///
    /// # Errors
    ///
    /// If the runtime does not take the socket.
    pub fn add(self: &Arc<Self>, listener: TcpListener) -> io::Result<Listening> {
        let mut listening = Listening::alone(listener)?;
        let mut table = self.table();
        let number = *self.last.borrow() + 1;
        table.open.insert(number, listening.socket.clone());
        listening.noted = Some((self.clone(), number));
        drop(table);
        self.last.send_replace(number);
        Ok(listening)
    }

    /// The number of the last socket that was added. It changes with each one.
    pub fn last(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// Duplicates of the sockets whose numbers are greater than `number`, for another process.
    ///
    /// # Errors
    ///
    /// If there are no descriptors left.
    pub fn after(&self, number: u64) -> io::Result<Vec<OwnedFd>> {
        let table = self.table();
        let sockets = table.open.range(number + 1..);
        sockets
            .map(|(_, socket)| socket.as_fd().try_clone_to_owned())
            .collect()
    }

    fn inherited(&self, address: SocketAddr, both_families: bool) -> Option<TcpListener> {
        let bound = Bound {
            address,
            both_families,
        };
        let listener = self.table().inherited.remove(&bound)?;
        // The other process may have closed it since.
        listens(&listener).then_some(listener)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Valid at every step.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bind for Listeners {
    fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        match self.inherited(address, false) {
            Some(listener) => Ok(listener),
            None => listen::bind(address),
        }
    }

    fn bind_all_families(&self, address: SocketAddr) -> io::Result<TcpListener> {
        let wildcard = SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port()));
        let inherited = match address.ip().is_unspecified() {
            true => self.inherited(wildcard, true),
            false => None,
        };
        match inherited.or_else(|| self.inherited(address, false)) {
            Some(listener) => Ok(listener),
            None => listen::bind_all_families(address),
        }
    }
}

impl Bound {
    fn of(listener: &TcpListener) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let both_families = address.is_ipv6() && !SockRef::from(listener).only_v6()?;
        Ok(Self {
            address,
            both_families,
        })
    }
}

/// A socket on which a server accepts. Dropped, it is closed in this process only.
#[derive(Debug)]
pub struct Listening {
    socket: Arc<tokio::net::TcpListener>,
    noted: Option<(Arc<Listeners>, u64)>,
}

impl Listening {
    /// On a non-blocking socket that no other process is to have. Needs a Tokio runtime.
    ///
    /// # Errors
    ///
    /// If the runtime does not take the socket.
    pub fn alone(listener: TcpListener) -> io::Result<Self> {
        let socket = Arc::new(tokio::net::TcpListener::from_std(listener)?);
        Ok(Self {
            socket,
            noted: None,
        })
    }

    /// Where clients are accepted.
    pub(super) fn socket(&self) -> &tokio::net::TcpListener {
        &self.socket
    }

    /// Closes the socket in all processes: its address is free when this returns.
    pub(super) fn close(self) {
        close(&*self.socket);
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some((listeners, number)) = &self.noted {
            listeners.table().open.remove(number);
        }
    }
}

/// Whether a socket accepts connections.
fn listens(socket: &impl AsFd) -> bool {
    sockopt::socket_acceptconn(socket).unwrap_or(false)
}

/// Has a socket listen no longer, whoever else has it.
fn close(socket: &impl AsFd) {
    // It fails only where the socket does not listen.
    let _ = SockRef::from(socket).shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    #[tokio::test]
    async fn a_client_that_waits_is_accepted_by_the_next_process() {
        let (first, next) = (Arc::<Listeners>::default(), Listeners::default());
        let listening = first.add(first.bind(ANY).unwrap()).unwrap();
        let address = listening.socket().local_addr().unwrap();
        hand_over(&first, &next);
        let _client = TcpStream::connect(address).unwrap();
        drop(listening);
        assert!(first.after(0).unwrap().is_empty());
        assert!(next.bind(address).unwrap().accept().is_ok());
    }

    #[tokio::test]
    async fn a_socket_that_is_closed_is_closed_for_all() {
        let (first, next) = (Arc::<Listeners>::default(), Listeners::default());
        let listening = first.add(first.bind(ANY).unwrap()).unwrap();
        let address = listening.socket().local_addr().unwrap();
        hand_over(&first, &next);
        listening.close();
        TcpStream::connect(address).unwrap_err();
        // The duplicate keeps nobody from the port, and is not used either.
        let other = listen::bind(address).unwrap();
        next.bind(address).unwrap_err();
        drop(other);
        next.bind(address).unwrap();
    }

    #[tokio::test]
    async fn what_is_not_wanted_is_closed() {
        let (first, next) = (Arc::<Listeners>::default(), Listeners::default());
        let listening = first.add(first.bind(ANY).unwrap()).unwrap();
        let address = listening.socket().local_addr().unwrap();
        hand_over(&first, &next);
        drop(listening);
        TcpStream::connect(address).unwrap();
        next.close_inherited();
        TcpStream::connect(address).unwrap_err();
    }

    #[tokio::test]
    async fn each_kind_of_wildcard_is_told_from_the_others() {
        let (first, next) = (Arc::<Listeners>::default(), Listeners::default());
        let both = first.bind_all_families((Ipv4Addr::UNSPECIFIED, 0).into());
        let both = first.add(both.unwrap()).unwrap();
        let port = both.socket().local_addr().unwrap().port();
        hand_over(&first, &next);
        for wildcard in ["0.0.0.0", "::"] {
            let only = SocketAddr::new(wildcard.parse().unwrap(), port);
            next.bind(only).unwrap_err();
        }
        next.bind_all_families((Ipv4Addr::UNSPECIFIED, port).into())
            .unwrap();
    }

    #[test]
    fn only_sockets_that_listen_are_taken() {
        let listeners = Listeners::default();
        let datagrams = std::net::UdpSocket::bind(ANY).unwrap();
        listeners.inherit(datagrams.into()).unwrap_err();
        let listener = listen::bind(ANY).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        listeners.inherit(client.into()).unwrap_err();
        assert!(!listeners.has_inherited());
        listeners.inherit(listener.into()).unwrap();
        assert!(listeners.has_inherited());
    }

    fn hand_over(from: &Listeners, to: &Listeners) {
        for socket in from.after(0).unwrap() {
            to.inherit(socket).unwrap();
        }
    }
}
