//! Agents that follow each other on one node: outer load balancers get an answer to every probe.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use lb_tests::{
    Agent, AgentSpec, Balanced, Condition, Family, HttpAnswer, PATIENCE, another_build, balanced,
    deployment::HTTP,
    eventually, http_get,
    probes::{Probed, Probes},
};
use nix::sys::signal::Signal;

use super::{
    kills::random,
    support::{Everywhere, HEALTH_CHECK_NODE_PORT, Policy, ground},
};

const HEALTHZ: u16 = 10256;
/// Probes a second: of a load balancer, and of many.
const RATES: [u32; 2] = [10, 1000];
/// What an agent says that need not load its programs once it is in charge.
const LOADED_AHEAD: &str = "going on with programs that were loaded ahead";
const WEIGHT: &str = "x-load-balancing-endpoint-weight";
/// Takes the place of the agent that runs.
const TAKES_OVER: &[&str] = &["--xdp-mode=native", "--take-over"];
/// Waits until that one stops.
const WAITS: &[&str] = &["--xdp-mode=native"];

/// As a DaemonSet with `maxSurge` does it: the next agent takes over, and only when it is ready,
/// the one before is told to stop. Endpoints change meanwhile.
#[test]
fn a_rolling_update_leaves_no_probe_without_an_answer() {
    let (mut ground, mut web) = ground(Policy::Local);
    let first = balanced::node_lb().unwrap();
    let other = ground.lab.node(1).dir.join("node-lb-next");
    another_build::write(&first, &other).unwrap();
    let traffic = Everywhere::start(&ground);
    let probes = AllProbes::start(&ground);

    for (round, build) in [other, first].iter().enumerate() {
        let name = format!("round-{round}");
        let spec = spec(&ground, TAKES_OVER, &name).program(build);
        let mut next = Agent::launch(ground.lab.node(1), spec).unwrap();
        // Whichever agent is in charge when it learns of this.
        thread::sleep(Duration::from_millis(random(600)));
        let condition = match round {
            0 => Condition::Terminating,
            _ => Condition::Ready,
        };
        web.set_oldest(1, condition);
        web.write(&ground).unwrap();
        next.wait_until_ready().unwrap();
        assert!(next.log().unwrap().contains(LOADED_AHEAD));
        let weight = ["1", "2"][round];
        eventually(|| {
            let answer = ask(&ground)?;
            ensure!(answer.headers[WEIGHT] == weight, "{answer:?}");
            anyhow::Ok(())
        });
        replace_and_stop(&mut ground, next);
    }
    let answers = probes.stop();
    answers.assert_answered();
    // Once the new number has been told, nobody tells the old one.
    for answers in &answers.service.answers {
        let mut weights: Vec<_> = answers
            .iter()
            .map(|answer| &*answer.headers[WEIGHT])
            .collect();
        weights.dedup();
        assert!(weights.len() <= 3, "{weights:?}");
        let all = ["2", "1", "2"];
        assert!(
            weights.iter().zip(all).all(|(found, all)| *found == all),
            "{weights:?}"
        );
    }
    for answer in answers.service.all().chain(answers.healthz.all()) {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    traffic.assert_nothing_noticed();
}

/// It is slow to ask: meanwhile the next agent takes over, and the one before is told to stop.
#[test]
fn a_client_of_the_agent_before_has_its_answer_though_that_one_stops() {
    let (ground, _web) = ground(Policy::Local);
    let address = ground.lab.node(1).at(Family::V4, HEALTH_CHECK_NODE_PORT);
    let client = ground.lab.client();
    let connect = || client.netns().run(|| TcpStream::connect(address));
    // Whoever gets an answer on a later connection was accepted later.
    let mut first = connect().unwrap().unwrap();
    ask(&ground).unwrap();
    let mut next = Agent::launch(ground.lab.node(1), spec(&ground, TAKES_OVER, "next")).unwrap();
    next.wait_until_ready().unwrap();
    ground.agents[0].signal(Signal::SIGTERM).unwrap();
    thread::sleep(Duration::from_millis(200)); // one that waits for nobody is gone by then
    write!(first, "GET / HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    first.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
}

/// Without `--take-over`, and without a DaemonSet.
#[test]
fn an_agent_that_is_told_to_stop_gives_way_to_one_that_stands_by() {
    let (mut ground, _web) = ground(Policy::Local);
    let traffic = Everywhere::start(&ground);
    let probes = AllProbes::start(&ground);
    let next = stand_by(&ground, WAITS, "next");
    thread::sleep(Duration::from_millis(300));
    assert!(!is_ready(&ground, "next"), "the first one is in charge");
    replace_and_stop(&mut ground, next);
    ground.agents[0].wait_until_ready().unwrap();
    assert_follows(&ground);
    assert!(ground.agents[0].log().unwrap().contains(LOADED_AHEAD));
    probes.stop().assert_answered();
    traffic.assert_nothing_noticed();
}

/// Clients wait in the queues of the sockets, which the next agent has as well.
#[test]
fn a_kill_of_the_agent_in_charge_refuses_no_probe() {
    let (mut ground, _web) = ground(Policy::Local);
    let probes = AllProbes::start(&ground);
    let next = stand_by(&ground, WAITS, "next");
    std::mem::replace(&mut ground.agents[0], next)
        .kill()
        .unwrap();
    ground.agents[0].wait_until_ready().unwrap();
    assert_follows(&ground);
    let answers = probes.stop();
    // Those that it had accepted when it was killed are lost with it.
    for probed in [&answers.service, &answers.healthz] {
        println!("{probed}");
        assert!(
            !probed.failures.iter().any(|one| one.contains("refused")),
            "{probed}"
        );
    }
}

/// Wherever it stands: before it has asked, while it takes over, or in charge.
#[test]
fn a_successor_that_dies_leaves_the_agent_before_in_charge() {
    let (mut ground, _web) = ground(Policy::Local);
    let traffic = Everywhere::start(&ground);
    let probes = AllProbes::start(&ground);
    for round in 0..5 {
        let name = format!("victim-{round}");
        let victim = Agent::launch(ground.lab.node(1), spec(&ground, TAKES_OVER, &name)).unwrap();
        thread::sleep(Duration::from_millis(random(1500)));
        victim.kill().unwrap();
    }
    // Those that the victims had accepted are lost with them, others not.
    let answers = probes.stop();
    for probed in [&answers.service, &answers.healthz] {
        assert!(
            !probed.failures.iter().any(|one| one.contains("refused")),
            "{probed}"
        );
    }
    ground.agents[0].check().unwrap();
    assert_follows(&ground);
    traffic.assert_nothing_noticed();
}

/// A new version that does not find its API server.
#[test]
fn one_that_does_not_know_the_cluster_takes_nothing_over() {
    let (mut ground, _web) = ground(Policy::Local);
    let probes = AllProbes::start(&ground);
    let node = ground.lab.node(1);
    let nowhere = node.dir.join("nowhere");
    fs::create_dir(&nowhere).unwrap();
    let kubeconfig = nowhere.join("config");
    let text = "{apiVersion: v1, kind: Config, current-context: x, \
                contexts: [{name: x, context: {cluster: x, user: x}}], users: [{name: x, user: {}}], \
                clusters: [{name: x, cluster: {server: 'http://127.0.0.1:9'}}]}";
    fs::write(&kubeconfig, text).unwrap();
    let source = lb_tests::AgentSource::ApiServer { kubeconfig };
    let spec = balanced::spec_of(node, &source, TAKES_OVER).unwrap();
    let mut lost = Agent::launch(node, spec.log("lost.log").probed(node, "lost")).unwrap();
    thread::sleep(Duration::from_secs(2));
    lost.check().unwrap();
    assert!(!is_ready(&ground, "lost"));
    assert_follows(&ground);
    lost.kill().unwrap();
    ground.agents[0].check().unwrap();
    probes.stop().assert_answered();
}

/// The one before comes back, although the socket of the other one still exists.
#[test]
fn a_rollback_is_answered_as_well() {
    let (mut ground, _web) = ground(Policy::Local);
    let probes = AllProbes::start(&ground);
    let next = stand_by(&ground, TAKES_OVER, "next");
    let mut next = next;
    next.wait_until_ready().unwrap();
    // Its pod is deleted, because the update is taken back.
    assert!(next.stop(PATIENCE).unwrap().success());
    assert_follows(&ground);
    // The next one's were, and those that the one before has kept.
    let log = ground.agents[0].log().unwrap();
    assert_eq!(log.matches(LOADED_AHEAD).count(), 2, "{log}");
    ground.agents[0].check().unwrap();
    probes.stop().assert_answered();
}

/// What `docs/agent-endpoints.md` says of a node without an agent.
#[test]
fn without_a_successor_probes_are_refused_until_the_next_start() {
    let (mut ground, _web) = ground(Policy::Local);
    ground.stop_agents().unwrap();
    for port in [HEALTH_CHECK_NODE_PORT, HEALTHZ] {
        let error = get(&ground, port, "/").unwrap_err();
        assert!(format!("{error:#}").contains("refused"), "{error:#}");
    }
    ground.start_agents().unwrap();
    assert_eq!(ask(&ground).unwrap().status, 200);
}

/// Only root gets to the socket. One that says nothing, nonsense, or asks and then hangs takes
/// nothing away for good.
#[test]
fn strangers_on_the_socket_change_nothing() {
    let (mut ground, _web) = ground(Policy::Local);
    let probes = AllProbes::start(&ground);
    let path = balanced::socket(ground.lab.node(1)).with_extension("sock.standby");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);

    let mut strangers = Vec::new();
    for text in ["", "GET / HTTP/1.1\r\n\r\n", "{}\n", "{\"say\":\"stop\"}\n"] {
        strangers.push(say(&path, text).unwrap());
    }
    assert_follows(&ground);
    // It hangs: the agent takes its place back after ten seconds.
    let hangs = "{\"say\":\"stand-by\",\"version\":1}\n{\"say\":\"take-over\"}\n";
    strangers.push(eventually(|| say(&path, hangs)));
    eventually(|| {
        let log = ground.agents[0].log()?;
        ensure!(log.contains("has not; going on"), "{log}");
        anyhow::Ok(())
    });
    assert_follows(&ground);
    drop(strangers);
    ground.agents[0].check().unwrap();
    probes.stop().assert_answered();
}

fn say(path: &Path, text: &str) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(path)?;
    stream.write_all(text.as_bytes())?;
    Ok(stream)
}

/// Probes of node 1 over both families at all [`RATES`].
struct AllProbes {
    service: Vec<Probes>,
    healthz: Vec<Probes>,
}

struct Answers {
    service: Probed,
    healthz: Probed,
}

impl AllProbes {
    fn start(ground: &Balanced) -> Self {
        let node = ground.lab.node(1);
        let start = |port: u16, path| {
            let client = ground.lab.client();
            let ways = Family::BOTH.into_iter().zip(RATES);
            ways.map(|(family, rate)| Probes::start(client, node.at(family, port), path, rate))
                .collect()
        };
        Self {
            service: start(HEALTH_CHECK_NODE_PORT, "/"),
            healthz: start(HEALTHZ, "/healthz"),
        }
    }

    #[track_caller]
    fn stop(self) -> Answers {
        thread::sleep(Duration::from_millis(500));
        let stop = |probes: Vec<Probes>| {
            let mut all = Probed::default();
            for probed in probes.into_iter().map(|one| one.stop().unwrap()) {
                all.answers.extend(probed.answers);
                all.failures.extend(probed.failures);
            }
            all
        };
        Answers {
            service: stop(self.service),
            healthz: stop(self.healthz),
        }
    }
}

impl Answers {
    #[track_caller]
    fn assert_answered(&self) {
        println!(
            "healthCheckNodePort: {}\n/healthz: {}",
            self.service, self.healthz
        );
        self.service.assert_answered();
        self.healthz.assert_answered();
    }
}

/// How to run another agent on node 1.
fn spec(ground: &Balanced, arguments: &[&str], name: &str) -> AgentSpec {
    let node = ground.lab.node(1);
    let spec = balanced::spec(node, arguments).unwrap();
    spec.probed(node, name)
}

/// Starts another agent on node 1, and waits until the one in charge knows of it.
fn stand_by(ground: &Balanced, arguments: &[&str], name: &str) -> Agent {
    let agent = Agent::launch(ground.lab.node(1), spec(ground, arguments, name)).unwrap();
    eventually(|| {
        let log = ground.agents[0].log()?;
        ensure!(log.contains("another agent stands by"), "{log}");
        anyhow::Ok(())
    });
    agent
}

/// Tells the agent of node 1 to stop; `next` is the one from now on.
fn replace_and_stop(ground: &mut Balanced, next: Agent) {
    let before = std::mem::replace(&mut ground.agents[0], next);
    assert!(before.stop(PATIENCE).unwrap().success());
}

fn is_ready(ground: &Balanced, name: &str) -> bool {
    let path = ground.lab.node(1).dir.join(format!("{name}.probe"));
    lb_tests::agent::verdict(&path).unwrap().ready.is_none()
}

/// Fails if no agent of node 1 follows changes.
#[track_caller]
fn assert_follows(ground: &Balanced) {
    for port in [32101, 32102] {
        let service = ground.lab.service("other").cluster_ip("10.96.0.77");
        let service = service
            .tcp(HTTP.0, 80, HTTP.1)
            .load_balancer_ip("172.30.78.77");
        let service = service.external_local().set("healthCheckNodePort", port);
        service.apply().unwrap();
        eventually(|| get(ground, port, "/"));
    }
}

fn ask(ground: &Balanced) -> Result<HttpAnswer> {
    get(ground, HEALTH_CHECK_NODE_PORT, "/")
}

fn get(ground: &Balanced, port: u16, path: &str) -> Result<HttpAnswer> {
    http_get::get(
        ground.lab.client(),
        ground.lab.node(1).at(Family::V4, port),
        path,
    )
}
