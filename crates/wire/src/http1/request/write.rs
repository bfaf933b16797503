//! The request head for the next hop.

use super::super::field::{DropReason, copy_lines};
use super::RequestHead;

/// The header fields that identify the client to the member.
#[derive(Clone, Copy, Debug)]
pub enum ForwardedStyle {
    /// `X-Forwarded-For`, `-Proto`, `-Host`.
    XForwarded,
    /// `Forwarded` (RFC 7239).
    Rfc7239,
    /// No fields are added or removed.
    Off,
}

/// The options for rewriting a request head.
#[derive(Clone, Copy, Debug)]
pub struct ForwardingOptions<'a> {
    /// The fields to add.
    pub style: ForwardedStyle,
    /// Whether to keep those of the received request.
    pub trusted: bool,
    /// The client's IP address, as text without brackets.
    pub client: &'a str,
    /// The result of [`x_forwarded`] for `client` and `scheme`: the same for all requests of a connection.
    pub plain: &'a [u8],
    /// `http` or `https`.
    pub scheme: &'a str,
}

/// Returns the `X-Forwarded` fields that depend on the connection alone.
pub fn x_forwarded(client: &str, scheme: &str) -> Vec<u8> {
    format!("X-Forwarded-For: {client}\r\nX-Forwarded-Proto: {scheme}\r\n").into_bytes()
}

impl RequestHead<'_, '_> {
    /// Appends the head for the next hop: HTTP/1.1 (1.0 without a host), in origin form, without the fields
    /// of this hop, and with the fields that identify the client.
    pub fn write(&self, forwarding: &ForwardingOptions<'_>, out: &mut Vec<u8>) {
        let copy_start = if self.rewrites_line {
            self.write_line(out);
            self.fields
        } else {
            self.start
        };
        let replaces_forwarding = !matches!(forwarding.style, ForwardedStyle::Off);
        let should_drop = |reason| match reason {
            DropReason::Hop => true,
            DropReason::Forwarding => replaces_forwarding,
            DropReason::Host => self.absolute,
            DropReason::Coding | DropReason::Report => false,
        };
        copy_lines(self.head, copy_start, self.marks, should_drop, out);
        if self.upgrade {
            out.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: ");
            out.extend_from_slice(self.field("upgrade").unwrap_or_default());
            out.extend_from_slice(b"\r\n");
        }
        match forwarding.style {
            ForwardedStyle::XForwarded => self.x_forwarded(forwarding, out),
            ForwardedStyle::Rfc7239 => self.rfc7239(forwarding, out),
            ForwardedStyle::Off => {}
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Writes a new request line, followed by the host: that of an absolute target replaces the field.
    fn write_line(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.method_name);
        // An absolute form may have had a query but no path: `http://host?query`.
        out.extend_from_slice(if self.target.starts_with(b"?") { b" /" } else { b" " });
        out.extend_from_slice(self.target);
        // HTTP/1.1 requires a Host, so requests without one stay HTTP/1.0.
        let no_host = self.http10 && self.host.is_empty();
        out.extend_from_slice(if no_host { b" HTTP/1.0\r\n" } else { b" HTTP/1.1\r\n" });
        if self.absolute {
            out.extend_from_slice(b"Host: ");
            out.extend_from_slice(self.host);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn x_forwarded(&self, forwarding: &ForwardingOptions<'_>, out: &mut Vec<u8>) {
        if !forwarding.trusted {
            out.extend_from_slice(forwarding.plain);
            if !self.host.is_empty() {
                out.extend_from_slice(b"X-Forwarded-Host: ");
                out.extend_from_slice(self.host);
                out.extend_from_slice(b"\r\n");
            }
            return;
        }
        out.extend_from_slice(b"X-Forwarded-For: ");
        self.write_earlier_values("x-forwarded-for", out);
        out.extend_from_slice(forwarding.client.as_bytes());
        out.extend_from_slice(b"\r\nX-Forwarded-Proto: ");
        out.extend_from_slice(self.field("x-forwarded-proto").unwrap_or(forwarding.scheme.as_bytes()));
        let host = self.field("x-forwarded-host").unwrap_or(self.host);
        if !host.is_empty() {
            out.extend_from_slice(b"\r\nX-Forwarded-Host: ");
            out.extend_from_slice(host);
        }
        out.extend_from_slice(b"\r\n");
    }

    fn rfc7239(&self, forwarding: &ForwardingOptions<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"Forwarded: ");
        if forwarding.trusted {
            self.write_earlier_values("forwarded", out);
        }
        let (open, close): (&[u8], &[u8]) =
            if forwarding.client.contains(':') { (b"for=\"[", b"]\"") } else { (b"for=", b"") };
        out.extend_from_slice(open);
        out.extend_from_slice(forwarding.client.as_bytes());
        out.extend_from_slice(close);
        if !self.host.is_empty() {
            out.extend_from_slice(b";host=\"");
            out.extend_from_slice(self.host);
            out.push(b'"');
        }
        out.extend_from_slice(b";proto=");
        out.extend_from_slice(forwarding.scheme.as_bytes());
        out.extend_from_slice(b"\r\n");
    }

    /// Appends the elements of all fields with this name, each followed by a comma.
    fn write_earlier_values(&self, name: &str, out: &mut Vec<u8>) {
        for value in self.values(name) {
            out.extend_from_slice(value);
            out.extend_from_slice(b", ");
        }
    }
}
