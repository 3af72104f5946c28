//! The status page, and the address that serves it. What it shows in a browser is a test of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use lb_objects::ObjectName;
use node_lb::{
    agent::{
        local_api::{
            SharedApi,
            traffic::{ServiceEndpoints, Traffic, TrafficSource},
        },
        page::StatusPage,
    },
    metrics::Metrics,
};
use tokio::sync::{RwLock, mpsc};

use crate::{
    client::{Reply, get, request_of},
    local_api::Agent,
    support::Parts,
};

/// An agent that serves the page on an address of its own.
fn start() -> Agent {
    Agent::serving(Parts::new(<_>::default()), |api| {
        let shared = SharedApi::default();
        shared.set(Some(api));
        page(shared)
    })
}

fn page(api: SharedApi) -> StatusPage {
    StatusPage::new(api, Arc::new(Metrics::new().http))
}

/// As a browser asks that has been given the address.
async fn ask(agent: &Agent, path: &str) -> Reply {
    request_of(agent.server.address(), "127.0.0.1:10246", "GET", path).await
}

/// The files that a file of the page names.
fn named(file: &Reply) -> BTreeSet<String> {
    let words = file.body.split('"').map(str::to_owned);
    let names = words.filter_map(|word| {
        let name = word.strip_prefix("./").or(word.strip_prefix("page/"))?;
        Some(format!("/page/{name}"))
    });
    names.collect()
}

/// All files of the page, by path, as a browser finds them from the first one on.
async fn files(agent: &Agent) -> BTreeMap<String, Reply> {
    let mut files = BTreeMap::new();
    let mut open = BTreeSet::from(["/".to_owned()]);
    while let Some(path) = open.pop_first() {
        let file = ask(agent, &path).await;
        assert_eq!(file.status, 200, "{path}");
        open.extend(
            named(&file)
                .into_iter()
                .filter(|path| !files.contains_key(path)),
        );
        files.insert(path, file);
    }
    files
}

#[tokio::test]
async fn every_file_that_the_page_names_is_there_and_nothing_comes_from_elsewhere() {
    let agent = start();
    let files = files(&agent).await;
    assert!(
        files.len() > 10 && files.contains_key("/page/page.css"),
        "{:?}",
        files.keys()
    );
    for (path, file) in &files {
        let expected = match path.rsplit_once('.') {
            Some((_, "js")) => "text/javascript; charset=utf-8",
            Some((_, "css")) => "text/css; charset=utf-8",
            _ => "text/html; charset=utf-8",
        };
        assert_eq!(file.headers["content-type"], expected, "{path}");
        assert_eq!(file.headers["x-content-type-options"], "nosniff", "{path}");
        let elsewhere = file.body.replace("http://www.w3.org/2000/svg", "");
        assert!(
            !elsewhere.contains("//www") && !elsewhere.contains("://"),
            "{path}"
        );
        assert!(
            !file.body.contains("style=") && !file.body.contains("innerHTML"),
            "{path}"
        );
    }
    // The local API serves the same page.
    let local = Agent::start();
    for (path, file) in &files {
        let same = get(local.server.address(), path).await;
        assert_eq!((same.status, &same.body), (200, &file.body), "{path}");
    }
}

#[tokio::test]
async fn browsers_are_told_what_to_keep_from_the_page() {
    let agent = start();
    for path in ["/", "/page/main.js", "/traffic", "/none"] {
        let reply = ask(&agent, path).await;
        let policy = &reply.headers["content-security-policy"];
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(
                policy.split("; ").any(|known| known == rule),
                "{path}: {policy}"
            );
        }
        assert_eq!(reply.headers["cache-control"], "no-store", "{path}");
        assert_eq!(
            reply.headers["cross-origin-resource-policy"], "same-origin",
            "{path}"
        );
    }
}

#[tokio::test]
async fn its_address_has_what_the_page_asks_and_no_more() {
    let agent = start();
    agent.put("shop", "web", &["10.1.0.1"]);
    for path in [
        "/status",
        "/history",
        "/traffic",
        "/traffic/shop/web",
        "/flows?limit=1",
        "/connections",
        "/queues",
        "/explain?from=192.0.2.1&to=10.96.0.1:80",
        "/api/v1/services/shop/web",
        "/readyz?verbose",
        "/readyz/ping",
    ] {
        assert_eq!(ask(&agent, path).await.status, 200, "{path}");
    }
    for path in [
        "/configz",
        "/trace",
        "/flows?follow",
        "/api/v1/services?watch",
        "/statuses",
        "/metrics",
        "/page/",
        "/page/../status",
    ] {
        assert_eq!(ask(&agent, path).await.status, 404, "{path}");
    }
    let address = agent.server.address();
    for method in ["POST", "PUT", "DELETE"] {
        for path in ["/", "/traffic"] {
            let reply = request_of(address, "127.0.0.1", method, path).await;
            assert!(
                matches!(reply.status, 404 | 405),
                "{method} {path}: {}",
                reply.status
            );
        }
    }
}

/// DNS rebinding: a site has its own name stand for the node's address, and is the same site as the
/// page then.
#[tokio::test]
async fn no_other_site_reads_it_by_a_name_of_its_own() {
    let agent = start();
    let address = agent.server.address();
    for (host, status) in [
        ("127.0.0.1", 200),
        ("192.0.2.1:10246", 200),
        ("[2001:db8::1]:10246", 200),
        ("localhost:8080", 200),
        ("LocalHost", 200),
        ("evil.example", 403),
        ("evil.example:10246", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("127.0.0.1@evil.example", 403),
        ("node", 403),
        ("", 403),
    ] {
        for path in ["/", "/traffic"] {
            let reply = request_of(address, host, "GET", path).await;
            assert_eq!(reply.status, status, "{host:?} {path}");
        }
    }
}

/// Counters that are read while nobody has locked the gate.
struct Gated(Arc<RwLock<()>>);

impl TrafficSource for Gated {
    fn traffic(&self) -> anyhow::Result<Arc<Traffic>> {
        let _open = self.0.blocking_read();
        Ok(Arc::default())
    }

    fn endpoints(&self, _: &ObjectName) -> Option<ServiceEndpoints> {
        None
    }
}

/// Whoever asks more than a few browsers would keeps the page from others, but nothing else.
#[tokio::test]
async fn those_who_ask_too_much_take_few_places() {
    let gate = Arc::new(RwLock::new(()));
    let parts = Parts::new(<_>::default());
    let agent = Agent::serving(parts, |mut api| {
        api.traffic = Arc::new(Gated(gate.clone()));
        let shared = SharedApi::default();
        shared.set(Some(api));
        page(shared)
    });
    let address = agent.server.address();
    let traffic = move || request_of(address, "127.0.0.1", "GET", "/traffic");
    let closed = gate.write().await;
    let (sent, mut answered) = mpsc::channel(20);
    for _ in 0..20 {
        let sent = sent.clone();
        tokio::spawn(async move { sent.send(traffic().await.status).await });
    }
    // Eight wait, and the others are refused.
    for _ in 0..12 {
        assert_eq!(answered.recv().await, Some(429));
    }
    for path in ["/", "/page/main.js", "/readyz"] {
        assert_eq!(ask(&agent, path).await.status, 200, "{path}");
    }
    drop(closed);
    for _ in 0..8 {
        assert_eq!(answered.recv().await, Some(200));
    }
    assert_eq!(traffic().await.status, 200);
}

#[tokio::test]
async fn an_agent_that_is_not_in_charge_says_so() {
    let agent = Agent::serving(Parts::new(<_>::default()), |_| page(SharedApi::default()));
    assert_eq!(ask(&agent, "/").await.status, 200);
    let reply = ask(&agent, "/traffic").await;
    assert_eq!(
        (reply.status, &reply.json()["reason"]),
        (503, &"ServiceUnavailable".into())
    );
}
