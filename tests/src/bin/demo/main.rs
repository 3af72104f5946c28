//! `cargo xtask demo`: services, a rolling update, health checks and a restart, shown in a lab on
//! this machine. Fails if any promise is broken.

mod acts;
mod inspect;
mod screen;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use lb_tests::{Balanced, Deployment, Topology};

use self::screen::Screen;

/// Show what node-lb does, in network namespaces that are removed at the end
#[derive(Parser)]
#[command(name = "demo")]
struct Cli {
    /// Leave the lab up, with its agents, pods and Service, and print how to look around
    #[arg(long)]
    keep: bool,
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
    screen.act("A cluster in network namespaces, node-lb on both nodes");
    let mut ground = Balanced::up(Topology::default()).context("cannot bring the lab up")?;
    let mut web = Deployment::new("web");
    if cli.keep {
        web = web.in_processes();
    }
    acts::apply_service(&ground)?;
    web.add_all(&ground, &[1, 1, 2])?;
    acts::introduce(screen, &ground, &web, start.elapsed());

    acts::requests(screen, &ground)?;
    inspect::commands(screen, &ground)?;
    inspect::maps(screen, &ground)?;
    acts::rolling_update(screen, &ground, &mut web)?;
    acts::drain(screen, &ground, &mut web)?;
    acts::restart(screen, &mut ground)?;

    screen.verdict(start.elapsed());
    if cli.keep {
        web.leave_running()?;
        inspect::how_to_poke(&ground, &lb_tests::balanced::node_lb()?);
        ground.keep()?;
    } else {
        drop(web);
        drop(ground.agents);
        ground.lab.down()?;
    }
    Ok(())
}
