//! Agents that are killed in the middle of a change that they make when they start.

use std::{cmp::Ordering, thread, time::Duration};

use lb_tests::Balanced;

use super::{kills::random, support::wait_for_log};

/// An agent is killed within this time after its change began, at first.
const CHANGE_MILLIS: u64 = 500;

/// What agents say of such a change.
pub struct Change {
    /// One of these when it begins.
    pub begins: &'static [&'static str],
    pub ends: &'static str,
}

impl Change {
    fn has_begun(&self, log: &str) -> bool {
        self.begins.iter().any(|text| log.contains(text))
    }

    /// Starts agents after each of the `steps`, and kills them while they make the change. Fails
    /// unless that has hit enough changes in the middle.
    pub fn interrupt(
        &self,
        ground: &mut Balanced,
        steps: impl IntoIterator<Item = impl FnOnce(&mut Balanced)>,
    ) {
        let (mut kills, mut begun, mut interrupted) = (0, 0, 0);
        let mut within = CHANGE_MILLIS;
        for step in steps {
            step(ground);
            ground.launch_agents().unwrap();
            // Or has nothing to change.
            wait_for_log(&ground.agents, |log| {
                self.has_begun(log) || log.contains("the first state is in the maps")
            });
            thread::sleep(Duration::from_millis(random(within)));
            let logs = ground.agents.iter().map(|agent| agent.log().unwrap());
            let logs: Vec<_> = logs.filter(|log| self.has_begun(log)).collect();
            let in_the_middle = logs.iter().filter(|log| !log.contains(self.ends)).count();
            kills += 1;
            begun += logs.len();
            interrupted += in_the_middle;
            ground.kill_agents().unwrap();
            // How long a change takes depends on the machine.
            within = match (2 * in_the_middle).cmp(&logs.len()) {
                Ordering::Greater => 2 * within,
                Ordering::Equal => within,
                Ordering::Less => (within / 2).max(1),
            };
        }
        println!("{interrupted} of {begun} changes were interrupted");
        assert!(begun >= kills / 2, "{begun}");
        assert!(interrupted > begun / 4, "{interrupted} of {begun}");
    }
}
