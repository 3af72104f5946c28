//! Loads that run together. No request of theirs may fail, and no SYN may have to be repeated.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};

use super::load::{Load, LoadReport, RunningLoad};
use super::request::Request;
use super::server::{Grace, RunningServer, Serve};
use crate::lab::{Family, Host};
use crate::patient;

/// Loads on hosts of a lab. From each host there is one more load, the control, to a server that is
/// not an endpoint of any Service. What happens to it is caused by the machine and not by node-lb.
#[derive(Debug)]
pub struct Loads {
    running: Vec<(String, RunningLoad)>,
    control: BTreeMap<String, RunningLoad>,
    /// The host of the control's server.
    bystander: Host,
    server: RunningServer,
}

/// The results of [`Loads`].
#[derive(Debug)]
pub struct LoadReports {
    reports: Vec<(String, LoadReport)>,
    control: Vec<LoadReport>,
}

/// The port of the control's server.
const CONTROL: u16 = 7;
/// The pause between two requests of the control.
const PAUSE: Duration = Duration::from_millis(20);
/// If a server gets no processor, it answers late although no packet was lost. Repeated SYNs show
/// which packets were lost.
const DEADLINE: Duration = Duration::from_secs(10);
/// If a busy machine delays SYNs, it delays those of all clients within this time, after which SYNs
/// are repeated.
const SAME_TIME: Duration = Duration::from_secs(2);

impl Loads {
    /// Starts without loads. The control goes to the address of `bystander`, which tests leave
    /// alone.
    ///
    /// # Errors
    /// If the control's server cannot start there.
    pub fn beside(bystander: impl AsRef<Host>) -> Result<Self> {
        let bystander = bystander.as_ref().clone();
        Ok(Self {
            running: Vec::new(),
            control: BTreeMap::new(),
            server: Serve::new("control").tcp(CONTROL).start(&bystander)?,
            bystander,
        })
    }

    /// Starts a load on `host`. When this returns, the first request has a result.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&mut self, host: impl AsRef<Host>, load: Load) -> Result<()> {
        let host = host.as_ref();
        if !self.control.contains_key(host.name()) {
            let request = Request::tcp(self.bystander.at(Family::V4, CONTROL));
            let control = Load::new(request.deadline(patient(DEADLINE)));
            let control = control.workers(1).pause(PAUSE);
            self.control
                .insert(host.name().to_owned(), control.start(host)?);
        }
        let load = load.deadline(patient(DEADLINE));
        let name = format!("{host}, {load:?}");
        self.running.push((name, load.start(host)?));
        Ok(())
    }

    /// Lets current requests finish, and returns the reports.
    ///
    /// # Errors
    /// If a load ended early, or the control's server has failed.
    pub fn stop(self) -> Result<LoadReports> {
        let stop = |(name, load): (String, RunningLoad)| {
            let report = load.stop().with_context(|| name.clone())?;
            Ok((name, report))
        };
        let reports = self.running.into_iter().map(stop).collect::<Result<_>>()?;
        let control = self.control.into_values();
        let control = control.map(RunningLoad::stop).collect::<Result<_>>()?;
        // Its port is free then for the next loads.
        self.server
            .shut_down(Grace::SHORT)
            .context("the control's server")?;
        Ok(LoadReports { reports, control })
    }
}

impl LoadReports {
    /// Fails unless all requests of every load were answered at their first SYN.
    #[track_caller]
    pub fn assert_flawless(&self) {
        for report in &self.control {
            assert!(report.ok > 0, "the control says nothing: {report}");
        }
        self.assert_none("requests failed", |report| {
            report.failed > 0 || report.ok == 0
        });
        self.assert_none("SYNs were lost", |report| {
            report.repeated_syns.iter().any(|at| !self.is_excused(*at))
        });
    }

    /// Fails if a connection was cut that was to be used again.
    #[track_caller]
    pub fn assert_no_reconnects(&self) {
        self.assert_none("connections were cut", |report| report.reconnects > 0);
    }

    /// Answered requests of all loads.
    pub fn answered(&self) -> u64 {
        self.reports.iter().map(|(_, report)| report.ok).sum()
    }

    /// Whether the control also had to repeat a SYN at about that time.
    fn is_excused(&self, at: Duration) -> bool {
        let mut repeated = self.control.iter().flat_map(|report| &report.repeated_syns);
        repeated.any(|control| control.abs_diff(at) <= SAME_TIME)
    }

    #[track_caller]
    fn assert_none(&self, what: &str, is_bad: impl Fn(&LoadReport) -> bool) {
        let bad = self.reports.iter().filter(|(_, report)| is_bad(report));
        let list: String = bad
            .map(|(name, report)| format!("\n- {name}\n  {report}"))
            .collect();
        assert!(list.is_empty(), "{what}:{list}");
    }
}

impl fmt::Display for LoadReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, report) in &self.reports {
            writeln!(f, "{name}: {report}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    fn report(repeated_syns: &[u64]) -> LoadReport {
        LoadReport {
            ok: 1,
            repeated_syns: repeated_syns
                .iter()
                .map(|second| Duration::from_secs(*second))
                .collect(),
            ..LoadReport::default()
        }
    }

    fn is_flawless(of: LoadReport, control: LoadReport) -> bool {
        let reports = LoadReports {
            reports: vec![("a load".to_owned(), of)],
            control: vec![control],
        };
        catch_unwind(|| reports.assert_flawless()).is_ok()
    }

    #[test]
    fn a_repeated_syn_is_excused_by_the_control_only() {
        assert!(is_flawless(report(&[]), report(&[])));
        assert!(is_flawless(report(&[]), report(&[5])));
        assert!(!is_flawless(report(&[10]), report(&[])));
        assert!(is_flawless(report(&[10]), report(&[11])));
        assert!(!is_flawless(report(&[10, 20]), report(&[11])));
    }

    #[test]
    fn a_failure_is_never_excused_and_neither_is_idleness() {
        let failed = LoadReport {
            failed: 1,
            ..report(&[])
        };
        assert!(!is_flawless(failed, report(&[5])));
        assert!(!is_flawless(LoadReport::default(), report(&[])));
        assert!(!is_flawless(report(&[]), LoadReport::default()));
    }
}
