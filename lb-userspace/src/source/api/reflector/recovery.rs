//! What a reflector requests next after a failure, and when. Only this module decides between
//! repeating a request and listing everything again.

use std::time::Duration;

use super::{
    super::{backoff::up_to, failure::Failure},
    Reflector,
};

/// New lists of many nodes are spread over this time.
const RELIST_SPREAD: Duration = Duration::from_secs(5);
/// When a server asks to wait, the requests of many nodes are spread over this time.
const RETRY_SPREAD: Duration = Duration::from_secs(1);

/// The next request. After a failure it is repeated, unless the failure says that this is no use.
#[derive(Debug)]
pub enum Step {
    /// List and changes in one answer, if the server can stream.
    Stream {
        from: String,
    },
    /// A page of the list.
    Page {
        from: String,
        token: Option<String>,
    },
    Watch,
}

impl Step {
    fn verb(&self) -> &'static str {
        match self {
            Self::Page { .. } => "list",
            Self::Stream { .. } | Self::Watch => "watch",
        }
    }
}

impl Reflector {
    /// Starts a list that is at least as new as `from`.
    pub fn list(&self, from: String) -> Step {
        match self.streams {
            true => Step::Stream { from },
            // A server that cannot stream uses its cache only if the request names a version.
            false if from.is_empty() && !self.listed => Step::Page {
                from: "0".to_owned(),
                token: None,
            },
            false => Step::Page { from, token: None },
        }
    }

    /// The next step after a failure, and how long to wait before it.
    pub fn after_failure(&mut self, step: Step, failure: &Failure) -> (Step, Duration) {
        let name = self.client.resource.name;
        let verb = step.verb();
        if let Step::Stream { from } = &step
            && failure.is_final()
        {
            tracing::info!(
                resource = name,
                "no streamed lists, so the agent asks for pages: {failure}"
            );
            self.streams = false;
            return (self.list(from.clone()), Duration::ZERO);
        }
        let (next, wait) = match (step, failure) {
            (Step::Watch, Failure::Expired(_)) => {
                let from = self.version.clone();
                (self.relist(from, "expired"), self.relist_wait())
            }
            (Step::Watch, Failure::Behind(_)) => {
                (self.relist(String::new(), "behind"), self.relist_wait())
            }
            (Step::Watch, failure) if failure.is_final() => {
                (self.relist(String::new(), "refused"), self.relist_wait())
            }
            (Step::Stream { from }, Failure::Expired(_) | Failure::Behind(_))
                if !from.is_empty() =>
            {
                (self.list(String::new()), Duration::ZERO)
            }
            (Step::Page { from, token }, Failure::Expired(_) | Failure::Behind(_))
                if token.is_some() || !from.is_empty() =>
            {
                // Starts again, with the newest version.
                let first = Step::Page {
                    from: String::new(),
                    token: None,
                };
                // A token that always expires must not cause a busy loop.
                let wait = match token {
                    Some(_) => self.backoff.after_failure(),
                    None => Duration::ZERO,
                };
                (first, wait)
            }
            (step, Failure::Busy { retry_after, .. }) => {
                let asked = *retry_after + up_to(RETRY_SPREAD);
                (step, self.backoff.after_failure().max(asked))
            }
            (step, _) if self.followed => (step, self.break_backoff.after_failure()),
            (step, _) => (step, self.backoff.after_failure()),
        };
        self.client.metrics.retry(name, verb);
        let message = failure.to_string();
        let seconds = wait.as_secs_f32();
        match self.health.failed(name, message, failure.is_absence()) {
            true => tracing::warn!(
                resource = name,
                verb,
                "{failure}; next try in {seconds:.1} s"
            ),
            false => tracing::debug!(resource = name, verb, "{failure}; next in {seconds:.1} s"),
        }
        (next, wait)
    }

    fn relist(&self, from: String, reason: &str) -> Step {
        let name = self.client.resource.name;
        self.client.metrics.relist(name, reason);
        self.list(from)
    }

    fn relist_wait(&mut self) -> Duration {
        let wait = self.relist_backoff.after_failure();
        wait.max(up_to(RELIST_SPREAD))
    }
}
