//! `plimsoll`: adaptive load balancing and monitoring, one binary.

mod command;
mod config;
mod control;
mod desk;
mod doors;
mod failure;
mod import;
mod limits;
mod log;
mod made;
mod picker;
mod running;
mod screen;
mod succession;
mod supervise;
mod talk;

use std::process::ExitCode;

use clap::Parser as _;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = command::Cli::parse();
    match cli.command.run(&cli.globals) {
        Ok(code) => code,
        Err(failure) => {
            failure.tell(&cli.globals);
            failure.exit.into()
        }
    }
}
