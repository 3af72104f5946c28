//! Time limits on machines that are slower than usual.

use std::{env, sync::OnceLock, time::Duration};

/// A time limit, longer by the factor in `LAB_PATIENCE` where that is set: in emulated machines, all
/// of a computer's work takes many times longer.
pub fn patient(limit: Duration) -> Duration {
    static FACTOR: OnceLock<u32> = OnceLock::new();
    let factor = FACTOR.get_or_init(|| {
        let factor = env::var("LAB_PATIENCE").ok();
        factor.and_then(|factor| factor.parse().ok()).unwrap_or(1)
    });
    limit * *factor
}
