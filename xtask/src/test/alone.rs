//! Tests that must not run beside others.

/// The beginnings of their names, and why. Labs do not see each other; these see more than a lab.
const ALONE: [(&str, &str); 1] = [(
    "trouble::check::a_fit_node_has_no_failures",
    "looks for what `node-lb check` leaves in the machine's BPF file system, which all labs share",
)];

/// Whether the test of that name runs alone.
pub fn is(name: &str) -> bool {
    ALONE
        .iter()
        .any(|(beginning, _)| name.starts_with(beginning))
}
