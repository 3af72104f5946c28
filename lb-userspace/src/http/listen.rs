//! Listening sockets that behave as those of Go's `net.Listen`, which kube-proxy uses.

use std::{
    fs, io,
    net::{Ipv6Addr, SocketAddr, TcpListener},
    os::unix::{
        fs::PermissionsExt as _,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process,
    sync::Arc,
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};

/// How long [`bind_until_free`] waits between attempts.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Connections that may wait to be accepted. The kernel limits this to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Bytes that the kernel keeps for a connection in each direction: requests are short, and clients
/// that send or take nothing are not to fill its memory.
const BUFFERS: (usize, usize) = (16 * 1024, 128 * 1024);

/// Opens listening sockets. A trait so that tests can refuse ports and move them.
pub trait Bind: Send + Sync + 'static {
    /// See [`bind`].
    fn bind(&self, address: SocketAddr) -> io::Result<TcpListener>;

    /// See [`bind_all_families`].
    fn bind_all_families(&self, address: SocketAddr) -> io::Result<TcpListener> {
        bind_all_families(address)
    }
}

impl<B: Bind + ?Sized> Bind for Arc<B> {
    fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        (**self).bind(address)
    }

    fn bind_all_families(&self, address: SocketAddr) -> io::Result<TcpListener> {
        (**self).bind_all_families(address)
    }
}

/// Listens on `address` only in its own family, so that different servers can use the same port on
/// `0.0.0.0` and `[::]`.
///
/// SO_REUSEADDR is set: connections of an earlier listener in TIME_WAIT do not keep the port busy.
/// Linux still refuses a port on which another socket listens.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    listen(address, true)
}

/// Listens on `address`. A wildcard of either family listens on both families.
///
/// If the kernel has no IPv6, the address is used as it is.
pub fn bind_all_families(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return bind(address);
    }
    match listen((Ipv6Addr::UNSPECIFIED, address.port()).into(), false) {
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => bind(address),
        listener => listener,
    }
}

/// Like [`Bind::bind_all_families`], but tries again until it succeeds. Each failure is logged with
/// `purpose`, which names what is missing meanwhile, as in "process health checks".
pub async fn bind_until_free(
    sockets: &impl Bind,
    address: SocketAddr,
    purpose: &str,
) -> TcpListener {
    loop {
        match sockets.bind_all_families(address) {
            Ok(listener) => return listener,
            Err(error) => tracing::error!(
                "cannot listen on {address} for {purpose}: {error}; free the address or choose \
                 another one; trying again in {RETRY_INTERVAL:?}",
            ),
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Listens on a Unix socket to which only this user may connect. Replaces a socket on which nothing
/// listens any more, and creates the directory if needed.
///
/// # Errors
///
/// If something listens there already, or the directory cannot be written.
pub fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if UnixStream::connect(path).is_ok() {
        let message = "another process listens there; is another agent running?";
        return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    // Under another name until its permissions are set, then renamed in one step.
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", process::id()));
    let unready = PathBuf::from(name);
    let _ = fs::remove_file(&unready);
    let listener = UnixListener::bind(&unready)?;
    let ready = fs::set_permissions(&unready, fs::Permissions::from_mode(0o600))
        .and_then(|()| fs::rename(&unready, path))
        .and_then(|()| listener.set_nonblocking(true));
    match ready {
        Ok(()) => Ok(listener),
        Err(error) => {
            let _ = fs::remove_file(&unready);
            Err(error)
        }
    }
}

fn listen(address: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(only_v6)?;
    }
    socket.set_recv_buffer_size(BUFFERS.0)?;
    socket.set_send_buffer_size(BUFFERS.1)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::{super::Listeners, *};

    #[test]
    fn one_port_serves_each_family_on_its_own() {
        let v4 = bind((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        let port = v4.local_addr().unwrap().port();
        let v6 = bind((Ipv6Addr::UNSPECIFIED, port).into()).unwrap();

        let _client = TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
        assert!(accepts(&v6));
        assert!(!accepts(&v4));
    }

    #[test]
    fn a_wildcard_of_either_family_takes_both() {
        for wildcard in ["0.0.0.0:0", "[::]:0"] {
            let listener = bind_all_families(wildcard.parse().unwrap()).unwrap();
            let port = listener.local_addr().unwrap().port();

            let _v4 = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            assert!(accepts(&listener), "IPv4 on {wildcard}");
            let _v6 = TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
            assert!(accepts(&listener), "IPv6 on {wildcard}");
        }
    }

    #[test]
    fn a_port_in_use_is_refused_but_one_with_lingering_connections_is_not() {
        let listener = bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let refusal = bind(address).unwrap_err();
        assert_eq!(refusal.kind(), io::ErrorKind::AddrInUse);

        let client = TcpStream::connect(address).unwrap();
        let (served, _) = listener.accept().unwrap();
        drop(served); // closed by this side first, so it is ours that enters TIME_WAIT
        drop(client);
        drop(listener);
        bind(address).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_taken_address_is_waited_for() {
        let taken = bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = taken.local_addr().unwrap();
        let waiting =
            tokio::spawn(
                async move { bind_until_free(&Listeners::default(), address, "tests").await },
            );
        tokio::time::sleep(RETRY_INTERVAL * 3).await;
        assert!(!waiting.is_finished());
        drop(taken);
        assert_eq!(waiting.await.unwrap().local_addr().unwrap(), address);
    }

    fn accepts(listener: &TcpListener) -> bool {
        listener.accept().is_ok()
    }
}
