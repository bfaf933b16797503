//! The status of a running agent, for the Supervisor's view of the host.

use plimsoll_admin::SelfStatus;
use plimsoll_config::pluralize;
use serde_json::{Map, Value, json};

use super::Args;
use crate::control::ControlEndpoint;

pub(in crate::command) fn self_status(args: &Args) -> SelfStatus {
    let balancers = args.report_to.len();
    let mut lines = vec![match &args.member {
        Some(member) => format!("reports {member} to {}", pluralize(balancers, "balancer")),
        None => format!("reports to {}", pluralize(balancers, "balancer")),
    }];
    let Some(address) = args.listen.filter(|address| address.port() != 0) else {
        return SelfStatus { well: true, lines, facts: Value::Null };
    };
    match ControlEndpoint::Http(address.to_string()).get::<Value>("/load") {
        Ok(load) => {
            let values = load["values"].as_object().into_iter().flatten();
            let values: Map<String, Value> = values
                .filter_map(|(name, entry)| Some((name.clone(), entry.get("value")?.clone())))
                .collect();
            lines.push(format!("{} known", pluralize(values.len(), "number")));
            SelfStatus { well: true, lines, facts: json!({"values": values}) }
        }
        Err(error) => {
            lines.push(format!("it cannot be asked: {error}"));
            SelfStatus { well: false, lines, facts: Value::Null }
        }
    }
}
