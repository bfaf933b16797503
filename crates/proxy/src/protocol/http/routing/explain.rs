//! The explanation of a request's route, for `plimsoll explain request`.

use std::sync::Arc;

use plimsoll_wire::http1::{self, HeadError, MarkedFields, RequestHead, RequestRejection};

use super::super::{forwarded_style, rejection_reason};
use super::RoutedTarget;
use super::redirect::{location, split_port};
use crate::net::reason::Reason;
use crate::{ListenerSettings, RouteAction};

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
    let named_group = group_of_name(settings, request.host, is_tls);
    let own_group = || vec![(Arc::clone(named_group.unwrap_or(&settings.group)), 1)];
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
        None if named_group.is_none() && !routes.has_default_group() => rejected(Reason::NoRoute),
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

/// Returns the group that a client gets by the server name in its TLS handshake, which is the host.
fn group_of_name<'s>(settings: &'s ListenerSettings, host: &[u8], is_tls: bool) -> Option<&'s Arc<str>> {
    let (name, _) = split_port(host);
    let name = std::str::from_utf8(name).ok().filter(|_| is_tls)?;
    settings.tls.as_ref()?.group(&name.to_ascii_lowercase())
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
