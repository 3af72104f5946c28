use std::time::Duration;
use lb_tests::{agent::{Agent, AgentSpec}, lab::{Lab, Topology}, manifests::Endpoint, traffic::*};
fn main() -> anyhow::Result<()> {
    let lab = Lab::up(Topology::default())?;
    let mut servers = vec![];
    for pod in lab.pods() { servers.push(Serve::new(pod.name()).http(8080).udp(5353).start(pod)?); }
    lab.service("web").cluster_ip("10.96.0.10").tcp("http", 80, 8080).node_port(30080).load_balancer_ip("172.30.78.1").apply()?;
    let eps: Vec<_> = lab.pods().iter().map(Endpoint::ready).collect();
    lab.endpoints("web").tcp("http", 8080).with_all(eps).apply()?;
    let mut agents = vec![];
    for node in lab.nodes() {
        let mut spec = AgentSpec::node_lb("target/debug/node-lb", node);
        for a in std::env::args().skip(1) { spec = spec.arg(a); }
        match Agent::start(node, spec) { Ok(a) => agents.push(a), Err(e) => { println!("agent: {e:#}"); std::thread::sleep(Duration::from_secs(1)); return Ok(()) } }
    }
    for a in &agents { println!("{}", a.log()?); }
    let vip = "10.96.0.10:80".parse()?; let lbip = "172.30.78.1:80".parse()?;
    let np = lab.node(1).at(lb_tests::lab::Family::V4, 30080);
    for i in 0..6 {
        println!("client->np  {:?}", Request::http(np).send(lab.client()));
        println!("client->lb  {:?}", Request::http(lbip).send(lab.client()));
        println!("pod->vip    {:?}", Request::http(vip).send(lab.pod("pod-1-1")));
        println!("node->vip   {:?}", Request::http(vip).send(lab.node(1)));
        println!("pod->np     {:?}", Request::http(np).send(lab.pod("pod-1-2")));
        if i==0 { std::thread::sleep(Duration::from_millis(100)); }
    }
    for n in lab.nodes() {
    println!("{}", n.run("bash -c 'true'").unwrap_or_default()); }
    for a in &agents { println!("{}", a.log()?); }
    if std::env::var("KEEP").is_ok() { println!("keep {:?}", lab.id()); std::thread::sleep(Duration::from_secs(600)); }
    Ok(())
}
