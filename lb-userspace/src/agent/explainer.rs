//! Explains what becomes of connections, from what the agent has in force at that moment.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lb_objects::Protocol;

use super::{bulletin::Bulletin, catalog::Catalog, local_api::explain::Unexplained};
use crate::{
    config::{AdmissionMode, Config, MapLimits, Sctp},
    explain::{Destinations, Question, Report, Situation},
    map_writer::{Key, NodeFacts, Roster},
    memory::ProgrammedTables,
    plan::Plan,
};

/// What decides about connections: the agent's loop changes it, HTTP handlers read it. Who asks holds
/// the loop up only for as long as it takes to clone some pointers.
pub struct Explainer {
    config: Config,
    catalog: Arc<Catalog>,
    roster: Arc<Roster>,
    bulletin: Arc<Bulletin>,
    situation: Mutex<Situation>,
}

impl Explainer {
    /// Of the Services in the catalog, those in the roster are in the maps.
    pub fn new(
        config: Config,
        catalog: Arc<Catalog>,
        roster: Arc<Roster>,
        bulletin: Arc<Bulletin>,
        situation: Situation,
    ) -> Self {
        Self {
            config,
            catalog,
            roster,
            bulletin,
            situation: Mutex::new(situation),
        }
    }

    /// Changes what is in force besides Services.
    pub fn change(&self, change: impl FnOnce(&mut Situation)) {
        change(&mut self.situation());
    }

    /// What becomes of a connection now. Writes tables, and reads counters: that takes time.
    ///
    /// # Errors
    ///
    /// If what decides is not known yet, or has no room in the tables.
    pub fn explain(&self, question: &Question) -> Result<Report, Unexplained> {
        let situation = self.situation().clone();
        let config = &self.config;
        if config.admission.mode != AdmissionMode::Off && situation.in_force.is_none() {
            return Err(Unexplained::NotYet);
        }
        let to = Destinations::from_iter([question.to.address]);
        let mut tables = self.tables(&situation, &to);
        situation
            .admit(&mut tables, config)
            .map_err(Unexplained::NoRoom)?;
        let in_use = self.bulletin.in_use();
        let decision = question.ask(&mut tables, config.max_connections, &in_use);
        Ok(Report::from(&decision))
    }

    /// Tables that decide about packets to these destinations as the agent has programmed it.
    /// Writing them takes time.
    pub fn tables_for(&self, destinations: &Destinations) -> ProgrammedTables {
        let situation = self.situation().clone();
        self.tables(&situation, destinations)
    }

    fn tables(&self, situation: &Situation, destinations: &Destinations) -> ProgrammedTables {
        let config = &self.config;
        let facts = NodeFacts {
            // It does not matter which of a set's endpoints is chosen.
            maglev_rows: 0,
            // The roster says who has stayed within them.
            limits: MapLimits::default(),
            ..situation.facts(config)
        };
        let services = self.catalog.all();
        let plans = services.iter().flat_map(|service| &service.ports);
        let plans = plans.filter(|plan| destinations.depend_on(plan) && self.has(plan));
        let checks = services.iter().flat_map(|service| &service.health_checks);
        let checks = checks.map(|check| check.port);
        situation.tables(config, facts, plans, checks)
    }

    // Whole at any time, so that a panic has not spoiled it.
    fn situation(&self) -> MutexGuard<'_, Situation> {
        self.situation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a service port is in the maps, or need not be there to count: of those that pass
    /// untouched, only the address does.
    fn has(&self, plan: &Plan) -> bool {
        let passes = self.config.datapath.sctp == Sctp::Off;
        passes && plan.name.protocol == Protocol::Sctp || self.roster.has(&Key::of(plan))
    }
}
