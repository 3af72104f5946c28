//! What an agent that stands by does so that it can go on at once: it loads its programs.

use std::future;

use lb_common::abi;
use lb_datapath::{devices::Watcher, pins::MapPins};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::{
    agent::{
        attachments,
        resize::{Ahead, Wanted},
        sizes::Sizes,
    },
    config::Config,
};

/// Programs that are loaded while another agent is in charge.
#[derive(Debug, Default)]
pub enum Preparation {
    #[default]
    NotBegun,
    Loading(JoinHandle<Option<Ahead>>),
    /// Nothing, if they cannot be loaded yet.
    Over(Option<Ahead>),
}

impl Preparation {
    /// Begins to load them, on a thread that may take its time, unless that was done before.
    pub fn begin(&mut self, config: &Config) {
        if let Self::NotBegun = self {
            *self = Self::Loading(tokio::spawn(load(config.clone())));
        }
    }

    /// Whether that is done.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Over(_))
    }

    /// Returns when what has begun is done. May be given up at any time.
    pub async fn go_on(&mut self) {
        match self {
            Self::Loading(loading) => *self = Self::Over(loading.await.ok().flatten()),
            Self::NotBegun | Self::Over(_) => future::pending().await,
        }
    }

    /// The programs, if they were loaded. Waits for those that are just being loaded.
    pub async fn end(mut self) -> Option<Ahead> {
        if let Self::Loading(_) = self {
            self.go_on().await;
        }
        match self {
            Self::Over(programs) => programs,
            Self::NotBegun | Self::Loading(_) => None,
        }
    }
}

async fn load(config: Config) -> Option<Ahead> {
    let (pins, sizes) = (pins(&config), Sizes::wanted(&config.datapath));
    let addresses = config.this_node(None).addresses;
    let watcher = Watcher::start().await.ok()?;
    let programs = attachments::programs(&config.datapath, addresses, watcher.devices()).ok()?;
    let load = move || {
        let programs = &programs;
        Ahead::load(&pins, Wanted { sizes, programs })
    };
    spawn_blocking(load).await.ok()?
}

/// Where the agents of this node pin their maps.
pub fn pins(config: &Config) -> MapPins {
    MapPins::below(&config.datapath.bpf_root, abi::VERSION)
}
