//! Routes: the group of a request, or the balancer's own response to it, by the content of its head.
//!
//! Routes match on the normal form of the path, and the member gets this form ([`normal_path`]). Some servers
//! read an escaped slash as a slash, or drop parameters. A path that they would read in another way is
//! forwarded only if both readings take the same route. So no member sees a path that the routes did not.
//!
//! All of this is out of line: listeners without routes pay one check for each request.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;

use plimsoll_brain::route::{PathPattern, RequestFields, RouteTable};
use plimsoll_wire::http1::{
    self, HeadError, MarkedFields, RequestHead, RequestRejection, decoded, normal_path, other_readings,
    query_value, split_target,
};

use super::dispatch::ColdFuture;
use super::{ByteStream, HttpSession, ParsedRequest, forwarded_style, rejection_reason};
use crate::listener::Listener;
use crate::listener::routes::ResolvedRoutes;
use crate::net::reason::Reason;
use crate::{ListenerSettings, RedirectPath, RedirectSettings, ResponseSettings, RouteAction, RouteSettings};

/// The route of a request.
pub(super) struct SelectedRoute {
    routes: Rc<ResolvedRoutes>,
    /// The listener of the connection.
    entry: Rc<Listener>,
    /// The index of the route; `None` if no route takes the request.
    index: Option<usize>,
    /// The balancer's own response, if the request is not forwarded.
    pub(super) reply: Option<RouteReply>,
}

/// A response of the balancer's own, by a route or for the lack of one.
pub(super) enum RouteReply {
    Rejected(Reason),
    Redirected { status: u16, location: Vec<u8> },
    Fixed(ResponseSettings),
}

impl SelectedRoute {
    /// Returns the name of the route.
    pub(super) fn name(&self) -> Option<&str> {
        self.settings().map(|route| &*route.name)
    }

    fn settings(&self) -> Option<&RouteSettings> {
        self.routes.routes.routes().get(self.index?)
    }
}

/// The target of a request, as routes read it.
struct RoutedTarget<'t> {
    /// The path in normal form.
    path: Cow<'t, [u8]>,
    /// The path as some servers read it, if they read others.
    other_paths: Vec<Vec<u8>>,
    /// The question mark and the query; empty without one.
    suffix: &'t [u8],
}

/// The path can be read in ways that take different routes.
#[derive(Clone, Copy)]
struct AmbiguousPath;

impl<'t> RoutedTarget<'t> {
    fn read(target: &'t [u8]) -> Result<Self, RequestRejection> {
        let parts = split_target(target);
        let suffix = parts.path.as_ref().map_or(&[][..], |path| &target[path.end..]);
        let malformed = |_| RequestRejection::Malformed("the path is malformed");
        let (path, other_paths) = match parts.path.map(|path| &target[path]) {
            None => (Cow::Borrowed(target), Vec::new()),
            // `http://host?query` has an empty path, which is the root.
            Some(b"") => (Cow::Owned(b"/".to_vec()), Vec::new()),
            Some(path) => {
                let path = normal_path(path).map_err(malformed)?;
                let other_paths = other_readings(&path).map_err(malformed)?;
                (path, other_paths)
            }
        };
        Ok(Self { path, other_paths, suffix })
    }

    /// Returns the index of the route, if one takes the request.
    fn find(
        &self,
        head: &RequestHead<'_, '_>,
        table: &RouteTable,
        trusted: bool,
    ) -> Result<Option<usize>, AmbiguousPath> {
        let fields = self.fields(head, trusted);
        let index = table.find(&fields);
        let is_same = |path: &Vec<u8>| table.find_with_path(&fields, path) == index;
        if self.other_paths.iter().all(is_same) { Ok(index) } else { Err(AmbiguousPath) }
    }

    fn fields<'a, 'm, 'b>(
        &'a self,
        head: &'a RequestHead<'m, 'b>,
        trusted: bool,
    ) -> RoutedFields<'a, 'm, 'b> {
        RoutedFields { head, trusted, path: &self.path, query: self.suffix.get(1..).unwrap_or_default() }
    }

    fn url<'a>(&'a self, scheme: &'a str, host: &'a [u8]) -> RequestUrl<'a> {
        RequestUrl { scheme, host, path: &self.path, suffix: self.suffix }
    }

    /// Returns the target for the member, if it is another one.
    fn replacement(&self) -> Option<Vec<u8>> {
        match &self.path {
            Cow::Borrowed(_) => None,
            Cow::Owned(path) => Some([path.as_slice(), self.suffix].concat()),
        }
    }
}

/// Returns `true` for the headers with which proxies describe the original client; the name is in lower case.
fn is_forwarding_field(name: &str) -> bool {
    matches!(name, "forwarded" | "x-forwarded-for" | "x-forwarded-host" | "x-forwarded-proto")
}

/// The content of a request that routes read.
struct RoutedFields<'a, 'm, 'b> {
    head: &'a RequestHead<'m, 'b>,
    /// Whether the client's statements about the original client are trusted.
    trusted: bool,
    path: &'a [u8],
    query: &'a [u8],
}

impl RequestFields for RoutedFields<'_, '_, '_> {
    fn host(&self) -> &[u8] {
        self.head.host
    }

    fn path(&self) -> &[u8] {
        self.path
    }

    fn method(&self) -> &[u8] {
        self.head.method_name
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        // The member does not get these, so routes do not read them either.
        let is_dropped =
            (!self.trusted && is_forwarding_field(name)) || self.head.is_named_by_connection(name);
        if is_dropped { None } else { self.head.field(name) }
    }

    fn query(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        query_value(self.query, name).map(decoded)
    }

    fn cookie(&self, name: &str) -> Option<&[u8]> {
        self.head.cookie(name)
    }
}

impl<S: ByteStream> HttpSession<S> {
    /// Selects the route of a request, and switches to the listener of its group. A path that is not in
    /// normal form is replaced; `new_target` keeps the new target.
    #[inline(never)]
    pub(super) fn select_route<'b>(
        &mut self,
        request: &mut RequestHead<'_, 'b>,
        new_target: &'b OnceCell<Vec<u8>>,
        trusted: bool,
    ) -> Result<Option<SelectedRoute>, RequestRejection> {
        let Some(routes) = self.listener.routes() else { return Ok(None) };
        let target = RoutedTarget::read(request.target)?;
        let index = target.find(request, routes.routes.table(), trusted);
        let entry = Rc::clone(&self.listener);
        let mut selected = SelectedRoute { routes, entry, index: index.unwrap_or_default(), reply: None };
        selected.reply = match index {
            Err(AmbiguousPath) => Some(RouteReply::Rejected(Reason::AmbiguousPath)),
            Ok(_) => self.apply_route(&selected, request, &target),
        };
        if let Some(target) = target.replacement() {
            request.replace_target(new_target.get_or_init(|| target));
        }
        Ok(Some(selected))
    }

    /// Switches to the listener of the route's group, or returns the balancer's own response.
    fn apply_route(
        &mut self,
        selected: &SelectedRoute,
        request: &RequestHead<'_, '_>,
        target: &RoutedTarget<'_>,
    ) -> Option<RouteReply> {
        let routes = &selected.routes;
        let (Some(index), Some(route)) = (selected.index, selected.settings()) else {
            let has_default_group = self.listener.has_default_group(routes);
            return (!has_default_group).then_some(RouteReply::Rejected(Reason::NoRoute));
        };
        match &route.action {
            RouteAction::Forward(_) => match routes.next_target(index) {
                Some(listener) => {
                    self.listener = listener;
                    None
                }
                // The group has just been removed, and its listener is closed.
                None => Some(RouteReply::Rejected(Reason::NoMember)),
            },
            // A client without a host (HTTP/1.0) would be redirected to itself; `*` is not part of a URL.
            RouteAction::Redirect(redirect)
                if (request.host.is_empty() && redirect.host.is_none()) || *target.path == *b"*" =>
            {
                Some(RouteReply::Rejected(Reason::BadRequest))
            }
            RouteAction::Redirect(redirect) => {
                let location = location(redirect, route, &target.url(self.stream.scheme(), request.host));
                Some(RouteReply::Redirected { status: redirect.status, location })
            }
            RouteAction::Respond(response) => Some(RouteReply::Fixed(response.clone())),
        }
    }

    /// Returns to the listener of the connection after a request.
    #[inline]
    pub(super) fn leave_route(&mut self, request: &mut ParsedRequest) {
        if let Some(extras) = &mut request.extras
            && let Some(route) = extras.route.take()
        {
            self.listener = route.entry;
        }
    }

    /// Sends the balancer's own response; returns `true` if the connection continues.
    #[cold]
    pub(super) fn answer_route<'a>(
        &'a mut self,
        request: &'a mut ParsedRequest,
        reply: RouteReply,
    ) -> ColdFuture<'a, bool> {
        Box::pin(async move {
            let now = self.core.now();
            let keep_alive = match reply {
                RouteReply::Rejected(reason) => {
                    self.listener.pool().group.record_rejection(self.core.index, reason);
                    self.log_request(request, reason.status().0, Some(reason), now);
                    self.reject(request, reason).await
                }
                RouteReply::Redirected { status, location } => {
                    self.log_request(request, status, None, now);
                    let fields = [b"Location: ", location.as_slice(), b"\r\n"].concat();
                    self.answer_locally(request, status, &fields, &[]).await
                }
                RouteReply::Fixed(response) => {
                    self.log_request(request, response.status, None, now);
                    let fields = format!("Content-Type: {}\r\n", response.content_type);
                    self.answer_locally(request, response.status, fields.as_bytes(), &response.body).await
                }
            };
            self.core.recycle(std::mem::take(&mut request.outgoing));
            self.leave_route(request);
            keep_alive
        })
    }
}

/// The handling of a request by the routes of a listener.
#[derive(Debug)]
pub struct RequestExplanation {
    /// The path in normal form.
    pub path: String,
    /// The index of the route that takes the request.
    pub route: Option<usize>,
    /// The routes that would have come before, each with its first condition that does not hold.
    pub passed_over: Vec<(usize, String)>,
    /// The routes that match, too, and come after it.
    pub also_match: Vec<usize>,
    /// The result.
    pub outcome: RouteOutcome,
}

/// The result of routes for a request.
#[derive(Debug)]
pub enum RouteOutcome {
    /// The request goes to one of these groups, by weight, with this head.
    Forwarded {
        /// The groups with their weights.
        groups: Vec<(Arc<str>, u32)>,
        /// The head for the member of a client at 192.0.2.1.
        head: String,
    },
    /// The client is redirected.
    Redirected {
        /// The status.
        status: u16,
        /// The new URL.
        location: String,
    },
    /// The balancer responds with this status.
    Responded {
        /// The status.
        status: u16,
    },
    /// The balancer rejects the request.
    Rejected {
        /// The status.
        status: u16,
        /// The reason, as in `plimsoll-reason`.
        reason: &'static str,
    },
}

/// Explains what a listener does with a request with this head. `is_tls` is `true` for clients over TLS.
///
/// # Errors
/// The head is not one that a listener accepts.
pub fn explain_request(
    settings: &ListenerSettings,
    head: &[u8],
    is_tls: bool,
) -> Result<RequestExplanation, String> {
    let mut marks = MarkedFields::default();
    let mut request = http1::request(head, settings.max_head, &mut marks).map_err(|error| match error {
        HeadError::Partial => "the request is incomplete".to_owned(),
        HeadError::Invalid(rejection) => format!("the request is not accepted: {}", describe(rejection)),
    })?;
    let mut explanation = RequestExplanation {
        path: String::from_utf8_lossy(request.target).into_owned(),
        route: None,
        passed_over: Vec::new(),
        also_match: Vec::new(),
        outcome: RouteOutcome::Rejected { status: 400, reason: Reason::BadRequest.label() },
    };
    let own_group = || vec![(Arc::clone(&settings.group), 1)];
    let Some(routes) = &settings.routes else {
        let head = forwarded_head(settings, &request, is_tls);
        explanation.outcome = RouteOutcome::Forwarded { groups: own_group(), head };
        return Ok(explanation);
    };
    let Ok(target) = RoutedTarget::read(request.target) else { return Ok(explanation) };
    explanation.path = String::from_utf8_lossy(&target.path).into_owned();
    let rejected =
        |reason: Reason| RouteOutcome::Rejected { status: reason.status().0, reason: reason.label() };
    let Ok(index) = target.find(&request, routes.table(), false) else {
        explanation.outcome = rejected(Reason::AmbiguousPath);
        return Ok(explanation);
    };
    explanation.route = index;
    let fields = target.fields(&request, false);
    let reasons = routes.table().explain(&fields);
    let preceding = reasons.preceding.into_iter();
    explanation.passed_over = preceding.map(|other| (other.route, other.mismatch.to_string())).collect();
    explanation.also_match = reasons.following;
    let replacement = target.replacement();
    let scheme = if is_tls { "https" } else { "http" };
    let action = index.map(|index| &routes.routes()[index]);
    explanation.outcome = match action.map(|route| (route, &route.action)) {
        Some((route, RouteAction::Redirect(redirect))) => {
            let location = location(redirect, route, &target.url(scheme, request.host));
            let location = String::from_utf8_lossy(&location).into_owned();
            RouteOutcome::Redirected { status: redirect.status, location }
        }
        Some((_, RouteAction::Respond(response))) => RouteOutcome::Responded { status: response.status },
        None if !routes.has_default_group() => rejected(Reason::NoRoute),
        forward => {
            if let Some(replacement) = &replacement {
                request.replace_target(replacement);
            }
            let groups = match forward {
                Some((_, RouteAction::Forward(groups))) => groups.clone(),
                _ => own_group(),
            };
            RouteOutcome::Forwarded { groups, head: forwarded_head(settings, &request, is_tls) }
        }
    };
    Ok(explanation)
}

/// Returns the reason of a rejection in words.
fn describe(rejection: RequestRejection) -> &'static str {
    match rejection {
        RequestRejection::Malformed(reason) | RequestRejection::NotImplemented(reason) => reason,
        other => rejection_reason(other).sentence(),
    }
}

/// Returns the head for the member of a client at an example address.
fn forwarded_head(settings: &ListenerSettings, request: &RequestHead<'_, '_>, is_tls: bool) -> String {
    const CLIENT: &str = "192.0.2.1";
    let scheme = if is_tls { "https" } else { "http" };
    let mut out = Vec::new();
    let options = http1::ForwardingOptions {
        style: forwarded_style(settings),
        trusted: false,
        client: CLIENT,
        plain: &http1::x_forwarded(CLIENT, scheme),
        scheme,
    };
    request.write(&options, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// The URL of a request, in the parts that a redirect replaces.
struct RequestUrl<'a> {
    scheme: &'a str,
    /// The host with an optional port; empty only from HTTP/1.0 clients.
    host: &'a [u8],
    path: &'a [u8],
    /// The question mark and the query; empty without one.
    suffix: &'a [u8],
}

/// Returns the URL to which a route redirects a request.
fn location(redirect: &RedirectSettings, route: &RouteSettings, url: &RequestUrl<'_>) -> Vec<u8> {
    let mut location = Vec::with_capacity(128);
    let (name, own_port) = split_port(url.host);
    let host = redirect.host.as_ref().map_or(name, |host| host.as_bytes());
    let keeps_port = redirect.scheme.is_none() && redirect.host.is_none();
    location.extend_from_slice(redirect.scheme.as_deref().unwrap_or(url.scheme).as_bytes());
    location.extend_from_slice(b"://");
    location.extend_from_slice(host);
    match (redirect.port, own_port) {
        (Some(port), _) => {
            // Writing to a vector cannot fail.
            let _ = write!(location, ":{port}");
        }
        (None, Some(port)) if keeps_port => location.extend_from_slice(port),
        (None, _) => {}
    }
    location.extend_from_slice(&new_path(&redirect.path, route, url.path));
    location.extend_from_slice(url.suffix);
    location
}

/// Splits a host into its name and its port with the colon.
fn split_port(host: &[u8]) -> (&[u8], Option<&[u8]>) {
    match host.iter().rposition(|byte| *byte == b':') {
        // The colons of an IPv6 address are in brackets.
        Some(colon) if !host[colon..].contains(&b']') => (&host[..colon], Some(&host[colon..])),
        _ => (host, None),
    }
}

/// Returns the path that replaces a request's.
fn new_path<'a>(change: &'a RedirectPath, route: &RouteSettings, path: &'a [u8]) -> Cow<'a, [u8]> {
    match change {
        RedirectPath::Keep => Cow::Borrowed(path),
        RedirectPath::Replace(replacement) => Cow::Borrowed(replacement.as_bytes()),
        RedirectPath::ReplacePrefix(replacement) => {
            let rest = &path[matched_prefix_len(route, path)..];
            match rest {
                b"" if replacement.is_empty() => Cow::Borrowed(&b"/"[..]),
                b"" => Cow::Borrowed(replacement.as_bytes()),
                rest => Cow::Owned([replacement.trim_end_matches('/').as_bytes(), rest].concat()),
            }
        }
    }
}

/// Returns the length of the longest prefix of a route that a path begins with, without a slash at its end.
fn matched_prefix_len(route: &RouteSettings, path: &[u8]) -> usize {
    let lengths = route.rule.paths.iter().filter_map(|pattern| {
        let PathPattern::Prefix(prefix) = pattern else { return None };
        let prefix = prefix.trim_end_matches('/').as_bytes();
        let rest = path.strip_prefix(prefix)?;
        (rest.is_empty() || rest.starts_with(b"/")).then_some(prefix.len())
    });
    lengths.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use plimsoll_brain::route::RouteRule;

    use super::*;

    fn route(prefix: &str) -> RouteSettings {
        RouteSettings {
            name: "r".into(),
            rule: RouteRule { paths: vec![PathPattern::Prefix(prefix.into())], ..RouteRule::default() },
            action: RouteAction::Forward(Vec::new()),
        }
    }

    #[test]
    fn a_prefix_is_replaced_by_segments() {
        for (prefix, replacement, path, expected) in [
            ("/foo", "/xyz", "/foo/bar", "/xyz/bar"),
            ("/foo", "/xyz/", "/foo/bar", "/xyz/bar"),
            ("/foo/", "/xyz", "/foo/bar", "/xyz/bar"),
            ("/foo", "/xyz", "/foo/", "/xyz/"),
            ("/foo", "/xyz", "/foo", "/xyz"),
            ("/foo", "/xyz/", "/foo", "/xyz/"),
            ("/foo", "/", "/foo/bar", "/bar"),
            ("/foo", "", "/foo/bar", "/bar"),
            ("/foo", "/", "/foo/", "/"),
            ("/foo", "/", "/foo", "/"),
            ("/foo", "", "/foo", "/"),
            ("/", "/v2", "/foo", "/v2/foo"),
        ] {
            let change = RedirectPath::ReplacePrefix(replacement.into());
            let replaced = new_path(&change, &route(prefix), path.as_bytes()).into_owned();
            assert_eq!(String::from_utf8_lossy(&replaced), expected, "{prefix} by {replacement} in {path}");
        }
    }

    #[test]
    fn a_redirect_keeps_what_it_does_not_replace() {
        let keep =
            RedirectSettings { status: 301, scheme: None, host: None, port: None, path: RedirectPath::Keep };
        let https = || Some("https".into());
        for (redirect, host, suffix, expected) in [
            (
                RedirectSettings { scheme: https(), ..keep.clone() },
                "a.example:8080",
                "",
                "https://a.example/x",
            ),
            (RedirectSettings { scheme: https(), ..keep.clone() }, "[::1]:80", "?q=1", "https://[::1]/x?q=1"),
            (
                RedirectSettings { scheme: https(), port: Some(8443), ..keep.clone() },
                "a",
                "",
                "https://a:8443/x",
            ),
            (RedirectSettings { port: Some(81), ..keep.clone() }, "a:80", "", "http://a:81/x"),
            (RedirectSettings { host: Some("b".into()), ..keep.clone() }, "a:80", "", "http://b/x"),
            (
                RedirectSettings { path: RedirectPath::Replace("/y".into()), ..keep.clone() },
                "a:80",
                "?q",
                "http://a:80/y?q",
            ),
        ] {
            let url =
                RequestUrl { scheme: "http", host: host.as_bytes(), path: b"/x", suffix: suffix.as_bytes() };
            let location = location(&redirect, &route("/"), &url);
            assert_eq!(String::from_utf8_lossy(&location), expected);
        }
    }
}
