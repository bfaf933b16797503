//! Routes for the data plane.

use std::collections::HashSet;
use std::io::Read;
use std::sync::Arc;

use plimsoll_brain::route::{FieldCondition, FieldTest, PathPattern, RouteRule};
use plimsoll_proxy as proxy;

use super::{
    FieldMatch, OneOrMany, RedirectConfig, RespondConfig, RouteConfig, RouteHost, RoutePath, UrlScheme,
};
use crate::diagnostic::ConfigDiagnostic;
use crate::spans::SpanTree;
use crate::{FilePath, ListenerConfig};

/// The largest body of a response, in bytes.
const MAX_BODY: u64 = 1 << 20;

/// Returns the routes of a listener; `None` without any, or if a file of a response cannot be read.
pub(crate) fn of_listener(
    listener: &ListenerConfig,
    spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) -> Option<Arc<proxy::ListenerRoutes>> {
    if listener.routes.is_empty() && !listener.https_redirect {
        return None;
    }
    let names = route_names(&listener.routes);
    let mut routes = Vec::with_capacity(listener.routes.len() + 1);
    for (index, (route, name)) in listener.routes.iter().zip(names).enumerate() {
        let spans = spans.key("route").item(index);
        if let Some(action) = action(route, spans, diagnostics) {
            routes.push(proxy::RouteSettings { name: name.into(), rule: rule(route), action });
        }
    }
    if listener.https_redirect {
        let redirect = RedirectConfig { status: 308, scheme: Some(UrlScheme::Https), ..Default::default() };
        let action = proxy::RouteAction::Redirect(redirect_settings(&redirect));
        routes.push(proxy::RouteSettings { name: HTTPS_REDIRECT.into(), rule: RouteRule::default(), action });
    }
    Some(Arc::new(proxy::ListenerRoutes::new(routes, listener.group.is_some())))
}

/// The name of the route that `https_redirect` stands for.
pub(super) const HTTPS_REDIRECT: &str = "https_redirect";

/// Returns the conditions of a route.
pub(super) fn rule(route: &RouteConfig) -> RouteRule {
    let texts = |paths: &Option<OneOrMany<RoutePath>>| -> Vec<Box<str>> {
        paths.iter().flat_map(OneOrMany::values).map(|path| path.0.as_str().into()).collect()
    };
    let prefixes = texts(&route.path).into_iter().map(PathPattern::Prefix);
    let exact_paths = texts(&route.path_exact).into_iter().map(PathPattern::Exact);
    let expressions = route.path_regex.iter().flat_map(OneOrMany::values);
    let expressions = expressions.map(|pattern| PathPattern::Regex(pattern.0.0.clone()));
    let methods = route.method.iter().flat_map(OneOrMany::values);
    RouteRule {
        hosts: route.host.iter().flat_map(OneOrMany::values).map(RouteHost::pattern).collect(),
        paths: prefixes.chain(exact_paths).chain(expressions).collect(),
        methods: methods.map(|method| method.0.as_str().into()).collect(),
        headers: conditions(&route.headers, |name| name.to_ascii_lowercase()),
        queries: conditions(&route.query, str::to_owned),
        cookies: conditions(&route.cookies, str::to_owned),
    }
}

fn conditions(
    fields: &std::collections::BTreeMap<String, FieldMatch>,
    name_form: impl Fn(&str) -> String,
) -> Vec<FieldCondition> {
    let condition = |(name, field): (&String, &FieldMatch)| {
        let test = match field {
            FieldMatch::Exact(text) => FieldTest::Exact(text.0.as_str().into()),
            FieldMatch::Test(test) => match &test.regex {
                Some(regex) => FieldTest::Regex(regex.0.clone()),
                None => FieldTest::Present,
            },
        };
        FieldCondition { name: name_form(name).into(), test }
    };
    fields.iter().map(condition).collect()
}

/// Returns the names of routes. One that is not given is made of host and path, with a number if another
/// route has the same.
pub(super) fn route_names(routes: &[RouteConfig]) -> Vec<String> {
    let mut taken: HashSet<String> =
        routes.iter().filter_map(|route| Some(route.name.as_ref()?.0.clone())).collect();
    let mut name = |route: &RouteConfig| {
        if let Some(name) = &route.name {
            return name.0.clone();
        }
        let derived = derived_name(route);
        let numbered = (2..).map(|number| format!("{derived}#{number}"));
        let mut candidates = std::iter::once(derived.clone()).chain(numbered);
        let free = candidates.find(|candidate| !taken.contains(candidate)).unwrap_or_default();
        taken.insert(free.clone());
        free
    };
    routes.iter().map(&mut name).collect()
}

fn derived_name(route: &RouteConfig) -> String {
    let host = route.host.as_ref().and_then(|hosts| hosts.values().first());
    let paths = [&route.path, &route.path_exact];
    let path = paths.into_iter().flatten().find_map(|paths| paths.values().first());
    let expression = route.path_regex.as_ref().and_then(|patterns| patterns.values().first());
    let path = path.map(|path| path.0.clone()).or_else(|| expression.map(ToString::to_string));
    host.map_or("*", |host| &host.0).to_owned() + &path.unwrap_or_default()
}

fn action(
    route: &RouteConfig,
    spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) -> Option<proxy::RouteAction> {
    if let Some(redirect) = &route.redirect {
        return Some(proxy::RouteAction::Redirect(redirect_settings(redirect)));
    }
    if let Some(respond) = &route.respond {
        return response(respond, spans.key("respond"), diagnostics).map(proxy::RouteAction::Respond);
    }
    let single = route.group.iter().map(|group| (group, 1));
    let split = route.groups.iter().map(|split| (&split.group, split.weight));
    let targets = single.chain(split);
    let targets =
        targets.map(|(group, weight)| (group.0.as_str().into(), u32::try_from(weight).unwrap_or(u32::MAX)));
    Some(proxy::RouteAction::Forward(targets.collect()))
}

fn redirect_settings(redirect: &RedirectConfig) -> proxy::RedirectSettings {
    let path = match (&redirect.path, &redirect.prefix) {
        (Some(path), _) => proxy::RedirectPath::Replace(path.0.as_str().into()),
        (None, Some(prefix)) => proxy::RedirectPath::ReplacePrefix(prefix.0.as_str().into()),
        (None, None) => proxy::RedirectPath::Keep,
    };
    proxy::RedirectSettings {
        status: u16::try_from(redirect.status).unwrap_or(302),
        scheme: redirect.scheme.map(|scheme| scheme.name().into()),
        host: redirect.host.as_ref().map(|host| host.0.as_str().into()),
        port: redirect.port.and_then(|port| u16::try_from(port).ok()),
        path,
    }
}

fn response(
    respond: &RespondConfig,
    spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) -> Option<proxy::ResponseSettings> {
    let body = match &respond.file {
        None => respond.body.clone().unwrap_or_default().into_bytes(),
        Some(path) => match read_body(path) {
            Ok(body) => body,
            Err(reason) => {
                let message = format!("cannot use the file {path}: {reason}");
                diagnostics.push(ConfigDiagnostic::error(spans.key("file").value_span(), message));
                return None;
            }
        },
    };
    Some(proxy::ResponseSettings {
        status: u16::try_from(respond.status).unwrap_or(200),
        content_type: respond.content_type.0.as_str().into(),
        body: body.into(),
    })
}

fn read_body(path: &FilePath) -> Result<Vec<u8>, String> {
    // Opening a pipe would wait for its other end.
    if !std::fs::metadata(&path.0).map_err(|error| error.to_string())?.is_file() {
        return Err("it is not a file".to_owned());
    }
    let file = std::fs::File::open(&path.0).map_err(|error| error.to_string())?;
    let mut body = Vec::new();
    file.take(MAX_BODY + 1).read_to_end(&mut body).map_err(|error| error.to_string())?;
    match body.len() as u64 > MAX_BODY {
        true => Err("it has more than 1 MiB".to_owned()),
        false => Ok(body),
    }
}
