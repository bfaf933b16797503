//! `server` blocks: each as a listener, by the addresses that it listens on.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::super::draft::{Draft, Listener, Protocol, Tls};
use super::super::value;
use super::pass::{self, Target};
use super::scope::Scope;
use super::site::{self, Site};
use super::words::Directive;
use super::{Upstreams, rules, why};

/// An address, and whether it is of datagrams.
type Place = (SocketAddr, bool);

/// The settings of one `listen`, which count for all servers of its address.
#[derive(Clone, Copy, Debug, Default)]
struct Socket {
    tls: bool,
    accept_proxy: bool,
}

/// Reads the servers of a context.
pub(super) fn read(inside: &[&Directive], streams: bool, upstreams: &mut Upstreams, draft: &mut Draft) {
    let servers: Vec<&Directive> = inside.iter().filter(|one| one.name == "server").copied().collect();
    let mut sockets: BTreeMap<Place, Socket> = BTreeMap::new();
    for server in &servers {
        let block: Vec<&Directive> = server.block.iter().flatten().collect();
        let secure = Scope { levels: [&[], &block, inside] }.on("ssl");
        for one in block.iter().filter(|one| one.name == "listen") {
            let Some(place) = place(one, streams) else { continue };
            let socket = sockets.entry(place).or_default();
            socket.tls |= secure || has(one, "ssl");
            socket.accept_proxy |= has(one, "proxy_protocol");
        }
    }
    let mut sites: BTreeMap<Place, Vec<Site>> = BTreeMap::new();
    for server in servers {
        let block: Vec<&Directive> = server.block.iter().flatten().collect();
        server.take();
        for (place, site) in sites_of(server, &block, inside, streams, &sockets, upstreams, draft) {
            sites.entry(place).or_default().push(site);
        }
    }
    let mut listeners: Vec<Listener> =
        sites.into_values().filter_map(|sites| site::together(sites, draft)).collect();
    listeners.sort_by_key(|listener| listener.line);
    draft.listeners.extend(listeners);
}

fn has(listen: &Directive, word: &str) -> bool {
    listen.args.iter().any(|arg| arg == word)
}

fn place(listen: &Directive, streams: bool) -> Option<Place> {
    let first = listen.first();
    let address = value::listen(first, true).or_else(|| value::listen(&format!("{first}:80"), false))?;
    Some((address, streams && has(listen, "udp")))
}

fn sites_of(
    server: &Directive,
    block: &[&Directive],
    around: &[&Directive],
    streams: bool,
    sockets: &BTreeMap<Place, Socket>,
    upstreams: &mut Upstreams,
    draft: &mut Draft,
) -> Vec<(Place, Site)> {
    let scope = Scope { levels: [&[], block, around] };
    let names: Vec<String> = block
        .iter()
        .filter(|one| one.name == "server_name")
        .flat_map(|one| &one.take().args)
        // `.example.org` is the domain and all names below it.
        .flat_map(|name| match name.strip_prefix('.') {
            Some(domain) => vec![domain.to_owned(), format!("*.{domain}")],
            None => vec![name.clone()],
        })
        .collect();
    let target = if streams {
        pass::of_stream(server, &scope, upstreams, draft)
    } else {
        pass::of_http(server, block, around, upstreams, draft)
    };
    let barred = rules::of_server(block, around);
    let mut sites = Vec::new();
    let listens: Vec<&Directive> = block.iter().filter(|one| one.name == "listen").copied().collect();
    let usual = Directive::new(server.line, "listen".to_owned(), vec!["80".to_owned()], None);
    let listens = match listens.is_empty() {
        // The default of `listen` is this, if root starts NGINX.
        true if !streams => vec![&usual],
        _ => listens,
    };
    if listens.is_empty() {
        draft.note(server.line, server.said(), "it does not say where to listen");
        server.leave();
    }
    for one in listens {
        one.take();
        let Some(place) = place(one, streams) else {
            draft.note(one.line, one.said(), "is no IP address with a port");
            continue;
        };
        if has(one, "quic") {
            draft.note(one.line, one.said(), "HTTP/3 is not spoken");
            continue;
        }
        let protocol = match (streams, place.1) {
            (false, _) => Protocol::Http,
            (true, false) => Protocol::Tcp,
            (true, true) => Protocol::Udp,
        };
        let group = target.as_ref().map_or("", |target| &target.group);
        let mut listener = Listener::new(one.line, place.0, protocol, group);
        listener.barred.clone_from(&barred);
        let socket = sockets.get(&place).copied().unwrap_or_default();
        listener.accept_proxy = socket.accept_proxy;
        let mut usual = false;
        for word in &one.args[1..] {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match (name, value) {
                ("default_server" | "default", "") => usual = true,
                ("ssl" | "udp" | "proxy_protocol", "") | ("ipv6only", "off") => {}
                ("ipv6only", "on") => draft.note(one.line, one.said(), "a listener on [::] takes IPv4, too"),
                ("backlog", number) if number.parse::<u64>().is_ok() => {
                    listener.backlog = number.parse().ok()
                }
                _ if why::HARMLESS_OF_LISTEN.contains(&name) => {}
                _ => draft.note(
                    one.line,
                    format!("listen {} … {word}", one.first()),
                    "there is nothing like it here",
                ),
            }
        }
        if let Some(Target { forwarded, timeouts, .. }) = &target {
            listener.forwarded = *forwarded;
            (listener.head, listener.idle, listener.body, listener.tunnel) = *timeouts;
        }
        if socket.tls {
            listener.tls = Some(shown(&scope, draft));
        }
        sites.push((place, Site { listener, names: names.clone(), usual, carried: target.is_some() }));
    }
    if target.is_none() {
        server.leave();
    }
    sites
}

/// Reads the certificates, and the demands on clients.
fn shown(scope: &Scope<'_>, draft: &mut Draft) -> Tls {
    let mut tls = Tls::default();
    let (certificates, keys) = (scope.all("ssl_certificate"), scope.all("ssl_certificate_key"));
    if certificates.len() != keys.len() {
        for one in certificates.iter().chain(&keys).skip(2 * certificates.len().min(keys.len())) {
            draft.note(one.line, one.said(), "certificates and keys come in pairs");
        }
    }
    for (certificate, key) in certificates.iter().zip(keys) {
        let file = |one: &Directive| !one.first().contains(['$', ':']);
        if file(certificate) && file(key) {
            tls.certificates.push((certificate.first().to_owned(), key.first().to_owned()));
        } else {
            draft.note(certificate.line, certificate.said(), "certificates are files here");
        }
    }
    let ca = scope.find("ssl_client_certificate");
    let trusted = scope.find("ssl_trusted_certificate");
    if let Some(verify) = scope.find("ssl_verify_client").filter(|one| one.first() != "off") {
        // Without a file no client can have a valid certificate: the listener falls out, and lets none in.
        tls.client_ca = Some(ca.or(trusted).map_or("", Directive::first).to_owned());
        tls.optional = verify.first() != "on";
        if verify.first() == "optional_no_ca" {
            draft.note(
                verify.line,
                verify.said(),
                "certificates of clients lead to an authority, or are not asked for",
            );
        }
    }
    if let Some(versions) = scope.find("ssl_protocols") {
        let has = |version: &str| versions.args.iter().any(|one| one == version);
        tls.only_13 = has("TLSv1.3") && !has("TLSv1.2");
        if ["TLSv1", "TLSv1.1", "SSLv3", "SSLv2"].iter().any(|old| has(old)) {
            draft.note(versions.line, versions.said(), "1.2 and 1.3 are spoken, and nothing older");
        }
        if !has("TLSv1.3") {
            draft.note(versions.line, versions.said(), "1.3 is spoken, too");
        }
    }
    tls
}
