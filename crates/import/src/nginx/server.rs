//! `server` blocks: each as a listener, by the addresses that it listens on.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::super::intermediate::{DraftListener, DraftProtocol, DraftTls, ImportDraft};
use super::super::value;
use super::inheritance::DirectiveScope;
use super::merge_servers::{self, ServerSite};
use super::proxy_pass::{self, ProxyTarget};
use super::tokenizer::NginxDirective;
use super::{UpstreamGroups, access_rules, unsupported};

/// An address, and whether it is of datagrams.
type ListenKey = (SocketAddr, bool);

/// The settings of one `listen`, which count for all servers of its address.
#[derive(Clone, Copy, Debug, Default)]
struct ListenOptions {
    tls: bool,
    accept_proxy: bool,
}

/// Reads the servers of a context.
pub(super) fn read(
    inside: &[&NginxDirective],
    streams: bool,
    upstreams: &mut UpstreamGroups,
    draft: &mut ImportDraft,
) {
    let servers: Vec<&NginxDirective> = inside.iter().filter(|one| one.name == "server").copied().collect();
    let mut sockets: BTreeMap<ListenKey, ListenOptions> = BTreeMap::new();
    for server in &servers {
        let block: Vec<&NginxDirective> = server.block.iter().flatten().collect();
        let secure = DirectiveScope { levels: [&[], &block, inside] }.is_on("ssl");
        for one in block.iter().filter(|one| one.name == "listen") {
            let Some(place) = listen_key(one, streams) else { continue };
            let socket = sockets.entry(place).or_default();
            socket.tls |= secure || has(one, "ssl");
            socket.accept_proxy |= has(one, "proxy_protocol");
        }
    }
    let mut sites: BTreeMap<ListenKey, Vec<ServerSite>> = BTreeMap::new();
    for server in servers {
        let block: Vec<&NginxDirective> = server.block.iter().flatten().collect();
        server.mark_used();
        for (place, site) in sites_of(server, &block, inside, streams, &sockets, upstreams, draft) {
            sites.entry(place).or_default().push(site);
        }
    }
    let mut listeners: Vec<DraftListener> =
        sites.into_values().filter_map(|sites| merge_servers::merge_sites(sites, draft)).collect();
    listeners.sort_by_key(|listener| listener.line);
    draft.listeners.extend(listeners);
}

fn has(listen: &NginxDirective, word: &str) -> bool {
    listen.args.iter().any(|arg| arg == word)
}

fn listen_key(listen: &NginxDirective, streams: bool) -> Option<ListenKey> {
    let first = listen.first();
    let address = value::listen(first, true).or_else(|| value::listen(&format!("{first}:80"), false))?;
    Some((address, streams && has(listen, "udp")))
}

fn sites_of(
    server: &NginxDirective,
    block: &[&NginxDirective],
    around: &[&NginxDirective],
    streams: bool,
    sockets: &BTreeMap<ListenKey, ListenOptions>,
    upstreams: &mut UpstreamGroups,
    draft: &mut ImportDraft,
) -> Vec<(ListenKey, ServerSite)> {
    let scope = DirectiveScope { levels: [&[], block, around] };
    let names: Vec<String> = block
        .iter()
        .filter(|one| one.name == "server_name")
        .flat_map(|one| &one.mark_used().args)
        // `.example.org` is the domain and all names below it.
        .flat_map(|name| match name.strip_prefix('.') {
            Some(domain) => vec![domain.to_owned(), format!("*.{domain}")],
            None => vec![name.clone()],
        })
        .collect();
    let target = if streams {
        proxy_pass::of_stream(server, &scope, upstreams, draft)
    } else {
        proxy_pass::of_http(server, block, around, upstreams, draft)
    };
    let barred = access_rules::of_server(block, around);
    let mut sites = Vec::new();
    let listens: Vec<&NginxDirective> = block.iter().filter(|one| one.name == "listen").copied().collect();
    let usual = NginxDirective::new(server.line, "listen".to_owned(), vec!["80".to_owned()], None);
    let listens = match listens.is_empty() {
        // The default of `listen` is this, if root starts NGINX.
        true if !streams => vec![&usual],
        _ => listens,
    };
    if listens.is_empty() {
        draft.note(server.line, server.text(), "it does not say where to listen");
        server.mark_all_used();
    }
    for one in listens {
        one.mark_used();
        let Some(place) = listen_key(one, streams) else {
            draft.note(one.line, one.text(), "is no IP address with a port");
            continue;
        };
        if has(one, "quic") {
            draft.note(one.line, one.text(), "HTTP/3 is not spoken");
            continue;
        }
        let protocol = match (streams, place.1) {
            (false, _) => DraftProtocol::Http,
            (true, false) => DraftProtocol::Tcp,
            (true, true) => DraftProtocol::Udp,
        };
        let group = target.as_ref().map_or("", |target| &target.group);
        let mut listener = DraftListener::new(one.line, place.0, protocol, group);
        listener.access_rules.clone_from(&barred);
        let socket = sockets.get(&place).copied().unwrap_or_default();
        listener.accept_proxy = socket.accept_proxy;
        let mut usual = false;
        for word in &one.args[1..] {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match (name, value) {
                ("default_server" | "default", "") => usual = true,
                ("ssl" | "udp" | "proxy_protocol", "") | ("ipv6only", "off") => {}
                ("ipv6only", "on") => draft.note(one.line, one.text(), "a listener on [::] takes IPv4, too"),
                ("backlog", number) if number.parse::<u64>().is_ok() => {
                    listener.backlog = number.parse().ok()
                }
                _ if unsupported::HARMLESS_OF_LISTEN.contains(&name) => {}
                _ => draft.note(
                    one.line,
                    format!("listen {} … {word}", one.first()),
                    "there is nothing like it here",
                ),
            }
        }
        if let Some(ProxyTarget { forwarded, timeouts, .. }) = &target {
            listener.forwarded = *forwarded;
            (listener.head, listener.idle, listener.body, listener.tunnel) = *timeouts;
        }
        if socket.tls {
            listener.tls = Some(read_tls(&scope, draft));
        }
        sites.push((
            place,
            ServerSite { listener, names: names.clone(), is_default: usual, is_supported: target.is_some() },
        ));
    }
    if target.is_none() {
        server.mark_all_used();
    }
    sites
}

/// Reads the certificates, and the demands on clients.
fn read_tls(scope: &DirectiveScope<'_>, draft: &mut ImportDraft) -> DraftTls {
    let mut tls = DraftTls::default();
    let (certificates, keys) = (scope.all("ssl_certificate"), scope.all("ssl_certificate_key"));
    if certificates.len() != keys.len() {
        for one in certificates.iter().chain(&keys).skip(2 * certificates.len().min(keys.len())) {
            draft.note(one.line, one.text(), "certificates and keys come in pairs");
        }
    }
    for (certificate, key) in certificates.iter().zip(keys) {
        let file = |one: &NginxDirective| !one.first().contains(['$', ':']);
        if file(certificate) && file(key) {
            tls.certificates.push((certificate.first().to_owned(), key.first().to_owned()));
        } else {
            draft.note(certificate.line, certificate.text(), "certificates are files here");
        }
    }
    let ca = scope.find("ssl_client_certificate");
    let trusted = scope.find("ssl_trusted_certificate");
    if let Some(verify) = scope.find("ssl_verify_client").filter(|one| one.first() != "off") {
        // Without a file no client can have a valid certificate: the listener falls out, and lets none in.
        tls.client_ca = Some(ca.or(trusted).map_or("", NginxDirective::first).to_owned());
        tls.optional = verify.first() != "on";
        if verify.first() == "optional_no_ca" {
            draft.note(
                verify.line,
                verify.text(),
                "certificates of clients lead to an authority, or are not asked for",
            );
        }
    }
    if let Some(versions) = scope.find("ssl_protocols") {
        let has = |version: &str| versions.args.iter().any(|one| one == version);
        tls.tls13_only = has("TLSv1.3") && !has("TLSv1.2");
        if ["TLSv1", "TLSv1.1", "SSLv3", "SSLv2"].iter().any(|old| has(old)) {
            draft.note(versions.line, versions.text(), "1.2 and 1.3 are spoken, and nothing older");
        }
        if !has("TLSv1.3") {
            draft.note(versions.line, versions.text(), "1.3 is spoken, too");
        }
    }
    tls
}
