//! The work that is still being done for a request, even after its client has been answered.

use std::{
    any::Any,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use tokio::task::JoinError;

use super::Request;

/// Lives as long as anything works on a request: its handler, and what the handler has started on
/// other threads. Clones belong to the same request.
#[derive(Clone)]
pub struct Running(Arc<Inner>);

struct Inner {
    held: Mutex<Vec<Box<dyn Any + Send>>>,
    at_end: OnceLock<Box<dyn FnOnce() + Send + Sync>>,
}

impl Running {
    pub(super) fn new() -> Self {
        Self(Arc::new(Inner {
            held: Mutex::default(),
            at_end: OnceLock::new(),
        }))
    }

    /// The one of a request; creates it if there is none.
    pub(super) fn of(request: &mut Request) -> Self {
        let extensions = request.extensions_mut();
        extensions.get_or_insert_with(Self::new).clone()
    }

    /// Keeps `held` until nothing works on the request any more.
    pub fn hold(&self, held: impl Any + Send) {
        let mut all = self.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Box::new(held));
    }

    /// Calls `end` when nothing works on the request any more. Only the first call has an effect.
    pub(super) fn at_end(&self, end: impl FnOnce() + Send + Sync + 'static) {
        let _ = self.0.at_end.set(Box::new(end));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(end) = self.at_end.take() {
            end();
        }
    }
}

/// Runs `work` on a thread that may block. Until it returns, it counts as work on the request.
/// Nothing can stop it, not even the deadline.
///
/// # Errors
///
/// If `work` panicked, or the process is about to end.
pub async fn run_blocking<T: Send + 'static>(
    request: &Request,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let running = request.extensions().get::<Running>().cloned();
    tokio::task::spawn_blocking(move || {
        let result = work();
        drop(running);
        result
    })
    .await
}
