//! node-lb and the real kube-proxy, in turn, with the same real API server.

mod ground;
mod measure;
mod probe;
mod proxy;
mod report;
mod services;

use anyhow::{Context, Result};

use self::{
    ground::Ground,
    measure::{Extent, measure},
    proxy::Proxy,
    report::ControlPlaneReport,
    services::Services,
};
use crate::{
    options::{Options, Part},
    report::Findings,
};

/// For each number of Services, builds a lab with a control plane and measures one proxy after the
/// other in it.
///
/// # Errors
///
/// Without root or the programs of Kubernetes, or if a proxy does not do its work.
pub fn run(options: &Options) -> Result<Findings> {
    let part = Part::ControlPlane;
    let extent = Extent::of(options);
    let mut report = ControlPlaneReport::new(options.endpoints);
    for count in options.services(part) {
        eprintln!("control plane: making {count} services");
        let ground = Ground::build(options.endpoints)?;
        let mut services = Services::create(&ground, count)?;
        for _ in 0..options.rounds(part) {
            for proxy in Proxy::ALL {
                eprintln!("control plane: {} with {count} services", proxy.name());
                let sample = measure(proxy, &ground, &mut services, extent);
                let sample =
                    sample.with_context(|| format!("{} with {count} services", proxy.name()))?;
                report.add(count, proxy, sample);
            }
        }
        ground.down()?;
    }
    Ok(report.findings())
}
