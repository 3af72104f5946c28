//! The API server: whether it can be reached, and whether it allows the agent to do its work.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

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
    docs::Section,
    source::api::{Connection, within},
};

const CHECK: &str = "API server";
/// How long each answer may take.
const DEADLINE: Duration = Duration::from_secs(10);
const REACH: &str = "set KUBERNETES_SERVICE_HOST and _PORT to the API server's own address, or --kubeconfig or \
                     --master";
const GRANT: &str = "bind the agent's account to deploy/base's ClusterRole node-lb";

/// What the agent asks for.
struct Right {
    group: &'static str,
    /// With the subresource, if it is one's.
    resource: &'static str,
    verbs: &'static [&'static str],
    /// What is so without it; `None` means that the agent cannot work.
    without: Option<&'static str>,
}

const FOLLOW: &[&str] = &["list", "watch"];

const RIGHTS: [Right; 4] = [
    needed("", "services"),
    needed("discovery.k8s.io", "endpointslices"),
    needed("", "nodes"),
    Right {
        group: "events.k8s.io",
        resource: "events",
        verbs: &["create", "patch"],
        without: Some("Services will have no Events"),
    },
];

/// What it asks for besides, unless unknown ports of Services are ignored.
const SERVICE_CIDRS: Right = Right {
    group: "networking.k8s.io",
    resource: "servicecidrs",
    verbs: FOLLOW,
    without: Some("packets to addresses that no Service has are not dropped"),
};

/// The same for the objects of connection admission. The right to ask for pods is one's own to give:
/// `status` says where it is missed.
const ADMISSION: [Right; 5] = [
    of_admission("prioritylevels", FOLLOW, NO_OBJECTS),
    of_admission("flowschemas", FOLLOW, NO_OBJECTS),
    of_admission("prioritylevels/status", &["patch"], NO_STATUS),
    of_admission("flowschemas/status", &["patch"], NO_STATUS),
    Right {
        without: Some(NO_LIMITS),
        ..needed("", "namespaces")
    },
];
const NO_LIMITS: &str = "the limits of Namespaces are not in force";
const NO_OBJECTS: &str = "connections are not limited as the objects say";
const NO_STATUS: &str = "these objects' status will not say what is wrong with them";

const fn needed(group: &'static str, resource: &'static str) -> Right {
    Right {
        group,
        resource,
        verbs: FOLLOW,
        without: None,
    }
}

const fn of_admission(
    resource: &'static str,
    verbs: &'static [&'static str],
    without: &'static str,
) -> Right {
    Right {
        group: "node-lb.io",
        resource,
        verbs,
        without: Some(without),
    }
}

/// A right that the account lacks, such as `list nodes`, and what is so without it.
type Missing = (String, Option<&'static str>);

/// No findings if the API server is not the source.
pub async fn check(config: &Config) -> Vec<Finding> {
    if config.source != SourceSpec::Kubernetes {
        return Vec::new();
    }
    let connection = match Connection::open(config.api_access.clone(), Arc::default()).await {
        Ok(connection) => connection,
        Err(error) => return vec![out_of_reach(format!("{error:#}"))],
    };
    let client = connection.current().client;
    let rights = match missing_rights(&client, config).await {
        Ok(missing) => missing,
        Err(error) => return vec![out_of_reach(error)],
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

fn out_of_reach(error: String) -> Finding {
    Finding::failure(CHECK, error, REACH).see(Section::ApiServer)
}

/// The rights that the agent asks for and this account lacks.
async fn missing_rights(client: &Client, config: &Config) -> Result<Vec<Missing>, String> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let of_admission = ADMISSION.iter().filter(|_| config.follows_admission());
    let of_cidrs = config.follows_service_cidrs().then_some(&SERVICE_CIDRS);
    let mut missing = Vec::new();
    for right in RIGHTS.iter().chain(of_admission).chain(of_cidrs) {
        let (resource, subresource) = match right.resource.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
            None => (right.resource, None),
        };
        for verb in right.verbs {
            let attributes = ResourceAttributes {
                group: Some(right.group.to_owned()),
                resource: Some(resource.to_owned()),
                subresource: subresource.clone(),
                verb: Some((*verb).to_owned()),
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
            let answer = within(DEADLINE, reviews.create(&parameters, &review)).await?;
            if !answer.status.is_some_and(|status| status.allowed) {
                missing.push((format!("{verb} {}", right.resource), right.without));
            }
        }
    }
    Ok(missing)
}

fn permissions(missing: &[Missing]) -> Finding {
    const CHECK: &str = "permissions";
    let rights: Vec<_> = missing.iter().map(|(right, _)| right.as_str()).collect();
    let rights = rights.join(", ");
    let without: BTreeSet<_> = missing.iter().map(|(_, without)| *without).collect();
    if without.is_empty() {
        return Finding::ok(CHECK, "all that the agent asks for");
    }
    let bearable: Option<Vec<_>> = without.into_iter().collect();
    let finding = match bearable {
        Some(without) => {
            let found = format!("missing: {rights}; {}", without.join("; "));
            Finding::warning(CHECK, found, GRANT)
        }
        None => Finding::failure(CHECK, format!("missing: {rights}"), GRANT),
    };
    finding.see(Section::Rights)
}

/// Whether this node's object is there, and what it says.
async fn node(client: &Client, name: &str) -> (Finding, Option<lb_objects::Node>) {
    const CHECK: &str = "Node object";
    let nodes: Api<Node> = Api::all(client.clone());
    let parameters = ListParams::default().fields(&format!("metadata.name={name}"));
    let found = match within(DEADLINE, nodes.list(&parameters.limit(1))).await {
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
    let Ok(list) = within(DEADLINE, slices.list(&parameters)).await else {
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
    let list = within(DEADLINE, services.list(&parameters.limit(1)))
        .await
        .ok()?;
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
        )
        .see(Section::ApiServer),
        false => Finding::ok(CHECK, address),
    })
}

#[cfg(test)]
mod tests {
    use super::{super::Level, *};

    #[test]
    fn without_events_the_agent_works() {
        let level = |missing: &[(&str, Option<&'static str>)]| {
            let missing = missing.iter();
            let missing: Vec<_> = missing
                .map(|(right, without)| ((*right).to_owned(), *without))
                .collect();
            permissions(&missing).level
        };
        assert_eq!(level(&[]), Level::Ok);
        let events = ("create events", Some("no Events"));
        let status = ("patch flowschemas/status", Some(NO_STATUS));
        assert_eq!(level(&[events, status]), Level::Warning);
        assert_eq!(level(&[events, ("watch nodes", None)]), Level::Failure);
    }
}
