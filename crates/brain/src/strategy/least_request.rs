//! The least loaded of a few randomly drawn members. The result is nearly as good as the least loaded of all,
//! at a cost that does not depend on their number. Several balancers that see the same load form no herd
//! (Mitzenmacher, The power of two choices in randomized load balancing, 1996; Envoy's LEAST_REQUEST).
//!
//! Members are drawn in proportion to their weights and compared by in-flight over weight; the one drawn
//! first wins a tie, so that idle members get their shares. A member is not compared with itself, which in
//! small groups makes the choice much closer to exact.

use super::{DEFAULTS, Strategy, StrategyParam, alias, least_connections::lighter, relative_load};
use crate::{PickRequest, PickerState, Plan};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "least_request",
    about: "the member with the fewest requests in flight, by its capacity, of a few drawn by chance",
    params: &[StrategyParam {
        name: "choices",
        about: "how many are drawn",
        default: 2.0,
        min: 2.0,
        max: 16.0,
    }],
    prefers_less_load: true,
    shares: true,
    prepare: alias::prepare,
    choose,
    explain: relative_load,
    ..DEFAULTS
};

fn choose(plan: &Plan, _: &mut PickerState, request: &PickRequest) -> usize {
    let members = plan.members();
    let mut best = alias::draw(plan, request.random_bits);
    let mut load = members[best].in_flight_everywhere();
    let mut bits = request.random_bits;
    for _ in 1..plan.params().at(0) as u32 {
        if load <= 0.0 {
            break;
        }
        let other;
        (other, bits) = alias::draw_other(plan, bits, best);
        let other_load = members[other].in_flight_everywhere();
        if lighter(other_load, &members[other], load, &members[best]) {
            (best, load) = (other, other_load);
        }
    }
    best
}
