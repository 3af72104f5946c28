//! `node-lb trace`: what the data plane decides about live packets, step by step.

use std::{io::BufRead as _, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use lb_common::verdict::Reason;

use super::{local_api::LocalApi, output::Output};
use crate::trace::{Ask, Event, Protocol, ServiceRef, Side, reason};

mod text;

/// The agent says something each second once it traces; before, it loads programs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Show what the data plane decides about live packets, step by step
///
/// For as long as it runs, programs that log take the place of the node's ordinary ones, which
/// costs each packet some time. It ends at its limits, and when this command ends. One block is one
/// look at a packet by one hook: a packet that XDP leaves to TC comes twice.
#[derive(Args, Debug)]
pub struct Command {
    /// Only connections of clients in this network, with this port
    #[arg(long, value_name = "IP[/LENGTH][:PORT]")]
    from: Option<Side>,

    /// Only connections to frontends or endpoints in this network, with this port
    #[arg(long, value_name = "IP[/LENGTH][:PORT]")]
    to: Option<Side>,

    /// Only connections to this Service, or to one port of it
    #[arg(long, value_name = "NAMESPACE/NAME[:PORT-NAME]")]
    service: Option<ServiceRef>,

    /// Only packets that are passed, sent or dropped for this reason
    #[arg(long, value_name = "REASON", value_parser = reason)]
    reason: Option<Reason>,

    /// Only packets of this protocol: tcp, udp, sctp or icmp
    #[arg(long, value_name = "PROTOCOL")]
    protocol: Option<Protocol>,

    /// Number of packets after which the trace ends
    #[arg(long, value_name = "PACKETS", default_value_t = 20)]
    limit: u32,

    /// Number of seconds after which the trace ends
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    seconds: u64,

    #[command(flatten)]
    agent: LocalApi,

    /// Form of the output; JSON is an object per packet, a line each
    #[arg(short, long, value_name = "FORM", value_enum, default_value = "table")]
    output: Output,
}

impl Command {
    /// # Errors
    /// If no agent answers, or it cannot trace.
    pub fn run(self) -> anyhow::Result<()> {
        let ask = Ask {
            from: self.from,
            to: self.to,
            service: self.service,
            reason: self.reason,
            protocol: self.protocol,
            limit: self.limit,
            duration: Duration::from_secs(self.seconds),
        };
        ask.check().map_err(|error| anyhow!("--{error}"))?;
        let path = format!("/trace?{}", ask.to_query());
        for line in self.agent.stream(PATIENCE, &path)?.lines() {
            let line = line.context("the agent says nothing any more")?;
            let event = serde_json::from_str(&line)
                .context("the agent's answer is no trace; is it of another version?")?;
            match event {
                Event::Started { untraced } => {
                    let untraced = untraced.map(|device| format!("; not on {device}"));
                    eprintln!(
                        "tracing at most {} packets for at most {} s{}",
                        ask.limit,
                        ask.duration.as_secs(),
                        untraced.unwrap_or_default()
                    );
                }
                Event::Packet(packet) => super::print(&match self.output {
                    Output::Table => text::packet(&packet),
                    Output::Json => serde_json::to_string(&packet)? + "\n",
                })?,
                Event::Idle => {}
                Event::Ended(ended) => {
                    eprintln!("{}", text::ended(&ended));
                    return Ok(());
                }
            }
        }
        bail!("the agent broke off; is it still running?")
    }
}
