//! A Prometheus in a lab, which scrapes agents and evaluates the rules of `deploy/monitoring`.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::lab::{
    Host,
    daemon::{self, Daemon},
    host::output_of,
};

/// Where it serves, on the host that it runs on.
const ADDRESS: &str = "127.0.0.1:9090";
const RULES: &str = "rules.yaml";

/// A server that scrapes every second. Dropped, it ends.
#[derive(Debug)]
pub struct Prometheus {
    process: Daemon,
    host: Host,
}

/// One series of a query's result, at this moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// The same as promtool prints it.
#[derive(Deserialize)]
struct Sample {
    metric: BTreeMap<String, String>,
    /// The time, and the value in quotes.
    value: (f64, String),
}

impl Prometheus {
    /// Starts it on `host`, with the rules of `deploy/monitoring` and its data in `directory`. Scrapes
    /// each of `targets` by a job of that name.
    ///
    /// # Errors
    /// If it has not been set up, or does not start.
    pub fn start(host: &Host, directory: &Path, targets: &[(&str, SocketAddr)]) -> Result<Self> {
        let jobs = targets.iter().map(|(job, address)| {
            format!("  - {{ job_name: {job}, static_configs: [{{ targets: ['{address}'] }}] }}\n")
        });
        let jobs: String = jobs.collect();
        let rules = monitoring().join(RULES);
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
             rule_files: ['{}']\nscrape_configs:\n{jobs}",
            rules.display()
        );
        let file = directory.join("prometheus.yaml");
        fs::write(&file, config).with_context(|| format!("cannot write {}", file.display()))?;
        let arguments = [
            format!("--config.file={}", file.display()),
            format!(
                "--storage.tsdb.path={}",
                directory.join("prometheus").display()
            ),
            format!("--web.listen-address={ADDRESS}"),
        ];
        Ok(Self {
            process: Daemon::start(host, "prometheus", &arguments, directory)?,
            host: host.clone(),
        })
    }

    /// What an expression yields at this moment. Series without a number (NaN) are left out, as on
    /// dashboards.
    ///
    /// # Errors
    /// If Prometheus has ended, or does not take the expression.
    pub fn query(&mut self, expression: &str) -> Result<Vec<Series>> {
        self.process.check()?;
        let mut command = daemon::command(&self.host, "promtool")?;
        command.args(["query", "instant", "--format=json"]);
        command.arg(format!("http://{ADDRESS}")).arg(expression);
        let answer = output_of(command, "").with_context(|| format!("query {expression}"))?;
        let samples: Vec<Sample> =
            serde_json::from_str(&answer).with_context(|| format!("promtool says {answer}"))?;
        let series = samples.into_iter().map(|sample| {
            let value = sample.value.1.parse();
            Ok(Series {
                labels: sample.metric,
                value: value.with_context(|| format!("not a number: {}", sample.value.1))?,
            })
        });
        let series: Vec<Series> = series.collect::<Result<_>>()?;
        let numbers = series.into_iter().filter(|series| !series.value.is_nan());
        Ok(numbers.collect())
    }

    /// The names of alerts that are pending or firing.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub fn alerts(&mut self) -> Result<Vec<String>> {
        let alerts = self.query("count by (alertname) (ALERTS)")?.into_iter();
        Ok(alerts
            .filter_map(|mut alert| alert.labels.remove("alertname"))
            .collect())
    }
}

/// A rule of `deploy/monitoring`: an alert, or what is recorded under another name.
#[derive(Clone, Debug, Deserialize)]
pub struct Rule {
    pub alert: Option<String>,
    /// When it is raised, or what is recorded.
    pub expr: String,
}

/// All rules of `deploy/monitoring`, in their order.
///
/// # Errors
/// If they cannot be read.
pub fn rules() -> Result<Vec<Rule>> {
    #[derive(Deserialize)]
    struct File {
        groups: Vec<Group>,
    }
    #[derive(Deserialize)]
    struct Group {
        rules: Vec<Rule>,
    }
    let text = fs::read_to_string(monitoring().join(RULES)).context(RULES)?;
    let file: File = serde_saphyr::from_str(&text).context(RULES)?;
    let rules: Vec<_> = file
        .groups
        .into_iter()
        .flat_map(|group| group.rules)
        .collect();
    ensure!(!rules.is_empty(), "{RULES} has no rules");
    Ok(rules)
}

/// When an alert of `deploy/monitoring` is raised.
///
/// # Errors
/// If there is none of this name.
pub fn condition(alert: &str) -> Result<String> {
    let mut rules = rules()?.into_iter();
    let rule = rules.find(|rule| rule.alert.as_deref() == Some(alert));
    let rule = rule.with_context(|| format!("there is no alert {alert}"))?;
    Ok(rule.expr)
}

/// The directory of rules and dashboards.
pub fn monitoring() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/monitoring")
}
