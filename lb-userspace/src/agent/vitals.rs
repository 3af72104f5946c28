//! What this very agent says to the probes of its pod: `node-lb probe`.
//!
//! On the host's network, two agents of a node share its ports, so a request to a port does not say
//! which one has answered. This socket is the pod's own.

use std::{
    io::Write as _,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{net::UnixListener, task::JoinHandle, time::sleep};

use crate::{
    health::{proxy::ProxyHealth, readiness::Readiness},
    http::bind_unix,
};

/// After a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// The answers to probes: for each of them what is wrong, if anything is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Why the process should be started again.
    pub live: Option<String>,
    /// Why this agent is not one that has served and can serve.
    pub ready: Option<String>,
}

/// What this agent does.
#[derive(Clone)]
pub enum Phase {
    /// It has not served yet.
    Waiting(&'static str),
    /// It is in charge.
    InCharge {
        health: Arc<ProxyHealth>,
        readiness: Arc<Readiness>,
    },
    /// It was in charge, and another one is. What has served before can do it again, so it is
    /// ready: an update that waits for this pod goes on.
    StandingBy,
}

/// The agent's present [`Phase`].
pub struct Vitals(Mutex<Phase>);

impl Default for Vitals {
    fn default() -> Self {
        Self(Mutex::new(Phase::Waiting("the agent starts")))
    }
}

impl Vitals {
    /// From now on it does this.
    pub fn set(&self, phase: Phase) {
        *self.phase() = phase;
    }

    fn verdict(&self) -> Verdict {
        let phase = self.phase().clone();
        match phase {
            Phase::Waiting(why) => Verdict {
                live: None,
                ready: Some(why.to_owned()),
            },
            Phase::InCharge { health, readiness } => Verdict {
                live: (!health.is_healthy())
                    .then(|| "changes have waited for too long to be written".to_owned()),
                ready: readiness.problem(),
            },
            Phase::StandingBy => Verdict::default(),
        }
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers on a Unix socket: whoever connects gets the [`Verdict`] in JSON. Needs a Tokio
    /// runtime.
    ///
    /// # Errors
    ///
    /// If the socket's path is taken or cannot be written.
    pub fn serve(self: Arc<Self>, path: &Path) -> std::io::Result<JoinHandle<()>> {
        let listener = UnixListener::from_std(bind_unix(path)?)?;
        Ok(tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => self.answer(stream),
                    Err(_) => sleep(PAUSE).await,
                }
            }
        }))
    }

    fn answer(&self, stream: tokio::net::UnixStream) {
        let text = serde_json::to_vec(&self.verdict()).expect("strings always serialize");
        // It always fits into the socket's buffer.
        let _ = stream
            .into_std()
            .and_then(|mut stream| stream.write_all(&text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::clock::SystemClock;

    #[test]
    fn only_an_agent_that_serves_or_has_served_is_ready() {
        let vitals = Vitals::default();
        assert_eq!(vitals.verdict().ready.unwrap(), "the agent starts");
        assert_eq!(vitals.verdict().live, None);

        let readiness = Arc::new(Readiness::new());
        let latch = readiness.add_latch("first-state-in-maps", "there is none");
        let health = ProxyHealth::new(Duration::ZERO, SystemClock);
        let health = Arc::new(health);
        vitals.set(Phase::InCharge {
            health: health.clone(),
            readiness,
        });
        let missing = "first-state-in-maps (there is none)";
        assert_eq!(vitals.verdict().ready.unwrap(), missing);
        latch.meet();
        assert_eq!(vitals.verdict(), Verdict::default());
        health.updated(lb_objects::IpFamily::V4);
        health.queued(lb_objects::IpFamily::V4);
        assert!(vitals.verdict().live.is_some());

        vitals.set(Phase::StandingBy);
        assert_eq!(vitals.verdict(), Verdict::default());
    }
}
