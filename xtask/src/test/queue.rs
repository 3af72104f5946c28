//! The tests that wait for a worker.

use std::{
    num::NonZeroUsize,
    sync::{Condvar, Mutex, MutexGuard},
};

use super::suite::Test;

/// Tests in the order in which workers take them. Only a limited number of heavy tests, and of others,
/// run at a time.
///
/// Tests with a Kubernetes control plane are heavy: several processes compute, where other tests
/// wait. Most of the time, though, such a test waits for something to become late.
pub struct Queue {
    state: Mutex<State>,
    most: Most,
    ended: Condvar,
}

/// How many tests of each kind run at a time.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    pub heavy: NonZeroUsize,
    pub others: NonZeroUsize,
}

struct State {
    waiting: Vec<Test>,
    heavy_running: usize,
    others_running: usize,
}

impl State {
    fn running(&mut self, test: &Test) -> &mut usize {
        match test.needs_control_plane() {
            true => &mut self.heavy_running,
            false => &mut self.others_running,
        }
    }
}

impl Queue {
    /// A queue in which the heavy tests, which take longest, come first.
    pub fn new(mut tests: Vec<Test>, most: Most) -> Self {
        tests.sort_by_key(|test| !test.needs_control_plane());
        Self {
            state: Mutex::new(State {
                waiting: tests,
                heavy_running: 0,
                others_running: 0,
            }),
            most,
            ended: Condvar::new(),
        }
    }

    /// Waits for the next test that may run; `None` when there are no more.
    pub fn next(&self) -> Option<Test> {
        let mut state = self.lock();
        while !state.waiting.is_empty() {
            let heavy_fits = state.heavy_running < self.most.heavy.get();
            let other_fits = state.others_running < self.most.others.get();
            let fits = |test: &Test| match test.needs_control_plane() {
                true => heavy_fits,
                false => other_fits,
            };
            if let Some(index) = state.waiting.iter().position(fits) {
                let test = state.waiting.remove(index);
                *state.running(&test) += 1;
                return Some(test);
            }
            state = self.ended.wait(state).expect("no worker panics");
        }
        None
    }

    /// Notes that a test from this queue has ended.
    pub fn end(&self, test: &Test) {
        *self.lock().running(test) -= 1;
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

    fn queue(names: &[&str], heavy: usize, others: usize) -> Queue {
        let tests = names.iter().map(|name| Test::named(name)).collect();
        let [heavy, others] = [heavy, others].map(|most| NonZeroUsize::new(most).unwrap());
        Queue::new(tests, Most { heavy, others })
    }

    #[test]
    fn the_longest_come_first_and_only_so_many_at_once() {
        let names = ["a::1", "a::2", "control_plane::1", "control_plane::2"];
        let queue = queue(&names, 1, 2);
        let next = || queue.next().unwrap().name();
        assert_eq!(
            [next(), next(), next()],
            ["control_plane::1", "a::1", "a::2"]
        );
        queue.end(&Test::named("a::1"));
        thread::scope(|scope| {
            let last = scope.spawn(|| queue.next().map(|test| test.name()));
            queue.end(&Test::named("control_plane::1"));
            assert_eq!(last.join().unwrap().as_deref(), Some("control_plane::2"));
        });
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn others_wait_for_each_other_too() {
        let queue = queue(&["a::1", "a::2"], 1, 1);
        assert_eq!(queue.next().unwrap().name(), "a::1");
        thread::scope(|scope| {
            let last = scope.spawn(|| queue.next().map(|test| test.name()));
            queue.end(&Test::named("a::1"));
            assert_eq!(last.join().unwrap().as_deref(), Some("a::2"));
        });
    }
}
