//! The status page as a browser shows it.

use std::{collections::BTreeSet, env, fs, net::SocketAddr, path::PathBuf};

use anyhow::{Context, Result, ensure};
use lb_tests::{
    Balanced, Browser, Family, Held, Lab, Request,
    browser::Key,
    eventually,
    manifests::admission::{flow_schema, priority_level},
    traffic::RunningServer,
};
use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::{CLUSTER_IP, NODE_PORT, SMALL, serve_web};

const PORT: u16 = 10246;
/// Connections that stay.
const HELD: usize = 3;
/// Connections that have ended.
const PAST: usize = 4;
/// The level of the Service gets two thirds of the connections.
const LIMITS: [&str; 2] = ["--admission=enforce", "--max-connections=30"];

/// What is behind `#/`, and its heading.
const VIEWS: [(&str, &str); 8] = [
    ("", "Overview"),
    ("services", "Services"),
    ("service/default/web", "default/web"),
    ("flows", "Flows"),
    ("flows?client=nobody", "Flows"),
    ("admission", "Admission"),
    ("explain", "Explain"),
    ("node", "Node"),
];

/// Names may be whatever their owners type.
const FILE: &str = "<img src=x onerror=alert(1)>.yaml";
const OBJECT: &str = "
apiVersion: v1
kind: Service
metadata: {name: '<script>alert(2)</script>', namespace: default}
spec: {clusterIP: '<b>nowhere</b>', ports: [{port: 80}]}
";

#[test]
fn a_node_is_to_be_seen_in_a_browser() -> Result<()> {
    let ground = Ground::up()?;
    let page = Page::open(&ground)?;
    text_stays_text(&page)?;
    services_are_filtered_and_put_in_order(&page)?;
    a_service_has_its_connections(&page, &ground)?;
    flows_are_filtered(&page, &ground)?;
    levels_and_devices_are_listed(&page)?;
    a_connection_is_explained(&page, &ground)?;
    the_keyboard_reaches_everything(&page)?;
    everybody_can_read_each_view(&page)?;
    the_last_hour_is_drawn(&page)?;
    page.photographs()?;
    nothing_has_gone_wrong(&page)?;
    a_silent_agent_is_told(&page, &ground)
}

/// A node whose agent serves the page, with something to show.
struct Ground {
    // Dropped first.
    held: Vec<Held>,
    _server: RunningServer,
    balanced: Balanced,
}

impl Ground {
    fn up() -> Result<Self> {
        let lab = Lab::up(SMALL)?;
        let objects = lab.id().dir().join("admission.json");
        let services = json!({ "namespaces": ["default"], "services": ["web"] });
        let schema = flow_schema("tenant", &json!({ "kind": "Any" }), &services);
        let items = [priority_level("tenant", 10), schema];
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        fs::write(&objects, list.to_string())?;
        let objects = format!("--admission-objects={}", objects.display());
        let address = format!("--status-page-bind-address=0.0.0.0:{PORT}");
        let own = ["--xdp-mode=native", &address, &objects];
        let balanced = Balanced::in_lab(lab, &[&own[..], &LIMITS].concat())?;
        let server = serve_web(&balanced)?;
        let lab = &balanced.lab;
        balanced.change(|| {
            let idle = lab.service("idle").cluster_ip("10.96.0.11");
            idle.tcp("lines", 80, 9090).apply()
        })?;
        let client = lab.client();
        let target: SocketAddr = format!("{CLUSTER_IP}:80").parse()?;
        for _ in 0..PAST {
            Request::tcp(target).send(client)?;
        }
        let held = (0..HELD).map(|_| Held::open_patiently(client, target));
        let held = held.collect::<Result<_>>()?;
        balanced.change_something(|| lab.manifests().write(FILE, OBJECT.as_bytes()))?;
        Ok(Self {
            held,
            _server: server,
            balanced,
        })
    }
}

/// A browser outside the cluster, in which the page of node 1 is open.
struct Page {
    browser: Browser,
    url: String,
}

impl Page {
    fn open(ground: &Ground) -> Result<Self> {
        let lab = &ground.balanced.lab;
        let page = Self {
            browser: Browser::start(lab.client(), &lab.id().dir().join("browser"))?,
            url: format!("http://{}/", lab.node(1).at(Family::V4, PORT)),
        };
        page.browser.resize(1200, 900)?;
        page.browser.visit(&page.url)?;
        Ok(page)
    }

    /// Opens a view, and waits until it has its first figures.
    fn view(&self, path: &str) -> Result<()> {
        let view = VIEWS.iter().find(|(known, _)| *known == path);
        let (_, heading) = view.context("there is no such view")?;
        self.browser.visit(&format!("{}#/{path}", self.url))?;
        self.is_at(heading)
    }

    fn is_at(&self, heading: &str) -> Result<()> {
        let shown = "const main = document.querySelector('main[data-ready=true]');
                     return main?.querySelector('h1').innerText === arguments[0];";
        self.until(shown, json!([heading]))
    }

    /// Waits until the page shows this text in the first element of a kind.
    fn shows(&self, selector: &str, text: &str) -> Result<()> {
        let condition =
            "return document.querySelector(arguments[0])?.innerText.includes(arguments[1]);";
        self.until(condition, json!([selector, text]))
    }

    /// Waits until a row of a table begins with these cells. Empty ones may be anything.
    fn has_row(&self, cells: &[&str]) -> Result<()> {
        let condition = "return [...document.querySelectorAll('tbody tr')].some((row) =>
            arguments[0].every((cell, index) => !cell || row.cells[index]?.innerText.trim() === cell));";
        self.until(condition, json!([cells]))
    }

    /// Waits until a function's body returns something true.
    fn until(&self, condition: &str, arguments: Value) -> Result<()> {
        let found = self.browser.until(condition, arguments.clone());
        found.map(drop).with_context(|| {
            let shown = self
                .browser
                .run("return document.body.innerText;", json!([]));
            format!("{condition} {arguments}; the page shows {shown:?}")
        })
    }

    /// Clicks on an element, which may just be made anew.
    fn click(&self, selector: &str) {
        eventually(|| self.browser.click(selector));
    }

    /// Types into the field of this name, instead of what is there, and sends the form.
    fn fill(&self, field: &str, text: &str) -> Result<()> {
        let select = "document.querySelector(arguments[0]).select();";
        let field = format!("input[name={field}]");
        self.browser.run(select, json!([field]))?;
        self.browser.write(text)?;
        self.browser.press(Key::Enter)
    }

    /// Pictures for the documentation, in the directory that `NODE_LB_SCREENSHOTS` names.
    fn photographs(&self) -> Result<()> {
        let Some(directory) = env::var_os("NODE_LB_SCREENSHOTS").map(PathBuf::from) else {
            return Ok(());
        };
        let photograph = |name: &str| self.browser.photograph(&directory.join(name));
        for (path, name) in [
            ("", "overview.png"),
            ("service/default/web", "service.png"),
            ("admission", "admission.png"),
        ] {
            self.view(path)?;
            photograph(name)?;
        }
        self.browser.resize(360, 740)?;
        self.browser.prefer("dark")?;
        self.view("")?;
        photograph("overview-phone.png")?;
        self.browser.prefer("light")?;
        self.browser.resize(1200, 900)
    }
}

/// A dialog would make the next command fail.
fn text_stays_text(page: &Page) -> Result<()> {
    page.view("")?;
    for text in [FILE, "<script>alert(2)</script>", "What to do: "] {
        page.shows(".findings", text)?;
    }
    page.shows(".checks", "holds: ")?;
    let script = "return [document.title, document.images.length, document.scripts.length,
                          document.querySelectorAll('main b').length];";
    let found = page.browser.run(script, json!([]))?;
    assert_eq!(found, json!(["Overview · node-lb", 0, 1, 0]));
    Ok(())
}

fn services_are_filtered_and_put_in_order(page: &Page) -> Result<()> {
    page.view("services")?;
    let so_far = (HELD + PAST).to_string();
    let web = [
        "default/web:lines",
        "TCP",
        "3",
        "",
        "",
        "",
        "",
        "",
        "1/1",
        "",
        &so_far,
    ];
    page.has_row(&web)?;
    page.has_row(&[
        "default/idle:lines",
        "TCP",
        "0",
        "",
        "",
        "",
        "–",
        "–",
        "0/0",
    ])?;

    page.click("input[type=search]");
    page.browser.write("idle")?;
    page.shows("main p", "1 service port of 2.")?;
    let web_is_gone = "return !document.querySelector('table').innerText.includes('web');";
    page.until(web_is_gone, json!([]))?;
    page.browser
        .run("document.activeElement.select();", json!([]))?;
    page.browser.write(" ")?;
    page.shows("main p", "2 service ports of 2.")?;

    let first = |name| page.shows("tbody th", name);
    first("idle")?;
    let focus = "document.querySelector('thead th:last-child button').focus();";
    page.browser.run(focus, json!([]))?;
    for (order, top) in [("descending", "web"), ("ascending", "idle")] {
        page.browser.press(Key::Enter)?;
        page.shows(&format!("th[aria-sort={order}]"), "Connections")?;
        first(top)?;
    }
    page.browser
        .run("document.activeElement.old = true;", json!([]))?;
    let is_new = "const { innerText, old } = document.activeElement;
                  return innerText.startsWith('Connections') && !old;";
    page.until(is_new, json!([]))
}

fn a_service_has_its_connections(page: &Page, ground: &Ground) -> Result<()> {
    page.click("tbody a[href='#/service/default/web']");
    page.is_at("default/web")?;
    let lab = &ground.balanced.lab;
    let frontend = format!("{CLUSTER_IP}:80");
    page.has_row(&[&frontend, "ClusterIP"])?;
    let node_port = lab.node(1).at(Family::V4, NODE_PORT).to_string();
    page.has_row(&[&node_port])?;
    let endpoint = lab.pod("pod-1-1").at(Family::V4, 9090).to_string();
    let so_far = (HELD + PAST).to_string();
    page.has_row(&[&endpoint, "", "ready", "", "", "0", &so_far])?;
    let latency = "return [...document.querySelectorAll('tbody td')].some((cell) =>
        /^[0-9.]+ (µs|ms)$/.test(cell.innerText.trim()));";
    page.until(latency, json!([]))?;
    for held in &ground.held {
        let client = held.local().to_string();
        let cells = [&*client, "TCP", &frontend, "", &endpoint, "established"];
        page.has_row(&cells)?;
    }
    Ok(())
}

fn flows_are_filtered(page: &Page, ground: &Ground) -> Result<()> {
    page.view("flows")?;
    let found = |count: &str| page.shows("main [role=status]", &format!("{count} found."));
    page.click("select[name=stage]");
    page.browser.write("established")?;
    page.browser.press(Key::Enter)?;
    page.fill("client", "192.0.2.1")?;
    found("0")?;
    let client = ground.held[0].local().ip().to_string();
    page.fill("client", &client)?;
    found(&HELD.to_string())?;
    page.fill("service", "default/idle")?;
    found("0")?;
    page.fill("service", "default/web")?;
    found(&HELD.to_string())?;
    page.fill("client", "10.0.0.1/99")?;
    page.shows(
        "main [role=alert]",
        "client is not an IP address or a network",
    )
}

fn levels_and_devices_are_listed(page: &Page) -> Result<()> {
    page.view("admission")?;
    page.shows("main p", "enforce")?;
    page.has_row(&["tenant", &format!("{HELD} of 20"), "20"])?;
    page.has_row(&["tenant", "tenant", "1", &(HELD + PAST).to_string()])?;
    page.view("node")?;
    page.has_row(&["eth0", "external", "native"])
}

fn a_connection_is_explained(page: &Page, ground: &Ground) -> Result<()> {
    page.view("explain")?;
    let lab = &ground.balanced.lab;
    page.fill("from", &lab.client().ip(Family::V4).to_string())?;
    page.fill("to", &lab.node(1).at(Family::V4, NODE_PORT).to_string())?;
    page.shows("main [role=status]", "forward (opened)")?;
    let level = format!("priority level tenant: {HELD} of 20");
    for step in ["default/web:lines, by its NodePort", &level, "one of 1"] {
        page.shows(".way", step)?;
    }
    page.fill("to", "10.96.0.11:80")?;
    page.shows("main [role=status]", "reject (no-endpoints)")?;
    page.fill("to", "nowhere")?;
    page.shows("main .bad", "to: write IP:PORT")
}

/// From the beginning of the document on, and past what is the same in each view.
fn the_keyboard_reaches_everything(page: &Page) -> Result<()> {
    page.browser.visit("about:blank")?;
    page.view("services")?;
    let place = "const focused = document.activeElement;
                 return focused.id || focused.closest('nav, header, main, body').tagName;";
    let mut places = Vec::new();
    for _ in 0..12 {
        page.browser.press(Key::Tab)?;
        places.push(page.browser.run(place, json!([]))?);
    }
    places.dedup();
    assert_eq!(places, ["skip", "HEADER", "NAV", "pause", "MAIN"]);

    let focus = "document.getElementById('skip').focus();";
    page.browser.run(focus, json!([]))?;
    page.browser.press(Key::Enter)?;
    page.browser.press(Key::Tab)?;
    page.until(
        "return document.activeElement.type === 'search';",
        json!([]),
    )
}

/// What a view's text and its background are.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Contrast {
    is_dark: bool,
    problems: Vec<String>,
    /// What of the kinds that were asked for is there.
    kinds: Vec<String>,
}

fn everybody_can_read_each_view(page: &Page) -> Result<()> {
    let browser = &page.browser;
    let kinds = [
        "a",
        "button",
        "dt",
        ".good",
        ".bad",
        ".warning > strong",
        ".remedy",
    ];
    let mut seen = BTreeSet::new();
    let mut problems = Vec::new();
    for (path, _) in VIEWS {
        page.view(path)?;
        let mut complain = |found: Vec<String>| {
            problems.extend(
                found
                    .into_iter()
                    .map(|problem| format!("#/{path}: {problem}")),
            );
        };
        let found = browser.run(include_str!("page/accessibility.js"), json!([]))?;
        complain(serde_json::from_value(found)?);
        for scheme in ["light", "dark"] {
            browser.prefer(scheme)?;
            let found = browser.run(include_str!("page/contrast.js"), json!([kinds]))?;
            let found: Contrast = serde_json::from_value(found)?;
            ensure!(
                found.is_dark == (scheme == "dark"),
                "#/{path} is not {scheme}"
            );
            complain(found.problems);
            seen.extend(found.kinds);
        }
        browser.resize(360, 740)?;
        let widths = "const { scrollWidth, clientWidth } = document.documentElement;
                      return { innerWidth, clientWidth, scrollWidth };";
        let widths = browser.run(widths, json!([]))?;
        assert_eq!(widths["innerWidth"], 360);
        if widths["scrollWidth"] != widths["clientWidth"] {
            complain(vec![format!("scrolls sideways on a phone: {widths}")]);
        }
        browser.resize(1200, 900)?;
    }
    browser.prefer("light")?;
    assert!(problems.is_empty(), "{problems:#?}");
    assert_eq!(seen, BTreeSet::from(kinds.map(str::to_owned)));
    Ok(())
}

/// Two moments make a line.
fn the_last_hour_is_drawn(page: &Page) -> Result<()> {
    page.view("")?;
    let drawn = "const lines = [...document.querySelectorAll('.plot polyline')];
                 return lines.length >= 4 && lines[0].points.length >= 2;";
    page.until(drawn, json!([]))?;
    page.shows(".plots", "with a seat: 3")
}

/// The console has no complaint but that of a bad question, and no text becomes HTML.
fn nothing_has_gone_wrong(page: &Page) -> Result<()> {
    let mut console = page.browser.console()?;
    let is_asked_for = |url: &str| url.contains("/flows?") || url.contains("/explain");
    console.retain(|message| {
        message.level == "SEVERE" && !(message.source == "network" && is_asked_for(&message.text))
    });
    assert!(console.is_empty(), "{console:#?}");
    let refused = "try { document.body.innerHTML = '<b>'; } catch (error) { return error.name; }";
    assert_eq!(page.browser.run(refused, json!([]))?, "TypeError");
    Ok(())
}

fn a_silent_agent_is_told(page: &Page, ground: &Ground) -> Result<()> {
    page.view("flows")?;
    let agent = &ground.balanced.agents[0];
    agent.signal(Signal::SIGSTOP)?;
    page.shows(
        "#trouble",
        "no longer up to date: the agent does not answer",
    )?;
    page.until(
        "return !document.getElementById('age').innerText;",
        json!([]),
    )?;
    page.shows("table", "default/web")?;
    agent.signal(Signal::SIGCONT)?;
    let is_well = "return !document.getElementById('trouble').checkVisibility();";
    page.until(is_well, json!([]))?;
    page.shows("#age", "Live")
}
