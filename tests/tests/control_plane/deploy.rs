//! What `deploy/` describes, as a real API server sees it.

use lb_tests::{
    Lab, Topology,
    control_plane::{ControlPlane, ControlPlaneSpec},
};

/// Defaults, schemas, validation and admission accept every object. Nothing is created.
#[test]
fn the_api_server_takes_every_object_that_is_deployed() {
    let lab = Lab::up(Topology {
        nodes: 1,
        pods_per_node: 0,
        ..Topology::default()
    })
    .unwrap();
    let control_plane = ControlPlane::start(&lab, ControlPlaneSpec::default()).unwrap();
    for directory in ["base", "example"] {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/");
        let kustomization = format!("--kustomize={path}{directory}");
        // Unknown fields are errors too, because kubectl asks for that.
        let arguments = ["apply", "--dry-run=server", &kustomization];
        let said = control_plane.kubectl(&arguments).unwrap();
        for object in [
            "customresourcedefinition.apiextensions.k8s.io/flowschemas.",
            "customresourcedefinition.apiextensions.k8s.io/prioritylevels.",
            "serviceaccount/node-lb ",
            "clusterrole.rbac.authorization.k8s.io/node-lb ",
            "clusterrolebinding.rbac.authorization.k8s.io/node-lb ",
            "configmap/node-lb ",
            "configmap/node-lb-api-server ",
            "daemonset.apps/node-lb ",
        ] {
            let mut lines = said.lines();
            let line = lines.find(|line| line.starts_with(object));
            let line = line.unwrap_or_else(|| panic!("no {object} of deploy/{directory}:\n{said}"));
            assert!(line.ends_with("(server dry run)"), "{line}");
        }
    }
}
