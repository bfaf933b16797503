//! The checks of routes, by themselves and against each other.

use std::collections::{BTreeMap, HashMap};

use plimsoll_brain::route::{RouteConflict, RouteTable};

use super::lower::{HTTPS_REDIRECT, route_names, rule};
use super::{FieldMatch, OneOrMany, RedirectConfig, RespondConfig, RouteConfig};
use crate::diagnostic::{ConfigDiagnostic, quoted};
use crate::identifiers::is_token;
use crate::spans::SpanTree;
use crate::{BindingMode, ConfigName, ListenerConfig};

/// Checks the routes of a listener.
pub(crate) fn check(listener: &ListenerConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    if listener.routes.is_empty() && !listener.https_redirect {
        return;
    }
    check_listener(listener, spans, diagnostics);
    let route_spans = spans.key("route");
    let mut names: HashMap<&str, usize> = HashMap::new();
    for (index, route) in listener.routes.iter().enumerate() {
        let spans = route_spans.item(index);
        check_route(route, spans, diagnostics);
        let Some(name) = &route.name else { continue };
        if listener.https_redirect && name.0 == HTTPS_REDIRECT {
            let message = format!("`{name}` is the name of the route that the key stands for");
            diagnostics.push(ConfigDiagnostic::error(spans.key("name").value_span(), message));
        }
        match names.get(name.0.as_str()) {
            Some(first) => {
                let message = format!("a second route with the name `{name}`");
                let problem = ConfigDiagnostic::error(spans.key("name").value_span(), message);
                let first_span = route_spans.item(*first).key("name").value_span();
                diagnostics.push(problem.with_related(first_span, "the first is here"));
            }
            None => drop(names.insert(&name.0, index)),
        }
    }
    // A condition that was left out as wrong would make a route look like another.
    let is_broken = |index: usize| has_broken_part(route_spans.item(index));
    if !spans.is_broken("route") && !(0..listener.routes.len()).any(is_broken) {
        check_conflicts(listener, spans, diagnostics);
        check_open_hosts(listener, spans, diagnostics);
    }
}

/// Returns the groups that routes lead to, with the places at which they are named.
pub(crate) fn groups<'c>(
    listener: &'c ListenerConfig,
    spans: &'c SpanTree,
) -> impl Iterator<Item = (&'c ConfigName, &'c SpanTree)> {
    listener.routes.iter().enumerate().flat_map(|(index, route)| {
        let spans = spans.key("route").item(index);
        let split = route.groups.iter().enumerate();
        let split = split.map(|(index, split)| (&split.group, spans.key("groups").item(index).key("group")));
        route.group.iter().map(|group| (group, spans.key("group"))).chain(split)
    })
}

/// Checks the listener for settings that routes exclude.
fn check_listener(listener: &ListenerConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let key = if listener.routes.is_empty() { "https_redirect" } else { "route" };
    if !listener.protocol.is_http() {
        let message =
            format!("a {} listener has no routes: it cannot read requests", listener.protocol.name());
        let problem = ConfigDiagnostic::error(spans.key_span(key), message);
        diagnostics.push(problem.hint("protocol = \"http\" or \"https\" can"));
        return;
    }
    if listener.binding.is_some_and(|binding| binding != BindingMode::PerRequest)
        && !spans.is_broken("binding")
    {
        let message = "a connection that is bound to a member cannot follow routes";
        let problem = ConfigDiagnostic::error(spans.key("binding").value_span(), message);
        let problem = problem.hint("take it out; `affinity` binds clients in each group by a cookie");
        diagnostics.push(problem.with_related(spans.key_span(key), "routes are here"));
    }
    if listener.https_redirect && listener.protocol == crate::ListenerProtocol::Https {
        let message = "an https listener redirects to itself";
        let problem = ConfigDiagnostic::error(spans.key_span("https_redirect"), message);
        diagnostics.push(problem.hint("write it in the http listener"));
    }
    if let (true, Some(group)) = (listener.https_redirect, &listener.group) {
        let message = format!("no request reaches group `{group}`: all are redirected");
        let problem = ConfigDiagnostic::error(spans.key("group").value_span(), message);
        let problem = problem.hint("take `group` out, or write a route for what is not redirected");
        diagnostics.push(problem.with_related(spans.key_span("https_redirect"), "here"));
    }
}

fn has_broken_part(spans: &SpanTree) -> bool {
    const CONDITIONS: [&str; 8] =
        ["host", "path", "path_exact", "path_regex", "method", "headers", "query", "cookies"];
    CONDITIONS.iter().any(|key| spans.is_broken(key))
}

fn check_route(route: &RouteConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    const ACTIONS: [&str; 4] = ["group", "groups", "redirect", "respond"];
    let written: Vec<&str> = ACTIONS.into_iter().filter(|key| spans.has_key(key)).collect();
    match written.as_slice() {
        [] if !ACTIONS.iter().any(|key| spans.is_broken(key)) => {
            let problem = ConfigDiagnostic::error(spans.value_span(), "a route that leads nowhere");
            diagnostics.push(problem.hint("add group = \"…\", groups, redirect or respond"));
        }
        [first, second, ..] => {
            let message = format!("either `{first}` or `{second}`, not both");
            let problem = ConfigDiagnostic::error(spans.key_span(second), message);
            diagnostics.push(problem.with_related(spans.key_span(first), "here"));
        }
        _ => {}
    }
    if spans.has_key("groups") && !spans.is_broken("groups") {
        check_split(route, spans.key("groups"), diagnostics);
    }
    if let Some(redirect) = &route.redirect {
        check_redirect(redirect, route, spans.key("redirect"), diagnostics);
    }
    if let Some(respond) = &route.respond {
        check_response(respond, spans.key("respond"), diagnostics);
    }
    check_lists(route, spans, diagnostics);
    check_fields("a header", &route.headers, spans.key("headers"), diagnostics);
    check_fields("a cookie", &route.cookies, spans.key("cookies"), diagnostics);
    check_tests(&route.query, spans.key("query"), diagnostics);
}

fn check_split(route: &RouteConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    if route.groups.is_empty() {
        diagnostics.push(ConfigDiagnostic::error(spans.value_span(), "`groups` is empty"));
    }
    if !route.groups.is_empty() && route.groups.iter().all(|split| split.weight == 0) {
        let problem = ConfigDiagnostic::error(spans.value_span(), "all weights are 0");
        diagnostics.push(problem.hint("give one group a weight above 0"));
    }
    let mut first_indices = HashMap::new();
    for (index, split) in route.groups.iter().enumerate() {
        if let Some(first) = first_indices.insert(split.group.0.as_str(), index) {
            let message = format!("group `{}` is there twice", split.group);
            let problem = ConfigDiagnostic::error(spans.item(index).key("group").value_span(), message);
            diagnostics.push(problem.with_related(spans.item(first).value_span(), "the first is here"));
        }
    }
}

fn check_response(respond: &RespondConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    if respond.body.is_some() && respond.file.is_some() {
        let problem = ConfigDiagnostic::error(spans.key_span("file"), "either `body` or `file`, not both");
        diagnostics.push(problem.with_related(spans.key_span("body"), "here"));
    }
    let status_span = spans.key("status").value_span();
    if matches!(respond.status, 300..=399) && respond.status != 304 {
        let message = format!("status {} needs the URL to go to", respond.status);
        diagnostics.push(ConfigDiagnostic::error(status_span, message).hint("write redirect = { … }"));
    } else if matches!(respond.status, 204 | 205 | 304) && (respond.body.is_some() || respond.file.is_some())
    {
        let message = format!("a response with status {} has no body", respond.status);
        diagnostics.push(ConfigDiagnostic::error(status_span, message));
    }
}

/// Checks that no list of values is empty: a template that yields none would open the route to all requests.
fn check_lists(route: &RouteConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let is_empty = [
        ("host", route.host.as_ref().is_some_and(|list| list.values().is_empty())),
        ("path", route.path.as_ref().is_some_and(|list| list.values().is_empty())),
        ("path_exact", route.path_exact.as_ref().is_some_and(|list| list.values().is_empty())),
        ("path_regex", route.path_regex.as_ref().is_some_and(|list| list.values().is_empty())),
        ("method", route.method.as_ref().is_some_and(|list| list.values().is_empty())),
    ];
    for (key, _) in is_empty.into_iter().filter(|(key, is_empty)| *is_empty && !spans.is_broken(key)) {
        let problem = ConfigDiagnostic::error(spans.key(key).value_span(), format!("`{key}` is empty"));
        diagnostics.push(problem.hint("leave it out to match everything"));
    }
}

fn check_redirect(
    redirect: &RedirectConfig,
    route: &RouteConfig,
    spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    if !matches!(redirect.status, 301..=303 | 307 | 308) {
        let message = format!("{} is not the status of a redirect", redirect.status);
        let problem = ConfigDiagnostic::error(spans.key("status").value_span(), message);
        diagnostics.push(problem.hint("write 301, 302, 303, 307 or 308"));
    }
    if redirect.path.is_some() && redirect.prefix.is_some() {
        let problem =
            ConfigDiagnostic::error(spans.key_span("prefix"), "either `path` or `prefix`, not both");
        diagnostics.push(problem.with_related(spans.key_span("path"), "here"));
    }
    let has_other_paths = route.path_exact.is_some() || route.path_regex.is_some();
    if redirect.prefix.is_some() && (route.path.is_none() || has_other_paths) {
        let message = "`prefix` replaces the prefix that `path` matched, so the route needs `path` alone";
        diagnostics.push(ConfigDiagnostic::error(spans.key_span("prefix"), message));
    }
    let changes_nothing = redirect.scheme.is_none()
        && redirect.host.is_none()
        && redirect.port.is_none()
        && redirect.path.is_none()
        && redirect.prefix.is_none();
    if changes_nothing && !spans.has_broken_keys() {
        let problem =
            ConfigDiagnostic::error(spans.value_span(), "a redirect to the request's own URL never ends");
        diagnostics.push(problem.hint("add scheme, host, port, path or prefix"));
    }
}

/// Checks the conditions on headers or cookies.
fn check_fields(
    kind: &str,
    fields: &BTreeMap<String, FieldMatch>,
    spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    let mut seen = HashMap::new();
    for name in fields.keys() {
        if kind == "a header"
            && let Some(other) = seen.insert(name.to_ascii_lowercase(), name)
        {
            let message = format!("{} is the header {}, too", quoted(name), quoted(other));
            let problem = ConfigDiagnostic::error(spans.key_span(name), message);
            diagnostics.push(problem.with_related(spans.key_span(other), "here"));
        }
        if name.is_empty() || !name.bytes().all(is_token) {
            let message = format!("{} is no name of {kind}", quoted(name));
            diagnostics.push(ConfigDiagnostic::error(spans.key_span(name), message));
        } else if name.eq_ignore_ascii_case("host") && kind == "a header" {
            let problem = ConfigDiagnostic::error(spans.key_span(name), "a condition on `host` as a header");
            diagnostics.push(problem.hint("write host = \"…\" in the route"));
        }
    }
    check_tests(fields, spans, diagnostics);
}

fn check_tests(
    fields: &BTreeMap<String, FieldMatch>,
    spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    for (name, field) in fields {
        if let FieldMatch::Test(test) = field
            && test.present == Some(false)
        {
            let problem = ConfigDiagnostic::error(
                spans.key(name).key("present").value_span(),
                "`present` can only be true",
            );
            let hint = "for requests without it, write a route without the condition: it takes the rest";
            diagnostics.push(problem.hint(hint));
        }
    }
}

/// Warns of routes without a host that respond or redirect, where a route with a host takes some of their
/// requests: a host precedes a path, so a path that is to be blocked stays open there.
fn check_open_hosts(listener: &ListenerConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let names = route_names(&listener.routes);
    let paths_of = |route: &'_ RouteConfig| -> Vec<String> {
        let paths = route.path.iter().chain(&route.path_exact).flat_map(OneOrMany::values);
        paths.map(|path| path.0.trim_end_matches('/').to_owned()).collect()
    };
    let is_below = |path: &str, prefix: &str| {
        path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let with_host = |route: &RouteConfig| route.host.is_some() && route.redirect.is_none();
    for (index, route) in listener.routes.iter().enumerate() {
        let is_local = route.redirect.is_some() || route.respond.is_some();
        let paths = paths_of(route);
        if !is_local || route.host.is_some() || paths.iter().all(String::is_empty) {
            continue;
        }
        let takes_some = |other: &RouteConfig| {
            let has_path = other.path.is_some() || other.path_exact.is_some() || other.path_regex.is_some();
            let prefixes = other.path.iter().flat_map(OneOrMany::values);
            let mut prefixes = prefixes.map(|prefix| prefix.0.trim_end_matches('/'));
            !has_path || prefixes.any(|prefix| paths.iter().any(|path| is_below(path, prefix)))
        };
        let Some(other) = listener.routes.iter().position(|other| with_host(other) && takes_some(other))
        else {
            continue;
        };
        let hosts = listener.routes[other].host.iter().flat_map(OneOrMany::values).map(ToString::to_string);
        let hosts = hosts.collect::<Vec<_>>().join(", ");
        let message = format!(
            "route `{}` does not apply to {hosts}: a host precedes a path, so `{}` takes those requests",
            names[index], names[other]
        );
        let route_spans = spans.key("route");
        let problem = ConfigDiagnostic::warning(route_spans.item(index).value_span(), message);
        let problem = problem.hint("name the hosts in this route, too");
        diagnostics.push(problem.with_related(route_spans.item(other).value_span(), "this one takes them"));
    }
}

/// Warns of routes that no request takes, and of routes with the same conditions.
fn check_conflicts(listener: &ListenerConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let names = route_names(&listener.routes);
    let route_spans = spans.key("route");
    let table = RouteTable::new(listener.routes.iter().map(rule).collect());
    for conflict in table.conflicts() {
        let (route, other, message, related) = match conflict {
            RouteConflict::Unreachable { route, by } => (
                route,
                by,
                format!("route `{}` is never taken: `{}` takes all of its requests", names[route], names[by]),
                "this one takes them",
            ),
            RouteConflict::Equal { route, first } => (
                route,
                first,
                format!(
                    "route `{}` is never taken: it has the conditions of `{}`, which comes first",
                    names[route], names[first]
                ),
                "the first is here",
            ),
        };
        let problem = ConfigDiagnostic::warning(route_spans.item(route).value_span(), message);
        diagnostics.push(problem.with_related(route_spans.item(other).value_span(), related));
    }
}
