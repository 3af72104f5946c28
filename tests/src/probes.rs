//! Probes as an outer load balancer sends them: steady, each on a new connection.

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::{Host, HttpAnswer, http_get};

/// Clients of [`Probes`] with many probes a second, each of which probes one after the other.
const CLIENTS: u32 = 10;
/// Probes a second from which on there are so many.
const BURST: u32 = 100;

/// Probes that are sent until [`Probes::stop`].
#[derive(Debug)]
pub struct Probes {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Result<Sequence>>>,
}

/// What became of probes.
#[derive(Debug, Default)]
pub struct Probed {
    /// The answers of each client, in order.
    pub answers: Vec<Vec<HttpAnswer>>,
    /// What happened to those without an answer, and after how long.
    pub failures: Vec<String>,
}

type Sequence = (Vec<HttpAnswer>, Vec<String>);

impl Probes {
    /// Sends `rate` probes a second from `host` to `path`, as far as the machine manages that.
    pub fn start(
        host: impl AsRef<Host>,
        address: SocketAddr,
        path: &'static str,
        rate: u32,
    ) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let clients = if rate < BURST { 1 } else { CLIENTS };
        let pause = Duration::from_secs(1) * clients / rate;
        let client = |_| {
            let (host, stop) = (host.as_ref().clone(), stop.clone());
            thread::spawn(move || -> Result<_> {
                host.netns().run(|| probe(address, path, pause, &stop))
            })
        };
        Self {
            clients: (0..clients).map(client).collect(),
            stop,
        }
    }

    /// Ends them, and says what became of them.
    ///
    /// # Errors
    /// If they could not be sent.
    pub fn stop(self) -> Result<Probed> {
        self.stop.store(true, Ordering::Relaxed);
        let mut probed = Probed::default();
        for client in self.clients {
            let (answers, failures) = client.join().ok().context("a client panicked")??;
            probed.answers.push(answers);
            probed.failures.extend(failures);
        }
        Ok(probed)
    }
}

impl Probed {
    /// Fails if there were no answers, or a probe had none.
    #[track_caller]
    pub fn assert_answered(&self) {
        let some = self.answers.iter().all(|answers| !answers.is_empty());
        assert!(some && self.failures.is_empty(), "{self}");
    }

    /// All answers.
    pub fn all(&self) -> impl Iterator<Item = &HttpAnswer> {
        self.answers.iter().flatten()
    }
}

impl fmt::Display for Probed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut codes = BTreeMap::new();
        for answer in self.all() {
            *codes.entry(answer.status).or_insert(0) += 1;
        }
        let failed = self.failures.len();
        write!(f, "answers by status: {codes:?}; {failed} without")?;
        let first = self.failures.iter().take(5);
        first
            .clone()
            .try_for_each(|failure| write!(f, "; {failure}"))
    }
}

fn probe(address: SocketAddr, path: &str, pause: Duration, stop: &AtomicBool) -> Sequence {
    let (mut answers, mut failures) = (Vec::new(), Vec::new());
    let start = Instant::now();
    let mut next = start;
    while !stop.load(Ordering::Relaxed) {
        match http_get::here(address, path) {
            Ok(answer) => answers.push(answer),
            Err(error) => failures.push(format!("after {:?}: {error:#}", start.elapsed())),
        }
        // Those that it was too late for are left out.
        let now = Instant::now();
        next = (next + pause).max(now);
        thread::sleep(next - now);
    }
    (answers, failures)
}
