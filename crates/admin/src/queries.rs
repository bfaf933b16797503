//! Queries, filtered by the caller's permissions.

use std::collections::BTreeSet;
use std::sync::Arc;

use http_body_util::Either;
use http_body_util::channel::Channel;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, HeaderName};
use hyper::{Method, Request, Response, StatusCode};
use plimsoll_brain::status::{GroupRecent, LoadLine, StatusReport};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::access::{Caller, GrantedScope};
use crate::api::{Operation, OperationClass, ROUTES};
use crate::endpoint::{AdminEndpoint, EndpointCapability};
use crate::reply::{ResponseBody, error, header, response, text, to_json, with_content_type};
use crate::{BalancerBackend, events, metrics, openapi};

/// Responds to the queries that every kind of process serves: the index and the document.
pub(crate) fn respond_common(
    endpoint: &AdminEndpoint,
    operation: Operation,
) -> Option<Response<ResponseBody>> {
    match operation {
        Operation::Index => Some(text(StatusCode::OK, index(endpoint))),
        Operation::Document => {
            Some(to_json(StatusCode::OK, &openapi::document_of(endpoint.backend.process_kind())))
        }
        _ => None,
    }
}

/// Returns the health of the process: alive, or about to end.
pub(crate) fn health(stopping: bool) -> Response<ResponseBody> {
    if stopping {
        text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n".into())
    } else {
        text(StatusCode::OK, "ok\n".into())
    }
}

/// Returns the groups in a query of [`Operation::Health`], in its order.
pub(crate) fn queried_groups(request: &Request<Incoming>) -> impl Iterator<Item = &str> {
    let parameters = request.uri().query().unwrap_or_default().split('&');
    parameters.filter_map(|pair| pair.strip_prefix("group="))
}

/// Returns the health of the process and of these groups.
fn health_of<'g>(
    balancer: &dyn BalancerBackend,
    groups: impl Iterator<Item = &'g str>,
    scope: &GrantedScope,
) -> Response<ResponseBody> {
    let mut problems = Vec::new();
    // A repeated name must cost nothing.
    for name in groups.collect::<BTreeSet<_>>() {
        let Some(group) = Some(name).filter(|name| scope.covers(name)).and_then(|name| balancer.group(name))
        else {
            // Health accepts every `Host`, so the other groups are not named.
            return error(StatusCode::NOT_FOUND, format!("there is no group {name}"));
        };
        problems.extend(group.unavailable_reason().map(|reason| format!("{name}: {reason}")));
    }
    match problems.as_slice() {
        [] => health(balancer.is_stopping()),
        _ if balancer.is_stopping() => health(true),
        problems => text(StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", problems.join("; "))),
    }
}

/// Returns a page of metrics.
pub(crate) fn metrics_response(page: String) -> Response<ResponseBody> {
    with_content_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page)
}

/// Responds to a query about a balancer; `permit` admits some of it.
pub(crate) fn respond(
    endpoint: &Arc<AdminEndpoint>,
    balancer: &Arc<dyn BalancerBackend>,
    caller: Caller,
    operation: Operation,
    group: Option<&str>,
    scope: GrantedScope,
    request: &Request<Incoming>,
) -> Response<ResponseBody> {
    match operation {
        Operation::Health => health_of(&**balancer, queried_groups(request), &scope),
        Operation::Events => event_response(endpoint, balancer, caller, &scope, request),
        Operation::Explain => object_response(&**balancer, group, &scope, NO_SUCH_OBJECT, |group| {
            balancer.explain(group).map(|explanation| to_json(StatusCode::OK, &explanation))
        }),
        Operation::Capacity => object_response(&**balancer, group, &scope, NO_SUCH_OBJECT, |group| {
            let status = balancer.group(group)?;
            Some(to_json(StatusCode::OK, &status.load_line.unwrap_or_else(unmeasured)))
        }),
        Operation::Recent => object_response(&**balancer, group, &scope, NO_SUCH_OBJECT, |group| {
            Some(to_json(StatusCode::OK, &trim_history(balancer.recent(group)?)))
        }),
        Operation::Scale => object_response(&**balancer, group, &scope, "has no [group.scaler]", |group| {
            let status = balancer.group(group)?;
            status.scaler.map(|scaler| to_json(StatusCode::OK, &scaler))
        }),
        Operation::Leases => object_response(&**balancer, group, &scope, NO_SUCH_OBJECT, |group| {
            let lessees = balancer.leases(group)?;
            let leases: usize = lessees.iter().map(|lessee| lessee.leases).sum();
            let document = json!({"schema": 1, "group": group, "leases": leases, "lessees": lessees});
            Some(to_json(StatusCode::OK, &document))
        }),
        Operation::Reference => {
            object_response(&**balancer, group, &scope, "has no iiop listener", |group| {
                balancer.reference(group).map(|reference| to_json(StatusCode::OK, &reference))
            })
        }
        // The path belongs to a balancer's queries, so the operation is one of those above.
        _ => error(StatusCode::METHOD_NOT_ALLOWED, "use POST".into()),
    }
}

/// Returns the complete status or metrics of a balancer. For a hundred thousand members that is a hundred
/// megabytes and seconds of work, so it runs on another thread, and one query at a time.
pub(crate) async fn full_response(
    balancer: &Arc<dyn BalancerBackend>,
    operation: Operation,
    scope: &GrantedScope,
) -> Option<Response<ResponseBody>> {
    static STATUS_PERMIT: Semaphore = Semaphore::const_new(1);
    if !matches!(operation, Operation::Status | Operation::Metrics) {
        return None;
    }
    let _permit = STATUS_PERMIT.acquire().await.ok()?;
    let (balancer, scope) = (Arc::clone(balancer), scope.clone());
    let result = spawn_blocking(move || {
        let status = redact(balancer.status(), &scope);
        match operation {
            Operation::Metrics => {
                // The buckets are read after the status, so the count can only be behind them; the page
                // corrects that.
                metrics_response(metrics::metrics_page(&status, |group| balancer.buckets(group)))
            }
            _ => to_json(StatusCode::OK, &status),
        }
    });
    Some(
        result.await.unwrap_or_else(|error_reason| {
            error(StatusCode::INTERNAL_SERVER_ERROR, error_reason.to_string())
        }),
    )
}

/// The number of seconds of a group's history that the API returns; charts need more, and read them in the
/// dashboard.
const RECENT_SECONDS: usize = 10;

/// Reduces the history to what tables need.
fn trim_history(mut recent: GroupRecent) -> GroupRecent {
    let surplus_seconds = recent.seconds.len().saturating_sub(RECENT_SECONDS);
    recent.seconds.drain(..surplus_seconds);
    recent.members.iter_mut().for_each(|member| member.seconds.clear());
    recent
}

/// Returns the load line of a group in its first seconds.
fn unmeasured() -> LoadLine {
    let reason = "it has only just begun";
    LoadLine { verdict: "unknown".into(), why: reason.into(), ..LoadLine::default() }
}

/// Returns a line for each path of the endpoint.
fn index(endpoint: &AdminEndpoint) -> String {
    let mut page = format!("plimsoll, {}\n\n", endpoint.backend.process_kind().name());
    let served_routes = ROUTES.iter().filter(|route| endpoint.serves(route));
    for route in served_routes.filter(|route| {
        endpoint.capability == EndpointCapability::Command || route.class == OperationClass::Query
    }) {
        page.push_str(&format!("{:<4} {:<33} {}\n", route.method, route.path, route.summary));
    }
    page
}

/// Reduces the status to what the caller may see.
pub(crate) fn redact(mut status: StatusReport, scope: &GrantedScope) -> StatusReport {
    status.groups.retain(|group| scope.covers(&group.name));
    status.listeners.retain(|listener| scope.covers(&listener.group));
    status
        .listeners
        .iter_mut()
        .for_each(|listener| listener.others.retain(|other_group| scope.covers(other_group)));
    if *scope != GrantedScope::All && status.last_reload_error.is_some() {
        // The error quotes the file.
        status.last_reload_error = Some("refused".into());
    }
    status
}

/// The default reason why a group has no such object.
const NO_SUCH_OBJECT: &str = "has nothing of the kind";

/// Finds an object of a group; `lacks` is the reason if the group exists without it.
fn object_response(
    balancer: &dyn BalancerBackend,
    group: Option<&str>,
    scope: &GrantedScope,
    missing_message: &str,
    find: impl Fn(&str) -> Option<Response<ResponseBody>>,
) -> Response<ResponseBody> {
    let group = group.unwrap_or_default();
    find(group).unwrap_or_else(|| {
        let status = redact(balancer.status(), scope);
        let names: Vec<&str> = status.groups.iter().map(|group| &*group.name).collect();
        let reason = match names.contains(&group) {
            true => format!("group {group} {missing_message}"),
            false => format!("there is no group {group}; there are: {}", names.join(", ")),
        };
        error(StatusCode::NOT_FOUND, reason)
    })
}

fn event_response(
    endpoint: &Arc<AdminEndpoint>,
    balancer: &Arc<dyn BalancerBackend>,
    caller: Caller,
    scope: &GrantedScope,
    request: &Request<Incoming>,
) -> Response<ResponseBody> {
    let mut since_seq = None;
    let mut follow = !header(request.headers(), ACCEPT).is_some_and(|accept| accept.contains("/json"));
    for pair in request.uri().query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("since", seq) => match seq.parse::<u64>() {
                Ok(seq) => since_seq = Some(seq),
                Err(_) => {
                    return error(
                        StatusCode::BAD_REQUEST,
                        "since: give the sequence number of an event".into(),
                    );
                }
            },
            ("follow", "0") => follow = false,
            ("follow", "1") => follow = true,
            (name, _) => {
                let message = format!("{name}: give since=SEQ, follow=0 or follow=1");
                return error(StatusCode::BAD_REQUEST, message);
            }
        }
    }
    if !follow {
        let mut entries = balancer.events(since_seq.unwrap_or(0));
        events::retain_visible(&mut entries, scope);
        return to_json(StatusCode::OK, &entries);
    }
    // A browser that reconnects repeats the address and adds this: it is the newer of the two.
    if let Some(last_id) = header(request.headers(), HeaderName::from_static("last-event-id"))
        && let Ok(last_id) = last_id.parse::<u64>()
    {
        // Numbers restart with the process; one of a previous process has no meaning here.
        let newest_seq = balancer.events(last_id.saturating_sub(1)).last().map_or(0, |entry| entry.seq);
        since_seq = Some(if last_id <= newest_seq { last_id } else { 0 });
    }
    let Ok(slot) = endpoint.streams.clone().try_acquire_owned() else {
        return error(StatusCode::SERVICE_UNAVAILABLE, "too many event streams: close some".into());
    };
    let (sender, body) = Channel::new(1);
    if request.method() != Method::HEAD {
        tokio::spawn(events::stream(endpoint.clone(), balancer.clone(), caller, since_seq, sender, slot));
    }
    response(StatusCode::OK, "text/event-stream", Either::Right(body))
}
