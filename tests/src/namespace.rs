//! Network namespaces for tests: each is a thread, and ends with it.

use std::{
    process::Command,
    sync::mpsc::{Receiver, Sender, channel},
    thread::JoinHandle,
};

use nix::{
    sched::{CloneFlags, unshare},
    unistd::{Pid, gettid},
};

type Task = Box<dyn FnOnce() + Send>;

/// A network namespace with nothing but a loopback device that is up.
pub struct Namespace {
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
    tid: Pid,
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

impl Namespace {
    /// # Panics
    ///
    /// Without root.
    pub fn new() -> Self {
        let (tasks, queue): (Sender<Task>, Receiver<Task>) = channel();
        let (ready, started) = channel();
        let thread = std::thread::spawn(move || {
            let unshared = unshare(CloneFlags::CLONE_NEWNET);
            ready.send((gettid(), unshared)).unwrap();
            queue.into_iter().for_each(|task| task());
        });
        let (tid, unshared) = started.recv().unwrap();
        unshared.expect("these tests make network namespaces: run them as root");
        let namespace = Self {
            tasks: Some(tasks),
            thread: Some(thread),
            tid,
        };
        namespace.ip("link set lo up");
        namespace
    }

    /// Runs a task inside, and panics if the task does.
    pub fn run<T: Send + 'static>(&self, task: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        let task = Box::new(move || drop(done.send(task())));
        self.tasks.as_ref().unwrap().send(task).unwrap();
        result
            .recv()
            .expect("the task inside the namespace panicked")
    }

    /// `ip` with these arguments.
    pub fn ip(&self, arguments: &str) {
        self.command("ip", arguments);
    }

    /// A command that must succeed. Returns what it prints.
    pub fn command(&self, program: &'static str, arguments: &str) -> String {
        let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
        self.run(move || {
            let output = Command::new(program).args(&arguments).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program} {arguments:?}: {error}");
            String::from_utf8(output.stdout).unwrap()
        })
    }

    /// The thread that is in it, by which `ip` finds it.
    pub fn thread(&self) -> Pid {
        self.tid
    }

    /// Interface index of a device in there.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn index(&self, device: &'static str) -> u32 {
        self.run(move || nix::net::if_::if_nametoindex(device).unwrap())
    }

    /// A cable: a device here and one in `other`, both up, with an address each.
    pub fn connect(&self, device: &str, address: &str, other: &Self, far: &str, far_address: &str) {
        self.ip(&format!(
            "link add {device} type veth peer name {far} netns {}",
            other.tid
        ));
        self.ip(&format!("addr add {address} dev {device}"));
        other.ip(&format!("addr add {far_address} dev {far}"));
        self.ip(&format!("link set {device} up"));
        other.ip(&format!("link set {far} up"));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.tasks.take());
        if let Some(thread) = self.thread.take() {
            // A panic of a task has been reported where the task was run.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn namespaces_are_apart_from_each_other_and_from_the_host() {
        let identity = |namespace: &Namespace| {
            namespace.run(|| fs::read_link("/proc/thread-self/ns/net").unwrap())
        };
        let (a, b) = (Namespace::new(), Namespace::new());
        let host = fs::read_link("/proc/self/ns/net").unwrap();
        assert_ne!(identity(&a), identity(&b));
        assert_ne!(identity(&a), host);
    }
}
