//! The least loaded of a few randomly drawn members. The result is nearly as good as the least loaded of all,
//! at a cost that does not depend on their number. Several balancers that see the same load form no herd
//! (Mitzenmacher, The power of two choices in randomized load balancing, 1996; Envoy's LEAST_REQUEST).
//!
//! Members are drawn in proportion to their weights and compared by in-flight over weight; the one drawn
//! first wins a tie, so that idle members get their shares. A member is not compared with itself, which in
//! small groups makes the choice much closer to exact.

use super::{Knob, PLAIN, Strategy, alias, least_connections::lighter, relative_load};
use crate::{Ask, Hand, Plan};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "least_request",
    about: "the member with the fewest requests in flight, by its capacity, of a few drawn by chance",
    knobs: &[Knob { name: "choices", about: "how many are drawn", default: 2.0, min: 2.0, max: 16.0 }],
    heeds_load: true,
    shares: true,
    prepare: alias::prepare,
    choose,
    explain: relative_load,
    ..PLAIN
};

fn choose(plan: &Plan, _: &mut Hand, ask: &Ask) -> usize {
    let members = plan.members();
    let mut best = alias::draw(plan, ask.chance);
    let mut load = members[best].everywhere();
    let mut bits = ask.chance;
    for _ in 1..plan.knobs().at(0) as u32 {
        if load <= 0.0 {
            break;
        }
        let other;
        (other, bits) = alias::draw_other(plan, bits, best);
        let other_load = members[other].everywhere();
        if lighter(other_load, &members[other], load, &members[best]) {
            (best, load) = (other, other_load);
        }
    }
    best
}
