#![forbid(unsafe_code)]
//! The `node-lb` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    node_lb::cli::main(std::env::args_os())
}
