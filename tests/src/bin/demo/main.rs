//! `cargo xtask demo`: services, a rolling update, health checks, a restart and priority levels, shown
//! in a lab on this machine. Fails if any promise is broken.

mod acts;
mod api_server;
mod inspect;
mod manifests;
mod recording;
mod screen;
mod tenants;
mod world;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;

use self::{api_server::ApiServer, manifests::Manifests, screen::Screen, world::World};

/// Show what node-lb does, in network namespaces that are removed at the end
#[derive(Parser)]
#[command(name = "demo")]
struct Cli {
    /// Leave the lab up, with its agents, pods and Service, and print how to look around
    #[arg(long, conflicts_with = "apiserver")]
    keep: bool,

    /// With a real etcd, API server and controller manager, and kubectl, in place of files
    #[arg(long)]
    apiserver: bool,

    /// Write what is shown to this file as well, as a picture that shows it again (SVG)
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// How long each load runs on after the last change.
const AFTERWARDS: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut screen = Screen::new();
    match run(&cli, &mut screen) {
        Ok(()) if screen.broken() == 0 => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli, screen: &mut Screen) -> Result<()> {
    let start = Instant::now();
    let mut world: Box<dyn World> = if cli.apiserver {
        screen.act("A control plane and two nodes in network namespaces, node-lb on both nodes");
        Box::new(ApiServer::up(screen)?)
    } else {
        screen.act("A cluster in network namespaces, node-lb on both nodes");
        Box::new(Manifests::up(cli.keep)?)
    };
    acts::introduce(screen, &*world, start.elapsed())?;

    acts::requests(screen, world.ground())?;
    inspect::commands(screen, &*world)?;
    inspect::maps(screen, world.ground())?;
    acts::rolling_update(screen, &mut *world)?;
    acts::drain(screen, &mut *world)?;
    acts::restart(screen, world.ground_mut())?;
    tenants::tenants(screen, world.ground_mut())?;

    screen.verdict(start.elapsed());
    if let Some(path) = &cli.record {
        let written = fs::write(path, screen.picture());
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    world.end(cli.keep)
}
