//! What agents have answered, as the plugin of kubectl collects it. It runs the command again with more
//! answers until there is nothing left to ask.

use std::{
    collections::HashMap,
    fmt::Write as _,
    fs::File,
    io::{self, Read},
    net::IpAddr,
    path::Path,
};

use anyhow::Context as _;
use lb_objects::Node;
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::explain::{Question, Report, Target};

/// The most agents that are asked for one way. The others count as silent.
const MOST: usize = 64;

/// Whether agents have answered, and what.
#[derive(Default)]
pub struct Answers {
    known: HashMap<Key, Option<Report>>,
    /// What they have not been asked yet.
    open: Vec<(Key, Option<String>)>,
}

/// A node, and a packet there.
type Key = (String, IpAddr, Target);

/// What the agent of a node says of a packet; null if it does not answer.
#[derive(Deserialize)]
struct Answer {
    node: String,
    from: IpAddr,
    #[serde(deserialize_with = "target")]
    to: Target,
    report: Option<Report>,
}

impl Answers {
    /// Reads objects, one after the other; `-` is standard input.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or has something else.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let reader: Box<dyn Read> = match path.to_str() {
            Some("-") => Box::new(io::stdin().lock()),
            _ => Box::new(
                File::open(path).with_context(|| format!("cannot open {}", path.display()))?,
            ),
        };
        let mut known = HashMap::new();
        let answers = serde_json::Deserializer::from_reader(io::BufReader::new(reader));
        for answer in answers.into_iter::<Answer>() {
            let Answer {
                node,
                from,
                to,
                report,
            } = answer
                .context("the answers of agents cannot be read; are they of other versions?")?;
            known.insert((node, from, to), report);
        }
        Ok(Self {
            known,
            open: Vec::new(),
        })
    }

    /// What the agent of a node has said; `None` if it has to be asked first, or does not answer.
    pub fn of(&mut self, node: &Node, question: &Question) -> Option<Report> {
        let key = (node.name.clone(), question.from, question.to);
        match self.known.get(&key) {
            Some(report) => report.clone(),
            None => {
                self.open.push((key, question.interface.clone()));
                None
            }
        }
    }

    /// Who has to be asked, a line for each: its node, `--from`, `--to`, and `--interface` if need be.
    pub fn to_ask(&self) -> String {
        let mut lines = String::new();
        let left = MOST.saturating_sub(self.known.len());
        for ((node, from, to), interface) in self.open.iter().take(left) {
            let interface = interface.as_deref().unwrap_or_default();
            // Writing to a string does not fail.
            let _ = writeln!(
                lines,
                "{}",
                format!("{node} {from} {to} {interface}").trim_end()
            );
        }
        lines
    }
}

fn target<'de, D: Deserializer<'de>>(from: D) -> Result<Target, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}
