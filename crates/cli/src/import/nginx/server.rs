//! `server` blocks as listeners: those that send everything to one place.
//!
//! NGINX tells servers of one address apart by the Host of each request. Here listeners with TLS tell them apart by the name that the
//! client asks for there (SNI), which browsers fill with the same; others do not.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::super::draft::{Draft, Listener, MemberTls, Protocol, Tls};
use super::super::value;
use super::pass::{self, Target};
use super::words::Directive;
use super::{UNIT, Upstreams, include};

/// What a directive means where it stands, and around that.
#[derive(Clone, Copy)]
pub(super) struct Scope<'d> {
    /// The innermost first.
    pub(super) levels: [&'d [&'d Directive]; 3],
}

impl<'d> Scope<'d> {
    /// The last of that name, of the innermost level that has one.
    pub(super) fn find(&self, name: &str) -> Option<&'d Directive> {
        self.levels.iter().find_map(|level| level.iter().rev().find(|one| one.name == name).copied())
    }

    /// All of that name, of the innermost level that has one.
    pub(super) fn all(&self, name: &str) -> Vec<&'d Directive> {
        let levels =
            self.levels.iter().map(|level| level.iter().filter(|one| one.name == name).copied().collect());
        levels.into_iter().find(|found: &Vec<&Directive>| !found.is_empty()).unwrap_or_default()
    }

    pub(super) fn time(&self, name: &str) -> Option<std::time::Duration> {
        value::time(self.find(name)?.first(), UNIT)
    }

    pub(super) fn on(&self, name: &str) -> bool {
        self.find(name).is_some_and(|one| one.first() == "on")
    }
}

/// A server, as far as it is one here.
struct Site {
    listener: Listener,
    names: Vec<String>,
    usual: bool,
}

/// Reads those of a context.
pub(super) fn read(inside: &[&Directive], streams: bool, upstreams: &mut Upstreams, draft: &mut Draft) {
    for one in inside {
        outside(one, draft);
    }
    let mut sites: BTreeMap<(SocketAddr, bool), Vec<Site>> = BTreeMap::new();
    for server in inside.iter().filter(|one| one.name == "server") {
        let block: Vec<&Directive> = server.block.iter().flatten().collect();
        for site in sites_of(server, &block, inside, streams, upstreams, draft) {
            let place = (site.listener.address, site.listener.protocol == Protocol::Udp);
            sites.entry(place).or_default().push(site);
        }
    }
    let mut listeners: Vec<Listener> =
        sites.into_values().filter_map(|sites| together(sites, draft)).collect();
    listeners.sort_by_key(|listener| listener.line);
    draft.listeners.extend(listeners);
}

/// One listener for all servers of an address.
fn together(mut sites: Vec<Site>, draft: &mut Draft) -> Option<Listener> {
    let first = sites.iter().position(|site| site.usual).unwrap_or(0);
    if first >= sites.len() {
        return None;
    }
    let Site { mut listener, names, .. } = sites.remove(first);
    if let Some(tls) = &mut listener.tls
        && !sites.is_empty()
    {
        let group = listener.group.clone();
        tls.names
            .extend(names.into_iter().filter(|name| name.contains('.')).map(|name| (name, group.clone())));
    }
    for site in sites {
        let called = format!("server {}", site.names.join(" "));
        match (&mut listener.tls, site.listener.tls) {
            (Some(tls), Some(other)) => {
                for pair in other.certificates {
                    if !tls.certificates.contains(&pair) {
                        tls.certificates.push(pair);
                    }
                }
                let group = &site.listener.group;
                tls.names.extend(site.names.into_iter().map(|name| (name, group.clone())));
                draft.note(site.listener.line, called, "it is told apart by the name that TLS asks for, and not by Host");
            }
            _ if site.listener.group == listener.group => {}
            _ => draft.note(
                site.listener.line,
                called,
                "servers of one address are not told apart by Host here: give it an address of its own, or TLS",
            ),
        }
    }
    Some(listener)
}

fn sites_of(
    server: &Directive,
    block: &[&Directive],
    around: &[&Directive],
    streams: bool,
    upstreams: &mut Upstreams,
    draft: &mut Draft,
) -> Vec<Site> {
    let scope = Scope { levels: [&[], block, around] };
    let names: Vec<String> =
        block.iter().filter(|one| one.name == "server_name").flat_map(|one| one.args.clone()).collect();
    for one in block {
        inside(one, streams, draft);
    }
    let target = if streams {
        pass::of_stream(server, &scope, upstreams, draft)
    } else {
        pass::of_http(server, block, around, upstreams, draft)
    };
    let Some(Target { group, forwarded, timeouts }) = target else { return Vec::new() };
    let mut sites = Vec::new();
    let listens: Vec<&Directive> = block.iter().filter(|one| one.name == "listen").copied().collect();
    if listens.is_empty() {
        draft.note(server.line, server.said(), "it does not say where to listen");
    }
    for one in listens {
        let Some(address) =
            value::listen(one.first(), true).or_else(|| value::listen(&format!("{}:80", one.first()), false))
        else {
            draft.note(one.line, one.said(), "is no IP address with a port");
            continue;
        };
        let has = |word: &str| one.args.iter().any(|arg| arg == word);
        let protocol = match (streams, has("udp")) {
            (false, _) => Protocol::Http,
            (true, false) => Protocol::Tcp,
            (true, true) => Protocol::Udp,
        };
        let mut listener = Listener::new(one.line, address, protocol, &group);
        listener.forwarded = forwarded;
        listener.accept_proxy = has("proxy_protocol");
        let backlog = one.args.iter().find_map(|arg| arg.strip_prefix("backlog="));
        listener.backlog = backlog.and_then(|number| number.parse().ok());
        (listener.head, listener.idle, listener.body, listener.tunnel) = timeouts;
        if has("ssl") || scope.on("ssl") {
            listener.tls = Some(shown(&scope, one.line, draft));
        }
        if has("quic") {
            draft.note(one.line, one.said(), "HTTP/3 is not spoken");
            continue;
        }
        sites.push(Site { listener, names: names.clone(), usual: has("default_server") || has("default") });
    }
    sites
}

/// Certificates, and what is asked of clients.
fn shown(scope: &Scope<'_>, line: usize, draft: &mut Draft) -> Tls {
    let mut tls = Tls::default();
    let keys = scope.all("ssl_certificate_key");
    for (certificate, key) in scope.all("ssl_certificate").iter().zip(keys) {
        if certificate.first().contains('$') || key.first().starts_with("engine:") {
            draft.note(certificate.line, certificate.said(), "certificates are files here");
        } else {
            tls.certificates.push((certificate.first().to_owned(), key.first().to_owned()));
        }
    }
    if let Some(verify) = scope.find("ssl_verify_client").filter(|one| one.first() != "off") {
        let ca = scope.find("ssl_client_certificate").or_else(|| scope.find("ssl_trusted_certificate"));
        tls.client_ca = ca.map(|one| one.first().to_owned());
        tls.optional = verify.first() != "on";
        if tls.client_ca.is_none() || verify.first() == "optional_no_ca" {
            draft.note(
                line,
                verify.said(),
                "certificates of clients lead to an authority, or are not asked for",
            );
        }
    }
    if let Some(versions) = scope.find("ssl_protocols") {
        tls.only_13 = versions.args.iter().all(|version| version == "TLSv1.3");
        if versions.args.iter().any(|version| ["TLSv1", "TLSv1.1", "SSLv3"].contains(&&**version)) {
            draft.note(versions.line, versions.said(), "1.2 and 1.3 are spoken, and nothing older");
        }
    }
    tls
}

/// Read elsewhere, or of no effect by itself.
const KNOWN: [&str; 44] = [
    "listen",
    "server_name",
    "ssl",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_client_certificate",
    "ssl_trusted_certificate",
    "ssl_verify_client",
    "ssl_protocols",
    "location",
    "proxy_pass",
    "grpc_pass",
    "proxy_connect_timeout",
    "proxy_read_timeout",
    "proxy_timeout",
    "proxy_send_timeout",
    "grpc_connect_timeout",
    "grpc_read_timeout",
    "grpc_send_timeout",
    "proxy_next_upstream_tries",
    "proxy_set_header",
    "grpc_set_header",
    "proxy_http_version",
    "proxy_ssl",
    "proxy_ssl_verify",
    "proxy_ssl_trusted_certificate",
    "proxy_ssl_name",
    "proxy_ssl_server_name",
    "proxy_ssl_certificate",
    "proxy_ssl_certificate_key",
    "proxy_protocol",
    "keepalive_timeout",
    "client_header_timeout",
    "client_body_timeout",
    "http2",
    "server",
    "upstream",
    "sendfile",
    "tcp_nopush",
    "tcp_nodelay",
    "types",
    "default_type",
    "types_hash_max_size",
    "server_names_hash_bucket_size",
];

/// Begin of names, and why such are not carried over; the first that fits.
const WHY: [(&str, &str); 22] = [
    ("access_log", "write [access_log] for a line of JSON per request"),
    ("log_", "write [access_log] for a line of JSON per request"),
    ("error_log", "the log goes to standard error"),
    ("ssl_session", "sessions of TLS are resumed without being asked"),
    ("ssl_stapling", "name the answer of the authority: ocsp beside the certificate"),
    ("ssl_", "ciphers and options of TLS are not set one by one here"),
    ("proxy_ssl_", "ciphers and options of TLS are not set one by one here"),
    ("proxy_cache", "nothing is cached here"),
    ("proxy_buffer", "bodies are passed on as they come"),
    ("proxy_request_buffering", "bodies are passed on as they come"),
    ("proxy_max_temp_file_size", "bodies are passed on as they come"),
    ("proxy_next_upstream", "requests are tried again where that is safe, within a budget ([group.retry])"),
    ("client_max_body_size", "bodies may have any length"),
    ("client_body", "bodies are passed on as they come"),
    ("large_client_header_buffers", "heads have at most max_head bytes"),
    ("keepalive", "connections of clients end after timeouts.idle"),
    ("gzip", "answers are passed on as they are"),
    ("brotli", "answers are passed on as they are"),
    (
        "resolver",
        "names are looked up at start and reload; write discover = [{ dns = \"name:port\" }] to follow one",
    ),
    ("limit_conn", "groups shed what they cannot carry; clients have no limits of their own"),
    ("limit_req", "groups shed what they cannot carry; clients have no limits of their own"),
    ("health_check", "write [group.health]"),
];

/// Of a server: what is not read elsewhere.
pub(super) fn inside(one: &Directive, streams: bool, draft: &mut Draft) {
    if KNOWN.contains(&&*one.name) {
        return;
    }
    if one.name == "include" {
        return include(one, draft);
    }
    let why = WHY.iter().find(|(begin, _)| one.name.starts_with(begin)).map(|(_, why)| *why);
    let why = why.unwrap_or(match (&*one.name, streams) {
        ("root" | "index" | "try_files" | "autoindex" | "expires", _) => "files are not served here",
        ("ssl_preread" | "map" | "split_clients" | "geo", _) => "clients are not told apart by what they say",
        (_, false) => "there are no rules on single requests here",
        (_, true) => "there is nothing like it here",
    });
    draft.note(one.line, one.said(), why);
}

/// Of a context.
fn outside(one: &Directive, draft: &mut Draft) {
    inside(one, false, draft);
}

/// How members are reached by TLS, if they are.
pub(super) fn member_tls(scope: &Scope<'_>) -> MemberTls {
    let word =
        |name: &str| scope.find(name).map(|one| one.first().to_owned()).filter(|word| !word.contains('$'));
    let own = word("proxy_ssl_certificate").zip(word("proxy_ssl_certificate_key"));
    MemberTls {
        verify: scope.on("proxy_ssl_verify"),
        ca: word("proxy_ssl_trusted_certificate").filter(|_| scope.on("proxy_ssl_verify")),
        server_name: word("proxy_ssl_name"),
        own,
    }
}
