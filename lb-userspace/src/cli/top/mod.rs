//! `node-lb top`: what comes to Services on this node, live.

use std::{
    io::{self, IsTerminal as _, Write as _},
    os::unix::net::UnixStream,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use serde::de::DeserializeOwned;

use super::{bpf_root::BpfRoot, local_api::LocalApi, output::Output};
use crate::{
    agent::local_api::traffic::{ServiceEndpoints, TRAFFIC, Traffic},
    http::get,
};

mod app;
mod bytes;
mod flows;
mod frame;
mod once;
mod rows;
mod screen;
mod table;
mod terminal;
#[cfg(test)]
mod tests;
mod view;

use self::{
    flows::{Ask, Counter},
    frame::Frame,
};

/// How long the agent may take to answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// The shortest time between two looks: an answer may be shared for as long.
const SHORTEST: Duration = Duration::from_millis(200);

/// Show what comes to Services on this node, live
///
/// Opens a screen with the service ports: their flows, and how many connections are new and refused
/// per second. Keys lead to endpoints, clients, sources and budgets. Reads the kernel's own counters,
/// so it costs packets nothing.
#[derive(Args, Debug)]
pub struct Command {
    /// Print the numbers of one interval and end
    #[arg(long)]
    once: bool,

    /// Time between two looks; at least 200ms
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    interval: Duration,

    /// Only what has this text in its name; it can be changed on the screen
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,

    #[command(flatten)]
    agent: LocalApi,

    #[command(flatten)]
    bpf_root: BpfRoot,

    /// Form of the output; JSON is an object per interval, a line each, and needs no terminal
    #[arg(short, long, value_name = "FORM", value_enum, default_value = "table")]
    output: Output,
}

impl Command {
    /// # Errors
    /// If no agent answers, or there is no terminal for the screen.
    pub fn run(self) -> anyhow::Result<()> {
        match (self.once, self.output) {
            (true, output) => {
                let frame = self.frames().nth(1).context("there are always more")??;
                super::print(&once::text(&self.kept(frame), output)?)
            }
            (false, Output::Json) => self.print_all(),
            (false, Output::Table) => {
                ensure!(
                    io::stdout().is_terminal(),
                    "this is not a terminal; use --once, or -o json"
                );
                terminal::run(self.agent, self.bpf_root.path, self.interval, self.filter)
            }
        }
    }

    /// Prints a line for each interval until nobody reads them.
    fn print_all(&self) -> anyhow::Result<()> {
        for frame in self.frames().skip(1) {
            let line = once::text(&self.kept(frame?), Output::Json)?;
            let mut out = io::stdout().lock();
            match out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                written => written.context("cannot write to standard output")?,
            }
        }
        Ok(())
    }

    /// What the agent says, again and again. The first frame does not know what was before.
    fn frames(&self) -> impl Iterator<Item = anyhow::Result<Frame>> {
        let mut before: Option<(Instant, Traffic)> = None;
        let (mut counter, services) = (Counter::default(), Ask::services());
        std::iter::from_fn(move || {
            if let Some((at, _)) = &before {
                thread::sleep(self.interval.saturating_sub(at.elapsed()));
            }
            let at = Instant::now();
            let traffic = traffic(&self.agent);
            Some(traffic.map(|traffic| {
                let mut frame = Frame::new(&traffic, before.as_ref().map(|(_, before)| before));
                before = Some((at, traffic));
                // Who may not read the tables has all else.
                if let Ok(count) = counter.count(&self.bpf_root.path, &services) {
                    frame.add_bytes(&count);
                }
                frame
            }))
        })
    }

    /// Without the service ports that the filter leaves out.
    fn kept(&self, mut frame: Frame) -> Frame {
        let filter = self.filter.to_lowercase();
        let ports = &mut frame.service_ports;
        ports.retain(|port| port.traffic.service_port.to_lowercase().contains(&filter));
        frame
    }
}

/// What has come to all Services.
fn traffic(agent: &LocalApi) -> anyhow::Result<Traffic> {
    let traffic = ask(agent, TRAFFIC)?;
    traffic.context("the agent knows no traffic; is it of an earlier version?")
}

/// The endpoints of a Service, `namespace/name`; `None` if it is not in the maps.
fn endpoints(agent: &LocalApi, service: &str) -> anyhow::Result<Option<ServiceEndpoints>> {
    ask(agent, &format!("{TRAFFIC}/{service}"))
}

/// What the agent answers, if there is something at this path.
fn ask<T: DeserializeOwned>(agent: &LocalApi, path: &str) -> anyhow::Result<Option<T>> {
    let answer = |stream: UnixStream| match get(stream, path)? {
        (200, body) => Ok(Some(body)),
        (404, _) => Ok(None),
        (code, body) => bail!("it answered {code}: {}", body.trim_end()),
    };
    let Some(body) = agent.asking(DEADLINE, answer)? else {
        return Ok(None);
    };
    let read = serde_json::from_str(&body).map(Some);
    read.context("the agent's answer is not traffic; is it of another version?")
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match interval >= SHORTEST {
        true => Ok(interval),
        false => Err("the shortest is 200ms".to_owned()),
    }
}
