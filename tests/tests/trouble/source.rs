//! Manifests that cannot be used, in `node-lb status`.

use anyhow::Result;
use lb_tests::{Balanced, Request, eventually};

use crate::support::{CLUSTER_IP, SMALL, serve_web};

#[test]
fn a_broken_file_is_in_the_status_until_it_is_mended() -> Result<()> {
    let ground = Balanced::up(SMALL)?;
    let _server = serve_web(&ground)?;
    let manifests = ground.lab.manifests();
    let broken = b"kind: Service\nmetadata:\n  name: web\n  labels: [oops\n";
    manifests.write("service-web.json", broken)?;
    let problem = eventually(|| {
        let status = ground.status(1).map_err(|e| format!("{e:#}"))?;
        let problem = status.source_problems.first().cloned();
        problem.ok_or_else(|| "the status has no problem".to_owned())
    });
    assert!(problem.contains("service-web.json"), "{problem}");
    let (needs_attention, shown) = ground.status_as(1, "table")?;
    assert!(needs_attention, "{shown}");
    let start = "One thing needs attention on node-1:\nwarning  Source  ";
    assert!(shown.starts_with(start), "{shown}");
    assert_eq!(ground.metric(1, "node_lb_source_problems")?, 1.0);
    // Its last good state is in force.
    let request = Request::tcp(format!("{CLUSTER_IP}:80").parse()?);
    assert_eq!(request.send(ground.lab.pod("pod-1-2"))?.server, "pod-1-1");

    // A manifest that can be read, but one port cannot be used. The rest is used.
    let service = ground.lab.service("web").cluster_ip(CLUSTER_IP);
    let service = service.tcp("lines", 80, 9090).tcp("other", 0, 9090);
    ground.change_something(|| service.apply())?;
    let problems = ground.status(1)?.source_problems;
    assert!(
        problems
            .iter()
            .any(|problem| problem.contains("default/web")),
        "{problems:?}"
    );

    let service = ground.lab.service("web").cluster_ip(CLUSTER_IP);
    ground.change(|| service.tcp("lines", 80, 9090).apply())?;
    assert_eq!(ground.status(1)?.source_problems, Vec::<String>::new());
    assert_eq!(ground.metric(1, "node_lb_source_problems")?, 0.0);
    let (needs_attention, shown) = ground.status_as(1, "table")?;
    assert!(!needs_attention, "{shown}");
    assert!(
        shown.starts_with("Nothing needs attention on node-1.\n"),
        "{shown}"
    );
    Ok(())
}
