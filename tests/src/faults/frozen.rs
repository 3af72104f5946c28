//! A process whose first thread does not get on.

use std::{
    sync::mpsc::{self, Sender},
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result};
use nix::{
    sys::{
        ptrace::{self, Options},
        wait::waitpid,
    },
    unistd::Pid,
};

/// Stops a child's first thread, in which an agent writes changes; its other threads go on. Dropped, it goes on as
/// well.
#[derive(Debug)]
pub struct Frozen {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Frozen {
    /// Stops the first thread of this child of the test.
    ///
    /// # Errors
    /// If the kernel does not let it.
    pub fn process(pid: u32) -> Result<Self> {
        let pid = Pid::from_raw(pid.cast_signed());
        let (done, wait) = mpsc::channel();
        let (say, said) = mpsc::channel();
        // Only the thread that stops another one may let it go on.
        let thread = thread::spawn(move || {
            let stopped = stop(pid);
            let is_stopped = stopped.is_ok();
            let _ = say.send(stopped);
            if is_stopped {
                let _ = wait.recv();
                let _ = ptrace::detach(pid, None);
            }
        });
        said.recv().context("nobody stops it")??;
        Ok(Self {
            done: Some(done),
            thread: Some(thread),
        })
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.done = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn stop(pid: Pid) -> Result<()> {
    ptrace::seize(pid, Options::empty()).with_context(|| format!("cannot trace {pid}"))?;
    ptrace::interrupt(pid).with_context(|| format!("cannot stop {pid}"))?;
    waitpid(pid, None).with_context(|| format!("{pid} does not stop"))?;
    Ok(())
}
