//! What `node-lb top` takes, and takes from the agent, where there are many Services and flows.

mod crowd;

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::balanced;
use serde_json::{Value, json};

use self::crowd::Crowd;
use crate::{
    cluster::{Cluster, Proxy, agent},
    machine::cpu_time,
    options::{Options, Part},
    report::Findings,
    table::Table,
};

/// Flows in the table.
const FLOWS: u32 = 1_000_000;
const FEW: u32 = 100_000;
/// How long each measurement takes.
const WATCHED: Duration = Duration::from_secs(60);
const QUICKLY: Duration = Duration::from_secs(10);
/// By then the agent has nothing else to do.
const AFTERMATH: Duration = Duration::from_secs(10);

/// What was measured.
#[derive(Clone, Copy, Debug)]
struct Sample {
    services: u32,
    flows: u32,
    /// Parts of one CPU: of the agent without `top`, of the agent beside it, and of `top`.
    alone: f64,
    beside: f64,
    top: f64,
    /// From one set of numbers to the next, at most. They are asked for once in a second.
    longest: Duration,
    /// How many times the numbers were equal to the kernel's, of how many.
    exact: u32,
    looks: u32,
}

/// For each number of Services, fills the flow table and watches them.
///
/// # Errors
///
/// Without root, or if the agent or `top` does not do its work.
pub fn run(options: &Options) -> Result<Findings> {
    let mut samples = Vec::new();
    for services in options.services(Part::Top) {
        samples.push(measure(services, options)?);
        eprintln!("top: {services} services done");
    }
    Ok(Findings {
        key: "top",
        tables: vec![table(&samples)],
        json: json!(samples.iter().map(Sample::json).collect::<Vec<_>>()),
        plots: Vec::new(),
    })
}

fn measure(services: u32, options: &Options) -> Result<Sample> {
    let (flows, time) = match options.quick {
        true => (FEW, QUICKLY),
        false => (FLOWS, WATCHED),
    };
    let room = format!("--flow-table-size={}", 2 * flows);
    let (cluster, _) = Cluster::build(Proxy::NodeLb, services, options.xdp_mode, &[&room])?;
    let balanced = cluster.balanced().context("no agent runs")?;
    let crowd = Crowd::of(&cluster, flows)?;
    let agent = agent::of(balanced)?.pid();
    thread::sleep(AFTERMATH);
    let share = |pid: u32, before: Duration, since: Instant| -> Result<f64> {
        Ok((cpu_time(pid)? - before).as_secs_f64() / since.elapsed().as_secs_f64())
    };

    let (since, before) = (Instant::now(), cpu_time(agent)?);
    thread::sleep(time);
    let alone = share(agent, before, since)?;

    let mut top = Watched(
        cluster
            .node()
            .command(balanced::node_lb()?)?
            .args(["top", "-o", "json", "--interval", "1s", "--socket"])
            .arg(balanced::socket(cluster.node()))
            .arg("--bpf-root")
            .arg(&cluster.node().pin_root)
            .stdout(Stdio::piped())
            .spawn()?,
    );
    let printed = top.0.stdout.take().context("a pipe")?;
    let mut frames = BufReader::new(printed).lines();
    let mut next = || -> Result<Value> {
        let line = frames.next().context("top has ended")??;
        Ok(serde_json::from_str(&line)?)
    };
    next()?;
    let (since, before, own) = (Instant::now(), cpu_time(agent)?, cpu_time(top.0.id())?);
    let mut last = since;
    let (mut longest, mut exact, mut looks) = (Duration::ZERO, 0, 0);
    while since.elapsed() < time {
        let frame = next()?;
        longest = longest.max(last.elapsed());
        last = Instant::now();
        looks += 1;
        exact += u32::from(crowd.is_shown_in(&frame)?);
    }
    let sample = Sample {
        services,
        flows,
        alone,
        beside: share(agent, before, since)?,
        top: share(top.0.id(), own, since)?,
        longest,
        exact,
        looks,
    };
    drop(top);
    ensure!(sample.looks > 0, "top has shown nothing in {time:?}");
    cluster.down()?;
    Ok(sample)
}

/// A process that ends with this.
struct Watched(Child);

impl Drop for Watched {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Sample {
    fn json(&self) -> Value {
        json!({
            "services": self.services,
            "flows": self.flows,
            "agent_alone": self.alone,
            "agent_beside": self.beside,
            "top": self.top,
            "longest_seconds": self.longest.as_secs_f64(),
            "exact": self.exact,
            "looks": self.looks,
        })
    }
}

fn table(samples: &[Sample]) -> Table {
    let columns = [
        "services",
        "flows",
        "agent % of a CPU",
        "beside top %",
        "top %",
        "longest s between looks",
        "exact looks",
    ];
    let mut table = Table::new("node-lb top, once in a second", 2, &columns);
    for sample in samples {
        let percent = |part: f64| format!("{:.2}", part * 100.0);
        table.add(vec![
            sample.services.to_string(),
            sample.flows.to_string(),
            percent(sample.alone),
            percent(sample.beside),
            percent(sample.top),
            format!("{:.2}", sample.longest.as_secs_f64()),
            format!("{}/{}", sample.exact, sample.looks),
        ]);
    }
    table
}
