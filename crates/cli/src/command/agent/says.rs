//! The status of a running agent, for the Supervisor's view of the host.

use plimsoll_admin::Says;
use serde_json::{Map, Value, json};

use super::Args;
use crate::config::count;
use crate::control::Balancer;

pub(in crate::command) fn says(args: &Args) -> Says {
    let balancers = args.report_to.len();
    let mut lines = vec![match &args.member {
        Some(member) => format!("reports {member} to {}", count(balancers, "balancer")),
        None => format!("reports to {}", count(balancers, "balancer")),
    }];
    let Some(address) = args.listen.filter(|address| address.port() != 0) else {
        return Says { well: true, lines, facts: Value::Null };
    };
    match Balancer::Http(address.to_string()).get::<Value>("/load") {
        Ok(known) => {
            let values = known["values"].as_object().into_iter().flatten();
            let values: Map<String, Value> = values
                .filter_map(|(name, known)| Some((name.clone(), known.get("value")?.clone())))
                .collect();
            lines.push(format!("{} known", count(values.len(), "number")));
            Says { well: true, lines, facts: json!({"values": values}) }
        }
        Err(trouble) => {
            lines.push(format!("it cannot be asked: {trouble}"));
            Says { well: false, lines, facts: Value::Null }
        }
    }
}
