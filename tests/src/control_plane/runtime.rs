//! Runs asynchronous work in a host's network namespace, for tests that are not asynchronous.

use std::{future::Future, sync::Arc, sync::mpsc};

use anyhow::{Context, Result};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
};

use crate::lab::Host;

/// Threads inside a host's network namespace that run futures. It is cheap to clone.
#[derive(Clone, Debug)]
pub struct HostRuntime(Arc<Runtime>);

impl HostRuntime {
    /// Starts threads on `host`.
    ///
    /// # Errors
    /// If the namespace cannot be entered or threads cannot be started.
    pub fn start(host: &Host) -> Result<Self> {
        let build = || {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(2).enable_all().build()
        };
        // Threads are in the namespace of the thread that starts them.
        let runtime = host.netns().run(build)?;
        let runtime = runtime.context("cannot start threads")?;
        Ok(Self(Arc::new(runtime)))
    }

    /// Runs `work` on these threads, and waits for its result.
    ///
    /// # Panics
    /// If the work does.
    pub fn wait<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        // Not `block_on`, which would poll on the calling thread, in another namespace.
        let (sender, result) = mpsc::channel();
        self.spawn(async move {
            // The waiting thread is still there.
            let _ = sender.send(work.await);
        });
        result.recv().expect("the work came to its end")
    }

    /// Starts `work` on these threads.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.0.spawn(work)
    }
}
