//! `/flows`: the connections in the kernel's flow tables.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use hyper::{StatusCode, Uri};
use ipnet::IpNet;
use lb_objects::{ObjectName, Protocol};
use serde::Serialize;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

use super::{HEARTBEAT, MOST, line, page};
use crate::{
    agent::catalog::Catalog,
    flows::{
        FlowReport,
        holders::{Held, Holder},
    },
    http::{Body, Request, Response, error_status, query_value, response},
    plan::ServicePlan,
};

/// How often new flows are looked for.
const INTERVAL: Duration = Duration::from_secs(1);
/// The most new flows in the answer of one interval; more are only counted.
const MOST_NEW: usize = 1000;

/// The flow tables.
pub trait FlowSource: Send + Sync + 'static {
    /// At most `limit` of the flows that are wanted, and whether there are more. Blocks while it reads.
    ///
    /// # Errors
    ///
    /// If the tables cannot be read.
    fn flows(
        &self,
        wanted: &dyn Fn(&FlowReport) -> bool,
        limit: usize,
    ) -> anyhow::Result<(Vec<FlowReport>, bool)>;

    /// At most `limit` flows of flow schemas, in the sense of API Priority and Fairness, that have
    /// connections; those with the most first. Also whether there are more. Blocks while it reads.
    ///
    /// # Errors
    ///
    /// If the tables cannot be read.
    fn holders(&self, limit: usize) -> anyhow::Result<(Vec<(Holder, Held)>, bool)>;

    /// Follows the flows that are opened from now on.
    ///
    /// # Errors
    ///
    /// If the tables cannot be read.
    fn follow(&self) -> anyhow::Result<Box<dyn NewFlows>>;
}

/// Finds new flows.
pub trait NewFlows: Send {
    /// At most `limit` of the flows that were opened since the last call, and how many more there
    /// were. Blocks while it reads.
    ///
    /// # Errors
    ///
    /// If the kernel's clock cannot be read.
    fn next(&mut self, limit: usize) -> anyhow::Result<(Vec<FlowReport>, usize)>;
}

/// A line that counts the flows that were left out.
#[derive(Serialize)]
struct Skipped {
    skipped: usize,
}

#[derive(Serialize)]
struct Page {
    items: Vec<FlowReport>,
    /// Whether there are more.
    truncated: bool,
}

/// Which flows somebody asks for: all that have everything that is named.
struct Wanted {
    /// `?service=NAMESPACE/NAME`: the frontends of this Service.
    frontends: Option<HashSet<(SocketAddr, Protocol)>>,
    /// `?client=IP` or a network.
    client: Option<IpNet>,
    /// `?endpoint=IP` or a network.
    endpoint: Option<IpNet>,
    /// `?stage=NAME`.
    stage: Option<String>,
}

impl Wanted {
    /// Or what a parameter has to be.
    fn of(uri: &Uri, catalog: &Catalog) -> Result<Self, String> {
        let value = |name| query_value(uri, name).filter(|value| !value.is_empty());
        let network = |name| -> Result<Option<IpNet>, String> {
            let Some(text) = value(name) else {
                return Ok(None);
            };
            let network = text.parse().or_else(|_| text.parse().map(IpAddr::into));
            network
                .map(Some)
                .map_err(|_| format!("{name} is not an IP address or a network"))
        };
        let service = value("service")
            .map(|text| ObjectName::parse(&text).ok_or("service is not NAMESPACE/NAME"))
            .transpose()?;
        Ok(Self {
            frontends: service.map(|service| frontends(catalog.get(&service).as_deref())),
            client: network("client")?,
            endpoint: network("endpoint")?,
            stage: value("stage").map(Cow::into_owned),
        })
    }

    fn has(&self, flow: &FlowReport) -> bool {
        let within = |network: Option<IpNet>, address: SocketAddr| {
            network.is_none_or(|network| network.contains(&address.ip()))
        };
        within(self.client, flow.client)
            && within(self.endpoint, flow.endpoint)
            && self.stage.as_ref().is_none_or(|stage| stage == flow.stage)
            && self
                .frontends
                .as_ref()
                .is_none_or(|known| known.contains(&flow.key()))
    }
}

/// The frontends of a Service: none if it is not there.
fn frontends(service: Option<&ServicePlan>) -> HashSet<(SocketAddr, Protocol)> {
    let ports = service.into_iter().flat_map(|service| &service.ports);
    ports
        .flat_map(|port| {
            let protocol = port.name.protocol;
            let frontends = port.frontends.iter();
            frontends.map(move |frontend| (frontend.address, protocol))
        })
        .collect()
}

/// At most `?limit=` of the flows that are [`Wanted`].
pub async fn list(
    request: &Request,
    flows: Arc<dyn FlowSource>,
    catalog: Arc<Catalog>,
) -> Response {
    let wanted = match Wanted::of(request.uri(), &catalog) {
        Ok(wanted) => wanted,
        Err(error) => return error_status(StatusCode::BAD_REQUEST, "BadRequest", error),
    };
    page(request, MOST, move |limit| {
        let (mut items, truncated) = flows.flows(&|flow| wanted.has(flow), limit)?;
        name_services(&mut items, &catalog);
        Ok(Page { items, truncated })
    })
    .await
}

/// Each flow that is opened from now on, as one line of JSON. A line `{"skipped":N}` says that N
/// flows were left out because there were too many. With N = 0 it only says that the stream is
/// alive.
pub fn follow(flows: Arc<dyn FlowSource>, catalog: Arc<Catalog>) -> Response {
    let follower = Follower {
        flows,
        catalog,
        new: None,
        last_line: Instant::now(),
    };
    let lines = stream::unfold(follower, async |follower| match follower.next().await {
        Ok(next) => Some(next),
        Err(error) => {
            tracing::warn!("cannot follow flows: {error:#}");
            None
        }
    });
    response(
        StatusCode::OK,
        "application/json;stream=watch",
        Body::stream(lines),
    )
}

/// The state of one [`follow`].
struct Follower {
    flows: Arc<dyn FlowSource>,
    catalog: Arc<Catalog>,
    /// Not set before the first look.
    new: Option<Box<dyn NewFlows>>,
    last_line: Instant,
}

impl Follower {
    /// The next lines. It may take a while until there are some.
    async fn next(mut self) -> anyhow::Result<(Bytes, Self)> {
        loop {
            if self.new.is_some() {
                sleep(INTERVAL).await;
            }
            let (mut lines, of_work) = spawn_blocking(move || self.look()).await??;
            self = of_work;
            if lines.is_empty() && self.last_line.elapsed() >= HEARTBEAT {
                lines = line(&Skipped { skipped: 0 });
            }
            if !lines.is_empty() {
                self.last_line = Instant::now();
                return Ok((lines, self));
            }
        }
    }

    /// The flows that were opened since the last look. Blocks while it reads.
    fn look(mut self) -> anyhow::Result<(Bytes, Self)> {
        let new = match &mut self.new {
            Some(new) => new,
            none => none.insert(self.flows.follow()?),
        };
        let (mut items, skipped) = new.next(MOST_NEW)?;
        name_services(&mut items, &self.catalog);
        let mut lines: Vec<u8> = items.iter().flat_map(line).collect();
        if skipped != 0 {
            lines.extend(line(&Skipped { skipped }));
        }
        Ok((lines.into(), self))
    }
}

/// Adds to the flows the names of the Services that own their frontends.
fn name_services(flows: &mut [FlowReport], catalog: &Catalog) {
    let names = service_names(&flows.iter().map(FlowReport::key).collect(), catalog);
    for flow in flows {
        flow.service = names.get(&flow.key()).cloned();
    }
}

/// The names of the service ports that own frontends.
pub fn service_names(
    frontends: &HashSet<(SocketAddr, Protocol)>,
    catalog: &Catalog,
) -> HashMap<(SocketAddr, Protocol), String> {
    let mut names = HashMap::new();
    for plan in catalog.all() {
        for port in &plan.ports {
            let found = port
                .frontends
                .iter()
                .filter_map(|frontend| frontends.get(&(frontend.address, port.name.protocol)));
            names.extend(found.map(|frontend| (*frontend, port.name.to_string())));
        }
    }
    names
}
