//! Programs that trace packets: what they are asked, and the lines that they log.

use std::{
    mem::{self, offset_of},
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};

use aya::programs::Program;
use aya_log::EbpfLogger;
use lb_common::trace::{Filter, Trace};
use log::{Log, Metadata, Record};
use nix::time::{ClockId, clock_gettime};
use thiserror::Error;

use crate::{
    Loaded, OBJECT, Pins, Settings,
    bpf::{ArrayError, MappedArray},
    hooks,
    load::{LOG_RING, LoadError, load},
};

/// Bytes of the ring for lines, of which each takes 256 at most: room for more than a trace of
/// 1,000 packets has.
const RING: u32 = 4 << 20;

/// Programs in the kernel that take the place of others while packets are traced. They use the
/// others' maps, and log nothing until they are asked to.
#[derive(Debug)]
pub struct Tracing {
    loaded: Loaded,
    trace: MappedArray<Trace>,
}

/// The lines that they log, in the order of the ring.
pub struct Lines {
    logger: EbpfLogger<Sink>,
    read: Sink,
}

/// Where the reader of the ring leaves them.
#[derive(Clone, Debug, Default)]
struct Sink(Arc<Mutex<Vec<String>>>);

/// Why packets cannot be traced.
#[derive(Debug, Error)]
pub enum TraceError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("map TRACE: {0}")]
    Map(#[from] ArrayError),
    #[error("cannot read what programs log: {0}")]
    Log(#[from] aya_log::Error),
}

impl Tracing {
    /// Loads those that take the place of these programs; `settings` are theirs. Takes about a
    /// second.
    ///
    /// # Errors
    ///
    /// As [`load()`].
    pub fn load(
        pins: &Pins,
        programs: &[&str],
        settings: Settings<'_>,
    ) -> Result<(Self, Lines), TraceError> {
        let settings = settings.max_entries(LOG_RING, RING);
        let names = programs.iter().filter_map(|name| hooks::tracing(name));
        let names: Vec<_> = names.collect();
        let mut loaded = load(OBJECT, pins, &names, &settings)?;
        let trace = MappedArray::new(loaded.own_map("TRACE")?)?;
        let read = Sink::default();
        let logger = EbpfLogger::init_with_logger(loaded.ebpf_mut(), read.clone())?;
        Ok((Self { loaded, trace }, Lines { logger, read }))
    }

    /// The program that takes the place of the one named, if one is loaded.
    pub fn program(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.loaded.program(hooks::tracing(name)?).ok()
    }

    /// The same, to test.
    pub fn tested(&self, name: &str) -> Option<&Program> {
        self.loaded.tested(hooks::tracing(name)?).ok()
    }

    /// Has so many packets logged that match the filter, for so long. To be called once.
    pub fn begin(&self, filter: Filter, limit: u32, duration: Duration) {
        let until = now().saturating_add(duration);
        self.trace.write(
            0,
            &Trace {
                until: u64::try_from(until.as_nanos()).unwrap_or(u64::MAX),
                limit,
                filter,
                ..Trace::default()
            },
        );
    }

    /// Has no more packets logged.
    pub fn end(&self) {
        let limit = self.trace.u32_at(0, offset_of!(Trace, limit));
        limit.store(0, Ordering::SeqCst);
    }

    /// What has been asked, and done so far.
    pub fn so_far(&self) -> Trace {
        self.trace.read(0)
    }
}

/// The clock by which lines are dated.
pub fn now() -> Duration {
    // Every kernel has it.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

impl Lines {
    /// The lines that there are by now.
    pub fn read(&mut self) -> Vec<String> {
        self.logger.flush();
        mem::take(&mut *self.read.lines())
    }
}

impl Sink {
    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        // Every change is one call, so a panicking holder has not spoiled it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log for Sink {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        self.lines().push(record.args().to_string());
    }

    fn flush(&self) {}
}
