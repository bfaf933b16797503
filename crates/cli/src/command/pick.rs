//! `plimsoll pick`: asks the daemons of a lottery for a server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use plimsoll_client::{
    AnswerMode, Client, ClientSettings, KeySource, MAX_INFO, OpenError, PickError, PickedMember,
};
use plimsoll_config::{MemberAddress, look_up};
use serde_json::{Value, json};

use super::{CliError, CliExitCode, GlobalArgs, lottery};
use crate::output;

/// Ask the daemons of a lottery for servers and print one address per line, as the answers arrive
///
/// Exit codes: 3 no daemon answers; 1 no server provides the service.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Name of the service, or its number as id:NUMBER
    #[arg(value_name = "SERVICE", value_parser = service)]
    service: u32,

    /// Daemons to ask; the others are discovered
    #[arg(
        short,
        long,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        required_unless_present = "multicast"
    )]
    daemon: Vec<MemberAddress>,

    /// Multicast group and port of all daemons
    #[arg(long, value_name = "ADDRESS", value_parser = group)]
    multicast: Option<SocketAddr>,

    /// IPv4 address of the interface for multicast [default: by the routing table]
    #[arg(long, value_name = "ADDRESS", requires = "multicast")]
    interface: Option<Ipv4Addr>,

    /// File with the keys of the cluster, or with those for clients
    #[arg(short, long, value_name = "FILE")]
    keys: PathBuf,

    /// Number of servers to request, one after the other
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,

    /// Ask all daemons at once, which draw among themselves, instead of one that refers to another
    #[arg(long)]
    lottery: bool,

    /// Text for the applications of the daemons
    #[arg(long, value_name = "TEXT", default_value = "", value_parser = info)]
    info: String,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let client = open_client(args, globals)?;
    let mut picks = Vec::new();
    let mut failure = None;
    for _ in 0..args.count {
        match client.pick(args.service, args.info.as_bytes()) {
            Ok(pick) if globals.is_json() => picks.push(pick_json(&pick)),
            Ok(pick) => output::write_stdout(&format!("{}\n", pick.address))?,
            Err(error) => {
                failure = Some(pick_failure(error, args));
                break;
            }
        }
    }
    if globals.is_json() {
        // The output is one document.
        globals.print_result(&json!({ "picks": picks }), String::new)?;
    }
    failure.map_or(Ok(ExitCode::SUCCESS), Err)
}

fn open_client(args: &Args, globals: &GlobalArgs) -> Result<Client, CliError> {
    if lottery::is_exposed(&args.keys) {
        let keys = args.keys.display();
        globals
            .print_always(&format!("warning: {keys} can be read by others than its owner: chmod 600 it\n"));
    }
    let mut daemons = Vec::new();
    let mut lookup_failure = None;
    for daemon in &args.daemon {
        match look_up(daemon) {
            Ok(address) => daemons.push(address),
            Err(error) => {
                let message = format!("cannot look up `{}`: {error}", daemon.host);
                globals.print_message(&format!("warning: {message}\n"));
                lookup_failure = Some(message);
            }
        }
    }
    // The other daemons answer, if there are any.
    if daemons.is_empty()
        && args.multicast.is_none()
        && let Some(message) = lookup_failure
    {
        return Err(CliError::new(CliExitCode::Unreachable, message));
    }
    let mode = if args.lottery { AnswerMode::Lottery } else { AnswerMode::Referral };
    let keys = KeySource::File(args.keys.clone());
    let (multicast, interface) = (args.multicast, args.interface);
    Client::open(ClientSettings { multicast, interface, mode, ..ClientSettings::new(daemons, keys) }).map_err(
        |error| {
            let exit_code =
                if matches!(error, OpenError::System(_)) { CliExitCode::Failed } else { CliExitCode::Usage };
            CliError::new(exit_code, error)
        },
    )
}

fn pick_json(pick: &PickedMember) -> Value {
    let fallbacks =
        pick.fallbacks.iter().map(|(member, address)| json!({ "member": member, "address": address }));
    json!({
        "member": pick.member,
        "address": pick.address,
        "info": String::from_utf8_lossy(&pick.info),
        "further": fallbacks.collect::<Vec<_>>(),
    })
}

fn pick_failure(error: PickError, args: &Args) -> CliError {
    let exit_code =
        if error == PickError::NoResponse { CliExitCode::Unreachable } else { CliExitCode::Failed };
    let daemons: Vec<String> = args.daemon.iter().map(ToString::to_string).collect();
    let hint = match error {
        PickError::NoResponse => {
            let targets = if daemons.is_empty() { "the group".to_owned() } else { daemons.join(", ") };
            format!("; asked {targets}: do they run, and with the keys of {}?", args.keys.display())
        }
        PickError::UnknownService => {
            "; `plimsoll lottery status` says what a daemon's server offers".to_owned()
        }
        _ => String::new(),
    };
    CliError::new(exit_code, format_args!("{error}{hint}"))
}

/// Parses the number of a service.
pub(super) fn service(text: &str) -> Result<u32, String> {
    if !text.starts_with("id:") {
        // The check keeps a misspelt name from being asked for.
        text.parse::<plimsoll_config::ConfigName>()?;
    }
    plimsoll_client::service(text).map_err(str::to_owned)
}

/// Parses an address to which groups are sent.
pub(super) fn group(text: &str) -> Result<SocketAddr, String> {
    let group: SocketAddr =
        text.parse().map_err(|_| "expected an address and a port, such as 239.255.74.47:7447")?;
    if group.ip().is_multicast() { Ok(group) } else { Err(OpenError::NotMulticast(group.ip()).to_string()) }
}

fn info(text: &str) -> Result<String, String> {
    if text.len() > MAX_INFO { Err("has more than 1000 bytes".to_owned()) } else { Ok(text.to_owned()) }
}
