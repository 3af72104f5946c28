//! Nodes that cannot run the data plane: the agent ends at once with an error, and says what is
//! missing and what to do.

use anyhow::Result;
use lb_tests::{Lab, Node, balanced};

use crate::support::SMALL;

#[test]
fn without_privileges() -> Result<()> {
    refuses(
        "exec setpriv --bounding-set=-all --inh-caps=-all \"$@\"",
        &[
            "missing privileges",
            "CAP_BPF",
            "CAP_NET_ADMIN",
            "run as root",
        ],
    )
}

#[test]
fn as_another_user() -> Result<()> {
    refuses(
        "exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"",
        &["missing privileges", "CAP_BPF", "run as root"],
    )
}

#[test]
fn without_btf() -> Result<()> {
    refuses(
        "mount -t tmpfs none /sys/kernel/btf && exec \"$@\"",
        &["the kernel has no BTF", "CONFIG_DEBUG_INFO_BTF=y"],
    )
}

#[test]
fn without_cgroup2() -> Result<()> {
    refuses(
        "umount --all --types cgroup2 && exec \"$@\"",
        &["no cgroup2 hierarchy is mounted", "--socket-lb=off"],
    )
}

/// Everything is reported at once, so that operators need not find one problem after another.
#[test]
fn without_anything() -> Result<()> {
    refuses(
        "mount -t tmpfs none /sys/kernel/btf && umount --all --types cgroup2 && \
         exec setpriv --bounding-set=-all --inh-caps=-all \"$@\"",
        &["missing privileges", "no BTF", "no cgroup2"],
    )
}

/// Starts the agent from a shell script with its own mounts, and asserts what it says when it ends.
#[track_caller]
fn refuses(script: &str, words: &[&str]) -> Result<()> {
    let lab = Lab::up(SMALL)?;
    let (code, said) = run(lab.node(1), script)?;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("this node cannot run node-lb"), "{said}");
    for word in words {
        assert!(said.contains(word), "no {word:?} in: {said}");
    }
    Ok(())
}

fn run(node: &Node, script: &str) -> Result<(Option<i32>, String)> {
    // A place that any user can read.
    let program = node.dir.join("node-lb");
    std::fs::copy(balanced::node_lb()?, &program)?;
    let output = node
        .command("timeout")?
        .args(["60", "unshare", "--mount", "sh", "-c", script, "sh"])
        .arg(program)
        .args(["agent", "--node", node.name(), "--source"])
        .arg(format!("dir:{}", node.manifests().display()))
        .arg("--bpf-root")
        .arg(&node.pin_root)
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output.status.code(), said))
}
