//! The agent asks its programs about test packets, all the time and at a low rate: whether they do with packets to
//! Services what the plans ask for ([`crate::proof`]).
//!
//! Comparing maps and attachments ([`super::verification`]) shows that everything is as the agent has written it.
//! This shows that it was right to write that. Nothing is repaired here: what is to be written again is found
//! there.
//!
//! Programs run on a thread that may block, for some Services after the others. A change may be on its way from the
//! plans to the maps, so what differs is asked for once more after [`ON_ITS_WAY`], with plans of then.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    future::pending,
    sync::{Arc, Weak},
    time::{Duration, Instant, SystemTime},
};

use lb_datapath::{
    XdpMode,
    devices::{Device, Role},
    pins::MapPins,
    replica::ReplicaError,
};
use lb_objects::ObjectName;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

use super::{Agent, catalog::Catalog, differences::Differences, explainer::Explainer, status};
use crate::{
    explain::Destinations,
    metrics::set_to_now,
    plan::{Frontend, Plan, ServicePlan},
    proof::{Discrepancy, Entrance, ON_ITS_WAY, Prover, entrances},
};

/// One part of the time in so many.
const SHARE: u32 = 400;
/// Services that are asked about at a time.
const SERVICES: usize = 32;
/// Differences of a round that are logged and shown.
const TOLD: usize = 10;

/// Where the questions stand.
#[derive(Default)]
pub struct Proof {
    /// From the end of one round to the beginning of the next one; zero: there are none.
    interval: Duration,
    /// When to go on; never before the first state is in the maps, nor while a job runs.
    next: Option<Instant>,
    job: Option<JoinHandle<Done>>,
    /// Gone with the agent, so that the rest of a job is not done for nobody: the process ends only when it has ended.
    asker: Arc<()>,
    /// The programs that are asked, once they are loaded.
    prover: Option<Prover>,
    round: Round,
    /// What is to be asked once more.
    suspects: BTreeSet<Discrepancy>,
    /// What was said of the last complete round.
    last: status::TestPackets,
    found: Differences,
}

/// Packets to all Services.
#[derive(Default)]
struct Round {
    began: Option<Instant>,
    worked: Duration,
    packets: u64,
    differences: u64,
    described: Vec<String>,
    /// The last Service that was asked about, and whether more come after it.
    after: Option<ObjectName>,
    more: bool,
}

/// What is asked at a time.
struct Job {
    asker: Weak<()>,
    explainer: Arc<Explainer>,
    catalog: Arc<Catalog>,
    pins: MapPins,
    entrances: Vec<Entrance>,
    prover: Option<Prover>,
    services: Vec<Arc<ServicePlan>>,
    /// Services that are not in the maps as they should be.
    waiting: BTreeSet<ObjectName>,
}

/// What has come of it.
pub struct Done {
    prover: Option<Prover>,
    asked: Result<Asked, ReplicaError>,
}

/// What programs have answered.
struct Asked {
    packets: u64,
    /// With which of them something else happens than should.
    found: BTreeSet<Discrepancy>,
    /// Without loading them, which is done once.
    took: Duration,
}

impl Proof {
    /// `interval` is the time from the end of one round to the beginning of the next one; zero: nothing is asked.
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            ..Self::default()
        }
    }

    /// When to call [`Agent::prove_some`].
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// To be called when the first state is in the maps. Loading programs takes a second of work, which is better done
    /// when nothing else is to do: so the first round is as long after the start as the second one after the first.
    pub fn begin(&mut self) {
        if !self.interval.is_zero() {
            self.next = Some(Instant::now() + self.interval);
        }
    }

    /// What the programs have answered; for [`Agent::proved`].
    pub async fn done(&mut self) -> Result<Done, JoinError> {
        let done = match &mut self.job {
            Some(job) => job.await,
            None => pending().await,
        };
        self.job = None;
        done
    }

    /// What `node-lb status` says.
    pub fn report(&self) -> status::TestPackets {
        status::TestPackets {
            found: self.found.report(),
            ..self.last.clone()
        }
    }

    /// Why programs go on to do something else than they should, if so.
    pub fn problem(&self) -> Option<&str> {
        self.last.problem.as_deref()
    }

    /// The Services to ask about next: those of the suspects, if there are some.
    fn services(&mut self, catalog: &Catalog) -> Vec<Arc<ServicePlan>> {
        if !self.suspects.is_empty() {
            let names: BTreeSet<_> = self.suspects.iter().map(|found| &found.service).collect();
            return names
                .into_iter()
                .filter_map(|name| catalog.get(name))
                .collect();
        }
        let (services, left) = catalog.page(self.round.after.as_ref(), SERVICES);
        self.round.more = left > 0;
        if let Some(last) = services.last() {
            self.round.after = Some(last.service.clone());
        }
        services
    }

    /// Takes in what test packets have met. Returns what differs for certain; what differs for the first time is asked
    /// about again.
    fn take(&mut self, found: BTreeSet<Discrepancy>) -> BTreeSet<Discrepancy> {
        if self.suspects.is_empty() {
            self.suspects = found;
            return BTreeSet::new();
        }
        let suspects = std::mem::take(&mut self.suspects);
        let is_known = |now: &Discrepancy| suspects.iter().any(|before| now.repeats(before));
        found.into_iter().filter(is_known).collect()
    }

    /// Begins the next round in time, and says of this one what has come of it.
    fn end_round(&mut self, now: SystemTime) {
        let round = std::mem::take(&mut self.round);
        let took = round.began.map_or(Duration::ZERO, |began| began.elapsed());
        let described = round.described.iter().cloned();
        self.found
            .end_round(round.differences, described, round.differences == 0, now);
        self.last = status::TestPackets {
            last_round: Some(status::timestamp(now)),
            packets: round.packets,
            took_ms: took.as_millis() as u64,
            worked_ms: round.worked.as_millis() as u64,
            problem: self.found.too_many_in_a_row().map(|rounds| {
                let first = round.described.first().map_or("", String::as_str);
                format!("{rounds} times in a row, programs did something else with test packets than Services ask for: {first}")
            }),
            ..status::TestPackets::default()
        };
        self.next = Some(Instant::now() + self.interval);
    }

    /// Says why no packets are sent, and tries again later.
    fn give_up(&mut self, why: String) {
        self.round = Round::default();
        self.suspects.clear();
        if self.last.not_sent.as_ref() != Some(&why) {
            tracing::warn!("no test packets are sent: {why}");
        }
        self.last.not_sent = Some(why);
        self.next = Some(Instant::now() + self.interval);
    }
}

impl Agent {
    /// Has the programs asked about some more Services.
    pub(super) fn prove_some(&mut self) {
        self.proof.next = None;
        let entrances = self.entrances();
        if entrances.is_empty() {
            let why = "no device with Ethernet headers is external, or a pod's";
            return self.proof.give_up(why.to_owned());
        }
        self.proof.round.began.get_or_insert_with(Instant::now);
        let catalog = self.servers.catalog.clone();
        let waiting = self.syncer.writer().waiting();
        let job = Job {
            asker: Arc::downgrade(&self.proof.asker),
            explainer: self.explainer.clone(),
            pins: self.kernel.pins.of_maps(),
            entrances,
            waiting: waiting.map(|(key, _)| key.name.service.clone()).collect(),
            services: self.proof.services(&catalog),
            prover: self.proof.prover.take(),
            catalog,
        };
        self.proof.job = Some(spawn_blocking(|| job.run()));
    }

    /// Takes in what the programs have answered.
    pub(super) fn proved(&mut self, done: Result<Done, JoinError>) {
        let asked = match done {
            Ok(Done { prover, asked }) => {
                self.proof.prover = prover;
                asked.map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        let Asked {
            packets,
            found,
            took,
        } = match asked {
            Ok(asked) => asked,
            Err(error) => return self.proof.give_up(error),
        };
        self.metrics.test_packets.packets.inc_by(packets);
        let round = &mut self.proof.round;
        round.packets += packets;
        round.worked += took;
        let certain = self.proof.take(found);
        self.tell_of_differences(&certain);
        if !self.proof.suspects.is_empty() {
            self.proof.next = Some(Instant::now() + ON_ITS_WAY);
        } else if self.proof.round.more {
            self.proof.next = Some(Instant::now() + took * SHARE);
        } else {
            self.proof.end_round(SystemTime::now());
            self.metrics.test_packets.rounds.inc();
            set_to_now(&self.metrics.test_packets.last_round);
            self.report_data_plane();
        }
    }

    fn tell_of_differences(&mut self, found: &BTreeSet<Discrepancy>) {
        let number = found.len() as u64;
        self.metrics.test_packets.differences.inc_by(number);
        let round = &mut self.proof.round;
        round.differences += number;
        for found in found
            .iter()
            .take(TOLD.saturating_sub(round.described.len()))
        {
            tracing::warn!("test packets meet something else than Services ask for: {found}");
            round.described.push(found.to_string());
        }
        let services: BTreeSet<_> = found.iter().map(|found| &found.service).collect();
        for service in services {
            self.tell_of_test_packets(service);
        }
    }

    /// Where test packets come in.
    fn entrances(&self) -> Vec<Entrance> {
        let attached = self.attachments.devices();
        let role = |device: &Device| {
            attached
                .get(&device.index)
                .map_or(Role::Other, |known| known.role)
        };
        let has_xdp = |index| {
            attached
                .get(&index)
                .is_some_and(|known| known.xdp != XdpMode::Off)
        };
        entrances(self.watcher.devices(), role, has_xdp, self.node.node())
    }
}

impl Job {
    fn run(mut self) -> Done {
        let prover = self.prover.take();
        let prover = match prover.and_then(|prover| prover.entering_by(&self.entrances)) {
            Some(prover) => Ok(prover),
            None => Prover::load(&self.pins, self.entrances.clone()),
        };
        match prover {
            Ok(mut prover) => Done {
                asked: self.ask(&mut prover),
                prover: Some(prover),
            },
            Err(error) => Done {
                asked: Err(error),
                prover: None,
            },
        }
    }

    fn ask(&self, prover: &mut Prover) -> Result<Asked, ReplicaError> {
        let began = Instant::now();
        prover.tally = <_>::default();
        let mut tables = self.explainer.tables_for(&destinations(&self.services));
        let devices = prover.add_to(&mut tables);
        // Who has their addresses is not said by plans alone.
        let waiting = self
            .waiting
            .iter()
            .filter_map(|name| self.catalog.get(name));
        let waiting = destinations(&waiting.collect::<Vec<_>>());
        let mut found = BTreeSet::new();
        for (plan, frontend) in frontends(&self.services) {
            if waiting.contain(&frontend.address) {
                continue;
            }
            if self.asker.strong_count() == 0 {
                break;
            }
            found.extend(prover.prove(&tables, &devices, plan, frontend)?);
        }
        Ok(Asked {
            packets: prover.tally.packets,
            found,
            took: began.elapsed(),
        })
    }
}

/// Every address of these Services.
fn frontends(services: &[Arc<ServicePlan>]) -> impl Iterator<Item = (&Plan, &Frontend)> {
    let plans = services.iter().flat_map(|service| &service.ports);
    plans.flat_map(|plan| plan.frontends.iter().map(move |frontend| (plan, frontend)))
}

fn destinations(services: &[Arc<ServicePlan>]) -> Destinations {
    frontends(services)
        .map(|(_, frontend)| frontend.address)
        .collect()
}
