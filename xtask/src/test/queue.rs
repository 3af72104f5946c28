//! The tests that wait for a worker.

use std::{
    num::NonZeroUsize,
    sync::{Condvar, Mutex, MutexGuard},
};

use super::{long, suite::Test};

/// Tests in the order in which workers take them. Only a limited number of heavy tests run at a
/// time.
///
/// Tests with a Kubernetes control plane are heavy: several processes compute, where other tests
/// wait.
pub struct Queue {
    state: Mutex<State>,
    heavy_at_once: NonZeroUsize,
    ended: Condvar,
}

struct State {
    waiting: Vec<Test>,
    heavy_running: usize,
}

impl Queue {
    /// A queue in which the heavy tests come first, then the others that take long.
    pub fn new(mut tests: Vec<Test>, heavy_at_once: NonZeroUsize) -> Self {
        tests.sort_by_key(|test| (!test.needs_control_plane(), !long::is(&test.name())));
        Self {
            state: Mutex::new(State {
                waiting: tests,
                heavy_running: 0,
            }),
            heavy_at_once,
            ended: Condvar::new(),
        }
    }

    /// Waits for the next test that may run; `None` when there are no more.
    pub fn next(&self) -> Option<Test> {
        let mut state = self.lock();
        while !state.waiting.is_empty() {
            let room = state.heavy_running < self.heavy_at_once.get();
            let fits = |test: &Test| room || !test.needs_control_plane();
            if let Some(index) = state.waiting.iter().position(fits) {
                let test = state.waiting.remove(index);
                state.heavy_running += usize::from(test.needs_control_plane());
                return Some(test);
            }
            state = self.ended.wait(state).expect("no worker panics");
        }
        None
    }

    /// Notes that a test from this queue has ended.
    pub fn end(&self, test: &Test) {
        self.lock().heavy_running -= usize::from(test.needs_control_plane());
        self.ended.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no worker panics")
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn queue(names: &[&str], heavy_at_once: usize) -> Queue {
        let tests = names.iter().map(|name| Test::named(name)).collect();
        Queue::new(tests, NonZeroUsize::new(heavy_at_once).unwrap())
    }

    #[test]
    fn the_longest_come_first_and_only_so_many_at_once() {
        let long = "pipeline::connections::flows_are_counted_right";
        let names = ["a::1", "a::2", long, "control_plane::1", "control_plane::2"];
        let queue = queue(&names, 1);
        let next = || queue.next().unwrap().name();
        assert_eq!(
            [next(), next(), next(), next()],
            ["control_plane::1", long, "a::1", "a::2"]
        );
        queue.end(&Test::named("a::1"));
        thread::scope(|scope| {
            let last = scope.spawn(|| queue.next().map(|test| test.name()));
            queue.end(&Test::named("control_plane::1"));
            assert_eq!(last.join().unwrap().as_deref(), Some("control_plane::2"));
        });
        assert_eq!(queue.next(), None);
    }
}
