//! `plimsoll`: adaptive load balancing and monitoring, one binary.

mod admin_endpoints;
mod command;
mod control;
mod corba_adapter;
mod error;
mod log;
mod lottery_picker;
mod output;
mod runtime;
mod runtime_config;
mod supervise;
mod terminal;
mod upgrade;

use std::process::ExitCode;

use clap::Parser as _;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = command::Cli::parse();
    match cli.command.run(&cli.globals) {
        Ok(code) => code,
        Err(failure) => {
            failure.print(&cli.globals);
            failure.exit.into()
        }
    }
}
