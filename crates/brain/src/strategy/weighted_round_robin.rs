//! Each member in turn, as often as its weight says, spread evenly over the round (see `schedule`). The weight is
//! what members say they could do, where they report requests a second and utilization (see `usage`), and the
//! configured capacity elsewhere.

use super::{Knob, Knobs, PLAIN, Strategy, schedule, share, usage};
use crate::{Ask, Hand, Member, Plan, Table};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "weighted_round_robin",
    about: "each member in turn, as often as its capacity or its reports say, spread evenly",
    knobs: &[
        Knob {
            name: "error_penalty",
            about: "how much utilization a failed request in each request counts as, where members report",
            default: 1.0,
            min: 0.0,
            max: 100.0,
        },
        Knob {
            name: "blackout",
            about: "seconds for which a member's first reports give no weight",
            default: 10.0,
            min: 0.0,
            max: 3600.0,
        },
        Knob {
            name: "expiry",
            about: "seconds after which a report gives no weight any more",
            default: 180.0,
            min: 1.0,
            max: 86_400.0,
        },
    ],
    reads_load: true,
    shares: true,
    prepare,
    choose,
    explain: share,
    ..PLAIN
};

fn prepare(members: &[Member], knobs: &Knobs) -> Table {
    schedule::of(&usage::weights(members, knobs.at(0)))
}

fn choose(plan: &Plan, _: &mut Hand, ask: &Ask) -> usize {
    schedule::at(plan, ask.turn)
}
