//! `plimsoll pick`: asks the daemons of a lottery who serves.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use plimsoll_brain::lottery::Mode;
use plimsoll_cluster::lottery::{Client, ClientSettings, Pick, Unserved};
use plimsoll_wire::rfs::service_id;
use serde_json::{Value, json};

use super::{Exit, Failure, Globals, lottery};
use crate::config::{MemberAddress, look_up};
use crate::talk;

/// Ask the daemons of a lottery for servers: one address a line
///
/// Exit code 3 if no daemon answers, 1 if nobody serves it.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The service by its name, or by its number as id:NUMBER
    #[arg(value_name = "SERVICE", value_parser = service)]
    service: u32,

    /// Daemons to ask; the others are learned of
    #[arg(
        short,
        long,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        required_unless_present = "multicast"
    )]
    daemon: Vec<MemberAddress>,

    /// Group and port by which all are reached at once
    #[arg(long, value_name = "ADDRESS")]
    multicast: Option<SocketAddr>,

    /// File of the cluster's keys
    #[arg(short, long, value_name = "FILE")]
    keys: PathBuf,

    /// How many to ask for, one after the other
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 1)]
    count: u32,

    /// Ask all daemons at once, who draw among themselves, in place of one that refers to another
    #[arg(long)]
    lottery: bool,

    /// For the daemons' applications
    #[arg(long, value_name = "TEXT", default_value = "", value_parser = info)]
    info: String,
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    let keys = lottery::keys(&args.keys)?;
    if lottery::exposed(&args.keys) {
        let keys = args.keys.display();
        globals.insist(&format!("warning: {keys} can be read by others than its owner: chmod 600 it\n"));
    }
    let mut daemons = Vec::new();
    let mut unknown = None;
    for daemon in &args.daemon {
        match look_up(daemon) {
            Ok(address) => daemons.push(address),
            Err(error) => {
                let why = format!("cannot look up `{}`: {error}", daemon.host);
                globals.say(&format!("warning: {why}\n"));
                unknown = Some(why);
            }
        }
    }
    // The others do, if there are any.
    if daemons.is_empty()
        && args.multicast.is_none()
        && let Some(why) = unknown
    {
        return Err(Failure::new(Exit::Unreachable, why));
    }
    let mode = if args.lottery { Mode::Lottery } else { Mode::Referral };
    let settings = ClientSettings { daemons, multicast: args.multicast, keys, mode, attempts: 8 };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format_args!("cannot start: {error}")))?;
    let (picks, end) = runtime.block_on(async {
        let mut picks = Vec::new();
        let client = match Client::start(settings) {
            Ok(client) => client,
            Err(error) => {
                return (picks, Some(Failure::failed(format_args!("cannot open a socket: {error}"))));
            }
        };
        for _ in 0..args.count {
            match client.pick(args.service, args.info.as_bytes()).await {
                Ok(pick) => picks.push(pick),
                Err(why) => return (picks, Some(unserved(why, args))),
            }
        }
        (picks, None)
    });
    match globals.json() {
        true => globals.show(&json!({ "picks": picks.iter().map(row).collect::<Vec<_>>() }), String::new)?,
        false => talk::write(&picks.iter().map(|pick| format!("{}\n", pick.address)).collect::<String>())?,
    }
    end.map_or(Ok(ExitCode::SUCCESS), Err)
}

fn row(pick: &Pick) -> Value {
    let further =
        pick.further.iter().map(|(member, address)| json!({ "member": member, "address": address }));
    json!({
        "member": pick.member,
        "address": pick.address,
        "info": String::from_utf8_lossy(&pick.info),
        "further": further.collect::<Vec<_>>(),
    })
}

fn unserved(why: Unserved, args: &Args) -> Failure {
    let exit = if why == Unserved::Silence { Exit::Unreachable } else { Exit::Failed };
    let daemons: Vec<String> = args.daemon.iter().map(ToString::to_string).collect();
    let hint = match why {
        Unserved::Silence => {
            let asked = if daemons.is_empty() { "the group".to_owned() } else { daemons.join(", ") };
            format!("; asked {asked}: do they run, and with the keys of {}?", args.keys.display())
        }
        Unserved::Unknown => "; a daemon's log says which services there are".to_owned(),
        _ => String::new(),
    };
    Failure::new(exit, format_args!("{why}{hint}"))
}

/// The number of a service.
fn service(text: &str) -> Result<u32, String> {
    match text.strip_prefix("id:") {
        Some(number) => number.parse().map_err(|_| "expected a number from 0 to 4294967295".to_owned()),
        None => Ok(service_id(&text.parse::<crate::config::Name>()?.0)),
    }
}

fn info(text: &str) -> Result<String, String> {
    if text.len() > 1000 { Err("has more than 1000 bytes".to_owned()) } else { Ok(text.to_owned()) }
}
