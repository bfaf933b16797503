//! The status of a running lottery's daemon, for the Supervisor's view of the host.

use plimsoll_admin::SelfStatus;
use plimsoll_config::{self as config, LotteryFile};
use serde_json::{Map, Value, json};

use super::Args;
use crate::control::ControlEndpoint;
use crate::control::format::latency;

pub(in crate::command) fn self_status(args: &Args) -> SelfStatus {
    query(args).unwrap_or_else(|error| SelfStatus { well: false, lines: vec![error], facts: Value::Null })
}

fn query(args: &Args) -> Result<SelfStatus, String> {
    let file = read(args).map_err(|error| format!("it cannot be asked: {error}"))?;
    let lottery = &file.lottery;
    let services = lottery.services.iter();
    let mut lines: Vec<String> = services
        .map(|service| {
            format!(
                "member {}: service {} at {}, capacity {}",
                lottery.member, service.name, service.server, service.capacity
            )
        })
        .collect();
    let Some(address) = lottery.status.0.filter(|address| address.port() != 0) else {
        lines.push("it shows no numbers: give it `status` with an address and a port".into());
        return Ok(SelfStatus { well: true, lines, facts: Value::Null });
    };
    let load: Value = ControlEndpoint::Http(address.to_string()).get("/load").map_err(|_| {
        format!("its numbers are not to be had at {address}, where its configuration has them")
    })?;
    let value = |name: &str| load["values"][name]["value"].as_f64();
    let count = |name: &str| value(name).unwrap_or_default();
    lines.push(format!(
        "{} other members heard, {} that know something else; {} referred, {} won, {} turned away, {} \
         duplicates",
        count("lottery_members"),
        count("lottery_members_differ"),
        count("lottery_referred"),
        count("lottery_won"),
        count("lottery_turned_away"),
        count("lottery_duplicates"),
    ));
    lines.push(format!(
        "step {}, which follows the delay of commits; own lag {}",
        latency(count("lottery_step_seconds")),
        latency(count("lottery_lag_seconds"))
    ));
    let values = load["values"].as_object().into_iter().flatten();
    let values: Map<String, Value> =
        values.filter_map(|(name, entry)| Some((name.clone(), entry.get("value")?.clone()))).collect();
    let services: Vec<Value> = lottery
        .services
        .iter()
        .map(|service| json!({"name": service.name, "server": service.server, "capacity": service.capacity}))
        .collect();
    let facts = json!({"member": lottery.member, "services": services, "values": values});
    // A daemon that has just joined knows less than it will.
    Ok(SelfStatus { well: value("lottery_members").is_some(), lines, facts })
}

/// Reads the configuration that it was started with.
fn read(args: &Args) -> Result<LotteryFile, String> {
    match &args.config {
        Some(path) => config::read_lottery(path).map_err(|error| error.headline()),
        None => config::read_lottery_text("the command line", args.flags.to_toml()?.into_bytes())
            .map_err(|problems| problems.first()),
    }
}
