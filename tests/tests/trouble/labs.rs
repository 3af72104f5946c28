//! Two clusters on one machine: no agent sees or removes what belongs to the other.

use anyhow::Result;
use lb_tests::{Balanced, Family, Request, balanced};

use crate::support::{CLUSTER_IP, NODE_PORT, SMALL, serve_web};

#[test]
fn two_labs_with_agents_live_side_by_side() -> Result<()> {
    let first = Balanced::up(SMALL)?;
    let second = Balanced::up(SMALL)?;
    let _server = serve_web(&first)?;
    let cluster_ip = Request::tcp(format!("{CLUSTER_IP}:80").parse()?);
    let ask = |ground: &Balanced| {
        let lab = &ground.lab;
        let node_port = Request::tcp(lab.node(1).at(Family::V4, NODE_PORT));
        for (client, request) in [
            (lab.client(), node_port),
            (lab.pod("pod-1-2"), cluster_ip),
            (lab.node(1), cluster_ip),
        ] {
            let reply = request.send(client).map_err(|e| e.to_string())?;
            assert_eq!(reply.server, "pod-1-1");
        }
        Ok::<_, String>(())
    };
    ask(&first).unwrap();
    // These addresses do not work in the other cluster yet: neither maps nor cgroups are shared.
    ask(&second).unwrap_err();
    let _server = serve_web(&second)?;
    ask(&second).unwrap();

    let mut second = second;
    second.stop_agents()?;
    let node = second.lab.node(1);
    let (program, root) = (balanced::node_lb()?, &node.pin_root);
    node.run(&format!(
        "{} cleanup --bpf-root {}",
        program.display(),
        root.display()
    ))?;
    ask(&second).unwrap_err();
    second.lab.down()?;
    ask(&first).unwrap();
    first.change(|| first.lab.service("other").cluster_ip("10.96.0.11").apply())
}
