//! Routes: the group of a request, or the balancer's own response to it, by the content of its head.
//!
//! Routes match on the normal form of the path, and the member gets this form ([`normal_path`]). Some servers
//! read an escaped slash as a slash, or drop parameters. A path that they would read in another way is
//! forwarded only if all readings take the same route. So no member sees a path that the routes did not.
//!
//! All of this is out of line: listeners without routes pay one check for each request.

mod explain;
mod redirect;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::rc::Rc;

use plimsoll_brain::route::{RequestFields, RouteTable};
use plimsoll_wire::http1::{
    RequestHead, RequestRejection, decoded, normal_path, other_readings, query_value, split_target,
};

use super::dispatch::ColdFuture;
use super::{ByteStream, HttpSession, ParsedRequest};
use crate::listener::Listener;
use crate::listener::routes::ResolvedRoutes;
use crate::net::reason::Reason;
use crate::{ResponseSettings, RouteAction, RouteSettings};
use redirect::{RequestUrl, location};

pub use explain::{RequestExplanation, RouteOutcome, explain_request};

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
