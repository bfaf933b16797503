//! Queries, filtered by the caller's permissions.

use std::collections::BTreeSet;
use std::sync::Arc;

use http_body_util::Either;
use http_body_util::channel::Channel;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, HeaderName};
use hyper::{Method, Request, Response, StatusCode};
use plimsoll_brain::status::{LoadLine, Recent, Status};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::access::{Caller, Permit};
use crate::plane::{Plane, Powers};
use crate::reply::{Body, error, full, header, response, text, to_json};
use crate::verb::{Nature, ROUTES, Verb};
use crate::{Subject, events, metrics, openapi};

/// Responds to the queries that every kind of process serves: the index and the document.
pub(crate) fn of_all(plane: &Plane, verb: Verb) -> Option<Response<Body>> {
    match verb {
        Verb::Index => Some(text(StatusCode::OK, index(plane))),
        Verb::Document => Some(to_json(StatusCode::OK, &openapi::document_of(plane.behind.by()))),
        _ => None,
    }
}

/// Returns the health of the process: alive, or about to end.
pub(crate) fn health(stopping: bool) -> Response<Body> {
    if stopping {
        text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n".into())
    } else {
        text(StatusCode::OK, "ok\n".into())
    }
}

/// Returns the groups in a query of [`Verb::Health`], in its order.
pub(crate) fn asked(request: &Request<Incoming>) -> impl Iterator<Item = &str> {
    let pairs = request.uri().query().unwrap_or_default().split('&');
    pairs.filter_map(|pair| pair.strip_prefix("group="))
}

/// Returns the health of the process and of these groups.
fn health_of<'g>(
    subject: &dyn Subject,
    groups: impl Iterator<Item = &'g str>,
    permit: &Permit,
) -> Response<Body> {
    let mut unfit = Vec::new();
    // A repeated name must cost nothing.
    for name in groups.collect::<BTreeSet<_>>() {
        let Some(group) = Some(name).filter(|name| permit.admits(name)).and_then(|name| subject.group(name))
        else {
            // Health accepts every `Host`, so the other groups are not named.
            return error(StatusCode::NOT_FOUND, format!("there is no group {name}"));
        };
        unfit.extend(group.unfit().map(|why| format!("{name}: {why}")));
    }
    match unfit.as_slice() {
        [] => health(subject.stopping()),
        _ if subject.stopping() => health(true),
        unfit => text(StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", unfit.join("; "))),
    }
}

/// Returns a page of metrics.
pub(crate) fn page(page: String) -> Response<Body> {
    full(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page)
}

/// Responds to a query about a balancer; `permit` admits some of it.
pub(crate) fn answer(
    plane: &Arc<Plane>,
    subject: &Arc<dyn Subject>,
    caller: Caller,
    verb: Verb,
    group: Option<&str>,
    permit: Permit,
    request: &Request<Incoming>,
) -> Response<Body> {
    match verb {
        Verb::Health => health_of(&**subject, asked(request), &permit),
        Verb::Events => log(plane, subject, caller, &permit, request),
        Verb::Explain => found(&**subject, group, &permit, NOTHING, |group| {
            subject.explain(group).map(|found| to_json(StatusCode::OK, &found))
        }),
        Verb::Capacity => found(&**subject, group, &permit, NOTHING, |group| {
            let found = subject.group(group)?;
            Some(to_json(StatusCode::OK, &found.load_line.unwrap_or_else(unmeasured)))
        }),
        Verb::Recent => found(&**subject, group, &permit, NOTHING, |group| {
            Some(to_json(StatusCode::OK, &lately(subject.recent(group)?)))
        }),
        Verb::Scale => found(&**subject, group, &permit, "has no [group.scaler]", |group| {
            let found = subject.group(group)?;
            found.scaler.map(|scaler| to_json(StatusCode::OK, &scaler))
        }),
        Verb::Leases => found(&**subject, group, &permit, NOTHING, |group| {
            let lessees = subject.leases(group)?;
            let leases: usize = lessees.iter().map(|lessee| lessee.leases).sum();
            let list = json!({"schema": 1, "group": group, "leases": leases, "lessees": lessees});
            Some(to_json(StatusCode::OK, &list))
        }),
        Verb::Reference => found(&**subject, group, &permit, "has no iiop listener", |group| {
            subject.reference(group).map(|found| to_json(StatusCode::OK, &found))
        }),
        // The path belongs to a balancer's queries, so the operation is one of those above.
        _ => error(StatusCode::METHOD_NOT_ALLOWED, "use POST".into()),
    }
}

/// Returns the complete status or metrics of a balancer. For a hundred thousand members that is a hundred
/// megabytes and seconds of work, so it runs on another thread, and one query at a time.
pub(crate) async fn whole(subject: &Arc<dyn Subject>, verb: Verb, permit: &Permit) -> Option<Response<Body>> {
    static ONE: Semaphore = Semaphore::const_new(1);
    if !matches!(verb, Verb::Status | Verb::Metrics) {
        return None;
    }
    let _one = ONE.acquire().await.ok()?;
    let (subject, permit) = (Arc::clone(subject), permit.clone());
    let shown = spawn_blocking(move || {
        let status = seen(subject.status(), &permit);
        match verb {
            Verb::Metrics => {
                // The buckets are read after the status, so the count can only be behind them; the page
                // corrects that.
                page(metrics::page(&status, |group| subject.buckets(group)))
            }
            _ => to_json(StatusCode::OK, &status),
        }
    });
    Some(shown.await.unwrap_or_else(|why| error(StatusCode::INTERNAL_SERVER_ERROR, why.to_string())))
}

/// The number of seconds of a group's history that the API returns; charts need more, and read them in the
/// dashboard.
const LATELY: usize = 10;

/// Reduces the history to what tables need.
fn lately(mut recent: Recent) -> Recent {
    let surplus = recent.seconds.len().saturating_sub(LATELY);
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
fn index(plane: &Plane) -> String {
    let mut page = format!("plimsoll, {}\n\n", plane.behind.by().name());
    let shown = ROUTES.iter().filter(|route| plane.has(route));
    for route in shown.filter(|route| plane.powers == Powers::Act || route.nature == Nature::Look) {
        page.push_str(&format!("{:<4} {:<33} {}\n", route.method, route.path, route.about));
    }
    page
}

/// Reduces the status to what the caller may see.
pub(crate) fn seen(mut status: Status, permit: &Permit) -> Status {
    status.groups.retain(|group| permit.admits(&group.name));
    status.listeners.retain(|listener| permit.admits(&listener.group));
    status.listeners.iter_mut().for_each(|listener| listener.others.retain(|other| permit.admits(other)));
    if *permit != Permit::All && status.last_reload_error.is_some() {
        // The error quotes the file.
        status.last_reload_error = Some("refused".into());
    }
    status
}

/// The default reason why a group has no such object.
const NOTHING: &str = "has nothing of the kind";

/// Finds an object of a group; `lacks` is the reason if the group exists without it.
fn found(
    subject: &dyn Subject,
    group: Option<&str>,
    permit: &Permit,
    lacks: &str,
    find: impl Fn(&str) -> Option<Response<Body>>,
) -> Response<Body> {
    let group = group.unwrap_or_default();
    find(group).unwrap_or_else(|| {
        let status = seen(subject.status(), permit);
        let names: Vec<&str> = status.groups.iter().map(|group| &*group.name).collect();
        let why = match names.contains(&group) {
            true => format!("group {group} {lacks}"),
            false => format!("there is no group {group}; there are: {}", names.join(", ")),
        };
        error(StatusCode::NOT_FOUND, why)
    })
}

fn log(
    plane: &Arc<Plane>,
    subject: &Arc<dyn Subject>,
    caller: Caller,
    permit: &Permit,
    request: &Request<Incoming>,
) -> Response<Body> {
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
        events::seen(&mut entries, permit);
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
