//! Live pages: server-sent events, each with the current main part of the page.
//!
//! The page is rendered once a second, and sent if it has changed. Nothing is queued: a slow reader receives
//! the state at the time when it reads. Streams count among the event streams of the endpoint.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Either;
use http_body_util::channel::{Channel, SendError, Sender};
use hyper::body::Bytes;
use hyper::{Response, StatusCode};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

use super::urls::{PageUrl, first_field};
use super::{build_page, render};
use crate::access::{Caller, GrantedScope};
use crate::api::Operation;
use crate::endpoint::{AdminBackend, AdminEndpoint};
use crate::reply::{ResponseBody, response, text};

/// The interval of renderings, and the one for pages that query other processes.
const RENDER_INTERVAL: Duration = Duration::from_secs(1);
const SLOW_RENDER_INTERVAL: Duration = Duration::from_secs(3);
/// The interval of keep-alive messages on a stream without changes.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Begins a stream.
pub(super) fn begin_stream(
    endpoint: &Arc<AdminEndpoint>,
    caller: Caller,
    is_head: bool,
    query: &[(String, String)],
) -> Response<ResponseBody> {
    let path = first_field(query, "page").unwrap_or_default().to_owned();
    let Some(page_url) = PageUrl::parse(&path).filter(PageUrl::is_live) else {
        return render::with_security_headers(text(
            StatusCode::BAD_REQUEST,
            "page: give the path of a page that changes\n".into(),
        ));
    };
    let Ok(slot) = endpoint.streams.clone().try_acquire_owned() else {
        return render::with_security_headers(text(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many streams: close some pages\n".into(),
        ));
    };
    let (sender, body) = Channel::new(1);
    if !is_head {
        tokio::spawn(stream(endpoint.clone(), caller, page_url, path, sender, slot));
    }
    render::with_security_headers(response(StatusCode::OK, "text/event-stream", Either::Right(body)))
}

async fn stream(
    endpoint: Arc<AdminEndpoint>,
    caller: Caller,
    page_url: PageUrl,
    path: String,
    mut sender: Sender<Bytes>,
    _slot: OwnedSemaphorePermit,
) {
    // An error means that the client has disconnected.
    let _ = send_changes(&endpoint, &caller, &page_url, &path, &mut sender).await;
}

async fn send_changes(
    endpoint: &Arc<AdminEndpoint>,
    caller: &Caller,
    page_url: &PageUrl,
    path: &str,
    sender: &mut Sender<Bytes>,
) -> Result<(), SendError> {
    sender.send_data("retry: 2000\n\n".into()).await?;
    let render_interval = if matches!(endpoint.backend, AdminBackend::Balancer(_)) {
        RENDER_INTERVAL
    } else {
        SLOW_RENDER_INTERVAL
    };
    let mut previous_main = String::new();
    let mut heartbeat = Instant::now() + HEARTBEAT;
    loop {
        // The rules may have changed since the stream began, and the credential may have expired.
        if endpoint.granted_scope(caller, Operation::Dashboard) == GrantedScope::Denied
            || endpoint.has_ended()
        {
            return Ok(());
        }
        let rendered = build_page(endpoint, caller, page_url, path, &[]).await;
        let Ok(Some(Ok(page))) = rendered else {
            // The group or the member is gone: a reload of the page shows that.
            return sender.send_data("event: gone\ndata: gone\n\n".into()).await;
        };
        let main = main_part(&page);
        if main != previous_main {
            sender.send_data(format_event(main).into()).await?;
            previous_main = main.to_owned();
            heartbeat = Instant::now() + HEARTBEAT;
        } else if Instant::now() >= heartbeat {
            sender.send_data(": alive\n\n".into()).await?;
            heartbeat = Instant::now() + HEARTBEAT;
        }
        tokio::select! {
            () = sleep(render_interval) => {}
            () = endpoint.wait_for_end() => return Ok(()),
        }
    }
}

/// Returns the main part of a page. Inserted text is escaped, so its tags are unique.
pub(super) fn main_part(page: &str) -> &str {
    let start = page.find("<main").unwrap_or(0);
    let end = page.rfind("</main>").map_or(page.len(), |end| end + "</main>".len());
    page.get(start..end).unwrap_or_default()
}

/// Formats an event. A line break would end a line of data.
fn format_event(main: &str) -> String {
    let mut text = String::with_capacity(main.len() + 64);
    text.push_str("event: page\n");
    for line in main.split(['\n', '\r']).filter(|line| !line.trim().is_empty()) {
        text.push_str("data: ");
        text.push_str(line.trim_start());
        text.push('\n');
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_one_message() {
        let page = "<html><main id=\"main\">\n<p>a\r\ndata: b\n\nevent: x</p>\n</main></html>";
        assert_eq!(main_part(page), "<main id=\"main\">\n<p>a\r\ndata: b\n\nevent: x</p>\n</main>");
        assert_eq!(
            format_event(main_part(page)),
            "event: page\ndata: <main id=\"main\">\ndata: <p>a\ndata: data: b\ndata: event: x</p>\ndata: \
             </main>\n\n"
        );
        assert_eq!(main_part("no page"), "no page");
    }
}
