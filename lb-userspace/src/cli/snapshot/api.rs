//! What commands read from the API server, once.

use std::{sync::Arc, time::Duration};

use anyhow::{anyhow, bail};
use k8s_openapi::api::core::v1 as core;
use kube::{Api, Client, api::ListParams};
use lb_objects::{
    Node, Object, ObjectName, Pod,
    kubernetes::{Outcome, translate},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};

use super::warn;
use crate::{
    config::Config,
    metrics::Metrics,
    source::{
        Batch, Event, Source as _,
        api::{ApiSource, Connection, Optional, within},
        health::SourceHealth,
    },
};

/// How long the API server may take to list everything.
const LIST_DEADLINE: Duration = Duration::from_secs(60);

/// How often to look what keeps it.
const LOOK: Duration = Duration::from_millis(100);

/// How long it may fail to answer. This is enough for a second attempt.
const FAILURE_DEADLINE: Duration = Duration::from_secs(5);

/// Everything the API server has.
pub async fn listed(config: &Config) -> anyhow::Result<Vec<Event>> {
    let metrics = Metrics::new().api;
    let optional = Optional::of(config);
    let source = ApiSource::open(config.api_access.clone(), &config.node_name, metrics).await?;
    let source = source.following(&optional);
    let Optional {
        admission,
        namespaces,
        service_cidrs,
    } = optional;
    // What a cluster need not have, what says that it has all come, and what it is called.
    let admission = admission.map(|health| {
        let kinds = "PriorityLevels and FlowSchemas";
        (health, Event::AdmissionSynced, kinds)
    });
    let namespaces = namespaces.map(|health| (health, Event::NamespacesSynced, "Namespaces"));
    let service_cidrs =
        service_cidrs.map(|health| (health, Event::ServiceCidrsSynced, "ServiceCIDRs"));
    let missing = admission.into_iter().chain(namespaces);
    let mut missing: Vec<_> = missing.chain(service_cidrs).collect();
    let health = source.health();
    let (sender, mut batches) = mpsc::channel::<Batch>(1);
    let start = Instant::now();
    let collect = async {
        let mut events = Vec::new();
        let mut misses_some = true;
        while misses_some || !missing.is_empty() {
            let batch = match timeout(LOOK, batches.recv()).await {
                Ok(Some(batch)) => batch,
                Ok(None) => break,
                Err(_) => {
                    missing
                        .retain(|(health, _, what)| misses_some || may_come(health, start, what));
                    continue;
                }
            };
            for event in batch.events {
                match event {
                    Event::Synced => misses_some = false,
                    Event::Problems { problems, .. } => {
                        problems.iter().for_each(|problem| warn(problem));
                    }
                    event => {
                        missing.retain(|(_, complete, _)| *complete != event);
                        events.push(event);
                    }
                }
            }
        }
        events
    };
    tokio::select! {
        events = collect => Ok(events),
        ended = Box::new(source).run(sender) => {
            ended?;
            bail!("the API server's lists ended early")
        }
        () = sleep_until(start + LIST_DEADLINE) => {
            bail!("the API server has not listed everything within {LIST_DEADLINE:?}")
        }
        error = lasting_failure(&health, start + FAILURE_DEADLINE) => bail!(error),
    }
}

/// The pods of a node, if the API server lists them.
pub async fn pods(config: &Config, node: &str) -> anyhow::Result<Vec<Arc<Pod>>> {
    let pods: Api<core::Pod> = Api::all(client(config).await?);
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let listed = match within(FAILURE_DEADLINE, pods.list(&of_node)).await {
        Ok(list) => list.items,
        Err(error) => {
            warn(&format_args!("no pods: {error}"));
            Vec::new()
        }
    };
    let outcomes = listed.iter().map(|pod| translate(pod).outcome);
    let pods = outcomes.filter_map(|outcome| match outcome {
        Outcome::Use(Object::Pod(pod)) => Some(pod),
        _ => None,
    });
    Ok(pods.collect())
}

/// A pod. `None` if there is none of this name with addresses of its own.
pub async fn pod(config: &Config, name: &ObjectName) -> anyhow::Result<Option<Arc<Pod>>> {
    let pods: Api<core::Pod> = Api::namespaced(client(config).await?, &name.namespace);
    let found = within(FAILURE_DEADLINE, pods.get_opt(&name.name)).await;
    let found = found.map_err(|error| anyhow!("cannot read pod {name}: {error}"))?;
    Ok(found.and_then(|pod| match translate(&pod).outcome {
        Outcome::Use(Object::Pod(pod)) => Some(pod),
        _ => None,
    }))
}

/// All Nodes.
pub async fn nodes(config: &Config) -> anyhow::Result<Vec<Arc<Node>>> {
    let nodes: Api<core::Node> = Api::all(client(config).await?);
    let all = ListParams::default();
    let listed = within(LIST_DEADLINE, nodes.list(&all)).await;
    let listed = listed.map_err(|error| anyhow!("cannot list Nodes: {error}"))?;
    let nodes = listed
        .items
        .iter()
        .filter_map(|node| match translate(node).outcome {
            Outcome::Use(Object::Node(node)) => Some(node),
            _ => None,
        });
    Ok(nodes.collect())
}

async fn client(config: &Config) -> anyhow::Result<Client> {
    let connection = Connection::open(config.api_access.clone(), Arc::default()).await?;
    Ok(connection.current().client)
}

/// Whether resources that a cluster need not have may still come; if not, says why.
fn may_come(health: &SourceHealth, start: Instant, what: &str) -> bool {
    let is_over = health.some_absent() || start.elapsed() >= FAILURE_DEADLINE;
    let mut errors = health.states().into_iter().filter_map(|state| state.error);
    match errors.next().filter(|_| is_over) {
        Some(error) => {
            warn(&format_args!("no {what}: {error}"));
            false
        }
        None => true,
    }
}

/// Returns the error if there is still one at the deadline.
async fn lasting_failure(health: &SourceHealth, deadline: Instant) -> String {
    sleep_until(deadline).await;
    loop {
        let failed = health.states().into_iter().find_map(|state| state.error);
        if let Some(error) = failed {
            return error;
        }
        sleep_until(Instant::now() + Duration::from_secs(1)).await;
    }
}
