//! One sample of any case.

use anyhow::{Context, Result};
use lb_common::addr::{Ip4, Ip6};

use super::{
    cases::{Case, IpFamily, Work},
    flows::Flows,
    rig::Rig,
};

/// The result of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// CPU time per packet in nanoseconds, without the harness.
    pub ns: f64,
    /// The part of packets that opened a flow, if all should.
    pub opened: Option<f64>,
}

impl Sample {
    /// A sample that consists of its time only.
    pub fn new(ns: f64) -> Self {
        Self { ns, opened: None }
    }
}

/// Takes samples.
pub struct Sampler {
    rig: Rig,
    flows4: Flows<Ip4>,
    flows6: Flows<Ip6>,
}

impl Sampler {
    /// Loads everything; nothing is attached or pinned.
    ///
    /// # Errors
    ///
    /// Without root, or if the kernel refuses something.
    pub fn load() -> Result<Self> {
        let mut rig = Rig::load()?;
        Ok(Self {
            flows4: Flows::new(&mut rig)?,
            flows6: Flows::new(&mut rig)?,
            rig,
        })
    }

    /// Takes one sample of a case.
    ///
    /// # Errors
    ///
    /// If anything but the time is wrong.
    pub fn take(&mut self, case: &Case) -> Result<Sample> {
        let Self {
            rig,
            flows4,
            flows6,
        } = self;
        let sample = match case.work {
            Work::Floor(program) => rig.floor(program, case),
            Work::Pass => rig.pass(case),
            Work::Reject => rig.reject(case),
            Work::Established(service, direction) => match service.family {
                IpFamily::V4 => flows4.established(rig, service, direction, case),
                IpFamily::V6 => flows6.established(rig, service, direction, case),
            },
            Work::New(service) => match service.family {
                IpFamily::V4 => flows4.opening(rig, service, case),
                IpFamily::V6 => flows6.opening(rig, service, case),
            },
            Work::Flood(service) => match service.family {
                IpFamily::V4 => flows4.flooded(rig, service, case),
                IpFamily::V6 => flows6.flooded(rig, service, case),
            },
            Work::Refused(service) => match service.family {
                IpFamily::V4 => flows4.refused(rig, service, case),
                IpFamily::V6 => flows6.refused(rig, service, case),
            },
        };
        sample.with_context(|| format!("case {}", case.name))
    }

    /// The harness's cost that was subtracted: names and nanoseconds per packet.
    pub fn overheads(&self) -> impl Iterator<Item = (String, f64)> {
        self.rig.overheads()
    }
}
