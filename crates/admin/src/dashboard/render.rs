//! Renders templates into pages. All inserted text is escaped: names of members come from discovery, reasons
//! from the network.

use std::sync::LazyLock;

use hyper::header::{CACHE_CONTROL, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;

use crate::reply::{ResponseBody, with_content_type};

/// All templates, by name; the extension enables escaping.
const TEMPLATES: &[(&str, &str)] = &[
    ("act.html", include_str!("templates/act.html")),
    ("base.html", include_str!("templates/base.html")),
    ("event.html", include_str!("templates/event.html")),
    ("events.html", include_str!("templates/events.html")),
    ("group.html", include_str!("templates/group.html")),
    ("home.html", include_str!("templates/home.html")),
    ("lottery.html", include_str!("templates/lottery.html")),
    ("member.html", include_str!("templates/member.html")),
    ("message.html", include_str!("templates/message.html")),
    ("process.html", include_str!("templates/process.html")),
    ("sign_in.html", include_str!("templates/sign_in.html")),
    ("supervisor.html", include_str!("templates/supervisor.html")),
    ("suppose.html", include_str!("templates/suppose.html")),
    ("ui.html", include_str!("templates/ui.html")),
];

static PAGES: LazyLock<Result<Environment<'static>, String>> = LazyLock::new(|| {
    let mut pages = Environment::new();
    pages.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    pages.set_syntax(syntax.map_err(|error| format!("{error:#}"))?);
    for (name, text) in TEMPLATES {
        pages.add_template(name, text).map_err(|error| format!("{error:#}"))?;
    }
    Ok(pages)
});

/// The content security policy: only resources of this endpoint, scripts and styles from its files only, and
/// no frames.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src \
                      'self'; form-action 'self'; \
                      frame-ancestors 'none'; base-uri 'none'";

/// Renders a page as text.
pub(super) fn render_text(template: &str, page: &impl Serialize) -> Result<String, String> {
    let pages = PAGES.as_ref().map_err(Clone::clone)?;
    let template = pages.get_template(template).map_err(|error| format!("{error:#}"))?;
    template.render(Serde(page)).map_err(|error| format!("{error:#}"))
}

/// Renders a page as a response.
pub(super) fn render_page(
    status: StatusCode,
    template: &str,
    page: &impl Serialize,
) -> Response<ResponseBody> {
    let mut response = html_response(render_text(template, page));
    if response.status() == StatusCode::OK {
        *response.status_mut() = status;
    }
    response
}

/// Converts rendered text into a response.
pub(super) fn html_response(text: Result<String, String>) -> Response<ResponseBody> {
    with_security_headers(match text {
        Ok(text) => with_content_type(StatusCode::OK, "text/html; charset=utf-8", text),
        Err(error) => {
            tracing::error!("dashboard: a page cannot be made: {error}");
            let message = "the page cannot be made; the log says why\n".into();
            with_content_type(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", message)
        }
    })
}

/// Adds the security headers.
pub(super) fn with_security_headers(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-frame-options", "DENY"),
        ("x-content-type-options", "nosniff"),
        // Not `no-referrer`: with it browsers would also omit the origin of the dashboard's own forms.
        ("referrer-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// Returns a resource of pages; `None` if there is none with that name.
pub(super) fn asset(name: &str) -> Option<Response<ResponseBody>> {
    let (content_type, text) = match name {
        "style.css" => ("text/css; charset=utf-8", include_str!("assets/style.css")),
        "dashboard.js" => ("text/javascript; charset=utf-8", include_str!("assets/dashboard.js")),
        "logo.svg" => ("image/svg+xml", include_str!("assets/logo.svg")),
        _ => return None,
    };
    let mut response =
        with_security_headers(with_content_type(StatusCode::OK, content_type, text.to_owned()));
    // Another version of the program has different files.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Some(response)
}
