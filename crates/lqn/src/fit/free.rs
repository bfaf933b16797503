//! What is to be found where nobody says: all service demands.

use std::collections::BTreeSet;

use super::Make;
use crate::Model;
use crate::model::Body;

/// Names of all demands above 0: of a parameter where it stands for demands and nothing else, so that what is one number
/// in the text stays one; or `NAME.demand`.
///
/// # Errors
/// If no model can be made.
pub fn demands(parameters: &[(String, Vec<f64>)], make: &Make<'_>) -> Result<Vec<String>, String> {
    let base = make(&[])?;
    let mut covered = BTreeSet::new();
    let mut names = Vec::new();
    for (name, values) in parameters {
        let [value] = values.as_slice() else { continue };
        if *value <= 0.0 {
            continue;
        }
        // A number that cannot be this one, such as of threads, is no demand.
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

/// Activities whose demand is another; `None` if anything else is.
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

/// Of a first phase its entry's name, as people call it.
fn name_of(model: &Model, activity: usize) -> &str {
    let begins = |body: &Body| matches!(body, Body::Phases(phases) if phases.first().is_some_and(|own| own.0 == activity));
    let entry = model.entries.iter().find(|entry| begins(&entry.body));
    entry.map_or(&model.activities[activity].name, |entry| &entry.name)
}
