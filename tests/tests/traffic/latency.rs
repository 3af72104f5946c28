//! Services whose endpoints are picked by how soon they answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::net::UnixStream,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{Endpoint, Family, Request, balanced, patience::try_eventually, traffic::Held};
use node_lb::{agent::local_api::traffic::ServiceEndpoints, http::get};

use crate::ground::{Frontend, Ground, Vips};

const VIPS: Vips = Vips(1);
/// New connections, one after the other.
const MANY: u32 = 200;
/// So many connections use up what the slow link sends at once.
const WARM_UP: u32 = 20;

/// The endpoint behind the slow link, on another node than the client's.
const SLOW: &str = "pod-2-1";
/// A link that passes one full packet at once, and then a small one in 60 milliseconds: more than others take on a
/// busy machine.
const SLOW_LINK: &str = "tc qdisc add dev eth0 root tbf rate 10kbit burst 1600 limit 100000";

/// How many of so many requests each server answers.
fn answered(ground: &Ground, request: Request, requests: u32) -> BTreeMap<String, u32> {
    let mut answered = BTreeMap::new();
    for _ in 0..requests {
        let reply = request.send(ground.lab().client()).unwrap();
        *answered.entry(reply.server).or_default() += 1;
    }
    answered
}

/// What node 1 has measured of the endpoints that have answered, in microseconds.
fn latencies(ground: &Ground, family: Family) -> Result<BTreeMap<String, f64>> {
    let lab = ground.lab();
    let agent = UnixStream::connect(balanced::socket(lab.node(1)))?;
    let (code, body) = get(agent, &format!("/traffic/default/{}", VIPS.name()))?;
    ensure!(code == 200, "{body}");
    let endpoints: ServiceEndpoints = serde_json::from_str(&body)?;
    let endpoints = endpoints.endpoints.iter();
    let endpoints = endpoints.filter(|endpoint| endpoint.protocol == "TCP");
    let latencies = endpoints.filter_map(|endpoint| {
        let mut pods = lab.pods().iter();
        let pod = pods.find(|pod| pod.ip(family) == endpoint.address.ip())?;
        Some((pod.name().to_owned(), endpoint.latency_us?))
    });
    Ok(latencies.collect())
}

#[test]
fn an_endpoint_that_answers_late_gets_few_connections_until_it_answers_soon() -> Result<()> {
    let ground = Ground::new()?;
    let lab = ground.lab();
    ground.publish(
        VIPS,
        |service| service.annotation("node-lb.io/algorithm", "least-latency"),
        lab.pods().iter().map(Endpoint::ready),
    )?;
    ground.settle()?;
    for family in Family::BOTH {
        let target = VIPS.at(Frontend::LoadBalancerIp, family, lab.node(1));
        let request = Request::tcp(target);
        // All are known, and take part.
        let first = answered(&ground, request, MANY);
        assert_eq!(first.len(), lab.pods().len(), "{first:?}");

        lab.pod(SLOW).run(SLOW_LINK)?;
        answered(&ground, request, WARM_UP);
        // Another one may have had bad luck, too, and is tried after five seconds.
        let mut others = BTreeSet::new();
        try_eventually(|| {
            let mut slow = answered(&ground, request, MANY);
            let of_slow = slow.remove(SLOW).unwrap_or(0);
            // At random it would be a quarter. One is due every five seconds, to see whether it is still slow.
            assert!(of_slow < MANY / 10, "{of_slow} beside {slow:?}");
            others.extend(slow.into_keys());
            ensure!(others.len() + 1 == lab.pods().len(), "only {others:?}");
            Ok(())
        })?;
        let measured = latencies(&ground, family)?;
        let soonest = measured.values().copied().fold(f64::INFINITY, f64::min);
        let of_slow = *measured.get(SLOW).context("it has answered")?;
        assert!(of_slow > 2.0 * soonest, "{measured:?}");

        lab.pod(SLOW).run("tc qdisc del dev eth0 root")?;
        // It is tried after five seconds, and may have bad luck then.
        let began = Instant::now();
        loop {
            let again = answered(&ground, request, MANY);
            if again.get(SLOW).is_some_and(|of_slow| *of_slow > MANY / 20) {
                break;
            }
            ensure!(began.elapsed() < Duration::from_secs(60), "{again:?}");
            sleep(Duration::from_millis(200));
        }
        let of_fast = latencies(&ground, family)?;
        assert!(of_fast[SLOW] < of_slow, "{of_fast:?} after {measured:?}");
    }
    Ok(())
}

#[test]
fn connections_that_stay_open_do_not_all_go_to_the_quickest() -> Result<()> {
    let ground = Ground::new()?;
    let lab = ground.lab();
    ground.publish(
        VIPS,
        |service| service.annotation("node-lb.io/algorithm", "least-latency"),
        lab.pods().iter().map(Endpoint::ready),
    )?;
    ground.settle()?;
    let target = VIPS.at(Frontend::LoadBalancerIp, Family::V4, lab.node(1));
    // One may have bad luck, and get few connections until it is tried again.
    try_eventually(|| {
        let mut held = Held::open_all(lab.client(), target, 200);
        assert_eq!(held.len(), 200);
        let mut servers = BTreeMap::<_, u32>::new();
        for connection in &mut held {
            *servers.entry(connection.ask()?.server).or_default() += 1;
            assert_eq!(connection.retransmissions()?, 0);
        }
        // Those on this node answer sooner than the others, but not ten times.
        let have_some = servers.values().all(|number| *number >= 5);
        ensure!(
            servers.len() == lab.pods().len() && have_some,
            "{servers:?}"
        );
        Ok(())
    })
}
