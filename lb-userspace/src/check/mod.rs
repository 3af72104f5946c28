//! Preflight: whether this node can run node-lb as configured, and what would be a problem.
//!
//! Nothing is changed: trials (loading programs, opening ports) are undone at once. In reading
//! order:
//!
//! | Module | What it looks at |
//! |---|---|
//! | `finding` | what a check says |
//! | `kernel` | version, BTF, JIT, privileges, whether the kernel takes the programs |
//! | `mounts` | BPF file system, cgroup v2 |
//! | `devices` | which devices are external, XDP programs of others, forwarding |
//! | `other_proxies` | rules of kube-proxy: nftables, iptables, IPVS |
//! | `ports` | the agent's ports and its socket |
//! | `pods` | whether this node's pods can be told from other sources; devices without programs |
//! | `api_server` | address, credentials, permissions, the Node object |

mod api_server;
mod devices;
mod finding;
mod iptables;
mod kernel;
mod mounts;
mod nftables;
mod other_proxies;
mod pods;
mod ports;

pub use finding::{Finding, Level};

use crate::config::Config;

/// Runs all checks. If something cannot be checked, that is a finding, too.
pub async fn run(config: &Config) -> Vec<Finding> {
    let mut findings = kernel::check(config);
    findings.extend(mounts::check(&config.datapath));
    findings.push(kernel::programs(&config.datapath.bpf_root));
    findings.extend(devices::check(config).await);
    findings.extend(other_proxies::check());
    findings.extend(ports::check(config));
    findings.extend(pods::check_directory(config).await);
    findings.extend(api_server::check(config).await);
    findings
}
