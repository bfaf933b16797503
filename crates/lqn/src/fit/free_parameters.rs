//! The default parameters of a fit: all service demands.

use std::collections::BTreeSet;

use super::ModelFactory;
use crate::Model;
use crate::model::EntryBody;

/// Returns the names of all demands above 0. A parameter of the text that stands only for demands is named
/// itself, so that equal numbers stay equal; the others are `NAME.demand`.
///
/// # Errors
/// Returns an error if no model can be created.
pub fn default_parameters(
    parameters: &[(String, Vec<f64>)],
    make: &ModelFactory<'_>,
) -> Result<Vec<String>, String> {
    let base = make(&[])?;
    let mut covered = BTreeSet::new();
    let mut names = Vec::new();
    for (name, values) in parameters {
        let [value] = values.as_slice() else { continue };
        if *value <= 0.0 {
            continue;
        }
        // A parameter that cannot have this value, such as a number of threads, is no demand.
        let Ok(other) = make(&[(name.clone(), value * 1.37)]) else { continue };
        let Some(own) = changed(&base, other) else { continue };
        if !own.is_empty() && own.is_disjoint(&covered) {
            covered.extend(own);
            names.push(name.clone());
        }
    }
    for (place, activity) in base.activities.iter().enumerate() {
        if activity.demand > 0.0 && !covered.contains(&place) {
            names.push(format!("{}.demand", name_of(&base, place)));
        }
    }
    Ok(names)
}

/// Returns the activities whose demand differs; `None` if anything else differs.
fn changed(base: &Model, mut other: Model) -> Option<BTreeSet<usize>> {
    if base.activities.len() != other.activities.len() {
        return None;
    }
    let mut places = BTreeSet::new();
    for (place, (own, other)) in base.activities.iter().zip(&mut other.activities).enumerate() {
        if own.demand != other.demand {
            places.insert(place);
            other.demand = own.demand;
        }
    }
    (*base == other).then_some(places)
}

/// Returns the name of an activity, which for a first phase is its entry's.
fn name_of(model: &Model, activity: usize) -> &str {
    let begins = |body: &EntryBody| {
        matches!(
            body,
            EntryBody::Phases(phases) if phases.first().is_some_and(|own| own.0 == activity)
        )
    };
    let entry = model.entries.iter().find(|entry| begins(&entry.body));
    entry.map_or(&model.activities[activity].name, |entry| &entry.name)
}
