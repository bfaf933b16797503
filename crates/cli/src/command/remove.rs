//! `plimsoll remove`: take a registered member out of its group.

use std::process::ExitCode;

use serde_json::Value;

use super::add::Target;
use super::{Failure, Globals};
use crate::control::text::plain;
use crate::control::{self, Said};

/// Take a registered member out of its group; drain it first to let its work end
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// A member of a group
    Member {
        #[command(flatten)]
        target: Target,
    },
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    let What::Member { target } = &args.what;
    let path = target.path()?;
    control::each(&target.at, globals, |balancer, _| {
        let said = balancer.delete(&path, &Value::Null)?;
        let text =
            format!("{}: no member of group {} any more\n", plain(&target.member), plain(&target.group));
        Ok(Said::done(said, text))
    })
}
