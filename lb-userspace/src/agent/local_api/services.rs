//! `/api/v1/services`: the plan of each Service as it is in the maps.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use hyper::{StatusCode, Uri};
use lb_objects::ObjectName;
use serde::Serialize;
use tokio::{
    sync::broadcast::{self, error::RecvError},
    time::timeout,
};

use super::{HEARTBEAT, limit, line, object};
use crate::{
    agent::catalog::{Catalog, Change},
    health::initialization::Initialization,
    http::{Body, Response, Unready, error_status, query_value, response, too_many_requests},
    plan::{ServicePlan, report::PortReport},
};

/// The path of all Services; a single one is below it, `NAMESPACE/NAME`.
pub const SERVICES: &str = "/api/v1/services";

/// One Service, as the API shows it.
#[derive(Serialize)]
struct ServiceObject<'a> {
    namespace: &'a str,
    name: &'a str,
    ports: Vec<PortReport<'a>>,
}

impl<'a> From<&'a ServicePlan> for ServiceObject<'a> {
    fn from(plan: &'a ServicePlan) -> Self {
        Self {
            namespace: &plan.service.namespace,
            name: &plan.service.name,
            ports: PortReport::all(plan),
        }
    }
}

/// A part of the list, and where the next part starts.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    items: Vec<ServiceObject<'a>>,
    /// To be given back as `?continue=`; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    r#continue: Option<String>,
    remaining_item_count: usize,
}

/// A line of a watch.
#[derive(Serialize)]
struct Event<T> {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<T>,
}

/// One Service, from what is known so far. Until the agent knows the whole cluster, a Service that
/// is not found may still come, so the answer is not 404.
pub fn get(catalog: &Catalog, initialization: &Initialization, name: &ObjectName) -> Response {
    if let Some(plan) = catalog.get(name) {
        return object(&ServiceObject::from(&*plan));
    }
    match initialization.unready() {
        Some(Unready { retry_after, .. }) => too_many_requests(
            retry_after,
            format_args!("whether there is a Service {name} is not known yet; try again later"),
        ),
        None => error_status(
            StatusCode::NOT_FOUND,
            "NotFound",
            format_args!("there is no Service {name}"),
        ),
    }
}

/// All Services; with `?limit=`, so many of them, and the next ones with `?continue=`.
pub fn list(catalog: &Catalog, uri: &Uri) -> Response {
    let limit = match limit(uri) {
        Ok(limit) => limit,
        Err(refusal) => return *refusal,
    };
    let after = match query_value(uri, "continue").filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => match ObjectName::parse(&text) {
            Some(name) => Some(name),
            None => {
                let message = "continue is not what a list ended with";
                return error_status(StatusCode::BAD_REQUEST, "BadRequest", message);
            }
        },
    };
    let Some(limit) = limit else {
        let (plans, _) = catalog.page(after.as_ref(), usize::MAX);
        return response(StatusCode::OK, "application/json", Body::stream(all(plans)));
    };
    let (plans, remaining_item_count) = catalog.page(after.as_ref(), limit);
    object(&Page {
        items: plans.iter().map(|plan| plan.as_ref().into()).collect(),
        r#continue: match (plans.last(), remaining_item_count) {
            (Some(last), 1..) => Some(last.service.to_string()),
            _ => None,
        },
        remaining_item_count,
    })
}

/// The whole list, written piece by piece as the client takes it, because it may be large.
fn all(plans: Vec<Arc<ServicePlan>>) -> impl futures_util::Stream<Item = Bytes> + Send {
    let items = plans.into_iter().enumerate().map(|(index, plan)| {
        let mut text = match index {
            0 => Vec::new(),
            _ => b",".to_vec(),
        };
        text.extend_from_slice(&line(&ServiceObject::from(&*plan)));
        Bytes::from(text)
    });
    let begin = Bytes::from_static(b"{\"items\":[\n");
    let end = Bytes::from_static(b"],\"remainingItemCount\":0}\n");
    stream::iter([begin].into_iter().chain(items).chain([end]))
}

/// Every Service as `ADDED`, then a `BOOKMARK`, then each change when it is written: one line of
/// JSON each. Another `BOOKMARK` follows when nothing changes for a while. A client that cannot
/// keep up gets `ERROR` as its last line and has to start over.
pub fn watch(catalog: &Catalog) -> Response {
    let (plans, changes) = catalog.watch();
    let initial = plans.into_iter().map(|plan| event("ADDED", &plan));
    let lines = stream::iter(initial.chain([bookmark()])).chain(following(changes));
    response(
        StatusCode::OK,
        "application/json;stream=watch",
        Body::stream(lines),
    )
}

fn following(
    changes: broadcast::Receiver<Change>,
) -> impl futures_util::Stream<Item = Bytes> + Send {
    stream::unfold(Some(changes), async |changes| {
        let mut changes = changes?;
        let Ok(change) = timeout(HEARTBEAT, changes.recv()).await else {
            return Some((bookmark(), Some(changes)));
        };
        match change {
            Ok(Change::Added(plan)) => Some((event("ADDED", &plan), Some(changes))),
            Ok(Change::Modified(plan)) => Some((event("MODIFIED", &plan), Some(changes))),
            Ok(Change::Deleted(plan)) => Some((event("DELETED", &plan), Some(changes))),
            Err(RecvError::Lagged(missed)) => {
                let message = format!("{missed} changes came faster than they were read");
                let object = Some(serde_json::json!({
                    "kind": "Status",
                    "status": "Failure",
                    "reason": "Expired",
                    "code": 410,
                    "message": message,
                }));
                let r#type = "ERROR";
                Some((line(&Event { r#type, object }), None))
            }
            Err(RecvError::Closed) => None,
        }
    })
}

fn bookmark() -> Bytes {
    line(&Event::<()> {
        r#type: "BOOKMARK",
        object: None,
    })
}

fn event(r#type: &'static str, plan: &ServicePlan) -> Bytes {
    let object = Some(ServiceObject::from(plan));
    line(&Event { r#type, object })
}
