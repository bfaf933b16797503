//! In a side-car: selects the clients that leave when a balancer finds the server overloaded, and their
//! responses.
//!
//! Each connection draws once for each alert whether it leaves
//! ([`AlertState`](crate::upstream::side_car::AlertState)). The client is redirected to the same resource of
//! the group by 307, whatever the method, as nothing of the request has been forwarded. If its connection
//! were only closed, a client with this server's own address would return here.
//!
//! In these cases the connection is closed with the response instead:
//!
//! - There is no URL of the group.
//! - The request is a gRPC call: its client does not follow redirects but resolves the group again.
//! - The request is for a resource of the group itself: it came through a balancer, which has to choose
//!   again. A redirect would lead in a circle.
//!
//! A WebSocket client does not follow redirects either, and an open WebSocket has no boundary to close at. It
//! gets 503 with `Retry-After`; a balancer in between learns that there is no room and chooses another
//! member.
//!
//! With HTTP/2, a connection draws at the next stream that begins. That stream and all others that begin
//! before the client receives GOAWAY are redirected or rejected; earlier ones are served as usual.

use std::sync::Arc;

use super::bound_connection::RedirectLocation;
use super::dispatch::DispatchOutcome;
use super::{ByteStream, HttpSession, ParsedRequest};
use crate::net::reason::Reason;
use crate::upstream::side_car::{MeterGuard, SideCar};

impl<S: ByteStream> HttpSession<S> {
    /// Returns a redirect or rejection if the request's client has to leave now. Clients that leave with
    /// their response are not included.
    #[inline]
    pub(super) fn shed_client(
        &mut self,
        side_car: &Arc<SideCar>,
        request: &mut ParsedRequest,
    ) -> Option<DispatchOutcome> {
        let is_due = if self.stream.is_multiplexed() {
            self.stream.is_shed()
        } else {
            self.alert_state.has_new_alert()
        };
        if is_due { self.shed_response(side_car, request) } else { None }
    }

    #[cold]
    #[inline(never)]
    fn shed_response(&mut self, side_car: &SideCar, request: &mut ParsedRequest) -> Option<DispatchOutcome> {
        let redirect_location = self.group_location(request);
        if redirect_location.is_none() && !request.upgrade {
            return None;
        }
        let core = &self.core;
        // The stream's connection has drawn.
        if !self.stream.is_multiplexed() && !self.alert_state.should_leave(|| core.random_bits()) {
            return None;
        }
        request.keep_alive = false;
        Some(match redirect_location {
            Some(location) => DispatchOutcome::Redirected(location),
            None => {
                request.meter = MeterGuard::rejected(side_car);
                DispatchOutcome::Rejected(Reason::Shed)
            }
        })
    }

    /// Returns `true` if a response is the last of its connection, because the server behind this side-car is
    /// overloaded. To be called for each response.
    #[inline]
    pub(super) fn is_last_for_shedding(&mut self, request: &ParsedRequest) -> bool {
        self.alert_state.has_new_alert() && self.leaves_with_response(request)
    }

    #[cold]
    #[inline(never)]
    fn leaves_with_response(&mut self, request: &ParsedRequest) -> bool {
        // The connection of a stream draws with the next stream; a client that follows redirects leaves with
        // the next request.
        if self.stream.is_multiplexed() || self.group_location(request).is_some() {
            return false;
        }
        let core = &self.core;
        self.alert_state.should_leave(|| core.random_bits())
    }

    /// Returns the same resource of the group, if the client follows redirects and has not requested that
    /// resource itself.
    fn group_location(&self, request: &ParsedRequest) -> Option<RedirectLocation> {
        let home_url = request.view.published.settings.side_car.as_ref()?.home.as_deref()?;
        let can_redirect =
            self.stream.call().is_none() && !request.upgrade && !is_same_host(home_url, &request.outgoing);
        if can_redirect { RedirectLocation::with_base(home_url, request) } else { None }
    }
}

/// Returns `true` if a request's head names the host of this base URL.
fn is_same_host(base: &str, head: &[u8]) -> bool {
    let (authority, port) = match base.strip_prefix("https://") {
        Some(authority) => (authority, ":443"),
        None => (base.strip_prefix("http://").unwrap_or(base), ":80"),
    };
    // A default port may be omitted on either side.
    let without_port = |host: &str| host.strip_suffix(port).unwrap_or(host).to_ascii_lowercase();
    host(head).is_some_and(|host| without_port(&host) == without_port(authority))
}

/// Returns the field `Host` of a head that was checked before.
fn host(head: &[u8]) -> Option<String> {
    let lines = head.split(|byte| *byte == b'\n').skip(1).map(|line| line.trim_ascii());
    let host = lines.take_while(|line| !line.is_empty()).find_map(|line| {
        let (name, value) = line.split_at(line.iter().position(|byte| *byte == b':')?);
        name.eq_ignore_ascii_case(b"host").then(|| value.get(1..))?.map(<[u8]>::trim_ascii)
    });
    Some(String::from_utf8_lossy(host?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_names_the_host_of_a_url_or_another_one() {
        let head =
            |host: &str| format!("GET /Host: HTTP/1.1\r\nx: y\r\nhOst:\t{host} \r\n\r\nHost: body\r\n");
        for (base, host) in [
            ("http://lb.example", "lb.example"),
            ("http://lb.example", "LB.example:80"),
            ("http://lb.example:80", "lb.example"),
            ("https://lb.example", "lb.example:443"),
            ("https://lb.example:8443", "lb.example:8443"),
            ("http://[::1]", "[::1]:80"),
        ] {
            assert!(is_same_host(base, head(host).as_bytes()), "{base} {host}");
        }
        for (base, host) in [
            ("http://lb.example", "one.example"),
            ("http://lb.example:8080", "lb.example"),
            ("http://lb.example", "lb.example:8080"),
            ("https://lb.example", "lb.example:80"),
            ("http://body", "lb.example"),
            ("http://lb.example", ""),
        ] {
            assert!(!is_same_host(base, head(host).as_bytes()), "{base} {host}");
        }
        assert!(
            !is_same_host("http://x", b"GET / HTTP/1.0\r\n\r\nHost: x\r\n") && !is_same_host("http://x", b"")
        );
    }
}
