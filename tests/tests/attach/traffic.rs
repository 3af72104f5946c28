//! Two hosts that talk to each other while something is done to them.

use std::{
    io::ErrorKind,
    net::UdpSocket,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crate::namespace::Namespace;

/// Two hosts with a cable between them: `near0` 10.0.0.1 and `far0` 10.0.0.2.
pub fn cable() -> (Namespace, Namespace) {
    let (near, far) = (Namespace::new(), Namespace::new());
    near.connect("near0", "10.0.0.1/24", &far, "far0", "10.0.0.2/24");
    (near, far)
}

/// Sends to and fro between two hosts, a few packets at a time, while `work` runs; returns how many
/// made the round trip. Panics if any did not.
pub fn lossless(near: &Namespace, far: &Namespace, work: impl FnOnce()) -> usize {
    const WINDOW: usize = 16;

    let stop = Arc::new(AtomicBool::new(false));
    let server = near.run(|| UdpSocket::bind("10.0.0.1:7").unwrap());
    let client = far.run(|| {
        let client = UdpSocket::bind("10.0.0.2:0").unwrap();
        client.connect("10.0.0.1:7").unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(2)))
            .unwrap();
        client
    });
    server
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();

    let echo = thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut buffer = [0; 64];
            loop {
                match server.recv_from(&mut buffer) {
                    Ok((length, from)) => {
                        server.send_to(&buffer[..length], from).unwrap();
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    });
    let flood = thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut rounds = 0;
            let mut buffer = [0; 64];
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..WINDOW {
                    client.send(&[1; 32]).unwrap();
                }
                for _ in 0..WINDOW {
                    client.recv(&mut buffer).expect("a packet was lost");
                }
                rounds += 1;
            }
            rounds * WINDOW
        }
    });
    thread::sleep(Duration::from_millis(50));
    work();
    thread::sleep(Duration::from_millis(50));
    stop.store(true, Ordering::Relaxed);
    let packets = flood.join().expect("packets were lost");
    echo.join().unwrap();
    packets
}
