//! Connected UDP sockets with an endpoint that is gone are ended, and no others. Needs root.

use std::{
    collections::HashMap,
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    os::fd::AsRawFd,
    thread,
    time::Duration,
};

use lb_common::{
    abi::{Socket, SocketKey},
    addr::Ip6,
};
use lb_datapath::bpf::BatchMap;
use lb_tests::{Namespace, PinRoot, programs};
use node_lb::flows::{
    Stale, UdpSockets,
    sockets::{self, SocketError, Translated},
};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// The service with sockets that are to be ended.
const SERVICE: u32 = 7;

#[test]
fn the_process_is_told_and_may_connect_again() {
    Namespace::new().run(|| {
        for address in [V4, V6] {
            let (gone, serving) = (server(address), server(address));
            let client = connected(address, &gone);
            client.send(b"before").unwrap();

            assert_eq!(end(&targets(&client, &gone)).unwrap(), 1, "{address}");
            assert_is_ended(&client);
            let reason = client.take_error().unwrap().map(|error| error.kind());
            assert_eq!(reason, Some(ErrorKind::ConnectionAborted));

            client.connect(serving.local_addr().unwrap()).unwrap();
            client.send(b"again").unwrap();
            let mut message = [0; 16];
            let length = serving.recv(&mut message).unwrap();
            assert_eq!(&message[..length], b"again");
        }
    });
}

#[test]
fn a_process_that_waits_for_an_answer_is_woken() {
    Namespace::new().run(|| {
        let gone = server(V4);
        let client = connected(V4, &gone);
        client
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let targets = targets(&client, &gone);
        let waiting = thread::spawn(move || client.recv(&mut [0; 16]).unwrap_err().kind());
        thread::sleep(Duration::from_millis(50));

        assert_eq!(end(&targets).unwrap(), 1);
        assert_eq!(waiting.join().unwrap(), ErrorKind::ConnectionAborted);
    });
}

#[test]
fn an_ipv6_socket_that_talks_ipv4_is_ended_too() {
    Namespace::new().run(|| {
        let gone = server(V4);
        let client = UdpSocket::bind("[::]:0").unwrap();
        let port = gone.local_addr().unwrap().port();
        client
            .connect((Ipv4Addr::LOCALHOST.to_ipv6_mapped(), port))
            .unwrap();

        assert_eq!(end(&targets(&client, &gone)).unwrap(), 1);
        assert_is_ended(&client);
    });
}

#[test]
fn no_other_socket_is_touched() {
    Namespace::new().run(|| {
        let (gone, serving) = (server(V4), server(V4));
        // One with the same endpoint that was not translated, one that has since connected to
        // another endpoint, one that is not connected, and one that is closed.
        let (untranslated, moved) = (connected(V4, &gone), connected(V4, &serving));
        let (unconnected, closed) = (server(V4), connected(V4, &gone));
        let mut targets = targets(&moved, &gone);
        targets.extend(self::targets(&unconnected, &gone));
        targets.extend(self::targets(&closed, &gone));
        drop(closed);

        assert_eq!(end(&targets).unwrap(), 0);
        untranslated.send(b"x").unwrap();
        moved.send(b"x").unwrap();
        unconnected
            .send_to(b"x", serving.local_addr().unwrap())
            .unwrap();
    });
}

#[test]
fn sockets_of_other_namespaces_are_out_of_reach() {
    let (here, there) = (Namespace::new(), Namespace::new());
    let (gone, client) = there.run(|| {
        let gone = server(V4);
        let client = connected(V4, &gone);
        (gone, client)
    });
    let targets = targets(&client, &gone);
    assert_eq!(here.run(move || end(&targets).unwrap()), 0);
    client.send(b"x").unwrap();
}

#[test]
fn the_map_says_which_sockets_have_a_stale_endpoint() {
    const OTHER: u32 = 8;
    let root = PinRoot::new();
    let pins = root.pins(programs::VERSION);
    let loaded = programs::start(&pins, &[]);
    let map = BatchMap::<SocketKey, Socket>::new(&loaded.map("SOCKETS").unwrap()).unwrap();

    Namespace::new().run(move || {
        let (gone, serving) = (server(V4), server(V4));
        let stale = connected(V4, &gone);
        let fine = connected(V4, &serving);
        let of_another_service = connected(V4, &gone);
        for (client, endpoint, service) in [
            (&stale, &gone, SERVICE),
            (&fine, &serving, SERVICE),
            (&of_another_service, &gone, OTHER),
        ] {
            let endpoint = endpoint.local_addr().unwrap();
            let key = SocketKey {
                cookie: cookie(client),
                address: endpoint.ip().into(),
                port: endpoint.port(),
                protocol: libc::IPPROTO_UDP as u16,
                pad: 0,
            };
            let frontend = Socket {
                address: Ip6::from(Ipv6Addr::LOCALHOST),
                port: 53,
                pad: 0,
                service,
            };
            map.update(&[key], &[frontend]).unwrap();
        }
        let mut request = Stale::default();
        request.add(SERVICE, [serving.local_addr().unwrap()]);

        let sockets = UdpSockets::new(map);
        assert_eq!(sockets.end_stale(&request).unwrap(), 1);
        assert_is_ended(&stale);
        fine.send(b"x").unwrap();
        of_another_service.send(b"x").unwrap();
        assert_eq!(sockets.end_stale(&request).unwrap(), 0);
    });
}

fn server(address: IpAddr) -> UdpSocket {
    let server = UdpSocket::bind((address, 0)).unwrap();
    server
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    server
}

fn connected(address: IpAddr, server: &UdpSocket) -> UdpSocket {
    let client = UdpSocket::bind((address, 0)).unwrap();
    client.connect(server.local_addr().unwrap()).unwrap();
    client
}

fn targets(client: &UdpSocket, server: &UdpSocket) -> HashMap<Translated, u32> {
    HashMap::from([((cookie(client), server.local_addr().unwrap()), SERVICE)])
}

/// Ends the targets. No endpoint of their service serves any more.
fn end(targets: &HashMap<Translated, u32>) -> Result<u64, SocketError> {
    let mut stale = Stale::default();
    stale.add(SERVICE, []);
    sockets::end(targets, &stale)
}

fn cookie(socket: &UdpSocket) -> u64 {
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the option takes eight bytes, which is the size of the value.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    cookie
}

/// Asserts that sending fails, as on a socket that was never connected.
fn assert_is_ended(client: &UdpSocket) {
    let error = client.send(b"after").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EDESTADDRREQ), "{error}");
}
