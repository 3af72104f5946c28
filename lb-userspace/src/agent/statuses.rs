//! Writes what the status of connection admission's objects is to say, one object after the other. Nothing
//! depends on it: what cannot be written is tried again when it is due again.

use std::time::Duration;

use tokio::{sync::mpsc, task::JoinHandle, time::sleep};

use crate::{admission::conditions::StatusWrite, source::api::ApiWriter};

/// How many writes may wait.
const QUEUE: usize = 256;
/// The pause after each.
const PAUSE: Duration = Duration::from_millis(100);

/// Takes what is to be written. Dropped, it ends.
pub struct Statuses {
    queue: mpsc::Sender<StatusWrite>,
    task: JoinHandle<()>,
}

impl Statuses {
    /// Starts the task that writes.
    pub fn start(api: ApiWriter) -> Self {
        let (queue, writes) = mpsc::channel(QUEUE);
        Self {
            queue,
            task: tokio::spawn(run(api, writes)),
        }
    }

    /// Has this written. It does not wait: if too many do, this one is left out.
    pub fn write(&self, write: StatusWrite) {
        let _ = self.queue.try_send(write);
    }
}

impl Drop for Statuses {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(api: ApiWriter, mut writes: mpsc::Receiver<StatusWrite>) {
    let mut is_forbidden = false;
    while let Some(StatusWrite { reference, patch }) = writes.recv().await {
        match api.patch_status(&reference, &patch).await {
            Ok(()) => is_forbidden = false,
            Err(error) if error.is_forbidden() => {
                if !is_forbidden {
                    tracing::warn!("the status of {reference} cannot be written: {error}");
                }
                is_forbidden = true;
            }
            // Another agent was first, or the object is gone, or the server does not answer.
            Err(error) => tracing::debug!("the status of {reference} is not written: {error}"),
        }
        sleep(PAUSE).await;
    }
}
