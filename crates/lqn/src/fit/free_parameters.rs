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
        let Ok(changed_model) = make(&[(name.clone(), value * 1.37)]) else { continue };
        let Some(changed_activities) = changed_demands(&base, changed_model) else { continue };
        if !changed_activities.is_empty() && changed_activities.is_disjoint(&covered) {
            covered.extend(changed_activities);
            names.push(name.clone());
        }
    }
    for (index, activity) in base.activities.iter().enumerate() {
        if activity.demand > 0.0 && !covered.contains(&index) {
            names.push(format!("{}.demand", name_of(&base, index)));
        }
    }
    Ok(names)
}

/// Returns the activities whose demand differs; `None` if anything else differs.
fn changed_demands(base: &Model, mut other: Model) -> Option<BTreeSet<usize>> {
    if base.activities.len() != other.activities.len() {
        return None;
    }
    let mut indices = BTreeSet::new();
    for (index, (base_activity, other_activity)) in
        base.activities.iter().zip(&mut other.activities).enumerate()
    {
        if base_activity.demand != other_activity.demand {
            indices.insert(index);
            other_activity.demand = base_activity.demand;
        }
    }
    (*base == other).then_some(indices)
}

/// Returns the name of an activity, which for a first phase is its entry's.
fn name_of(model: &Model, activity: usize) -> &str {
    let begins_entry = |body: &EntryBody| {
        matches!(
            body,
            EntryBody::Phases(phases) if phases.first().is_some_and(|phase| phase.0 == activity)
        )
    };
    let entry = model.entries.iter().find(|entry| begins_entry(&entry.body));
    entry.map_or(&model.activities[activity].name, |entry| &entry.name)
}
