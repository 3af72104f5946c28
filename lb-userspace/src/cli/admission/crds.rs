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
        for yaml in Kind::ALL.into_iter().filter_map(crd::yaml) {
            print("---\n")?;
            print(&yaml.context("cannot write YAML")?)?;
        }
        Ok(())
    }
}
