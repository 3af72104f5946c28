//! Traces of live packets: programs are exchanged for those that log, and back, and nobody notices.

use lb_tests::traffic::Protocol;
use node_lb::trace::Packet;

use super::restart::attached;
use super::support::{Everywhere, Policy, ground, load_balancer_ip, wait_for_programs};
use lb_tests::Family;

#[test]
fn packets_are_traced_under_load_and_programs_put_back() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let load = Everywhere::start(&ground);
    let before = attached(&ground);

    let vip = load_balancer_ip(Family::V4, Protocol::Http);
    let to = vip.to_string();
    let traced = ground
        .trace(1, &["--to", &to, "--limit=12", "-o", "json"])
        .unwrap();
    let traced = traced.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&traced.stderr).into_owned();
    assert!(traced.status.success(), "{told}");
    let lines = String::from_utf8(traced.stdout).unwrap();
    let packets: Vec<Packet> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(packets.len(), 12, "{told}");
    for packet in &packets {
        let ends = [packet.source, packet.rewritten_source, packet.destination];
        assert!(ends.contains(&Some(vip)), "{packet:?}");
        assert!(!packet.reason.is_empty(), "{packet:?}");
    }
    assert!(packets.iter().any(|packet| packet.endpoint.is_some()));
    let seen: u64 = told
        .split("packets traced of ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .unwrap();
    assert!(seen > 12, "others' packets were looked at as well: {told}");
    assert_eq!(attached(&ground), before, "as it was");

    let mut endless = ground
        .trace(1, &["--reason=not-writable", "--seconds=300"])
        .unwrap();
    wait_for_programs("a trace that runs", || ground.is_tracing(1).unwrap());
    assert_ne!(attached(&ground), before, "programs that log");
    let second = ground.trace(1, &[]).unwrap().wait_with_output().unwrap();
    let refused = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(refused.contains("409"), "{refused}");
    endless.kill().unwrap();
    endless.wait().unwrap();
    wait_for_programs("ordinary programs, after the command was killed", || {
        attached(&ground) == before
    });
    assert_eq!(ground.status(1).unwrap().trace, None);

    let mut endless = ground
        .trace(1, &["--reason=not-writable", "--seconds=300"])
        .unwrap();
    wait_for_programs("another trace that runs", || ground.is_tracing(1).unwrap());
    ground.kill_agents().unwrap();
    endless.wait().unwrap();
    assert_ne!(attached(&ground), before, "nobody has put them back");
    ground.start_agents().unwrap();
    assert_eq!(attached(&ground), before, "the next agent has");
    load.assert_nothing_noticed();
}
