//! Tests that must run alone.

/// The beginnings of their names, and why. Labs do not see each other, but these tests see more
/// than a lab.
const ALONE: [(&str, &str); 4] = [
    (
        "trouble::check::a_fit_node_has_no_failures",
        "looks for what `node-lb check` leaves in the machine's BPF file system, which all labs share",
    ),
    (
        "continuity::resize::",
        "has the verifier look at three sets of programs each time that an agent starts, which takes so much \
         of the processors that others' agents would not be ready in time",
    ),
    (
        "continuity::succession::",
        "has agents follow each other, so that the verifier looks at their programs again and again, and none may \
         be late",
    ),
    (
        "hostile::callers::crowds_of_connections_do_not_keep_probes_out",
        "measures how long probes take while thousands of callers come, and beside other tests they take seconds",
    ),
];

/// Whether the test with this name runs alone.
pub fn is(name: &str) -> bool {
    ALONE
        .iter()
        .any(|(beginning, _)| name.starts_with(beginning))
}
