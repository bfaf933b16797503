//! The checks of listeners that speak xDS.

use super::place::Spot;
use super::problem::Problem;
use super::{Binding, Listener, Protocol};

/// Checks the keys of such a listener against each other.
pub(super) fn check(listener: &Listener, spot: &Spot, found: &mut Vec<Problem>) {
    if listener.protocol != Protocol::Xds {
        return;
    }
    let groups = spot.key("groups");
    for (place, group) in listener.groups.iter().enumerate() {
        let at = groups.item(place);
        if *group == listener.group {
            let message = format!("group `{group}` is the listener's own already");
            found.push(Problem::error(at.value(), message).also(spot.key("group").value(), "here"));
        } else if let Some(first) = listener.groups[..place].iter().position(|before| before == group) {
            let message = format!("group `{group}` is there twice");
            found.push(
                Problem::error(at.value(), message).also(groups.item(first).value(), "the first is here"),
            );
        }
    }
    if listener.tls.as_ref().is_some_and(|tls| !tls.names.is_empty()) {
        let message = "clients of an xds listener say which group they want by its name";
        let problem = Problem::error(spot.key("tls").name("names"), message);
        found.push(problem.hint("take it out, and write groups = [...] in [[listener]]"));
    }
    if listener.binding == Some(Binding::PerSession) && !spot.broken("binding") {
        let message = "binding `per_session` is not supported for xds: clients choose for each request";
        let problem = Problem::error(spot.key("binding").value(), message);
        found.push(problem.hint("take it out; on_demand has members under alert get less"));
    }
}
