//! Time limits for machines that are slower than usual, or busy.
//!
//! A test asserts nothing about durations: it waits for what must happen, with a limit that only a
//! failure reaches, and counts. Speed itself is measured by `cargo xtask bench`.

use std::{
    env,
    fmt::Display,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

/// When to give up waiting for what must happen: far longer than it takes on a busy machine, where
/// the kernel may need half a minute to accept an agent's programs. It costs time only if a test
/// fails.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// When to give up waiting for an agent to be ready: beside other tests it needs a minute and more for
/// its programs and the contents of its maps.
pub const LOADED: Duration = Duration::from_secs(180);

/// How long to wait where nothing must come: an answer would have taken far less.
pub const SILENCE: Duration = Duration::from_millis(500);

/// A time limit, multiplied by `LAB_PATIENCE` if that is set: in emulated machines everything takes
/// many times longer.
pub fn patient(limit: Duration) -> Duration {
    static FACTOR: OnceLock<u32> = OnceLock::new();
    let factor = FACTOR.get_or_init(|| {
        let factor = env::var("LAB_PATIENCE").ok();
        factor.and_then(|factor| factor.parse().ok()).unwrap_or(1)
    });
    limit * *factor
}

/// Repeats a probe until it succeeds. Panics with its last error after [`PATIENCE`].
#[track_caller]
pub fn eventually<T, E: Display>(probe: impl FnMut() -> Result<T, E>) -> T {
    match try_eventually(probe) {
        Ok(found) => found,
        Err(problem) => panic!("still not so after {:?}: {problem:#}", patient(PATIENCE)),
    }
}

/// Repeats a probe until it succeeds.
///
/// # Errors
/// The last error, if there still is one after [`PATIENCE`].
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
