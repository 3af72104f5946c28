//! The samples, and the report about them.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Map, Value, json};

use super::{
    CAPACITY, PER_CLIENT, SetUp, WAIT,
    measure::{BACK_OFF, DEADLINE, Demand, Extent, HOLD, PAUSE, Sample},
    peers::Peers,
};
use crate::{
    lab::idle::Begun,
    plot::{Bars, Group, Panel, Plot},
    report::Findings,
    statistics::{Figures, micros, millis},
    table::Table,
};

/// A figure of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    Asked,
    ConnectP50,
    ConnectP99,
    AnswerP50,
    AnswerP99,
    Failed,
    RepeatedSyns,
    NoisyAnswered,
    NoisyFailed,
    Machine,
    LabCpu,
    Balancer,
}

impl Metric {
    const ALL: [Self; 12] = [
        Self::Asked,
        Self::ConnectP50,
        Self::ConnectP99,
        Self::AnswerP50,
        Self::AnswerP99,
        Self::Failed,
        Self::RepeatedSyns,
        Self::NoisyAnswered,
        Self::NoisyFailed,
        Self::Machine,
        Self::LabCpu,
        Self::Balancer,
    ];
    /// The metrics with a row of panels in the plot.
    const PLOTTED: [Self; 4] = [
        Self::AnswerP99,
        Self::Failed,
        Self::NoisyAnswered,
        Self::LabCpu,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Asked => "quiet: asked",
            Self::ConnectP50 => "connect p50, ms",
            Self::ConnectP99 => "p99",
            Self::AnswerP50 => "answer p50, ms",
            Self::AnswerP99 => "p99",
            Self::Failed => "failed, %",
            Self::RepeatedSyns => "SYNs repeated",
            Self::NoisyAnswered => "noisy: answered/s",
            Self::NoisyFailed => "failed/s",
            Self::Machine => "CPU µs: machine",
            Self::LabCpu => "lab",
            Self::Balancer => "balancer",
        }
    }

    /// Its name where no other metric is near.
    fn caption(self) -> &'static str {
        match self {
            Self::AnswerP99 => "quiet: answer p99, ms",
            Self::Failed => "quiet: failed, %",
            Self::NoisyAnswered => "noisy: answered/s",
            Self::LabCpu => "lab: CPU µs per answer",
            other => other.name(),
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::Asked => "quiet_asked",
            Self::ConnectP50 => "quiet_connect_p50_ms",
            Self::ConnectP99 => "quiet_connect_p99_ms",
            Self::AnswerP50 => "quiet_answer_p50_ms",
            Self::AnswerP99 => "quiet_answer_p99_ms",
            Self::Failed => "quiet_failed_percent",
            Self::RepeatedSyns => "quiet_repeated_syns",
            Self::NoisyAnswered => "noisy_answered_per_second",
            Self::NoisyFailed => "noisy_failed_per_second",
            Self::Machine => "machine_cpu_us",
            Self::LabCpu => "lab_cpu_us",
            Self::Balancer => "balancer_cpu_us",
        }
    }

    fn decimals(self) -> usize {
        match self {
            Self::ConnectP50
            | Self::ConnectP99
            | Self::AnswerP50
            | Self::AnswerP99
            | Self::Failed => 1,
            Self::Asked
            | Self::RepeatedSyns
            | Self::NoisyAnswered
            | Self::NoisyFailed
            | Self::Machine
            | Self::LabCpu
            | Self::Balancer => 0,
        }
    }

    /// Its value; `None` for latencies without any.
    fn of(self, sample: &Sample) -> Option<f64> {
        let quiet = &sample.quiet;
        let asked = quiet.ok + quiet.failed;
        let of_connects = |time| (quiet.connects.max > Duration::ZERO).then(|| millis(time));
        let of_answers = |time| (quiet.ok > 0).then(|| millis(time));
        match self {
            Self::Asked => Some(asked as f64),
            Self::ConnectP50 => of_connects(quiet.connects.p50),
            Self::ConnectP99 => of_connects(quiet.connects.p99),
            Self::AnswerP50 => of_answers(quiet.p50),
            Self::AnswerP99 => of_answers(quiet.p99),
            Self::Failed => (asked > 0).then(|| 100.0 * quiet.failed as f64 / asked as f64),
            Self::RepeatedSyns => Some(quiet.repeated_syns.len() as f64),
            Self::NoisyAnswered => Some(sample.noisy.answered),
            Self::NoisyFailed => Some(sample.noisy.failed),
            Self::Machine => Some(micros(sample.cpu.machine)),
            Self::LabCpu => Some(micros(sample.cpu.lab)),
            Self::Balancer => Some(micros(sample.cpu.balancer)),
        }
    }
}

/// All samples of a run.
#[derive(Debug)]
pub struct AdmissionReport {
    peers: Peers,
    extent: Extent,
    samples: BTreeMap<(Demand, SetUp), Vec<Sample>>,
    /// Whether the machine was idle before the samples.
    pub begun: Begun,
}

impl AdmissionReport {
    /// A report without samples.
    pub fn new(peers: Peers, extent: Extent) -> Self {
        Self {
            peers,
            extent,
            samples: BTreeMap::new(),
            begun: Begun::default(),
        }
    }

    /// Adds a sample.
    pub fn add(&mut self, demand: Demand, set_up: SetUp, sample: Sample) {
        let samples = self.samples.entry((demand, set_up)).or_default();
        samples.push(sample);
    }

    /// The results, for tables and plots.
    pub fn findings(&self) -> Findings {
        let mut tables: Vec<_> = Demand::ALL.map(|demand| self.table(demand)).into();
        // Once is enough.
        tables[0].notes = self.notes();
        Findings {
            key: "admission",
            tables,
            json: json!({
                "haproxy": self.peers.haproxy,
                "nft": self.peers.nft,
                "busy_samples": self.begun.busy,
                "figures": self.json(),
            }),
            plots: vec![self.plot()],
        }
    }

    fn notes(&self) -> Vec<String> {
        let Peers { haproxy, nft } = &self.peers;
        vec![
            format!("{haproxy}; {nft}"),
            format!(
                "the endpoint serves {CAPACITY} connections at a time; noisy clients' for {HOLD:?} each; limits of \
                 {PER_CLIENT} connections for each client; waits of at most {WAIT:?}"
            ),
            format!(
                "the quiet client connects, has its answer and closes, again after {PAUSE:?}, for {:?} and {} times at \
                 least; after a failure clients wait for {BACK_OFF:?}; they give up after {DEADLINE:?}",
                self.extent.time, self.extent.connections
            ),
            "latencies are those of connections that opened, and of answers, from before the SYN; CPU time is for each \
             answer: of the whole machine with all that runs there, of the lab (clients, endpoint, balancer), and of \
             the balancer's processes alone"
                .to_owned(),
            self.begun.note(),
        ]
    }

    fn table(&self, demand: Demand) -> Table {
        let mut columns = vec!["set-up"];
        columns.extend(Metric::ALL.map(Metric::name));
        columns.push("endpoint sees");
        let title = format!("A quiet client beside noisy ones: {demand} connections");
        let mut table = Table::new(&title, 1, &columns);
        for (set_up, samples) in self.of(demand) {
            let mut row = vec![set_up.name().to_owned()];
            row.extend(Metric::ALL.map(|metric| match figures(samples, metric) {
                Some(figures) => format!("{:.*}", metric.decimals(), figures.median),
                None => "-".to_owned(),
            }));
            row.push(endpoint_sees(samples).to_owned());
            table.add(row);
        }
        table
    }

    fn json(&self) -> Vec<Value> {
        let samples = self.samples.iter();
        samples
            .map(|((demand, set_up), samples)| {
                let figures = Metric::ALL
                    .map(|metric| (metric.key().to_owned(), json!(figures(samples, metric))));
                let mut object = Map::from_iter(figures);
                object.insert("by".to_owned(), json!(set_up.key()));
                object.insert("noisy_clients".to_owned(), json!(demand.clients));
                object.insert("noisy_connections".to_owned(), json!(demand.connections));
                object.insert("endpoint_sees".to_owned(), json!(endpoint_sees(samples)));
                Value::Object(object)
            })
            .collect()
    }

    /// A row of panels for each metric, with a panel for each demand.
    fn plot(&self) -> Plot {
        let panels = Metric::PLOTTED.into_iter().flat_map(|metric| {
            Demand::ALL.map(|demand| Panel {
                title: metric.caption(),
                decimals: 0,
                groups: vec![self.group(metric, demand)],
            })
        });
        Plot::Bars(Bars {
            file: "admission.svg",
            title: "a quiet client beside noisy ones that want more than the endpoint can serve",
            names: SetUp::ALL.map(SetUp::name).into(),
            panels: panels.collect(),
        })
    }

    fn group(&self, metric: Metric, demand: Demand) -> Group {
        let height = |(_, samples): (SetUp, &Vec<Sample>)| {
            figures(samples, metric).map_or(0.0, |figures| figures.median)
        };
        Group {
            label: demand.to_string(),
            heights: self.of(demand).map(height).collect(),
        }
    }

    /// The samples with a demand, by set-up.
    fn of(&self, demand: Demand) -> impl Iterator<Item = (SetUp, &Vec<Sample>)> {
        let of = move |((of, set_up), samples): (&(Demand, SetUp), _)| {
            (*of == demand).then_some((*set_up, samples))
        };
        self.samples.iter().filter_map(of)
    }
}

fn figures(samples: &[Sample], metric: Metric) -> Option<Figures> {
    let values: Vec<_> = samples.iter().filter_map(|one| metric.of(one)).collect();
    Figures::of(&values)
}

/// Whose address the endpoint sees.
fn endpoint_sees(samples: &[Sample]) -> &'static str {
    match samples.iter().all(|sample| sample.keeps_address) {
        true => "client",
        false => "balancer",
    }
}
