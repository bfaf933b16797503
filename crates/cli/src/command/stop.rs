//! `plimsoll stop`: let the work in flight end, then the process.

use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use crate::control::Where;
use crate::failure::Failure;
use crate::talk::{self, Global, Output};

/// Between two looks while waiting.
const LOOK: Duration = Duration::from_millis(100);

/// Stop the balancer: nothing new is accepted, work in flight may end
///
/// How long it may take is drain_deadline of the configuration.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Return when it has ended
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    at: Where,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let balancer = args.at.balancer()?;
    let (_, status) = balancer.status()?;
    balancer.post("/v1/stop", &Value::Null)?;
    if args.wait {
        global.say("stopping: waiting for the work in flight\n");
        // The control socket goes last, unless a supervisor has started the next one meanwhile. An answer
        // that breaks off is one more reason to look again.
        while !balancer.gone() && balancer.status().map_or(true, |(_, now)| now.pid == status.pid) {
            sleep(LOOK);
        }
    }
    if global.output == Output::Json {
        return talk::write_json(&json!({"stopping": true, "stopped": args.wait}));
    }
    global.say(if args.wait { "stopped\n" } else { "stopping\n" });
    Ok(())
}
