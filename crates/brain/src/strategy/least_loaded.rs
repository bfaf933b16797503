//! The member that reports the least load, with the thresholds of the papers: Cygnus' adaptive strategy
//! (Othman, Balasubramanian, Schmidt 2004; the properties are those of TAO's load balancer).
//!
//! No setting is required: without `reject` and `critical` no request is rejected, and the surplus over the
//! fair load raises alerts (see `rebind`). The papers set, with requests a second as the metric: reject 25
//! 000, critical 35 000, dampening 0.1, a report every 3 s. `reported` makes the choice.

use alloc::format;

use super::reported::{self, DAMPENING, PER_BALANCE_LOAD, tolerance};
use super::{DEFAULTS, ParamConflict, Strategy, StrategyParam, StrategyParams};
use crate::AlertRule;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "least_loaded",
    about: "the member that reports the least load; thresholds to reject and to shed, if set",
    params: &[
        tolerance("loads up to this many times the least count as equal to it", 1.0),
        DAMPENING,
        PER_BALANCE_LOAD,
        StrategyParam {
            name: "reject",
            about: "load at which a member gets nothing new; 0 for none",
            default: 0.0,
            min: 0.0,
            max: 1e12,
        },
        StrategyParam {
            name: "critical",
            about: "load above which a member is to shed its sessions; 0 for what is beyond its share and \
                noise",
            default: 0.0,
            min: 0.0,
            max: 1e12,
        },
    ],
    conflict: find_conflict,
    reads_load: true,
    prefers_less_load: true,
    shares: true,
    prepare: reported::prepare,
    alert_rule,
    choose: reported::choose,
    second_choice: reported::second_choice,
    refusal_message: reported::overload_message,
    explain: reported::explain,
    ..DEFAULTS
};

/// Returns the conflict of a member that sheds before it is full: it would send sessions away that it may get
/// back at once. TAO refuses this as well.
fn find_conflict(params: &StrategyParams) -> Option<ParamConflict> {
    let (reject, critical) = (params.at(3), params.at(4));
    (reject > 0.0 && critical > 0.0 && critical <= reject).then(|| ParamConflict {
        param: "critical",
        conflicts_with: Some("reject"),
        why: format!("`critical` ({critical}) must be above `reject` ({reject})"),
        hint: "between the two a member keeps what it has and gets nothing new",
    })
}

fn alert_rule(params: &StrategyParams) -> AlertRule {
    let critical = params.at(4);
    if critical > 0.0 { AlertRule::Critical(critical) } else { AlertRule::Surplus }
}
