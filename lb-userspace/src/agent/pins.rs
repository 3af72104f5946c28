//! The agent looks after its pins: without them, programs and maps end with the process.

use super::{Agent, report::tell_once};

impl Agent {
    /// Pins again what others have removed, and says so; what is in the way, once.
    pub(super) fn look_after_pins(&mut self) {
        let problem = match self.kernel.pins.restore(&self.kernel.loaded) {
            Ok(0) => None,
            Ok(made) => {
                self.metrics.pins_restored.inc_by(made as u64);
                let root = self.kernel.pins.root().display();
                tracing::warn!("{made} pins below {root} had been removed, and are there again");
                None
            }
            Err(error) => Some(format!("pins are gone: {error}")),
        };
        self.metrics.pins_missing.set(problem.is_some().into());
        tell_once(problem, &mut self.unpinned);
    }
}
