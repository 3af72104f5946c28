//! What a reflector asks next after a failure, and when: the one place that decides between asking
//! the same again and asking for everything.

use std::time::Duration;

use super::{
    super::{backoff::up_to, failure::Failure},
    Reflector,
};

/// New lists of many nodes are spread over this time.
const RELIST_SPREAD: Duration = Duration::from_secs(5);
/// Waiting for as long as a server asks, nodes still do not come back in the same moment.
const RETRY_SPREAD: Duration = Duration::from_secs(1);

/// What is to be asked next. A failure repeats it, unless the failure says that it is of no use.
#[derive(Debug)]
pub enum Step {
    /// The list and its changes in one answer, from a server that can do that.
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
    /// Begins a list that is to be at least as new as `from`.
    pub fn list(&self, from: String) -> Step {
        match self.streams {
            true => Step::Stream { from },
            // A server that cannot stream answers from its cache only if a version is named.
            false if from.is_empty() && !self.listed => Step::Page {
                from: "0".to_owned(),
                token: None,
            },
            false => Step::Page { from, token: None },
        }
    }

    /// What to ask after a failure, and how long to wait before that.
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
                // Begins again, with whatever is the newest version.
                let first = Step::Page {
                    from: String::new(),
                    token: None,
                };
                // A token that expires every time must not make this a busy loop.
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
            (step, _) => (step, self.backoff.after_failure()),
        };
        self.client.metrics.retry(name, verb);
        let message = failure.to_string();
        let seconds = wait.as_secs_f32();
        match self.health.failed(name, message) {
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
