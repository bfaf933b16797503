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
pub(crate) fn wants_html(endpoint: &AdminEndpoint, headers: &HeaderMap) -> bool {
    let accepts_html = header(headers, ACCEPT).is_some_and(|accept| accept.contains("text/html"));
    accepts_html && endpoint.serves(Operation::Dashboard.route())
}

/// Redirects to the dashboard.
pub(crate) fn redirect_home() -> Response<ResponseBody> {
    redirect(urls::ROOT)
}

fn redirect(location: &'static str) -> Response<ResponseBody> {
    let mut response =
        render::with_security_headers(text(StatusCode::SEE_OTHER, format!("see {location}\n")));
    response.headers_mut().insert(LOCATION, HeaderValue::from_static(location));
    response
}

/// Responds to a browser that uses a foreign host name.
pub(crate) fn wrong_host(reason: &str) -> Response<ResponseBody> {
    render::with_security_headers(text(StatusCode::MISDIRECTED_REQUEST, format!("{reason}\n")))
}

/// Handles requests before authentication: the style sheet and the sign-in form are public. Returns the
/// request if there is more to do, or the response.
pub(crate) async fn open(
    endpoint: &AdminEndpoint,
    peer: &PeerConnection,
    path: &str,
    request: Request<Incoming>,
) -> Result<Request<Incoming>, Response<ResponseBody>> {
    let is_read = request.method() == Method::GET || request.method() == Method::HEAD;
    match PageUrl::parse(path) {
        Some(PageUrl::Asset(name)) if is_read => {
            let not_found = || {
                message_page(
                    endpoint,
                    &Caller::unauthenticated(),
                    StatusCode::NOT_FOUND,
                    "There is no such file.".into(),
                )
            };
            Err(render::asset(&name).unwrap_or_else(not_found))
        }
        Some(PageUrl::SignIn) if endpoint.accepts_tokens() && is_read => {
            Err(sign_in_page(endpoint, StatusCode::OK, None))
        }
        Some(PageUrl::SignIn) if endpoint.accepts_tokens() && request.method() == Method::POST => {
            Err(handle_sign_in(endpoint, peer, request).await)
        }
        Some(PageUrl::SignOut) if request.method() == Method::POST => {
            let origin_check = csrf::check_origin(request.headers(), endpoint.is_secured());
            let _ = read_body(request).await;
            let mut response = match origin_check {
                Ok(()) => redirect(urls::ROOT),
                Err(reason) => {
                    return Err(message_page(
                        endpoint,
                        &Caller::unauthenticated(),
                        StatusCode::FORBIDDEN,
                        reason,
                    ));
                }
            };
            set_token_cookie(&mut response, None);
            Err(response)
        }
        _ => Ok(request),
    }
}

fn set_token_cookie(response: &mut Response<ResponseBody>, token: Option<&str>) {
    if let Ok(value) = HeaderValue::from_str(&csrf::set_cookie(token)) {
        response.headers_mut().insert(SET_COOKIE, value);
    }
}

#[derive(Serialize)]
struct SignInPage {
    base: PageFrame,
    why: Option<String>,
    tokens: bool,
}

fn sign_in_page(
    endpoint: &AdminEndpoint,
    status: StatusCode,
    reason: Option<String>,
) -> Response<ResponseBody> {
    let mut base = PageFrame::new("Sign in", endpoint, &Caller::unauthenticated());
    base.sign_in = false;
    render::render_page(
        status,
        "sign_in.html",
        &SignInPage { base, why: reason, tokens: endpoint.accepts_tokens() },
    )
}

/// Handles the sign-in form: the browser stores a valid token as a cookie.
async fn handle_sign_in(
    endpoint: &AdminEndpoint,
    peer: &PeerConnection,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let origin_check = csrf::check_origin(request.headers(), endpoint.is_secured());
    let body = match read_body(request).await {
        Ok(body) => body,
        Err(response) => return response,
    };
    if let Err(reason) = origin_check {
        return sign_in_page(endpoint, StatusCode::FORBIDDEN, Some(reason));
    }
    let fields = parse_fields(&String::from_utf8_lossy(&body));
    let token = urls::first_field(&fields, "token").unwrap_or_default().trim().to_owned();
    let credential = endpoint.token_credential(token.clone()).filter(|_| csrf::is_token(&token));
    let verified = match credential {
        Some(credential) => credential.verify().await,
        None => Err("that is no token: it has letters, digits and three parts with dots between".into()),
    };
    match verified {
        Ok(_) => {
            peer.slot.mark_authenticated();
            let mut response = redirect(urls::ROOT);
            set_token_cookie(&mut response, Some(&token));
            response
        }
        Err(reason) => {
            endpoint.log_rejected_connection(&peer.origin, &reason);
            sign_in_page(endpoint, StatusCode::UNAUTHORIZED, Some(reason))
        }
    }
}

/// Responds to an unauthenticated caller with the sign-in page, and the status and the challenges of
/// `answer`.
pub(crate) fn unauthenticated(
    endpoint: &AdminEndpoint,
    response: Response<ResponseBody>,
    reason: String,
) -> Response<ResponseBody> {
    let mut page = sign_in_page(endpoint, response.status(), Some(reason));
    for (name, value) in
        response.headers().iter().filter(|(name, _)| *name == hyper::header::WWW_AUTHENTICATE)
    {
        page.headers_mut().append(name.clone(), value.clone());
    }
    // An expired token would take precedence over a valid certificate.
    if endpoint.accepts_tokens() {
        set_token_cookie(&mut page, None);
    }
    page
}

/// Responds to an authenticated caller without the permission.
pub(crate) fn forbidden(
    endpoint: &AdminEndpoint,
    caller: &Caller,
    status: StatusCode,
    reason: String,
) -> Response<ResponseBody> {
    message_page(endpoint, caller, status, reason)
}

#[derive(Serialize)]
struct MessagePage {
    base: PageFrame,
    title: String,
    says: String,
}

fn message_page(
    endpoint: &AdminEndpoint,
    caller: &Caller,
    status: StatusCode,
    message: String,
) -> Response<ResponseBody> {
    let title = status.canonical_reason().unwrap_or("Error").to_owned();
    let base = PageFrame::new(&title, endpoint, caller);
    render::render_page(status, "message.html", &MessagePage { base, title, says: message })
}

/// Shows a page.
pub(crate) async fn show_page(
    endpoint: &Arc<AdminEndpoint>,
    caller: Caller,
    request: &Request<Incoming>,
) -> Response<ResponseBody> {
    let path = request.uri().path();
    let query = parse_fields(request.uri().query().unwrap_or_default());
    let not_found = || {
        message_page(
            endpoint,
            &caller,
            StatusCode::NOT_FOUND,
            "There is no such page. The overview has what there is.".into(),
        )
    };
    let Some(page_url) = PageUrl::parse(path) else { return not_found() };
    if page_url == PageUrl::Live {
        return sse::begin_stream(endpoint, caller, request.method() == Method::HEAD, &query);
    }
    if let (PageUrl::WhatIf(group), AdminBackend::Balancer(balancer)) = (&page_url, &endpoint.backend) {
        return solve_what_if(endpoint, balancer, &caller, group, &query, path)
            .await
            .unwrap_or_else(not_found);
    }
    match build_page(endpoint, &caller, &page_url, path, &query).await {
        Ok(Some(text)) => render::html_response(text),
        Ok(None) => not_found(),
        Err(reason) => message_page(endpoint, &caller, StatusCode::BAD_REQUEST, reason),
    }
}

/// Renders a page; `None` if there is no such page.
///
/// # Errors
/// The reason why the parameters are invalid.
async fn build_page(
    endpoint: &Arc<AdminEndpoint>,
    caller: &Caller,
    page_url: &PageUrl,
    path: &str,
    query: &[(String, String)],
) -> Result<Option<Result<String, String>>, String> {
    let balancer = match &endpoint.backend {
        AdminBackend::Balancer(balancer) => balancer,
        AdminBackend::Lottery(daemon) if *page_url == PageUrl::Home => {
            return Ok(Some(lottery_and_supervisor::lottery_response(endpoint, daemon, caller, path).await));
        }
        AdminBackend::Supervisor(supervisor) if *page_url == PageUrl::Home => {
            return Ok(Some(
                lottery_and_supervisor::supervisor_response(endpoint, supervisor, caller, path).await,
            ));
        }
        _ => return Ok(None),
    };
    build_balancer_page(endpoint, &**balancer, caller, page_url, path, query)
}

fn build_balancer_page(
    endpoint: &AdminEndpoint,
    balancer: &dyn BalancerBackend,
    caller: &Caller,
    page_url: &PageUrl,
    path: &str,
    query: &[(String, String)],
) -> Result<Option<Result<String, String>>, String> {
    let page_context = PageContext::new(endpoint, balancer, caller);
    let rendered = match page_url {
        PageUrl::Home => Some(render::render_text("home.html", &pages::home_page(&page_context, path))),
        PageUrl::Group(group) => {
            pages::group_page(&page_context, group, path).map(|page| render::render_text("group.html", &page))
        }
        PageUrl::Member { group, member } => member::member_page(&page_context, group, member, path)
            .map(|page| render::render_text("member.html", &page)),
        PageUrl::Events => Some(render::render_text("events.html", &log::events_page(&page_context, path))),
        PageUrl::Event(seq) => {
            log::event_page(&page_context, *seq, path).map(|page| render::render_text("event.html", &page))
        }
        PageUrl::Process => {
            Some(render::render_text("process.html", &process::process_page(&page_context, path)))
        }
        PageUrl::Action => {
            let action = RequestedAction::parse(query)?;
            Some(render::render_text("act.html", &actions::confirm_page(&page_context, &action, path)?))
        }
        _ => None,
    };
    Ok(rendered)
}

/// Solves the model of a group on a thread that may block; one at a time.
async fn solve_what_if(
    endpoint: &Arc<AdminEndpoint>,
    balancer: &Arc<dyn BalancerBackend>,
    caller: &Caller,
    group: &str,
    query: &[(String, String)],
    path: &str,
) -> Option<Response<ResponseBody>> {
    let (input, page) = what_if::read_inputs(&PageContext::new(endpoint, &**balancer, caller), group, query)?;
    let _guard = endpoint.locks.slow_query.lock().await;
    let (solver, input_copy) = (Arc::clone(balancer), input.clone());
    let result = tokio::task::spawn_blocking(move || what_if::solve(&*solver, &input_copy)).await;
    let result = result.unwrap_or_else(|reason| Err(reason.to_string()));
    let page_context = PageContext::new(endpoint, &**balancer, caller);
    let page = what_if::what_if_page(&page_context, &input, page, result, path);
    Some(render::render_page(StatusCode::OK, "suppose.html", &page))
}

/// Reads the action of a form, if a page of the dashboard sent it and the user confirmed it. Otherwise
/// returns the response.
pub(crate) async fn read_form(
    endpoint: &AdminEndpoint,
    caller: &Caller,
    request: Request<Incoming>,
) -> Result<RequestedAction, Response<ResponseBody>> {
    let origin_check = csrf::check_origin(request.headers(), endpoint.is_secured());
    let body = read_body(request).await?;
    let reject = |status, reason| message_page(endpoint, caller, status, reason);
    if !matches!(endpoint.backend, AdminBackend::Balancer(_)) {
        return Err(reject(
            StatusCode::NOT_FOUND,
            "Nothing is done here by forms: use the command line.".into(),
        ));
    }
    if endpoint.capability != EndpointCapability::Command {
        let reason = actions::unavailable_reason(endpoint, caller, Operation::Drain, "").unwrap_or_default();
        return Err(reject(StatusCode::FORBIDDEN, reason));
    }
    if let Err(reason) = origin_check {
        return Err(reject(StatusCode::FORBIDDEN, reason));
    }
    match actions::read_confirmed(&parse_fields(&String::from_utf8_lossy(&body)), caller) {
        Ok(action) => Ok(action),
        Err(reason) => Err(reject(StatusCode::FORBIDDEN, reason)),
    }
}

/// Responds with the outcome.
pub(crate) fn outcome_page(
    endpoint: &AdminEndpoint,
    caller: &Caller,
    action: &RequestedAction,
    outcome: &CommandOutcome,
) -> Response<ResponseBody> {
    let (status, page) = actions::outcome_page(endpoint, caller, action, outcome);
    render::render_page(status, "act.html", &page)
}
