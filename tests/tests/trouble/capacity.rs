//! A full map: the Service without room says so everywhere, the others work, and it recovers.

use anyhow::Result;
use lb_tests::{Balanced, Endpoint, Request, Serve, eventually};

use crate::support::{CLUSTER_IP, SMALL, line_with, serve_web};

/// The map has room for 32 tables of this size, of which one is kept for essential Services.
const MAGLEV: &str = "--maglev-table-size=131071";
const TABLES: u8 = 31;

const NOT_PROGRAMMED: &str = r#"node_lb_services{state="not_programmed"}"#;

#[test]
fn a_service_without_room_is_said_everywhere_and_heals() -> Result<()> {
    let limits = ["--service-limits", "--namespace-limits"].map(|l| format!("{l}=maglev-tables=0"));
    let flags = ["--xdp-mode=native", MAGLEV, &limits[0], &limits[1]];
    let ground = Balanced::with(SMALL, &flags)?;
    let _server = serve_web(&ground)?;
    let server = (0..=TABLES).fold(Serve::new("maglev"), |server, n| server.tcp(target(n)));
    let _servers = ["pod-1-1", "pod-1-2"].map(|pod| server.clone().start(ground.lab.pod(pod)));
    (0..=TABLES).try_for_each(|number| maglev_service(&ground, number))?;

    let (lacking, reason) = eventually(|| {
        let status = ground.status(1).map_err(|e| format!("{e:#}"))?;
        match &*status.not_programmed {
            [one] => Ok((one.service_port.clone(), one.reason.clone())),
            others => Err(format!(
                "{others:?} of {} are without room, not one",
                status.services
            )),
        }
    });
    assert!(lacking.starts_with("default/maglev-"), "{lacking}");
    assert!(reason.contains("MAGLEV is full"), "{reason}");
    assert_eq!(ground.metric(1, NOT_PROGRAMMED)?, 1.0);
    let log = ground.agents[0].log()?;
    let said = line_with(&log, "is not programmed");
    assert!(said.contains(&lacking) && said.contains(&reason), "{said}");
    // All others are served, both unchanged and after changes.
    let client = ground.lab.client();
    let web = Request::tcp(format!("{CLUSTER_IP}:80").parse()?);
    assert_eq!(web.send(client)?.server, "pod-1-1");

    let lacks = |number: &u8| lacking.contains(&format!("/{}:", name(*number)));
    let other = (0..=TABLES).find(|number| !lacks(number)).map(name);
    ground.change(|| ground.lab.manifests().delete("Service", &other.unwrap()))?;
    eventually(|| {
        let status = ground.status(1).map_err(|e| format!("{e:#}"))?;
        match status.not_programmed.is_empty() {
            true => Ok(()),
            false => Err(format!("{:?}", status.not_programmed)),
        }
    });
    line_with(&ground.agents[0].log()?, "no longer waits for room");
    eventually(|| {
        let found = ground.metric(1, NOT_PROGRAMMED);
        match found.map_err(|e| format!("{e:#}"))? {
            0.0 => Ok(()),
            count => Err(format!("the metric still says {count}")),
        }
    });
    let healed = format!("10.96.1.{}:80", (0..=TABLES).find(lacks).unwrap());
    assert_eq!(Request::tcp(healed.parse()?).send(client)?.server, "maglev");
    Ok(())
}

/// A Service with a Maglev table of its own: the rows depend on the endpoints' ports too.
fn maglev_service(ground: &Balanced, number: u8) -> Result<()> {
    let (lab, name) = (&ground.lab, name(number));
    let service = lab.service(&name).cluster_ip(&format!("10.96.1.{number}"));
    let service = service.annotation("node-lb.io/algorithm", "maglev");
    service.tcp("lines", 80, target(number)).apply()?;
    let pods = ["pod-1-1", "pod-1-2"].map(|pod| Endpoint::ready(lab.pod(pod)));
    let slices = lab.endpoints(&name).tcp("lines", target(number));
    slices.with_all(pods).apply()
}

fn target(number: u8) -> u16 {
    9100 + u16::from(number)
}

fn name(number: u8) -> String {
    format!("maglev-{number}")
}
