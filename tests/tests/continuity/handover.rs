//! Another service proxy hands over to node-lb, and node-lb hands over to it: connections go on
//! where they began.

use std::net::SocketAddr;

use anyhow::Result;
use lb_tests::traffic::RunningServer;
use lb_tests::{
    Agent, Balanced, Endpoint, Family, Held, Host, Lab, PATIENCE, Pod, Request, Serve, Topology,
    balanced,
};

const CLUSTER_IP: &str = "10.96.0.10";

const TOPOLOGY: Topology = Topology {
    nodes: 1,
    pods_per_node: 3,
    ..Topology::DEFAULT
};

/// Where node-lb sends connections, and where the other proxy does, so that answers show which one
/// served.
const OURS: &str = "pod-1-1";
const THEIRS: &str = "pod-1-2";
/// A client on the node.
const POD: &str = "pod-1-3";

#[test]
fn connections_of_another_proxy_go_on_while_node_lb_takes_the_new_ones() -> Result<()> {
    let lab = Lab::up(TOPOLOGY)?;
    let _servers = serve(&lab);
    other_proxy(&lab)?;
    let mut before = [
        Held::open(lab.client(), target()?)?,
        Held::open(lab.pod(POD), target()?)?,
        Held::open(lab.node(1), target()?)?,
    ];
    for open in &mut before {
        assert_eq!(open.ask()?.server, THEIRS);
    }

    let ground = Balanced::in_lab(lab, &["--xdp-mode=native", "--handover=in"])?;
    ground.change(|| program(&ground))?;
    let clients: [&Host; 3] = [ground.lab.client(), ground.lab.pod(POD), ground.lab.node(1)];
    for (open, client) in before.iter_mut().zip(clients) {
        assert_eq!(open.ask()?.server, THEIRS, "{client}");
        assert_eq!(
            Request::tcp(target()?).send(client)?.server,
            OURS,
            "{client}"
        );
    }
    Ok(())
}

/// Shows why there is the setting: without it, a segment of an unknown connection starts a new one.
#[test]
fn without_the_setting_they_are_cut() -> Result<()> {
    let lab = Lab::up(TOPOLOGY)?;
    let _servers = serve(&lab);
    other_proxy(&lab)?;
    let mut before = Held::open(lab.client(), target()?)?;
    assert_eq!(before.ask()?.server, THEIRS);
    let ground = Balanced::in_lab(lab, &["--xdp-mode=native"])?;
    ground.change(|| program(&ground))?;
    before.ask().unwrap_err();
    Ok(())
}

#[test]
fn connections_of_node_lb_go_on_while_another_proxy_takes_the_new_ones() -> Result<()> {
    let mut ground = Balanced::up(TOPOLOGY)?;
    let _servers = serve(&ground.lab);
    ground.change(|| program(&ground))?;
    let open = |client: &Host| Held::open(client, target()?);
    let mut before = [open(ground.lab.client())?, open(ground.lab.pod(POD))?];
    other_proxy(&ground.lab)?;
    for open in &mut before {
        assert_eq!(open.ask()?.server, OURS);
    }
    // The other proxy's rules see nothing as long as node-lb takes everything.
    let client = ground.lab.client();
    assert_eq!(Request::tcp(target()?).send(client)?.server, OURS);

    ground.stop_agents()?;
    let node = ground.lab.node(1);
    let out = balanced::spec(node, &["--xdp-mode=native", "--handover=out"])?;
    let agent = Agent::start(node, out)?;
    let clients: [&Host; 3] = [ground.lab.client(), ground.lab.pod(POD), node];
    for client in clients {
        let reply = Request::tcp(target()?).send(client)?;
        assert_eq!(reply.server, THEIRS, "{client}");
    }
    for open in &mut before {
        assert_eq!(open.ask()?.server, OURS);
    }

    // When these connections have ended, node-lb can go.
    drop(before);
    assert!(agent.stop(PATIENCE)?.success());
    balanced::clean_up(node)?;
    for client in clients {
        assert_eq!(Request::tcp(target()?).send(client)?.server, THEIRS);
    }
    Ok(())
}

fn target() -> Result<SocketAddr> {
    Ok(format!("{CLUSTER_IP}:80").parse()?)
}

fn serve(lab: &Lab) -> Vec<RunningServer> {
    let start = |pod: &Pod| Serve::new(pod.name()).tcp(9090).start(pod);
    [OURS, THEIRS]
        .into_iter()
        .map(|name| start(lab.pod(name)).expect("a server starts"))
        .collect()
}

/// Programs node-lb to send connections to [`OURS`].
fn program(ground: &Balanced) -> Result<()> {
    let lab = &ground.lab;
    let service = lab.service("web").cluster_ip(CLUSTER_IP);
    service.tcp("lines", 80, 9090).apply()?;
    let slices = lab.endpoints("web").tcp("lines", 9090);
    slices.with(Endpoint::ready(lab.pod(OURS))).apply()
}

/// Installs rules like kube-proxy's, which send connections to [`THEIRS`].
fn other_proxy(lab: &Lab) -> Result<()> {
    let endpoint = lab.pod(THEIRS).ip(Family::V4);
    let translate = format!("ip daddr {CLUSTER_IP} tcp dport 80 dnat to {endpoint}:9090");
    let rules = format!(
        "table ip kube-proxy {{
            chain prerouting {{
                type nat hook prerouting priority dstnat
                {translate}
            }}
            chain output {{
                type nat hook output priority -100
                {translate}
            }}
            chain postrouting {{
                type nat hook postrouting priority srcnat
                ct status dnat masquerade
            }}
        }}"
    );
    lab.node(1).feed("nft -f -", &rules).map(drop)
}
