//! The measuring rig: the programs around a packet, their own cost, and what they count.

use std::collections::BTreeMap;

use anyhow::Result;
use lb_common::{
    addr::{Address as _, Ip4},
    parse::{ETHERNET, TCP, tcp_flag},
    verdict::Reason,
};

use super::{
    cases::Case,
    check,
    datapath::Datapath,
    family::Family,
    harness::{self, Harness, Run, TRACE, Trace, action},
    netns::Network,
    sample::Sample,
    traffic::{self, Destination, Kind, client},
};
use crate::statistics::{Random, median};

/// Samples of the harness's own cost, and packets of each.
const OVERHEAD_SAMPLES: usize = 9;
const OVERHEAD_REPEAT: u32 = 2_000_000;
/// The harness that belongs to no family.
const ANSWER_HARNESS: &str = "harness_answer";

/// Harness and node-lb in the kernel, in their own network namespace.
pub struct Rig {
    pub network: Network,
    pub harness: Harness,
    pub datapath: Datapath,
    pub random: Random,
    /// What the harness costs in nanoseconds per packet, by program and order of the trace.
    overheads: BTreeMap<(&'static str, &'static str), f64>,
}

impl Rig {
    /// Loads everything; nothing is attached or pinned.
    ///
    /// # Errors
    ///
    /// Without root, or if the kernel refuses something.
    pub fn load() -> Result<Self> {
        let network = Network::enter()?;
        Ok(Self {
            harness: Harness::load()?,
            datapath: Datapath::load(network.ifindex)?,
            network,
            random: Random::new(1),
            overheads: BTreeMap::new(),
        })
    }

    /// The harness's costs that were measured so far, as names and nanoseconds per packet.
    pub fn overheads(&self) -> impl Iterator<Item = (String, f64)> {
        let named =
            |((program, order), ns): (&(&str, &str), &f64)| (format!("{program}-{order}"), *ns);
        self.overheads.iter().map(named)
    }

    /// Sends the next `repeat` packets of a trace through node-lb. Returns what it counted
    /// meanwhile.
    pub fn follow<A: Family>(
        &mut self,
        trace: &mut Trace<A>,
        repeat: u32,
    ) -> Result<(Run, Vec<(Reason, u64)>)> {
        self.harness.aim(self.datapath.program()?)?;
        let before = self.datapath.counters()?;
        let run = self.harness.follow(trace, repeat, self.network.ifindex)?;
        Ok((run, self.datapath.counters()?.since(&before)))
    }

    /// The cost of a family's harness per packet, with the present trace.
    pub fn overhead<A: Family>(&mut self, trace: &mut Trace<A>) -> Result<f64> {
        let order = if trace.len() == TRACE {
            "long"
        } else {
            "short"
        };
        if let Some(known) = self.overheads.get(&(A::HARNESS, order)) {
            return Ok(*known);
        }
        self.harness.aim_at_own("empty")?;
        let ifindex = self.network.ifindex;
        let mut samples = [0.0; OVERHEAD_SAMPLES];
        for sample in &mut samples {
            let both = self.harness.follow(trace, OVERHEAD_REPEAT, ifindex)?;
            let empty = self.harness.run("empty", OVERHEAD_REPEAT, ifindex)?;
            check::action(&both, action::TX)?;
            *sample = both.ns - empty.ns;
        }
        let overhead = median(&mut samples);
        self.overheads.insert((A::HARNESS, order), overhead);
        Ok(overhead)
    }

    /// A floor: a program of the harness on its own.
    pub fn floor(&mut self, program: &str, case: &Case) -> Result<Sample> {
        let seed = self.random.next();
        self.harness
            .look_up(program, case.flows, seed, case.repeat / 8)?;
        let run = self
            .harness
            .look_up(program, case.flows, !seed, case.repeat)?;
        check::action(&run, action::TX)?;
        Ok(Sample::new(run.ns))
    }

    /// Packets to no service. Without a harness, because they are not changed.
    pub fn pass(&mut self, case: &Case) -> Result<Sample> {
        let tuple = client::<Ip4>(0, TCP, Destination::Stranger);
        let frame = traffic::arriving(&tuple, Kind::later::<Ip4>(TCP));
        let program = self.datapath.program()?;
        let ifindex = self.network.ifindex;
        harness::run(program, case.repeat / 8, ifindex, &frame)?;
        let before = self.datapath.counters()?;
        let run = harness::run(program, case.repeat, ifindex, &frame)?;
        let counted = self.datapath.counters()?.since(&before);
        check::action(&run, action::PASS)?;
        check::counts(&counted, &[(Reason::NotService, case.repeat)])?;
        check::frame(&run, &frame)?;
        Ok(Sample::new(run.ns))
    }

    /// Packets to a service without endpoints, each answered.
    pub fn reject(&mut self, case: &Case) -> Result<Sample> {
        let kind = Kind {
            protocol: TCP,
            flags: tcp_flag::SYN,
            numbers: (0, 0),
            // Exactly what the answer quotes, so that nothing has to be cut off.
            length: ETHERNET + Ip4::HEADER + 20,
        };
        let tuple = client::<Ip4>(0, TCP, Destination::Empty);
        let frame = traffic::arriving(&tuple, kind);
        let overhead = self.answer_overhead(&frame)?;
        self.harness.aim(self.datapath.program()?)?;
        let program = self.harness.program(ANSWER_HARNESS)?;
        let ifindex = self.network.ifindex;
        harness::run(program, case.repeat / 8, ifindex, &frame)?;
        let before = self.datapath.counters()?;
        let run = harness::run(program, case.repeat, ifindex, &frame)?;
        let counted = self.datapath.counters()?.since(&before);
        check::action(&run, action::TX)?;
        check::counts(&counted, &[(Reason::NoEndpoints, case.repeat)])?;
        check::frame(&run, &traffic::port_unreachable(&frame))?;
        Ok(Sample::new(run.ns - overhead))
    }

    /// The cost of harness and stand-in, without that of the empty program and of one
    /// `adjust_head`, which the stand-in makes itself.
    fn answer_overhead(&mut self, frame: &[u8]) -> Result<f64> {
        let key = (ANSWER_HARNESS, "same");
        if let Some(known) = self.overheads.get(&key) {
            return Ok(*known);
        }
        self.harness.aim_at_own("fake_answer")?;
        let time = |program: &str| -> Result<f64> {
            let program = self.harness.program(program)?;
            let run = harness::run(program, OVERHEAD_REPEAT, self.network.ifindex, frame)?;
            check::action(&run, action::TX)?;
            Ok(run.ns)
        };
        let mut samples = [0.0; OVERHEAD_SAMPLES];
        for sample in &mut samples {
            let both = time(ANSWER_HARNESS)?;
            *sample = both - (time("empty")? + time("adjust_twice")?) / 2.0;
        }
        let overhead = median(&mut samples);
        self.overheads.insert(key, overhead);
        Ok(overhead)
    }
}
