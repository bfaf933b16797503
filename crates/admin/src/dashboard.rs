//! The dashboard: the state of a running balancer, lottery daemon or Supervisor as web pages.
//!
//! The server renders complete pages, which work without JavaScript; a small script inserts changes as they
//! arrive. Pages load no external resources. They show the same data as the API, at the same endpoints. Each
//! page requires the permission `dashboard` and those for its contents. Actions are handled as `POST /v1/…`,
//! with the same rules and the same audit log. `door` handles attacks through browsers.
//!
//! `place` knows the pages' addresses, `words` formats numbers, `bar` and `chart` draw. `view` has the common
//! parts, and each page has a file. `render` produces HTML by minijinja, which the workspace already uses and
//! which escapes by default. The alternative, askama, checks templates at compile time. It would cost a
//! derive, a second parser, and a build of the crate for each change of a page. A test replaces these checks:
//! it renders every template with undefined names as errors.

mod act;
mod bar;
mod chart;
mod door;
mod live;
mod log;
mod member;
mod others;
mod pages;
mod place;
mod process;
mod render;
#[cfg(test)]
mod sample;
mod suppose;
#[cfg(test)]
mod tests;
mod view;
mod words;

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{ACCEPT, HeaderValue, LOCATION, SET_COOKIE};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde::Serialize;

use crate::Subject;
use crate::access::Caller;
use crate::act::Outcome;
use crate::plane::{Arrival, Behind, Plane, Powers};
use crate::reply::{Body, header, text, whole};
use crate::verb::Verb;
use place::{Place, fields};
use view::{Base, Eye};

pub(crate) use act::Wanted;
pub(crate) use door::token;
pub(crate) use place::has;

/// Returns `true` if forms are sent to the path.
pub(crate) fn acts(path: &str) -> bool {
    Place::find(path) == Some(Place::Act)
}

/// Returns `true` if a request for the index asks for HTML, as browsers do.
pub(crate) fn wanted(plane: &Plane, headers: &HeaderMap) -> bool {
    let html = header(headers, ACCEPT).is_some_and(|accept| accept.contains("text/html"));
    html && plane.has(Verb::Dashboard.route())
}

/// Redirects to the dashboard.
pub(crate) fn there() -> Response<Body> {
    to(place::ROOT)
}

fn to(place: &'static str) -> Response<Body> {
    let mut answer = render::guarded(text(StatusCode::SEE_OTHER, format!("see {place}\n")));
    answer.headers_mut().insert(LOCATION, HeaderValue::from_static(place));
    answer
}

/// Responds to a browser that uses a foreign host name.
pub(crate) fn misdirected(why: &str) -> Response<Body> {
    render::guarded(text(StatusCode::MISDIRECTED_REQUEST, format!("{why}\n")))
}

/// Handles requests before authentication: the style sheet and the sign-in form are public. Returns the
/// request if there is more to do, or the response.
pub(crate) async fn open(
    plane: &Plane,
    arrival: &Arrival,
    path: &str,
    request: Request<Incoming>,
) -> Result<Request<Incoming>, Response<Body>> {
    let reads = request.method() == Method::GET || request.method() == Method::HEAD;
    match Place::find(path) {
        Some(Place::Asset(name)) if reads => {
            let none =
                || message(plane, &Caller::nobody(), StatusCode::NOT_FOUND, "There is no such file.".into());
            Err(render::asset(&name).unwrap_or_else(none))
        }
        Some(Place::SignIn) if plane.takes_tokens() && reads => Err(sign_in(plane, StatusCode::OK, None)),
        Some(Place::SignIn) if plane.takes_tokens() && request.method() == Method::POST => {
            Err(signed_in(plane, arrival, request).await)
        }
        Some(Place::SignOut) if request.method() == Method::POST => {
            let own = door::origin(request.headers(), plane.secure());
            let _ = whole(request).await;
            let mut answer = match own {
                Ok(()) => to(place::ROOT),
                Err(why) => return Err(message(plane, &Caller::nobody(), StatusCode::FORBIDDEN, why)),
            };
            keep(&mut answer, None);
            Err(answer)
        }
        _ => Ok(request),
    }
}

fn keep(answer: &mut Response<Body>, token: Option<&str>) {
    if let Ok(value) = HeaderValue::from_str(&door::cookie(token)) {
        answer.headers_mut().insert(SET_COOKIE, value);
    }
}

#[derive(Serialize)]
struct SignIn {
    base: Base,
    why: Option<String>,
    tokens: bool,
}

fn sign_in(plane: &Plane, status: StatusCode, why: Option<String>) -> Response<Body> {
    let mut base = Base::of("Sign in", plane, &Caller::nobody());
    base.sign_in = false;
    render::page(status, "sign_in.html", &SignIn { base, why, tokens: plane.takes_tokens() })
}

/// Handles the sign-in form: the browser stores a valid token as a cookie.
async fn signed_in(plane: &Plane, arrival: &Arrival, request: Request<Incoming>) -> Response<Body> {
    let own = door::origin(request.headers(), plane.secure());
    let body = match whole(request).await {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    if let Err(why) = own {
        return sign_in(plane, StatusCode::FORBIDDEN, Some(why));
    }
    let form = fields(&String::from_utf8_lossy(&body));
    let token = place::field(&form, "token").unwrap_or_default().trim().to_owned();
    let shown = plane.token(token.clone()).filter(|_| door::sound(&token));
    let judged = match shown {
        Some(shown) => shown.judge().await,
        None => Err("that is no token: it has letters, digits and three parts with dots between".into()),
    };
    match judged {
        Ok(_) => {
            arrival.guest.prove();
            let mut answer = to(place::ROOT);
            keep(&mut answer, Some(&token));
            answer
        }
        Err(why) => {
            plane.turned_away(&arrival.from, &why);
            sign_in(plane, StatusCode::UNAUTHORIZED, Some(why))
        }
    }
}

/// Responds to an unauthenticated caller with the sign-in page, and the status and the challenges of
/// `answer`.
pub(crate) fn stranger(plane: &Plane, answer: Response<Body>, why: String) -> Response<Body> {
    let mut page = sign_in(plane, answer.status(), Some(why));
    for (name, value) in answer.headers().iter().filter(|(name, _)| *name == hyper::header::WWW_AUTHENTICATE)
    {
        page.headers_mut().append(name.clone(), value.clone());
    }
    // An expired token would take precedence over a valid certificate.
    if plane.takes_tokens() {
        keep(&mut page, None);
    }
    page
}

/// Responds to an authenticated caller without the permission.
pub(crate) fn refused(plane: &Plane, caller: &Caller, status: StatusCode, why: String) -> Response<Body> {
    message(plane, caller, status, why)
}

#[derive(Serialize)]
struct Message {
    base: Base,
    title: String,
    says: String,
}

fn message(plane: &Plane, caller: &Caller, status: StatusCode, says: String) -> Response<Body> {
    let title = status.canonical_reason().unwrap_or("Error").to_owned();
    let base = Base::of(&title, plane, caller);
    render::page(status, "message.html", &Message { base, title, says })
}

/// Shows a page.
pub(crate) async fn look(plane: &Arc<Plane>, caller: Caller, request: &Request<Incoming>) -> Response<Body> {
    let path = request.uri().path();
    let query = fields(request.uri().query().unwrap_or_default());
    let none = || {
        message(
            plane,
            &caller,
            StatusCode::NOT_FOUND,
            "There is no such page. The overview has what there is.".into(),
        )
    };
    let Some(place) = Place::find(path) else { return none() };
    if place == Place::Live {
        return live::answer(plane, caller, request.method() == Method::HEAD, &query);
    }
    if let (Place::Suppose(group), Behind::Balancer(subject)) = (&place, &plane.behind) {
        return suppose(plane, subject, &caller, group, &query, path).await.unwrap_or_else(none);
    }
    match made(plane, &caller, &place, path, &query).await {
        Ok(Some(text)) => render::finished(text),
        Ok(None) => none(),
        Err(why) => message(plane, &caller, StatusCode::BAD_REQUEST, why),
    }
}

/// Renders a page; `None` if there is no such page.
///
/// # Errors
/// The reason why the parameters are invalid.
async fn made(
    plane: &Arc<Plane>,
    caller: &Caller,
    place: &Place,
    path: &str,
    query: &[(String, String)],
) -> Result<Option<Result<String, String>>, String> {
    let subject = match &plane.behind {
        Behind::Balancer(subject) => subject,
        Behind::Lottery(daemon) if *place == Place::Home => {
            return Ok(Some(others::lottery(plane, daemon, caller, path).await));
        }
        Behind::Supervisor(supervisor) if *place == Place::Home => {
            return Ok(Some(others::supervisor(plane, supervisor, caller, path).await));
        }
        _ => return Ok(None),
    };
    of_balancer(plane, &**subject, caller, place, path, query)
}

fn of_balancer(
    plane: &Plane,
    subject: &dyn Subject,
    caller: &Caller,
    place: &Place,
    path: &str,
    query: &[(String, String)],
) -> Result<Option<Result<String, String>>, String> {
    let eye = Eye::new(plane, subject, caller);
    let made = match place {
        Place::Home => Some(render::text("home.html", &pages::home(&eye, path))),
        Place::Group(group) => pages::group(&eye, group, path).map(|page| render::text("group.html", &page)),
        Place::Member { group, member } => {
            member::member(&eye, group, member, path).map(|page| render::text("member.html", &page))
        }
        Place::Events => Some(render::text("events.html", &log::events(&eye, path))),
        Place::Event(seq) => log::event(&eye, *seq, path).map(|page| render::text("event.html", &page)),
        Place::Process => Some(render::text("process.html", &process::process(&eye, path))),
        Place::Act => {
            let wanted = Wanted::read(query)?;
            Some(render::text("act.html", &act::confirm(&eye, &wanted, path)?))
        }
        _ => None,
    };
    Ok(made)
}

/// Solves the model of a group on a thread that may block; one at a time.
async fn suppose(
    plane: &Arc<Plane>,
    subject: &Arc<dyn Subject>,
    caller: &Caller,
    group: &str,
    query: &[(String, String)],
    path: &str,
) -> Option<Response<Body>> {
    let (ask, page) = suppose::asked(&Eye::new(plane, &**subject, caller), group, query)?;
    let _turn = plane.turns.looks.lock().await;
    let (solver, asked) = (Arc::clone(subject), ask.clone());
    let found = tokio::task::spawn_blocking(move || suppose::solve(&*solver, &asked)).await;
    let found = found.unwrap_or_else(|why| Err(why.to_string()));
    let eye = Eye::new(plane, &**subject, caller);
    let page = suppose::page(&eye, &ask, page, found, path);
    Some(render::page(StatusCode::OK, "suppose.html", &page))
}

/// Reads the action of a form, if a page of the dashboard sent it and the user confirmed it. Otherwise
/// returns the response.
pub(crate) async fn form(
    plane: &Plane,
    caller: &Caller,
    request: Request<Incoming>,
) -> Result<Wanted, Response<Body>> {
    let own = door::origin(request.headers(), plane.secure());
    let body = whole(request).await?;
    let refuse = |status, why| message(plane, caller, status, why);
    if !matches!(plane.behind, Behind::Balancer(_)) {
        return Err(refuse(
            StatusCode::NOT_FOUND,
            "Nothing is done here by forms: use the command line.".into(),
        ));
    }
    if plane.powers != Powers::Act {
        let why = act::how(plane, caller, Verb::Drain, "").unwrap_or_default();
        return Err(refuse(StatusCode::FORBIDDEN, why));
    }
    if let Err(why) = own {
        return Err(refuse(StatusCode::FORBIDDEN, why));
    }
    match act::confirmed(&fields(&String::from_utf8_lossy(&body)), caller) {
        Ok(wanted) => Ok(wanted),
        Err(why) => Err(refuse(StatusCode::FORBIDDEN, why)),
    }
}

/// Responds with the outcome.
pub(crate) fn done(plane: &Plane, caller: &Caller, wanted: &Wanted, outcome: &Outcome) -> Response<Body> {
    let (status, page) = act::done(plane, caller, wanted, outcome);
    render::page(status, "act.html", &page)
}
