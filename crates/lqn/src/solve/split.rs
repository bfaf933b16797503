//! Who gets what part of the requests where an entry forwards by a policy: what formulas need, which know no state.
//!
//! Chance, weights and sessions give each its share; turns give all the same. These are exact as rates. Who goes by loads
//! gives each what it can do: the least loaded in proportion to how fast targets are (its cores and its speed over its
//! demand), of any two the less loaded all the same. That waiting is then less than by chance, is up to
//! [`relief`](super::relief).

use std::borrow::Cow;

use crate::model::{Body, EntryId, Model, Policy};

/// The model with those parts as the shares of forwarding entries.
pub(super) fn split(model: &Model) -> Cow<'_, Model> {
    let mut own = Cow::Borrowed(model);
    for (place, entry) in model.entries.iter().enumerate() {
        let Some(routing) = entry.routing else { continue };
        let parts: Vec<f64> = match routing.policy {
            Policy::Random | Policy::Weighted | Policy::Sticky => continue,
            Policy::RoundRobin | Policy::PowerOfTwo => vec![1.0; entry.forwards.len()],
            Policy::LeastLoaded => entry.forwards.iter().map(|(to, _)| speed(model, *to)).collect(),
        };
        let all: f64 = parts.iter().sum();
        if !(all > 0.0 && all.is_finite()) {
            continue;
        }
        let same =
            entry.forwards.iter().zip(&parts).all(|((_, share), part)| (share - part / all).abs() < 1e-12);
        if same {
            continue;
        }
        for ((_, share), part) in own.to_mut().entries[place].forwards.iter_mut().zip(parts) {
            *share = part / all;
        }
    }
    own
}

/// Requests per unit of time that the processor of an entry could do at most; 1 where that has no bound.
fn speed(model: &Model, entry: EntryId) -> f64 {
    let own = &model.entries[entry.0];
    let first = match &own.body {
        Body::Phases(phases) => phases.first(),
        Body::Graph(start) => Some(start),
    };
    let demand = first.map_or(0.0, |id| model.activities[id.0].demand);
    let processor = &model.processors[model.tasks[own.task.0].processor.0];
    let rate = super::net::many(processor.copies) * processor.speed / demand;
    if rate.is_finite() && rate > 0.0 { rate } else { 1.0 }
}
