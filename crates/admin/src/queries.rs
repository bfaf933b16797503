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
pub(crate) fn respond_common(plane: &AdminEndpoint, verb: Operation) -> Option<Response<ResponseBody>> {
    match verb {
        Operation::Index => Some(text(StatusCode::OK, index(plane))),
        Operation::Document => {
            Some(to_json(StatusCode::OK, &openapi::document_of(plane.backend.process_kind())))
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
    let pairs = request.uri().query().unwrap_or_default().split('&');
    pairs.filter_map(|pair| pair.strip_prefix("group="))
}

/// Returns the health of the process and of these groups.
fn health_of<'g>(
    subject: &dyn BalancerBackend,
    groups: impl Iterator<Item = &'g str>,
    permit: &GrantedScope,
) -> Response<ResponseBody> {
    let mut unfit = Vec::new();
    // A repeated name must cost nothing.
    for name in groups.collect::<BTreeSet<_>>() {
        let Some(group) = Some(name).filter(|name| permit.covers(name)).and_then(|name| subject.group(name))
        else {
            // Health accepts every `Host`, so the other groups are not named.
            return error(StatusCode::NOT_FOUND, format!("there is no group {name}"));
        };
        unfit.extend(group.unavailable_reason().map(|why| format!("{name}: {why}")));
    }
    match unfit.as_slice() {
        [] => health(subject.is_stopping()),
        _ if subject.is_stopping() => health(true),
        unfit => text(StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", unfit.join("; "))),
    }
}

/// Returns a page of metrics.
pub(crate) fn metrics_response(page: String) -> Response<ResponseBody> {
    with_content_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page)
}

/// Responds to a query about a balancer; `permit` admits some of it.
pub(crate) fn respond(
    plane: &Arc<AdminEndpoint>,
    subject: &Arc<dyn BalancerBackend>,
    caller: Caller,
    verb: Operation,
    group: Option<&str>,
    permit: GrantedScope,
    request: &Request<Incoming>,
) -> Response<ResponseBody> {
    match verb {
        Operation::Health => health_of(&**subject, queried_groups(request), &permit),
        Operation::Events => event_response(plane, subject, caller, &permit, request),
        Operation::Explain => object_response(&**subject, group, &permit, NO_SUCH_OBJECT, |group| {
            subject.explain(group).map(|found| to_json(StatusCode::OK, &found))
        }),
        Operation::Capacity => object_response(&**subject, group, &permit, NO_SUCH_OBJECT, |group| {
            let found = subject.group(group)?;
            Some(to_json(StatusCode::OK, &found.load_line.unwrap_or_else(unmeasured)))
        }),
        Operation::Recent => object_response(&**subject, group, &permit, NO_SUCH_OBJECT, |group| {
            Some(to_json(StatusCode::OK, &trim_history(subject.recent(group)?)))
        }),
        Operation::Scale => object_response(&**subject, group, &permit, "has no [group.scaler]", |group| {
            let found = subject.group(group)?;
            found.scaler.map(|scaler| to_json(StatusCode::OK, &scaler))
        }),
        Operation::Leases => object_response(&**subject, group, &permit, NO_SUCH_OBJECT, |group| {
            let lessees = subject.leases(group)?;
            let leases: usize = lessees.iter().map(|lessee| lessee.leases).sum();
            let list = json!({"schema": 1, "group": group, "leases": leases, "lessees": lessees});
            Some(to_json(StatusCode::OK, &list))
        }),
        Operation::Reference => {
            object_response(&**subject, group, &permit, "has no iiop listener", |group| {
                subject.reference(group).map(|found| to_json(StatusCode::OK, &found))
            })
        }
        // The path belongs to a balancer's queries, so the operation is one of those above.
        _ => error(StatusCode::METHOD_NOT_ALLOWED, "use POST".into()),
    }
}

/// Returns the complete status or metrics of a balancer. For a hundred thousand members that is a hundred
/// megabytes and seconds of work, so it runs on another thread, and one query at a time.
pub(crate) async fn full_response(
    subject: &Arc<dyn BalancerBackend>,
    verb: Operation,
    permit: &GrantedScope,
) -> Option<Response<ResponseBody>> {
    static ONE: Semaphore = Semaphore::const_new(1);
    if !matches!(verb, Operation::Status | Operation::Metrics) {
        return None;
    }
    let _one = ONE.acquire().await.ok()?;
    let (subject, permit) = (Arc::clone(subject), permit.clone());
    let shown = spawn_blocking(move || {
        let status = redact(subject.status(), &permit);
        match verb {
            Operation::Metrics => {
                // The buckets are read after the status, so the count can only be behind them; the page
                // corrects that.
                metrics_response(metrics::metrics_page(&status, |group| subject.buckets(group)))
            }
            _ => to_json(StatusCode::OK, &status),
        }
    });
    Some(shown.await.unwrap_or_else(|why| error(StatusCode::INTERNAL_SERVER_ERROR, why.to_string())))
}

/// The number of seconds of a group's history that the API returns; charts need more, and read them in the
/// dashboard.
const RECENT_SECONDS: usize = 10;

/// Reduces the history to what tables need.
fn trim_history(mut recent: GroupRecent) -> GroupRecent {
    let surplus = recent.seconds.len().saturating_sub(RECENT_SECONDS);
    recent.seconds.drain(..surplus);
    recent.members.iter_mut().for_each(|member| member.seconds.clear());
    recent
}

/// Returns the load line of a group in its first seconds.
fn unmeasured() -> LoadLine {
    let why = "it has only just begun";
    LoadLine { verdict: "unknown".into(), why: why.into(), ..LoadLine::default() }
}

/// Returns a line for each path of the endpoint.
fn index(plane: &AdminEndpoint) -> String {
    let mut page = format!("plimsoll, {}\n\n", plane.backend.process_kind().name());
    let shown = ROUTES.iter().filter(|route| plane.serves(route));
    for route in shown.filter(|route| {
        plane.capability == EndpointCapability::Command || route.class == OperationClass::Query
    }) {
        page.push_str(&format!("{:<4} {:<33} {}\n", route.method, route.path, route.summary));
    }
    page
}

/// Reduces the status to what the caller may see.
pub(crate) fn redact(mut status: StatusReport, permit: &GrantedScope) -> StatusReport {
    status.groups.retain(|group| permit.covers(&group.name));
    status.listeners.retain(|listener| permit.covers(&listener.group));
    status.listeners.iter_mut().for_each(|listener| listener.others.retain(|other| permit.covers(other)));
    if *permit != GrantedScope::All && status.last_reload_error.is_some() {
        // The error quotes the file.
        status.last_reload_error = Some("refused".into());
    }
    status
}

/// The default reason why a group has no such object.
const NO_SUCH_OBJECT: &str = "has nothing of the kind";

/// Finds an object of a group; `lacks` is the reason if the group exists without it.
fn object_response(
    subject: &dyn BalancerBackend,
    group: Option<&str>,
    permit: &GrantedScope,
    lacks: &str,
    find: impl Fn(&str) -> Option<Response<ResponseBody>>,
) -> Response<ResponseBody> {
    let group = group.unwrap_or_default();
    find(group).unwrap_or_else(|| {
        let status = redact(subject.status(), permit);
        let names: Vec<&str> = status.groups.iter().map(|group| &*group.name).collect();
        let why = match names.contains(&group) {
            true => format!("group {group} {lacks}"),
            false => format!("there is no group {group}; there are: {}", names.join(", ")),
        };
        error(StatusCode::NOT_FOUND, why)
    })
}

fn event_response(
    plane: &Arc<AdminEndpoint>,
    subject: &Arc<dyn BalancerBackend>,
    caller: Caller,
    permit: &GrantedScope,
    request: &Request<Incoming>,
) -> Response<ResponseBody> {
    let mut since = None;
    let mut follow = !header(request.headers(), ACCEPT).is_some_and(|accept| accept.contains("/json"));
    for pair in request.uri().query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("since", seq) => match seq.parse::<u64>() {
                Ok(seq) => since = Some(seq),
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
                let what = format!("{name}: give since=SEQ, follow=0 or follow=1");
                return error(StatusCode::BAD_REQUEST, what);
            }
        }
    }
    if !follow {
        let mut entries = subject.events(since.unwrap_or(0));
        events::retain_visible(&mut entries, permit);
        return to_json(StatusCode::OK, &entries);
    }
    // A browser that reconnects repeats the address and adds this: it is the newer of the two.
    if let Some(last) = header(request.headers(), HeaderName::from_static("last-event-id"))
        && let Ok(last) = last.parse::<u64>()
    {
        // Numbers restart with the process; one of a previous process has no meaning here.
        let newest = subject.events(last.saturating_sub(1)).last().map_or(0, |entry| entry.seq);
        since = Some(if last <= newest { last } else { 0 });
    }
    let Ok(slot) = plane.streams.clone().try_acquire_owned() else {
        return error(StatusCode::SERVICE_UNAVAILABLE, "too many event streams: close some".into());
    };
    let (sender, body) = Channel::new(1);
    if request.method() != Method::HEAD {
        tokio::spawn(events::stream(plane.clone(), subject.clone(), caller, since, sender, slot));
    }
    response(StatusCode::OK, "text/event-stream", Either::Right(body))
}
