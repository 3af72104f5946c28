//! `node-lb explain`: what happens to a connection's first packet, and why.

use std::{
    net::IpAddr,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use lb_admission::configuration::InForce;
use lb_objects::{AsWritten, ObjectName};
use serde::Serialize;

use self::{
    across::{From, Way},
    answers::Answers,
};
use super::{local_api::LocalApi, output::json, snapshot::Snapshot};
use crate::{
    admission::{files, objects::Objects},
    agent::{local_api::EXPLAIN, status::Status},
    config::{AdmissionConfig, AdmissionMode, Config, Flags, object_name},
    explain::{InUse, Question, Report, Target},
    http::get,
};

mod across;
mod answers;
mod journey;
mod text;

/// The exit status if agents have to be asked first.
const AGENTS_TO_ASK: u8 = 4;
/// How long an agent may take to say how many connections there are.
const DEADLINE: Duration = Duration::from_secs(2);
/// How long it may take to explain one.
const EXPLAIN_DEADLINE: Duration = Duration::from_secs(10);

/// Show what happens to a connection's first packet, and why
///
/// Reads the source once and runs the kernel's own code on tables in memory. It changes nothing in
/// the kernel. It asks the agent on this node how many connections there are within limits now. The
/// source address, the Node object and --detect-local-mode decide whether the packet comes from a
/// local pod, from this node or from outside.
///
/// With --across-nodes it shows the whole way through the cluster: what happens on the node where node-lb
/// meets the packet first, and for each endpoint that may be chosen, what the packet looks like on the
/// endpoint's node, what happens there, and how answers come back. It says what it takes for granted.
///
/// With --live the agent on this node says it all, from what it has in force now: no source is read, and
/// of the settings only --socket counts.
#[derive(Args, Debug)]
pub struct Command {
    /// Source address
    #[arg(long, value_name = "IP", required_unless_present = "from_pod")]
    from: Option<IpAddr>,

    /// Source: a pod, which the source of objects must have; implies --across-nodes
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name, conflicts_with = "from")]
    from_pod: Option<ObjectName>,

    /// Destination; the protocol is tcp (the default), udp or sctp
    #[arg(long, value_name = "IP:PORT[/PROTOCOL]")]
    to: Target,

    /// Device that the packet arrives on, for BridgeInterface and InterfaceNamePrefix
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,

    /// Show the whole way through the cluster's nodes
    #[arg(long)]
    across_nodes: bool,

    /// Node that the packet of a client outside comes to first; implies --across-nodes [default: the
    /// node that has the destination's address]
    #[arg(long, value_name = "NODE")]
    via: Option<String>,

    /// Node that the source is on, if no object says so; implies --across-nodes
    #[arg(long, value_name = "NODE", conflicts_with_all = ["via", "from_pod"])]
    from_node: Option<String>,

    /// Ask the agent on this node instead of reading the source
    #[arg(long, conflicts_with_all = ["across_nodes", "via", "from_pod", "from_node"])]
    live: bool,

    /// What agents have answered, as the plugin of kubectl collects it; `-` is standard input. The exit
    /// status is 4 if others have to be asked first: a line for each, of its node, the source, the
    /// destination and the device
    #[arg(long, value_name = "FILE", conflicts_with = "live", hide = true)]
    answers: Option<PathBuf>,

    /// Format of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value = "text")]
    output: Output,

    #[command(flatten)]
    flags: Flags,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// Text for people
    Text,
    /// An object; the reason has its name from the metrics
    Json,
}

impl Command {
    /// # Errors
    /// If the source cannot be read, no agent answers, or it cannot be told where the packet comes first.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let from = match (self.from, self.from_pod) {
            (Some(address), _) => From::Address(address, self.from_node),
            (None, Some(pod)) => From::Pod(pod),
            (None, None) => bail!("name the source by --from or --from-pod"),
        };
        let is_one_node = !self.across_nodes && self.via.is_none() && self.answers.is_none();
        let text = match from {
            From::Address(from, None) if is_one_node => {
                let question = Question {
                    from,
                    to: self.to,
                    interface: self.interface,
                };
                across::ensure_one_family(&question)?;
                let report = match self.live {
                    true => by_agent(LocalApi::at(self.flags.socket), &question)?,
                    false => by_source(&Config::try_from(self.flags)?, &question)?,
                };
                self.output.text(&report, text::render)?
            }
            from => {
                let way = Way {
                    from,
                    to: self.to,
                    interface: self.interface,
                    via: self.via,
                };
                let config = Config::try_from(self.flags)?;
                let journey = match &self.answers {
                    None => across::by_source(&config, way)?,
                    Some(path) => {
                        let mut answers = Answers::read(path)?;
                        let journey = across::by_agents(&config, way, &mut answers)?;
                        let to_ask = answers.to_ask();
                        if !to_ask.is_empty() {
                            super::print(&to_ask)?;
                            return Ok(ExitCode::from(AGENTS_TO_ASK));
                        }
                        journey
                    }
                };
                self.output.text(&journey, journey::render)?
            }
        };
        super::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Output {
    fn text<T: Serialize>(
        self,
        result: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<String> {
        match self {
            Self::Text => Ok(text(result)),
            Self::Json => json(result),
        }
    }
}

/// What the agent's tables say, made anew from the objects of the source.
fn by_source(config: &Config, question: &Question) -> anyhow::Result<Report> {
    let mut snapshot = Snapshot::load(config)?;
    let mut situation = snapshot.situation(config);
    // It does not matter here which of a set's endpoints is chosen.
    let mut tables = snapshot.tables(config, &situation, 0);
    if let Some(in_force) = in_force(&snapshot.admission(), config)? {
        if in_force.asks_for_identity() {
            situation.pods = snapshot.pods(config)?.into();
        }
        situation.in_force = Some(Arc::new(in_force));
    }
    situation.admit(&mut tables, config)?;

    let in_use = in_use(&config.socket);
    let decision = question.ask(&mut tables, config.max_connections, &in_use);
    Ok(Report::from(&decision))
}

/// What the agent says.
fn by_agent(agent: LocalApi, question: &Question) -> anyhow::Result<Report> {
    let path = format!("{EXPLAIN}?{}", question.query());
    let body = agent.asking(EXPLAIN_DEADLINE, |stream| match get(stream, &path)? {
        (200, body) => Ok(body),
        (404, _) => bail!("it explains nothing; is it of an earlier version?"),
        (code, body) => bail!("it answered {code}: {}", body.trim_end()),
    })?;
    let report = serde_json::from_str(&body);
    report.context("the agent's answer is no explanation; is it of another version?")
}

/// The flow schemas and priority levels, if connections are classified. `of_api` are the API server's.
fn in_force(of_api: &[Arc<AsWritten>], config: &Config) -> anyhow::Result<Option<InForce>> {
    let AdmissionConfig { mode, objects } = &config.admission;
    if *mode == AdmissionMode::Off {
        return Ok(None);
    }
    let mut read = Objects::default();
    match objects {
        Some(path) => read.read(files::texts(path)?),
        None => read.read_from_api(of_api),
    }
    for error in &read.errors {
        eprintln!("warning: {error}");
    }
    Ok(Some(read.configuration.in_force()))
}

/// How many connections there are within limits now: asks the agent that listens at a socket. No agent
/// is no error.
fn in_use(socket: &Path) -> InUse {
    let answer = || -> anyhow::Result<Status> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        let (_, body) = get(stream, "/status")?;
        Ok(serde_json::from_str(&body)?)
    };
    answer().map_or_else(|_| InUse::default(), |status| status.in_use())
}
