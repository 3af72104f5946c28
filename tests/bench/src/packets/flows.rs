//! Flows in node-lb's table, which its own program opens for packets; and the cases that use them.

use anyhow::{Context, Result, ensure};
use lb_common::{
    flow::Flow,
    parse::{ETHERNET, Tuple, checksum_offset},
    pipeline::WITHOUT_RING,
    verdict::Reason,
};

use super::{
    cases::{Case, Direction, Service},
    check,
    datapath::{FlowTable, HALF_OPEN, SNAT_PORTS},
    family::Family,
    harness::{Run, TRACE, Trace, action},
    rig::Rig,
    sample::Sample,
    traffic::{self, Kind, NODE, TARGET_PORT, address_of, client},
};

/// The part of first packets that must open a flow. The table may refuse a few when it is half
/// full, and so may source NAT.
const OPENED: f64 = 0.98;
/// Packets before a sample of opened flows.
const WARM_UP: u32 = 10_000;

/// The flows of a family.
pub struct Flows<A: Family> {
    table: FlowTable<A>,
    trace: Trace<A>,
    crowd: Option<Crowd<A>>,
}

/// A set of flows that are the only ones in the table.
struct Crowd<A> {
    service: Service,
    asked: u32,
    /// Packets of clients as they arrive.
    requests: Vec<Tuple<A>>,
    /// Packets of endpoints, for the same flows.
    answers: Vec<Tuple<A>>,
}

impl<A: Family> Flows<A> {
    /// Starts without flows.
    ///
    /// # Errors
    ///
    /// If maps are missing or cannot be mapped into memory.
    pub fn new(rig: &mut Rig) -> Result<Self> {
        Ok(Self {
            table: rig.datapath.flows()?,
            trace: rig.harness.trace()?,
            crowd: None,
        })
    }

    /// A sample of packets that find their flow.
    pub fn established(
        &mut self,
        rig: &mut Rig,
        service: Service,
        direction: Direction,
        case: &Case,
    ) -> Result<Sample> {
        self.gather(rig, service, case.flows)?;
        let crowd = self.crowd.as_ref().expect("just gathered");
        let (sent, received, reason) = match direction {
            Direction::ToEndpoint => (&crowd.requests, &crowd.answers, Reason::ToEndpoint),
            Direction::ToClient => (&crowd.answers, &crowd.requests, Reason::ToClient),
        };
        let length = match case.flows {
            1 => 1,
            // Few enough to stay in a cache beside the flows.
            2..=1024 => 1 << 12,
            _ => TRACE,
        };
        let drawn: Vec<usize> = (0..length)
            .map(|_| rig.random.below(sent.len() as u32) as usize)
            .collect();
        let kind = Kind::later::<A>(service.protocol);
        let frames = drawn
            .iter()
            .map(|number| traffic::arriving(&sent[*number], kind));
        self.trace.set(frames, checksum_at::<A>(kind));

        let overhead = rig.overhead(&mut self.trace)?;
        rig.follow(&mut self.trace, case.repeat / 8)?;
        let (run, counted) = rig.follow(&mut self.trace, case.repeat)?;
        check::counts(&counted, &[(reason, case.repeat)])?;
        let last = drawn[self.trace.last()];
        check_sent(
            rig,
            &run,
            service,
            direction,
            &received[last].reversed(),
            kind,
        )?;
        Ok(Sample::new(run.ns - overhead))
    }

    /// A sample of packets that open flows.
    pub fn opening(&mut self, rig: &mut Rig, service: Service, case: &Case) -> Result<Sample> {
        // The flows that the previous sample opened must go.
        self.crowd = None;
        self.gather(rig, service, case.flows)?;
        self.crowd = None;
        let present = self.table.live() as u64;
        let (sample, opened) = self.open(rig, service, case)?;
        self.check_live(present + 2 * opened)?;
        Ok(sample)
    }

    /// A sample of packets that open flows without completed handshakes, more than their service
    /// may have.
    pub fn flooded(&mut self, rig: &mut Rig, service: Service, case: &Case) -> Result<Sample> {
        self.crowd = None;
        self.table.clear(true);
        let (sample, opened) = self.open(rig, service, case)?;
        self.check_live(2 * opened.min((WITHOUT_RING + HALF_OPEN).into()))?;
        Ok(sample)
    }

    /// A sample of first packets whose connections find no seat.
    pub fn refused(&mut self, rig: &mut Rig, service: Service, case: &Case) -> Result<Sample> {
        self.crowd = None;
        self.table.clear(false);
        let (requests, overhead) = self.newcomers(rig, service, case)?;
        rig.follow(&mut self.trace, WARM_UP)?;
        let (run, counted) = rig.follow(&mut self.trace, case.repeat)?;
        check::counts(&counted, &[(Reason::ConcurrencyLimit, case.repeat)])?;
        check::action(&run, action::DROP)?;
        let kind = Kind::first::<A>(service.protocol);
        let last = &requests[self.trace.last()];
        check::frame(&run, &traffic::arriving(last, kind))?;
        self.check_live(0)?;
        Ok(Sample::new(run.ns - overhead))
    }

    /// Prepares first packets of flows in addition to the present ones, for a warm-up and a sample. Returns
    /// what they are of, and the harness's cost.
    fn newcomers(
        &mut self,
        rig: &mut Rig,
        service: Service,
        case: &Case,
    ) -> Result<(Vec<Tuple<A>>, f64)> {
        rig.datapath.classify(service.destination.is_classified());
        let kind = Kind::first::<A>(service.protocol);
        let numbers = case.flows..case.flows + WARM_UP + case.repeat;
        let requests: Vec<Tuple<A>> = numbers
            .map(|number| client(number, service.protocol, service.destination))
            .collect();
        let frames = requests.iter().map(|tuple| traffic::arriving(tuple, kind));
        self.trace.set(frames, checksum_at::<A>(kind));

        let overhead = rig.overhead(&mut self.trace)?;
        self.trace.rewind();
        Ok((requests, overhead))
    }

    /// Opens flows in addition to the present ones. Returns how many there are.
    fn open(&mut self, rig: &mut Rig, service: Service, case: &Case) -> Result<(Sample, u64)> {
        let kind = Kind::first::<A>(service.protocol);
        let (requests, overhead) = self.newcomers(rig, service, case)?;
        let (_, warm) = rig.follow(&mut self.trace, WARM_UP)?;
        let (run, counted) = rig.follow(&mut self.trace, case.repeat)?;
        let opened = check::opened(&counted, case.repeat, OPENED)?;
        match self.table.find(&requests[self.trace.last()]) {
            Some(flow) => {
                let left = translated(&flow);
                check_sent(rig, &run, service, Direction::ToEndpoint, &left, kind)?;
            }
            None => check::action(&run, action::DROP)?,
        }
        let sample = Sample {
            ns: run.ns - overhead,
            opened: Some(opened as f64 / f64::from(case.repeat)),
        };
        Ok((sample, opened + check::opened(&warm, WARM_UP, OPENED)?))
    }

    /// Checks how many records are in use.
    fn check_live(&self, expected: u64) -> Result<()> {
        let live = self.table.live() as u64;
        ensure!(live == expected, "{live} live records, not {expected}");
        Ok(())
    }

    /// Makes sure that exactly `asked` flows to a service exist, and that their next hops are known
    /// in both directions.
    fn gather(&mut self, rig: &mut Rig, service: Service, asked: u32) -> Result<()> {
        let wanted = |crowd: &Crowd<A>| crowd.service == service && crowd.asked == asked;
        if self.crowd.as_ref().is_some_and(wanted) {
            return Ok(());
        }
        self.crowd = None;
        self.table.clear(false);
        let all: Vec<Tuple<A>> = (0..asked)
            .map(|number| client(number, service.protocol, service.destination))
            .collect();
        self.crowd = Some(self.shake_hands(rig, service, &all)?);
        Ok(())
    }

    /// Opens flows, and sends packets until both sides have answered.
    fn shake_hands(
        &mut self,
        rig: &mut Rig,
        service: Service,
        all: &[Tuple<A>],
    ) -> Result<Crowd<A>> {
        let asked = all.len() as u32;
        let (mut requests, mut answers) = (Vec::new(), Vec::new());
        let counted = self.send(rig, all, Kind::first::<A>(service.protocol))?;
        let opened = check::opened(&counted, asked, OPENED)?;
        for request in all.iter().copied() {
            let Some(flow) = self.table.find(&request) else {
                continue;
            };
            let answer = translated(&flow).reversed();
            check_translation(service, &request, &answer)?;
            let reply = self
                .table
                .find(&answer)
                .context("a flow has no reply record")?;
            ensure!(
                translated(&reply).reversed() == request,
                "a flow's records disagree"
            );
            requests.push(request);
            answers.push(answer);
        }
        ensure!(
            requests.len() as u64 == opened,
            "{opened} flows were opened, {} are found",
            requests.len()
        );
        let answered = match service.destination.is_remote() {
            true => Reason::ToClient,
            false => Reason::ReplyToStack,
        };
        let kind = Kind::answer::<A>(service.protocol);
        let counted = self.send(rig, &answers, kind)?;
        check::counts(&counted, &[(answered, opened as u32)])?;
        let kind = Kind::later::<A>(service.protocol);
        let counted = self.send(rig, &requests, kind)?;
        check::counts(&counted, &[(Reason::ToEndpoint, opened as u32)])?;
        Ok(Crowd {
            service,
            asked,
            requests,
            answers,
        })
    }

    /// Sends one packet of each tuple. Returns what was counted.
    fn send(
        &mut self,
        rig: &mut Rig,
        tuples: &[Tuple<A>],
        kind: Kind,
    ) -> Result<Vec<(Reason, u64)>> {
        if tuples.is_empty() {
            return Ok(Vec::new());
        }
        let frames = tuples.iter().map(|tuple| traffic::arriving(tuple, kind));
        self.trace.set(frames, checksum_at::<A>(kind));
        Ok(rig.follow(&mut self.trace, tuples.len() as u32)?.1)
    }
}

/// Offset of the checksum in a frame.
fn checksum_at<A: Family>(kind: Kind) -> usize {
    ETHERNET + A::HEADER + checksum_offset(kind.protocol)
}

/// The tuple of a flow's packets after translation.
fn translated<A: Family>(flow: &Flow<A>) -> Tuple<A> {
    Tuple {
        source: flow.rewrite.source,
        destination: flow.rewrite.destination,
        source_port: flow.rewrite.source_port,
        destination_port: flow.rewrite.destination_port,
        protocol: flow.protocol(),
        pad: [0; 3],
    }
}

/// Checks that a flow goes where its service says.
fn check_translation<A: Family>(
    service: Service,
    request: &Tuple<A>,
    answer: &Tuple<A>,
) -> Result<()> {
    let family = traffic::family::<A>();
    let right = match service.destination.is_remote() {
        true => {
            answer.destination == address_of(NODE[family])
                && SNAT_PORTS.contains(&answer.destination_port)
        }
        false => {
            answer.destination == request.source && answer.destination_port == request.source_port
        }
    };
    ensure!(
        right && traffic::is_endpoint(answer.source) && answer.source_port == TARGET_PORT,
        "{request:?} was translated for answers {answer:?}"
    );
    Ok(())
}

/// Checks the last packet of a run.
fn check_sent<A: Family>(
    rig: &Rig,
    run: &Run,
    service: Service,
    direction: Direction,
    tuple: &Tuple<A>,
    kind: Kind,
) -> Result<()> {
    let ethernet = match (service.destination.is_remote(), direction) {
        (true, Direction::ToEndpoint) => rig.network.to_endpoints,
        (true, Direction::ToClient) => rig.network.to_clients,
        (false, _) => {
            check::action(run, action::PASS)?;
            return check::frame(run, &traffic::arriving(tuple, kind));
        }
    };
    check::action(run, action::TX)?;
    check::frame(run, &traffic::forwarded(ethernet, tuple, kind))
}
