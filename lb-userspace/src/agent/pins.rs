//! The agent looks after its pins: without them, programs and maps end with the process.

use super::Agent;

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
        if let Some(problem) = problem.as_ref().filter(|_| problem != self.unpinned) {
            tracing::warn!("{problem}");
        }
        self.metrics.pins_missing.set(problem.is_some().into());
        self.unpinned = problem;
    }
}
