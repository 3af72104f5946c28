//! Slow start: the share of an endpoint that becomes ready beside another one grows.

use std::time::Duration;

use anyhow::Result;
use lb_tests::{
    Endpoint, Family, Request, Service, eventually,
    traffic::{Load, Loads},
};

use crate::ground::{Frontend, Ground, Vips};

/// Services in which it takes far longer than the test, with their algorithms.
const SLOW: [(Vips, &str); 3] = [
    (Vips(1), "random"),
    (Vips(2), "maglev"),
    (Vips(3), "least-connections"),
];
/// A Service in which it takes two seconds.
const FAST: Vips = Vips(4);
/// New connections to a Service.
const MANY: usize = 200;
/// Of an endpoint, in each Service: three ports in two families.
const PLACES: usize = 6;
const STARTING: &str = "node_lb_slow_starting_endpoints";

/// A port of node 1 at which the Service is reached.
fn request(ground: &Ground, vips: Vips) -> Request {
    Request::tcp(vips.at(Frontend::NodePort, Family::V4, ground.lab().node(1)))
}

fn annotated<'a>(service: Service<'a>, algorithm: &str, seconds: &str) -> Service<'a> {
    let service = service.annotation("node-lb.io/algorithm", algorithm);
    service.annotation("node-lb.io/slow-start", seconds)
}

/// How many of [`MANY`] connections the server of this name gets.
fn got(ground: &Ground, vips: Vips, server: &str) -> usize {
    let request = request(ground, vips);
    let replies = (0..MANY).map(|_| request.send(ground.lab().client()).unwrap());
    replies.filter(|reply| reply.server == server).count()
}

/// By chance, one that is due half of the connections gets less than three tenths of them once in
/// 10^8 runs.
#[track_caller]
fn assert_half(ground: &Ground, vips: Vips, server: &str) {
    let got = got(ground, vips, server);
    let half = MANY * 3 / 10..=MANY * 7 / 10;
    assert!(half.contains(&got), "{vips:?}: {got} of {MANY}");
}

/// Waits until so many endpoints of each port have not their whole share on node 1.
#[track_caller]
fn wait_for_starting(ground: &Ground, endpoints: usize) {
    eventually(|| match ground.balanced().metric(1, STARTING) {
        Ok(found) if found == (endpoints * PLACES) as f64 => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

#[test]
fn a_new_endpoint_gets_its_share_with_time_or_from_the_next_agent() -> Result<()> {
    let mut ground = Ground::new()?;
    let [old, .., new] = ground.lab().pods() else {
        panic!("the lab has several pods");
    };
    let (old, new, newest) = (
        Endpoint::ready(old),
        Endpoint::ready(new),
        new.name().to_owned(),
    );
    let publish = |vips: Vips, algorithm, seconds| {
        ground.publish(
            vips,
            |service| annotated(service, algorithm, seconds),
            [old.clone()],
        )
    };
    for (vips, algorithm) in SLOW {
        publish(vips, algorithm, "3600")?;
    }
    publish(FAST, "random", "2")?;
    ground.settle()?;
    let all = SLOW.map(|(vips, _)| vips).into_iter().chain([FAST]);
    for vips in all {
        ground.endpoints(vips, [old.clone(), new.clone()])?;
    }
    ground.settle()?;
    wait_for_starting(&ground, SLOW.len());

    assert_half(&ground, FAST, &newest);
    for (vips, _) in SLOW {
        let got = got(&ground, vips, &newest);
        // One of eleven is due: a quarter is chance once in 10^12 runs.
        assert!(got < MANY / 4, "{vips:?}: {got} of {MANY}");
    }
    let (differs, text) = ground.balanced().verify(1)?;
    assert!(!differs, "{text}");

    let mut loads = Loads::beside(ground.lab().router())?;
    for (vips, _) in SLOW {
        let load = Load::new(request(&ground, vips)).workers(1);
        loads.start(ground.lab().client(), load.pause(Duration::from_millis(20)))?;
    }
    ground.restart_agents()?;
    wait_for_starting(&ground, 0);
    loads.stop()?.assert_flawless();
    for (vips, _) in SLOW {
        assert_half(&ground, vips, &newest);
    }
    Ok(())
}
