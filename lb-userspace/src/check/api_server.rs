//! The API server: whether it can be reached, and whether it allows the agent to do its work.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};

use lb_objects::{
    Object,
    kubernetes::{Outcome, translate},
};

use super::{Finding, pods};
use crate::{
    config::{Config, SourceSpec},
    source::api::{Connection, Failure},
};

const CHECK: &str = "API server";
/// How long each answer may take.
const DEADLINE: Duration = Duration::from_secs(10);
const REACH: &str = "set KUBERNETES_SERVICE_HOST and _PORT to the API server's own address, or --kubeconfig or \
                     --master (docs/api-server.md)";
const GRANT: &str = "bind the agent's account to deploy/base's ClusterRole node-lb";

/// What the agent asks for: group, resource, verb.
const RIGHTS: [(&str, &str, &str); 8] = [
    ("", "services", "list"),
    ("", "services", "watch"),
    ("discovery.k8s.io", "endpointslices", "list"),
    ("discovery.k8s.io", "endpointslices", "watch"),
    ("", "nodes", "list"),
    ("", "nodes", "watch"),
    ("events.k8s.io", "events", "create"),
    ("events.k8s.io", "events", "patch"),
];

/// No findings if the API server is not the source.
pub async fn check(config: &Config) -> Vec<Finding> {
    if config.source != SourceSpec::Kubernetes {
        return Vec::new();
    }
    let connection = match Connection::open(config.api_access.clone(), Arc::default()).await {
        Ok(connection) => connection,
        Err(error) => return vec![Finding::failure(CHECK, format!("{error:#}"), REACH)],
    };
    let client = connection.current().client;
    let rights = match missing_rights(&client).await {
        Ok(missing) => missing,
        Err(error) => return vec![Finding::failure(CHECK, error, REACH)],
    };
    let mut findings = vec![Finding::ok(CHECK, "answers")];
    findings.push(permissions(&rights));
    let (found, object) = node(&client, &config.node_name).await;
    findings.push(found);
    if let Some(node) = object {
        let slices = some_slices(&client).await;
        let slices = slices.iter().map(AsRef::as_ref);
        findings.extend(pods::check(config, Some(&node), slices).await);
    }
    findings.extend(cluster_ip(&client, config).await);
    findings
}

/// The rights that the agent needs and this account lacks, such as `list nodes`.
async fn missing_rights(client: &Client) -> Result<Vec<String>, String> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut missing = Vec::new();
    for (group, resource, verb) in RIGHTS {
        let attributes = ResourceAttributes {
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            verb: Some(verb.to_owned()),
            ..ResourceAttributes::default()
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let parameters = PostParams::default();
        let answer = within(reviews.create(&parameters, &review)).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            missing.push(format!("{verb} {resource}"));
        }
    }
    Ok(missing)
}

fn permissions(missing: &[String]) -> Finding {
    const CHECK: &str = "permissions";
    let needed = missing.iter().filter(|right| !right.ends_with(" events"));
    match (missing.is_empty(), needed.count()) {
        (true, _) => Finding::ok(CHECK, "all that the agent asks for"),
        (_, 0) => Finding::warning(
            CHECK,
            format!(
                "missing: {}; Services will have no Events",
                missing.join(", ")
            ),
            GRANT,
        ),
        _ => Finding::failure(CHECK, format!("missing: {}", missing.join(", ")), GRANT),
    }
}

/// Whether this node's object is there, and what it says.
async fn node(client: &Client, name: &str) -> (Finding, Option<lb_objects::Node>) {
    const CHECK: &str = "Node object";
    let nodes: Api<Node> = Api::all(client.clone());
    let parameters = ListParams::default().fields(&format!("metadata.name={name}"));
    let found = match within(nodes.list(&parameters.limit(1))).await {
        Ok(list) => list.items.into_iter().next(),
        Err(error) => return (Finding::failure(CHECK, error, GRANT), None),
    };
    match found {
        None => (
            Finding::failure(
                CHECK,
                format!("there is no Node {name:?}"),
                "pass --node NAME, in a pod from the downward API's spec.nodeName",
            ),
            None,
        ),
        Some(object) => {
            let node = match translate(&object).outcome {
                Outcome::Use(Object::Node(node)) => Some(Arc::unwrap_or_clone(node)),
                _ => None,
            };
            (Finding::ok(CHECK, name), node)
        }
    }
}

/// The first EndpointSlices, or none: enough to see where pods have their addresses.
async fn some_slices(client: &Client) -> Vec<Arc<lb_objects::EndpointSlice>> {
    let slices: Api<EndpointSlice> = Api::all(client.clone());
    let parameters = ListParams::default().limit(500);
    let Ok(list) = within(slices.list(&parameters)).await else {
        return Vec::new();
    };
    let slices = list.items.iter().map(|slice| translate(slice).outcome);
    slices
        .filter_map(|outcome| match outcome {
            Outcome::Use(Object::EndpointSlice(slice)) => Some(slice),
            _ => None,
        })
        .collect()
}

/// Warns if the API server is reached by an address that works only while a service proxy runs.
async fn cluster_ip(client: &Client, config: &Config) -> Option<Finding> {
    const CHECK: &str = "API server's address";
    let address = config.api_access.host().await.ok()?;
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let parameters = ListParams::default().fields("metadata.name=kubernetes");
    let list = within(services.list(&parameters.limit(1))).await.ok()?;
    let spec = list.items.into_iter().next()?.spec?;
    let is_service = spec
        .cluster_ips
        .into_iter()
        .flatten()
        .any(|ip| ip == address);
    Some(match is_service {
        true => Finding::failure(
            CHECK,
            format!(
                "{address} is the cluster IP of default/kubernetes, which the agent itself has to serve"
            ),
            REACH,
        ),
        false => Finding::ok(CHECK, address),
    })
}

/// The answer, or why there is none.
async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(DEADLINE, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(format!("{} ({})", status.message, status.code)),
        Ok(Err(error)) => Err(Failure::of_connection(&error).to_string()),
        Err(_) => Err(Failure::TimedOut(DEADLINE).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Level, *};

    #[test]
    fn without_events_the_agent_works() {
        let level = |missing: &[&str]| {
            let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
            permissions(&missing).level
        };
        assert_eq!(level(&[]), Level::Ok);
        assert_eq!(level(&["create events"]), Level::Warning);
        assert_eq!(level(&["create events", "watch nodes"]), Level::Failure);
    }
}
