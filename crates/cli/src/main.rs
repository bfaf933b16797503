//! `plimsoll`: adaptive load balancing and monitoring, one binary.

mod command;
mod control;
mod error;
mod log;
mod lottery_picker;
mod output;
mod terminal;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = command::Cli::from_arguments();
    match cli.command.run(&cli.globals) {
        Ok(code) => code,
        Err(failure) => {
            failure.print(&cli.globals);
            failure.exit_code.into()
        }
    }
}
