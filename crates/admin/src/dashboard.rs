//! The dashboard: the state of a running balancer, lottery daemon or Supervisor as web pages.
//!
//! The server renders complete pages, which work without JavaScript; a small script inserts changes as they
//! arrive. Pages load no external resources. They show the same data as the API, at the same endpoints. Each
//! page requires the permission `dashboard` and those for its contents. Actions are handled as `POST /v1/…`,
//! with the same rules and the same audit log. `csrf` handles attacks through browsers.
//!
//! `urls` knows the pages' addresses, `format` formats numbers, `load_bar` and `chart` draw. `view_models`
//! has the common parts, and each page has a file. `render` produces HTML by minijinja, which the workspace
//! already uses and which escapes by default. The alternative, askama, checks templates at compile time. It
//! would cost a derive, a second parser, and a build of the crate for each change of a page. A test replaces
//! these checks: it renders every template with undefined names as errors.

mod actions;
mod chart;
mod csrf;
mod format;
mod load_bar;
mod log;
mod lottery_and_supervisor;
mod member;
mod pages;
mod process;
mod render;
mod sse;
#[cfg(test)]
mod test_data;
#[cfg(test)]
mod tests;
mod urls;
mod view_models;
mod what_if;

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{ACCEPT, HeaderValue, LOCATION, SET_COOKIE};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde::Serialize;

use crate::BalancerBackend;
use crate::access::Caller;
use crate::api::Operation;
use crate::commands::CommandOutcome;
use crate::endpoint::{AdminBackend, AdminEndpoint, EndpointCapability, PeerConnection};
use crate::reply::{ResponseBody, header, read_body, text};
use urls::{PageUrl, parse_fields};
use view_models::{PageContext, PageFrame};

pub(crate) use actions::RequestedAction;
pub(crate) use csrf::cookie_token;
pub(crate) use urls::is_dashboard_path;

/// Returns `true` if forms are sent to the path.
pub(crate) fn is_form_path(path: &str) -> bool {
    PageUrl::parse(path) == Some(PageUrl::Action)
}

/// Returns `true` if a request for the index asks for HTML, as browsers do.
pub(crate) fn wants_html(plane: &AdminEndpoint, headers: &HeaderMap) -> bool {
    let html = header(headers, ACCEPT).is_some_and(|accept| accept.contains("text/html"));
    html && plane.serves(Operation::Dashboard.route())
}

/// Redirects to the dashboard.
pub(crate) fn redirect_home() -> Response<ResponseBody> {
    redirect(urls::ROOT)
}

fn redirect(place: &'static str) -> Response<ResponseBody> {
    let mut answer = render::with_security_headers(text(StatusCode::SEE_OTHER, format!("see {place}\n")));
    answer.headers_mut().insert(LOCATION, HeaderValue::from_static(place));
    answer
}

/// Responds to a browser that uses a foreign host name.
pub(crate) fn wrong_host(why: &str) -> Response<ResponseBody> {
    render::with_security_headers(text(StatusCode::MISDIRECTED_REQUEST, format!("{why}\n")))
}

/// Handles requests before authentication: the style sheet and the sign-in form are public. Returns the
/// request if there is more to do, or the response.
pub(crate) async fn open(
    plane: &AdminEndpoint,
    arrival: &PeerConnection,
    path: &str,
    request: Request<Incoming>,
) -> Result<Request<Incoming>, Response<ResponseBody>> {
    let reads = request.method() == Method::GET || request.method() == Method::HEAD;
    match PageUrl::parse(path) {
        Some(PageUrl::Asset(name)) if reads => {
            let none = || {
                message_page(
                    plane,
                    &Caller::unauthenticated(),
                    StatusCode::NOT_FOUND,
                    "There is no such file.".into(),
                )
            };
            Err(render::asset(&name).unwrap_or_else(none))
        }
        Some(PageUrl::SignIn) if plane.accepts_tokens() && reads => {
            Err(sign_in_page(plane, StatusCode::OK, None))
        }
        Some(PageUrl::SignIn) if plane.accepts_tokens() && request.method() == Method::POST => {
            Err(handle_sign_in(plane, arrival, request).await)
        }
        Some(PageUrl::SignOut) if request.method() == Method::POST => {
            let own = csrf::check_origin(request.headers(), plane.is_secured());
            let _ = read_body(request).await;
            let mut answer = match own {
                Ok(()) => redirect(urls::ROOT),
                Err(why) => {
                    return Err(message_page(plane, &Caller::unauthenticated(), StatusCode::FORBIDDEN, why));
                }
            };
            set_token_cookie(&mut answer, None);
            Err(answer)
        }
        _ => Ok(request),
    }
}

fn set_token_cookie(answer: &mut Response<ResponseBody>, token: Option<&str>) {
    if let Ok(value) = HeaderValue::from_str(&csrf::set_cookie(token)) {
        answer.headers_mut().insert(SET_COOKIE, value);
    }
}

#[derive(Serialize)]
struct SignInPage {
    base: PageFrame,
    why: Option<String>,
    tokens: bool,
}

fn sign_in_page(plane: &AdminEndpoint, status: StatusCode, why: Option<String>) -> Response<ResponseBody> {
    let mut base = PageFrame::new("Sign in", plane, &Caller::unauthenticated());
    base.sign_in = false;
    render::render_page(status, "sign_in.html", &SignInPage { base, why, tokens: plane.accepts_tokens() })
}

/// Handles the sign-in form: the browser stores a valid token as a cookie.
async fn handle_sign_in(
    plane: &AdminEndpoint,
    arrival: &PeerConnection,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let own = csrf::check_origin(request.headers(), plane.is_secured());
    let body = match read_body(request).await {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    if let Err(why) = own {
        return sign_in_page(plane, StatusCode::FORBIDDEN, Some(why));
    }
    let form = parse_fields(&String::from_utf8_lossy(&body));
    let token = urls::first_field(&form, "token").unwrap_or_default().trim().to_owned();
    let shown = plane.token_credential(token.clone()).filter(|_| csrf::is_token(&token));
    let judged = match shown {
        Some(shown) => shown.verify().await,
        None => Err("that is no token: it has letters, digits and three parts with dots between".into()),
    };
    match judged {
        Ok(_) => {
            arrival.slot.mark_authenticated();
            let mut answer = redirect(urls::ROOT);
            set_token_cookie(&mut answer, Some(&token));
            answer
        }
        Err(why) => {
            plane.log_rejected_connection(&arrival.origin, &why);
            sign_in_page(plane, StatusCode::UNAUTHORIZED, Some(why))
        }
    }
}

/// Responds to an unauthenticated caller with the sign-in page, and the status and the challenges of
/// `answer`.
pub(crate) fn unauthenticated(
    plane: &AdminEndpoint,
    answer: Response<ResponseBody>,
    why: String,
) -> Response<ResponseBody> {
    let mut page = sign_in_page(plane, answer.status(), Some(why));
    for (name, value) in answer.headers().iter().filter(|(name, _)| *name == hyper::header::WWW_AUTHENTICATE)
    {
        page.headers_mut().append(name.clone(), value.clone());
    }
    // An expired token would take precedence over a valid certificate.
    if plane.accepts_tokens() {
        set_token_cookie(&mut page, None);
    }
    page
}

/// Responds to an authenticated caller without the permission.
pub(crate) fn forbidden(
    plane: &AdminEndpoint,
    caller: &Caller,
    status: StatusCode,
    why: String,
) -> Response<ResponseBody> {
    message_page(plane, caller, status, why)
}

#[derive(Serialize)]
struct MessagePage {
    base: PageFrame,
    title: String,
    says: String,
}

fn message_page(
    plane: &AdminEndpoint,
    caller: &Caller,
    status: StatusCode,
    says: String,
) -> Response<ResponseBody> {
    let title = status.canonical_reason().unwrap_or("Error").to_owned();
    let base = PageFrame::new(&title, plane, caller);
    render::render_page(status, "message.html", &MessagePage { base, title, says })
}

/// Shows a page.
pub(crate) async fn show_page(
    plane: &Arc<AdminEndpoint>,
    caller: Caller,
    request: &Request<Incoming>,
) -> Response<ResponseBody> {
    let path = request.uri().path();
    let query = parse_fields(request.uri().query().unwrap_or_default());
    let none = || {
        message_page(
            plane,
            &caller,
            StatusCode::NOT_FOUND,
            "There is no such page. The overview has what there is.".into(),
        )
    };
    let Some(place) = PageUrl::parse(path) else { return none() };
    if place == PageUrl::Live {
        return sse::begin_stream(plane, caller, request.method() == Method::HEAD, &query);
    }
    if let (PageUrl::WhatIf(group), AdminBackend::Balancer(subject)) = (&place, &plane.backend) {
        return solve_what_if(plane, subject, &caller, group, &query, path).await.unwrap_or_else(none);
    }
    match build_page(plane, &caller, &place, path, &query).await {
        Ok(Some(text)) => render::html_response(text),
        Ok(None) => none(),
        Err(why) => message_page(plane, &caller, StatusCode::BAD_REQUEST, why),
    }
}

/// Renders a page; `None` if there is no such page.
///
/// # Errors
/// The reason why the parameters are invalid.
async fn build_page(
    plane: &Arc<AdminEndpoint>,
    caller: &Caller,
    place: &PageUrl,
    path: &str,
    query: &[(String, String)],
) -> Result<Option<Result<String, String>>, String> {
    let subject = match &plane.backend {
        AdminBackend::Balancer(subject) => subject,
        AdminBackend::Lottery(daemon) if *place == PageUrl::Home => {
            return Ok(Some(lottery_and_supervisor::lottery_response(plane, daemon, caller, path).await));
        }
        AdminBackend::Supervisor(supervisor) if *place == PageUrl::Home => {
            return Ok(Some(
                lottery_and_supervisor::supervisor_response(plane, supervisor, caller, path).await,
            ));
        }
        _ => return Ok(None),
    };
    build_balancer_page(plane, &**subject, caller, place, path, query)
}

fn build_balancer_page(
    plane: &AdminEndpoint,
    subject: &dyn BalancerBackend,
    caller: &Caller,
    place: &PageUrl,
    path: &str,
    query: &[(String, String)],
) -> Result<Option<Result<String, String>>, String> {
    let eye = PageContext::new(plane, subject, caller);
    let made = match place {
        PageUrl::Home => Some(render::render_text("home.html", &pages::home_page(&eye, path))),
        PageUrl::Group(group) => {
            pages::group_page(&eye, group, path).map(|page| render::render_text("group.html", &page))
        }
        PageUrl::Member { group, member } => member::member_page(&eye, group, member, path)
            .map(|page| render::render_text("member.html", &page)),
        PageUrl::Events => Some(render::render_text("events.html", &log::events_page(&eye, path))),
        PageUrl::Event(seq) => {
            log::event_page(&eye, *seq, path).map(|page| render::render_text("event.html", &page))
        }
        PageUrl::Process => Some(render::render_text("process.html", &process::process_page(&eye, path))),
        PageUrl::Action => {
            let wanted = RequestedAction::parse(query)?;
            Some(render::render_text("act.html", &actions::confirm_page(&eye, &wanted, path)?))
        }
        _ => None,
    };
    Ok(made)
}

/// Solves the model of a group on a thread that may block; one at a time.
async fn solve_what_if(
    plane: &Arc<AdminEndpoint>,
    subject: &Arc<dyn BalancerBackend>,
    caller: &Caller,
    group: &str,
    query: &[(String, String)],
    path: &str,
) -> Option<Response<ResponseBody>> {
    let (ask, page) = what_if::read_inputs(&PageContext::new(plane, &**subject, caller), group, query)?;
    let _turn = plane.locks.slow_query.lock().await;
    let (solver, asked) = (Arc::clone(subject), ask.clone());
    let found = tokio::task::spawn_blocking(move || what_if::solve(&*solver, &asked)).await;
    let found = found.unwrap_or_else(|why| Err(why.to_string()));
    let eye = PageContext::new(plane, &**subject, caller);
    let page = what_if::what_if_page(&eye, &ask, page, found, path);
    Some(render::render_page(StatusCode::OK, "suppose.html", &page))
}

/// Reads the action of a form, if a page of the dashboard sent it and the user confirmed it. Otherwise
/// returns the response.
pub(crate) async fn read_form(
    plane: &AdminEndpoint,
    caller: &Caller,
    request: Request<Incoming>,
) -> Result<RequestedAction, Response<ResponseBody>> {
    let own = csrf::check_origin(request.headers(), plane.is_secured());
    let body = read_body(request).await?;
    let refuse = |status, why| message_page(plane, caller, status, why);
    if !matches!(plane.backend, AdminBackend::Balancer(_)) {
        return Err(refuse(
            StatusCode::NOT_FOUND,
            "Nothing is done here by forms: use the command line.".into(),
        ));
    }
    if plane.capability != EndpointCapability::Command {
        let why = actions::unavailable_reason(plane, caller, Operation::Drain, "").unwrap_or_default();
        return Err(refuse(StatusCode::FORBIDDEN, why));
    }
    if let Err(why) = own {
        return Err(refuse(StatusCode::FORBIDDEN, why));
    }
    match actions::read_confirmed(&parse_fields(&String::from_utf8_lossy(&body)), caller) {
        Ok(wanted) => Ok(wanted),
        Err(why) => Err(refuse(StatusCode::FORBIDDEN, why)),
    }
}

/// Responds with the outcome.
pub(crate) fn outcome_page(
    plane: &AdminEndpoint,
    caller: &Caller,
    wanted: &RequestedAction,
    outcome: &CommandOutcome,
) -> Response<ResponseBody> {
    let (status, page) = actions::outcome_page(plane, caller, wanted, outcome);
    render::render_page(status, "act.html", &page)
}
