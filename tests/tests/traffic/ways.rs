//! `explain --across-nodes` beside packets that really go the way that it tells.

use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};
use lb_common::verdict::Reason;
use lb_tests::{Endpoint, FailureKind, Family, Request};
use node_lb::explain::{
    Verdict,
    across::{Journey, Leg, Problem, Step},
};

use crate::ground::{Frontend, Ground, Vips};

/// What a way comes to.
#[derive(Debug)]
enum End<'a> {
    /// At an endpoint.
    Served(&'a Leg),
    /// Nobody serves it on this step's node.
    Refused(&'a Step),
    /// The answer does not come back.
    Astray,
}

#[test]
fn packets_go_the_ways_that_are_told() -> Result<()> {
    let ground = Ground::new()?;
    let lab = ground.lab();
    let (near, far, none) = (Vips(1), Vips(2), Vips(3));
    let (local_near, local_far) = (Vips(4), Vips(5));
    for (vips, pod, is_local) in [
        (near, "pod-1-1", false),
        (far, "pod-2-1", false),
        (local_near, "pod-1-1", true),
        (local_far, "pod-2-1", true),
    ] {
        let endpoint = [Endpoint::ready(lab.pod(pod))];
        match is_local {
            true => ground.publish(vips, |service| service.external_local(), endpoint)?,
            false => ground.publish(vips, |service| service, endpoint)?,
        }
    }
    ground.publish(none, |service| service, [])?;
    ground.settle()?;

    let clients = [
        lab.client(),
        lab.pod("pod-1-2").as_ref(),
        lab.pod("pod-1-1").as_ref(),
        lab.node(1).as_ref(),
    ];
    let mut ends = BTreeSet::new();
    for vips in [near, far, none, local_near, local_far] {
        for family in Family::BOTH {
            let here = Frontend::ALL.map(|kind| vips.at(kind, family, lab.node(1)));
            let there = vips.at(Frontend::NodePort, family, lab.node(2));
            for to in here.into_iter().chain([there]) {
                for client in clients {
                    let from = client.ip(family);
                    let mut arguments = vec![
                        format!("--from={from}"),
                        format!("--to={to}"),
                        "--across-nodes".to_owned(),
                    ];
                    // The router sends what is to Services to node-1.
                    if client.name() == lab.client().name() && to != there {
                        arguments.push("--via=node-1".to_owned());
                    }
                    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
                    let told = ground.balanced().explain(1, &arguments)?;
                    let way: Journey = serde_json::from_str(&told)?;
                    let end = end(&way.first)?;
                    let outcome = Request::tcp(to).send(client);
                    let case = format!("{from} to {to}: {end:?}, {outcome:?}");
                    ends.insert(match (&end, outcome) {
                        (End::Served(leg), Ok(reply)) => {
                            ensure!(Some(reply.peer.ip()) == leg.from, "{case}");
                            ensure!(reply.server_address == leg.to, "{case}");
                            let pod = lab.pod(&reply.server);
                            ensure!(leg.place.node.as_deref() == Some(&*pod.node), "{case}");
                            match leg.then {
                                Some(_) => "served elsewhere",
                                None => "served here",
                            }
                        }
                        (End::Refused(step), Err(failure)) => {
                            let decision = step.decision.as_ref();
                            match decision.map(|report| report.verdict) {
                                Some(Verdict::Reject) => {
                                    ensure!(failure.kind == FailureKind::Refused, "{case}");
                                    "refused"
                                }
                                Some(Verdict::Drop) => {
                                    ensure!(failure.kind == FailureKind::Timeout, "{case}");
                                    "dropped"
                                }
                                _ => bail!("{case}"),
                            }
                        }
                        (End::Astray, Err(_)) => "astray",
                        (_, outcome) => bail!("{case}: {outcome:?}"),
                    });
                }
            }
        }
    }
    let all = [
        "astray",
        "dropped",
        "refused",
        "served elsewhere",
        "served here",
    ];
    ensure!(ends.iter().eq(&all), "{ends:?}");
    Ok(())
}

/// Where a way ends that has only one end.
fn end(mut step: &Step) -> Result<End<'_>> {
    let mut last = None;
    loop {
        let Some(decision) = &step.decision else {
            bail!("{step:?}");
        };
        match (&step.onward[..], decision.verdict) {
            ([leg], _) => {
                match &leg.problems[..] {
                    [] => {}
                    [Problem::AnswerAstray] => return Ok(End::Astray),
                    problems => bail!("{problems:?}"),
                }
                last = Some(leg);
                match &leg.then {
                    Some(then) => step = then,
                    None => return Ok(End::Served(leg)),
                }
            }
            ([], Verdict::Pass) if decision.reason == Reason::NotService => {
                return match last {
                    Some(leg) => Ok(End::Served(leg)),
                    None => bail!("nobody serves {}", decision.to),
                };
            }
            ([], _) => return Ok(End::Refused(step)),
            (legs, _) => bail!("several ways: {legs:?}"),
        }
    }
}
