//! How the agent relieves the one before it, and the next one relieves it: who answers health
//! checks.

use std::{
    future,
    time::{Duration, Instant},
};

use lb_objects::IpFamily;

use super::{
    Agent,
    succession::{Offer, Predecessor, Retired, Standby},
};

/// How long a start may take after the agent before is gone, before clients that wait are told:
/// with 503, or by a refused connection for Services that are not known.
const UNSERVED: Duration = Duration::from_secs(10);

impl Agent {
    /// Answers health checks at once, if no agent before it does or has done so just now.
    pub(super) fn begin_to_answer(&mut self) {
        match (
            &self.predecessor,
            self.servers.stack.listeners().has_inherited(),
        ) {
            (Some(_), _) => {}
            (None, true) => self.answer_soon(),
            (None, false) => self.answer(),
        }
    }

    /// Notes that nobody answers. Clients wait already, and the first state is not far.
    pub(super) fn answer_soon(&mut self) {
        self.predecessor = None;
        self.answers_by = Some(Instant::now() + UNSERVED);
    }

    /// Has the agent before it answer no longer, once this one's state is in the maps.
    pub(super) async fn relieve(&mut self) {
        if self.store.is_synced()
            && let Some(predecessor) = self.predecessor.take()
        {
            // Once a client has seen the new state, nobody tells it the old one.
            predecessor.stop().await;
        }
    }

    /// Gives up everything but the health checks, the pins' lock included.
    pub(super) async fn retire(mut self) -> Retired {
        // As if a change were waiting: an agent that takes too long over it is not healthy.
        for family in [IpFamily::V4, IpFamily::V6] {
            self.proxy_health.queued(family);
        }
        self.servers.end_locally().await;
        if let Some(offer) = &mut self.offer {
            offer.close().await;
        }
        let programs = self.kernel.give_way();
        Retired::new(self.servers, self.service_health, self.offer, programs)
    }

    /// Answers health checks from now on, on the sockets of the agent before if there are any.
    pub(super) fn answer(&mut self) {
        self.answers_by = None;
        self.servers
            .serve(&self.config, &self.metrics, &self.proxy_health);
        self.servers.stack.listeners().close_inherited();
    }

    /// Offers its place to agents that stand by.
    pub(super) fn offer(&mut self) {
        match self.servers.offer(&self.config) {
            Ok(offer) => self.offer = Some(offer),
            Err(error) => tracing::warn!(
                "{error:#}: when the next agent takes over, health checks will be refused for a \
                 moment"
            ),
        }
    }
}

/// Returns once an agent asks for the place.
pub(super) async fn asked(offer: &Option<Offer>) -> Standby {
    match offer {
        Some(offer) => offer.asked().await,
        None => future::pending().await,
    }
}

/// Returns once the agent before is gone, if there is one.
pub(super) async fn gone(predecessor: &mut Option<Predecessor>) {
    match predecessor {
        Some(predecessor) => predecessor.gone().await,
        None => future::pending().await,
    }
}

/// Returns at a moment, if there is to be one.
pub(super) async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => future::pending().await,
    }
}
