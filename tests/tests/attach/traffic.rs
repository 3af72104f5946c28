//! Two hosts that exchange packets while something is done to them.

use std::{
    io::ErrorKind,
    net::UdpSocket,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use lb_tests::{Namespace, eventually};

/// Two hosts with a cable between them: `near0` 10.0.0.1 and `far0` 10.0.0.2.
pub fn cable() -> (Namespace, Namespace) {
    let (near, far) = (Namespace::new(), Namespace::new());
    near.connect("near0", "10.0.0.1/24", &far, "far0", "10.0.0.2/24");
    (near, far)
}

/// How many times packets have gone back and forth.
#[derive(Clone, Default)]
pub struct Rounds(Arc<AtomicUsize>);

impl Rounds {
    /// Waits until packets that were sent after the call have gone back and forth.
    pub fn go_on(&self) {
        let count = || self.0.load(Ordering::Relaxed);
        let before = count();
        // The current round may have begun before the call.
        eventually(|| match count() - before {
            0 | 1 => Err("no packets go to and fro"),
            _ => Ok(()),
        });
    }
}

/// After so long a packet counts as lost: far longer than it takes on a busy machine.
const LOST: Duration = Duration::from_secs(10);

/// Sends packets back and forth between two hosts, a few at a time, before, while and after `work`
/// runs. Panics if any packet is lost.
pub fn lossless(near: &Namespace, far: &Namespace, work: impl FnOnce(Rounds)) {
    const WINDOW: usize = 16;

    let rounds = Rounds::default();
    let stop = Arc::new(AtomicBool::new(false));
    let server = near.run(|| UdpSocket::bind("10.0.0.1:7").unwrap());
    let client = far.run(|| {
        let client = UdpSocket::bind("10.0.0.2:0").unwrap();
        client.connect("10.0.0.1:7").unwrap();
        client.set_read_timeout(Some(LOST)).unwrap();
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
        let rounds = rounds.clone();
        move || {
            let mut buffer = [0; 64];
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..WINDOW {
                    client.send(&[1; 32]).unwrap();
                }
                for _ in 0..WINDOW {
                    client.recv(&mut buffer).expect("a packet was lost");
                }
                rounds.0.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    rounds.go_on();
    work(rounds.clone());
    rounds.go_on();
    stop.store(true, Ordering::Relaxed);
    flood.join().expect("packets were lost");
    echo.join().unwrap();
}
