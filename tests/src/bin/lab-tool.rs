//! The lab's helper process: traffic inside a cgroup, and the guard that removes a lab whose
//! owner is gone. Started by the library, which describes the work in JSON.

use anyhow::{Result, bail};
use lb_tests::attack::{Flood, Sockets};
use lb_tests::lab;
use lb_tests::traffic::{Job, Load, Request, Serve, run_as_child};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(command), Some(argument), None) = (args.next(), args.next(), args.next()) else {
        bail!(
            "usage: lab-tool guard LAB | own NODES | request JSON | serve JSON | load JSON | flood JSON | \
             sockets JSON"
        );
    };
    match command.as_str() {
        "guard" => lab::guard(&argument.parse()?),
        "own" => lab::own(argument.parse()?),
        Request::NAME => run_as_child::<Request>(&argument),
        Serve::NAME => run_as_child::<Serve>(&argument),
        Load::NAME => run_as_child::<Load>(&argument),
        Flood::NAME => run_as_child::<Flood>(&argument),
        Sockets::NAME => run_as_child::<Sockets>(&argument),
        _ => bail!("there is no command {command:?}"),
    }
}
