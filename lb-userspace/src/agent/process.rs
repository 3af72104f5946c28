//! What the process has from its start to its end, whether it is in charge or stands by.

use std::{io, sync::Arc};

use anyhow::Context as _;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use super::vitals::Vitals;
use crate::{config::Config, http};

/// Threads that serve. There is more than one, so that a handler that blocks does not hold up
/// others.
const THREADS: usize = 2;

/// Threads that serve, signals, and the answers to the pod's own probes.
pub struct Process {
    stop: Stop,
    pub vitals: Arc<Vitals>,
    threads: Option<Runtime>,
}

impl Process {
    /// Starts the threads, follows SIGTERM and SIGINT, and answers probes if it is to.
    ///
    /// # Errors
    ///
    /// If threads cannot be started, signals cannot be followed, or the socket for probes cannot be
    /// opened.
    pub fn start(config: &Config) -> anyhow::Result<Self> {
        http::raise_descriptor_limit();
        let threads = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("http")
            .enable_all()
            .build()
            .context("cannot start the threads that serve HTTP")?;
        let _entered = threads.enter();
        let vitals = Arc::<Vitals>::default();
        if let Some(path) = &config.probe_socket {
            let served = vitals.clone().serve(path);
            served.with_context(|| {
                let path = path.display();
                format!("cannot listen on {path}; try --probe-socket")
            })?;
        }
        let stop = Stop::follow().context("cannot follow signals")?;
        drop(_entered);
        Ok(Self {
            stop,
            vitals,
            threads: Some(threads),
        })
    }

    /// Where servers run.
    pub fn threads(&self) -> Handle {
        let threads = self.threads.as_ref().expect("only taken when dropped");
        threads.handle().clone()
    }

    /// Whether the process is to end.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // They end on their own, because waiting for them would delay the process's end.
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}

/// Whether the process has been told to end.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Follows SIGTERM and SIGINT, on the threads, so that they are noticed while the agent is busy
    /// with something else.
    fn follow() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (tell, told) = watch::channel(false);
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tell.send_replace(true);
            // As long as somebody may ask.
            tell.closed().await;
        });
        Ok(Self(told))
    }

    /// Returns once it has.
    pub async fn told(&self) {
        // Fails only when the threads have ended, which they do last.
        let _ = self.0.clone().wait_for(|told| *told).await;
    }

    /// Whether it has.
    pub fn is_told(&self) -> bool {
        *self.0.borrow()
    }
}
