//! The checks of listeners that speak xDS.

use super::diagnostic::ConfigDiagnostic;
use super::spans::SpanTree;
use super::{BindingMode, ListenerConfig, ListenerProtocol};

/// Checks the keys of such a listener against each other.
pub(super) fn check(listener: &ListenerConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    if listener.protocol != ListenerProtocol::Xds {
        return;
    }
    let groups = spans.key("groups");
    for (index, group) in listener.groups.iter().enumerate() {
        let group_span = groups.item(index);
        if Some(group) == listener.group.as_ref() {
            let message = format!("group `{group}` is the listener's own already");
            diagnostics.push(
                ConfigDiagnostic::error(group_span.value_span(), message)
                    .with_related(spans.key("group").value_span(), "here"),
            );
        } else if let Some(first) = listener.groups[..index].iter().position(|earlier| earlier == group) {
            let message = format!("group `{group}` is there twice");
            diagnostics.push(
                ConfigDiagnostic::error(group_span.value_span(), message)
                    .with_related(groups.item(first).value_span(), "the first is here"),
            );
        }
    }
    if listener.tls.as_ref().is_some_and(|tls| !tls.names.is_empty()) {
        let message = "clients of an xds listener say which group they want by its name";
        let problem = ConfigDiagnostic::error(spans.key("tls").key_span("names"), message);
        diagnostics.push(problem.hint("take it out, and write groups = [...] in [[listener]]"));
    }
    if listener.binding == Some(BindingMode::PerSession) && !spans.is_broken("binding") {
        let message = "binding `per_session` is not supported for xds: clients choose for each request";
        let problem = ConfigDiagnostic::error(spans.key("binding").value_span(), message);
        diagnostics.push(problem.hint("take it out; on_demand has members under alert get less"));
    }
}
