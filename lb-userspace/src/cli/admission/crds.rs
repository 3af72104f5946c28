//! `node-lb admission crds`: the objects' definitions for a cluster.

use anyhow::Context;
use clap::Args;
use lb_admission::objects::{Kind, crd};

use crate::cli::print;

/// Print the CustomResourceDefinitions of PriorityLevel and FlowSchema
///
/// To apply them to a cluster, run `node-lb admission crds | kubectl apply -f -`.
#[derive(Args, Debug)]
pub struct Command {}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        for kind in Kind::ALL {
            print("---\n")?;
            print(&crd::yaml(kind).context("cannot write YAML")?)?;
        }
        Ok(())
    }
}
