//! Measures one proxy, from its start to its end.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use lb_tests::Agent;

use super::{ground::Ground, probe::wait_for, proxy::Proxy, services::Services};
use crate::{
    cluster::usage::{self, Memory},
    options::Options,
    statistics::Random,
};

/// How many of the Services are asked, at even distances.
const SAMPLE: usize = 50;
/// How long it may take until all Services are programmed.
const START_DEADLINE: Duration = Duration::from_secs(600);
/// How long a change may take.
const CHANGE_DEADLINE: Duration = Duration::from_secs(60);
/// By then everything that a proxy does after a start or a change is over.
const AFTERMATH: Duration = Duration::from_secs(5);
/// The longest pause between two changes. Pauses are random, so that a proxy that works in rounds
/// is not always met at the same moment of a round.
const MOST_PAUSE_MS: u32 = 2_000;
/// Changes per second under churn.
const CHURN_RATE: u32 = 100;

/// The size of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Changes that connections are to follow.
    changes: usize,
    /// How long the proxy is watched while nothing changes, and under churn.
    time: Duration,
}

impl Extent {
    /// As the command line says.
    pub fn of(options: &Options) -> Self {
        let (changes, seconds) = if options.quick { (4, 2) } else { (40, 20) };
        Self {
            changes,
            time: Duration::from_secs(seconds),
        }
    }
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Sample {
    /// From the start until all Services were programmed.
    pub programmed: Duration,
    /// From each change until a connection followed it, sorted.
    pub changes: Vec<Duration>,
    pub rest: Load,
    pub churn: Load,
    /// Changes per second that the API server accepted.
    pub churn_rate: f64,
}

/// What a proxy used for some time.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// CPU time divided by elapsed time.
    pub cpu: f64,
    /// Memory at the end.
    pub memory: Memory,
}

/// Starts a proxy, measures it, and removes it.
///
/// # Errors
///
/// If it does not start, does not follow a change, or leaves something behind.
pub fn measure(
    proxy: Proxy,
    ground: &Ground,
    services: &mut Services,
    extent: Extent,
) -> Result<Sample> {
    let spec = proxy.spec(ground)?;
    let since = Instant::now();
    let mut agent = Agent::launch(ground.node(), spec)?;
    match measure_from(since, &mut agent, ground, services, extent) {
        Ok(sample) => proxy.remove(agent, ground).map(|()| sample),
        Err(error) => bail!("{error:#}; its log:\n{}", agent.log()?),
    }
}

fn measure_from(
    since: Instant,
    agent: &mut Agent,
    ground: &Ground,
    services: &mut Services,
    extent: Extent,
) -> Result<Sample> {
    let client = ground.client().netns();
    client.run(|| wait_for_all(services, agent))??;
    let programmed = since.elapsed();

    thread::sleep(AFTERMATH);
    let changes = client.run(|| follow_changes(services, agent, extent.changes))??;

    thread::sleep(AFTERMATH);
    let (rest, ()) = load(agent, ground, || {
        thread::sleep(extent.time);
        Ok(())
    })?;
    let (churn, churn_rate) = load(agent, ground, || churn(services, extent.time))?;
    Ok(Sample {
        programmed,
        changes,
        rest,
        churn,
        churn_rate,
    })
}

/// Numbers of the Services that are asked.
fn sampled(services: &Services) -> impl Iterator<Item = usize> + Clone + use<> {
    let count = services.count();
    (0..count).step_by(count.div_ceil(SAMPLE))
}

fn wait_for_all(services: &Services, agent: &mut Agent) -> Result<()> {
    sampled(services).try_for_each(|number| {
        let (target, group) = services.get(number);
        wait_for(group, target, agent, START_DEADLINE)
    })
}

/// How long it takes until connections follow each of some changes.
fn follow_changes(
    services: &mut Services,
    agent: &mut Agent,
    count: usize,
) -> Result<Vec<Duration>> {
    let mut random = Random::new(1);
    let mut times = Vec::with_capacity(count);
    for number in sampled(services).cycle().take(count) {
        let pause = random.below(MOST_PAUSE_MS);
        thread::sleep(Duration::from_millis(u64::from(pause)));
        services.change(number)?;
        let since = Instant::now();
        let (target, group) = services.get(number);
        wait_for(group, target, agent, CHANGE_DEADLINE)?;
        times.push(since.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

/// Changes one Service after the other. Returns how many per second.
fn churn(services: &mut Services, time: Duration) -> Result<f64> {
    let since = Instant::now();
    let count = CHURN_RATE * time.as_secs() as u32;
    for change in 0..count {
        let due = since + Duration::from_secs(1) * change / CHURN_RATE;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        services.change(change as usize % services.count())?;
    }
    Ok(f64::from(count) / since.elapsed().as_secs_f64())
}

/// What the proxy uses during `work`.
fn load<T>(agent: &Agent, ground: &Ground, work: impl FnOnce() -> Result<T>) -> Result<(Load, T)> {
    // Only the proxy, and programs that it calls, run in the node's cgroup.
    let cpu = || usage::cgroup_cpu_time(ground.node().cgroup());
    let (since, before) = (Instant::now(), cpu()?);
    let done = work()?;
    let cpu = (cpu()? - before).as_secs_f64() / since.elapsed().as_secs_f64();
    let memory = usage::memory(agent.pid())?;
    Ok((Load { cpu, memory }, done))
}
