//! Time limits on machines that are slower than usual, or have other work.
//!
//! A test claims nothing about how long things take: it waits for what is bound to happen with a
//! limit that only a failure reaches, and counts. What is really about speed is a row of
//! `cargo xtask bench`.

use std::{
    env,
    fmt::Display,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

/// When to give up on what is bound to happen: far beyond what it takes on a busy machine. Costs
/// time only where a test fails.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How long nothing comes where nothing is to come: an answer would have taken far less.
pub const SILENCE: Duration = Duration::from_millis(500);

/// A time limit, longer by the factor in `LAB_PATIENCE` where that is set: in emulated machines,
/// all of a computer's work takes many times longer.
pub fn patient(limit: Duration) -> Duration {
    static FACTOR: OnceLock<u32> = OnceLock::new();
    let factor = FACTOR.get_or_init(|| {
        let factor = env::var("LAB_PATIENCE").ok();
        factor.and_then(|factor| factor.parse().ok()).unwrap_or(1)
    });
    limit * *factor
}

/// Probes until the result is as wanted, and panics with the last problem after [`PATIENCE`].
#[track_caller]
pub fn eventually<T, E: Display>(probe: impl FnMut() -> Result<T, E>) -> T {
    match try_eventually(probe) {
        Ok(found) => found,
        Err(problem) => panic!("still not so after {:?}: {problem:#}", patient(PATIENCE)),
    }
}

/// Probes until the result is as wanted.
///
/// # Errors
/// With the last problem, if there still is one after [`PATIENCE`].
pub fn try_eventually<T, E>(mut probe: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let limit = patient(PATIENCE);
    let start = Instant::now();
    loop {
        match probe() {
            Err(_) if start.elapsed() <= limit => thread::sleep(Duration::from_millis(5)),
            result => return result,
        }
    }
}
