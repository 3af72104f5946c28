//! The agent compares the data plane with what it should be, all the time and at a low rate, and
//! puts right what differs: the maps with what was written to them, the programs at devices and
//! sockets with those that were attached, and the plans of Services with fresh ones.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant, SystemTime},
};

use lb_common::flow::limit::NODE;
use lb_objects::ObjectName;

use super::{Agent, admission::node_limit, differences::Differences, status};
use crate::{
    map_writer::{self, Findings, Wrong},
    metrics::set_to_now,
};

/// One part of the processor's time in so many. With that of test packets, it is less than a hundredth.
const SHARE: u32 = 150;
/// Work of the agent's loop at a time, so that a change never waits for long.
const PIECE: Duration = Duration::from_millis(1);
/// The plans of one Service in so many are made anew in a round: that takes longer than all else.
const PLANS: usize = 16;

/// Where the comparison stands.
#[derive(Default)]
pub struct Verification {
    /// Time from the beginning of one round to that of the next one, at least; zero: there are none.
    interval: Duration,
    round: Option<Round>,
    /// When to go on; never before the first state is in the maps.
    next: Option<Instant>,
    /// The last Service whose plan has been compared; `None` to begin with the first one.
    last_plan: Option<ObjectName>,
    /// What was said of the last complete round.
    last: status::Verification,
    found: Differences,
}

/// A comparison of everything but some plans.
struct Round {
    began: Instant,
    worked: Duration,
    maps: map_writer::Round,
    /// What there is to compare yet, the next one last.
    pieces: Vec<Piece>,
}

/// What is compared at a time.
enum Piece {
    /// Of a Service.
    Plan(ObjectName),
    /// Some of the map writer's maps.
    Maps,
    Settings,
    /// Programs at the device with this interface index.
    Device(u32),
    Sockets,
}

impl Verification {
    /// `interval` is the time from the beginning of one round to that of the next one, at least; zero: nothing is
    /// compared.
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            ..Self::default()
        }
    }

    /// When to call [`Agent::verify_some`].
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// To be called when the first state is in the maps.
    pub fn begin(&mut self) {
        if !self.interval.is_zero() {
            self.next = Some(Instant::now() + self.interval);
        }
    }

    /// What `status` says.
    pub fn report(&self) -> status::Verification {
        status::Verification {
            found: self.found.report(),
            ..self.last.clone()
        }
    }

    /// Why the data plane does not stay as it should be, if so.
    pub fn problem(&self) -> Option<&str> {
        self.last.problem.as_deref()
    }

    /// Takes in what a round has found.
    fn note(&mut self, round: &Round, now: SystemTime) {
        let findings = round.maps.findings();
        let number = findings.differences;
        let is_well = number == 0 && findings.unread.is_none();
        let described = findings.described.iter().map(ToString::to_string);
        self.found.end_round(number, described, is_well, now);
        self.last = status::Verification {
            last_round: Some(status::timestamp(now)),
            records: findings.records,
            took_ms: round.began.elapsed().as_millis() as u64,
            worked_ms: round.worked.as_millis() as u64,
            problem: self.problem_with(findings),
            ..status::Verification::default()
        };
    }

    fn problem_with(&self, findings: &Findings) -> Option<String> {
        let rounds = self.found.too_many_in_a_row()?;
        Some(match (&findings.unread, findings.described.first()) {
            (Some(error), _) => {
                format!("{rounds} times in a row, not all of it could be read: {error}")
            }
            (None, first) => format!(
                "{rounds} times in a row, something had been changed by others and was put right: {}",
                first.map(ToString::to_string).unwrap_or_default()
            ),
        })
    }
}

impl Agent {
    /// Goes on with a round for a moment, or begins the next one.
    pub(super) async fn verify_some(&mut self) {
        let since = Instant::now();
        let mut round = match self.verification.round.take() {
            Some(round) => round,
            None => self.begin_verification(since),
        };
        let mut is_over = false;
        while !is_over && since.elapsed() < PIECE {
            is_over = !self.verify_next(&mut round).await;
        }
        let worked = since.elapsed();
        round.worked += worked;
        let next = Instant::now() + worked * SHARE;
        self.verification.next = Some(match is_over {
            true => next.max(round.began + self.verification.interval),
            false => next,
        });
        match is_over {
            true => self.end_verification(&round),
            false => self.verification.round = Some(round),
        }
    }

    fn begin_verification(&mut self, now: Instant) -> Round {
        let after = self.verification.last_plan.take();
        let most = self.servers.catalog.services().div_ceil(PLANS);
        let (services, more) = self.syncer.services(&self.store, after.as_ref(), most);
        if more {
            self.verification.last_plan = services.get(most.saturating_sub(1)).cloned();
        }
        let mut pieces = vec![Piece::Sockets];
        let devices = self.attachments.devices().keys();
        pieces.extend(devices.copied().map(Piece::Device));
        pieces.extend([Piece::Settings, Piece::Maps]);
        pieces.extend(services.into_iter().map(Piece::Plan));
        Round {
            began: now,
            worked: Duration::ZERO,
            maps: self.syncer.writer().begin_round(),
            pieces,
        }
    }

    /// Compares a little. Returns whether there is more to compare.
    async fn verify_next(&mut self, round: &mut Round) -> bool {
        let findings = round.maps.findings_mut();
        match round.pieces.pop() {
            Some(Piece::Plan(service)) => self.verify_plan(service, findings).await,
            Some(Piece::Maps) => {
                let more = self.syncer.writer().verify_next(&mut round.maps);
                round.pieces.extend(more.then_some(Piece::Maps));
            }
            Some(Piece::Settings) => {
                self.kernel.verify(findings);
                self.verify_node_limit(findings);
            }
            Some(Piece::Device(index)) => self.verify_device(index, findings),
            Some(Piece::Sockets) => self.verify_sockets(findings),
            None => {}
        }
        !round.pieces.is_empty()
    }

    /// Compares the plan of a Service with what its objects ask for.
    async fn verify_plan(&mut self, service: ObjectName, findings: &mut Findings) {
        let is_fresh = self.syncer.verify(&self.store, &service);
        let wrong = (!is_fresh).then_some(Wrong::Changed);
        findings.compared("plan", wrong, || format!("of {service}"));
        if !is_fresh {
            self.sync(BTreeSet::from([service]), Instant::now()).await;
        }
    }

    fn verify_node_limit(&self, findings: &mut Findings) {
        let limit = node_limit(&self.config, self.admission.as_ref());
        let wrong = self.seats.limit_node(limit).then_some(Wrong::Changed);
        findings.compared("SEATS", wrong, || format!("{NODE} of the node"));
    }

    fn verify_device(&mut self, index: u32, findings: &mut Findings) {
        // Meanwhile other programs are there.
        if self.tracer.running().is_none() {
            let devices = self.watcher.devices();
            self.attachments
                .verify(&mut self.kernel, devices, index, findings);
        }
    }

    fn verify_sockets(&mut self, findings: &mut Findings) {
        if self.tracer.running().is_some() {
            return;
        }
        let (config, root) = (&self.config.datapath, self.cgroup_root.as_deref());
        let attachments = &self.attachments;
        if attachments.verify_sockets(&self.kernel, config, root, findings)
            && let Err(error) = self.attach_to_sockets()
        {
            // The next round finds it again.
            tracing::warn!("{error:#}");
        }
    }

    /// Says what a round has found.
    fn end_verification(&mut self, round: &Round) {
        let findings = round.maps.findings();
        let metrics = &self.metrics.verification;
        metrics.records.inc_by(findings.records);
        metrics.differences.inc_by(findings.differences);
        metrics.rounds.inc();
        set_to_now(&metrics.last_round);
        report(findings);

        self.verification.note(round, SystemTime::now());
        self.report_data_plane();
    }

    /// Says in `/readyz` why the data plane is not as it should be, if so.
    pub(super) fn report_data_plane(&self) {
        let problem = self.verification.problem().or(self.proof.problem());
        self.servers.data_plane.set(problem);
    }
}

/// Logs what differed.
fn report(findings: &Findings) {
    if let Some(error) = &findings.unread {
        tracing::warn!("cannot compare all of the data plane with what it should be: {error}");
    }
    for difference in &findings.described {
        tracing::warn!("{difference}; put right");
    }
    let more = findings.differences - findings.described.len() as u64;
    if more > 0 {
        tracing::warn!("{more} more records differed, and were put right");
    }
}
