//! Manifests that become invalid.

use lb_tests::eventually;

use super::support::{Everywhere, Policy, ground, service};

#[test]
fn a_broken_manifest_keeps_the_last_good_state_and_is_reported() {
    let (ground, mut web) = ground(Policy::Local);
    let load = Everywhere::start(&ground);
    ground
        .lab
        .manifests()
        .write(
            "service-web.json",
            b"{\n  \"kind\": \"Service\",\n  \"metadata\": [oops\n",
        )
        .unwrap();
    let problems = |wanted: f64| {
        eventually(|| {
            let found = ground
                .metric(1, "node_lb_source_problems")
                .map_err(|e| format!("{e:#}"))?;
            (found == wanted)
                .then_some(())
                .ok_or_else(|| format!("{found} problems"))
        });
    };
    problems(1.0);
    let log = ground.agents[0].log().unwrap();
    let place = log.lines().find(|line| line.contains("service-web.json"));
    assert!(
        place.is_some_and(|line| line.contains('3')),
        "file and line are in the log:\n{log}"
    );

    // The Service's endpoints are in another file, which is still followed.
    web.replace_oldest(&ground).unwrap();
    ground
        .change(|| service(&ground, Policy::Local).apply())
        .unwrap();
    problems(0.0);
    load.assert_no_failures();
}
