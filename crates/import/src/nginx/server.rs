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
    context_directives: &[&NginxDirective],
    streams: bool,
    upstreams: &mut UpstreamGroups,
    draft: &mut ImportDraft,
) {
    let servers: Vec<&NginxDirective> =
        context_directives.iter().filter(|candidate| candidate.name == "server").copied().collect();
    let mut sockets: BTreeMap<ListenKey, ListenOptions> = BTreeMap::new();
    for server in &servers {
        let block: Vec<&NginxDirective> = server.block.iter().flatten().collect();
        let is_tls = DirectiveScope { levels: [&[], &block, context_directives] }.is_on("ssl");
        for listen in block.iter().filter(|listen| listen.name == "listen") {
            let Some(socket_key) = listen_key(listen, streams) else { continue };
            let socket = sockets.entry(socket_key).or_default();
            socket.tls |= is_tls || has_parameter(listen, "ssl");
            socket.accept_proxy |= has_parameter(listen, "proxy_protocol");
        }
    }
    let mut sites: BTreeMap<ListenKey, Vec<ServerSite>> = BTreeMap::new();
    for server in servers {
        let block: Vec<&NginxDirective> = server.block.iter().flatten().collect();
        server.mark_used();
        for (socket_key, site) in
            sites_of(server, &block, context_directives, streams, &sockets, upstreams, draft)
        {
            sites.entry(socket_key).or_default().push(site);
        }
    }
    let mut listeners: Vec<DraftListener> =
        sites.into_values().filter_map(|sites| merge_servers::merge_sites(sites, draft)).collect();
    listeners.sort_by_key(|listener| listener.line);
    draft.listeners.extend(listeners);
}

fn has_parameter(listen: &NginxDirective, word: &str) -> bool {
    listen.args.iter().any(|arg| arg == word)
}

fn listen_key(listen: &NginxDirective, streams: bool) -> Option<ListenKey> {
    let address_text = listen.first();
    let address =
        value::listen(address_text, true).or_else(|| value::listen(&format!("{address_text}:80"), false))?;
    Some((address, streams && has_parameter(listen, "udp")))
}

fn sites_of(
    server: &NginxDirective,
    block: &[&NginxDirective],
    outer_directives: &[&NginxDirective],
    streams: bool,
    sockets: &BTreeMap<ListenKey, ListenOptions>,
    upstreams: &mut UpstreamGroups,
    draft: &mut ImportDraft,
) -> Vec<(ListenKey, ServerSite)> {
    let scope = DirectiveScope { levels: [&[], block, outer_directives] };
    let names: Vec<String> = block
        .iter()
        .filter(|directive| directive.name == "server_name")
        .flat_map(|server_name| &server_name.mark_used().args)
        // `.example.org` is the domain and all names below it.
        .flat_map(|name| match name.strip_prefix('.') {
            Some(domain) => vec![domain.to_owned(), format!("*.{domain}")],
            None => vec![name.clone()],
        })
        .collect();
    let target = if streams {
        proxy_pass::of_stream(server, &scope, upstreams, draft)
    } else {
        proxy_pass::of_http(server, block, outer_directives, upstreams, draft)
    };
    let server_rules = access_rules::of_server(block, outer_directives);
    let mut sites = Vec::new();
    let listen_directives: Vec<&NginxDirective> =
        block.iter().filter(|directive| directive.name == "listen").copied().collect();
    let default_listen = NginxDirective::new(server.line, "listen".to_owned(), vec!["80".to_owned()], None);
    let listen_directives = match listen_directives.is_empty() {
        // The default of `listen` is this, if root starts NGINX.
        true if !streams => vec![&default_listen],
        _ => listen_directives,
    };
    if listen_directives.is_empty() {
        draft.note(server.line, server.text(), "it does not say where to listen");
        server.mark_all_used();
    }
    for listen in listen_directives {
        listen.mark_used();
        let Some(socket_key) = listen_key(listen, streams) else {
            draft.note(listen.line, listen.text(), "is no IP address with a port");
            continue;
        };
        if has_parameter(listen, "quic") {
            draft.note(listen.line, listen.text(), "HTTP/3 is not spoken");
            continue;
        }
        let protocol = match (streams, socket_key.1) {
            (false, _) => DraftProtocol::Http,
            (true, false) => DraftProtocol::Tcp,
            (true, true) => DraftProtocol::Udp,
        };
        let group = target.as_ref().map_or("", |target| &target.group);
        let mut listener = DraftListener::new(listen.line, socket_key.0, protocol, group);
        listener.access_rules.clone_from(&server_rules);
        let socket = sockets.get(&socket_key).copied().unwrap_or_default();
        listener.accept_proxy = socket.accept_proxy;
        let mut is_default = false;
        for parameter in &listen.args[1..] {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match (name, value) {
                ("default_server" | "default", "") => is_default = true,
                ("ssl" | "udp" | "proxy_protocol", "") | ("ipv6only", "off") => {}
                ("ipv6only", "on") => {
                    draft.note(listen.line, listen.text(), "a listener on [::] takes IPv4, too")
                }
                ("backlog", backlog_text) if backlog_text.parse::<u64>().is_ok() => {
                    listener.backlog = backlog_text.parse().ok()
                }
                _ if unsupported::HARMLESS_OF_LISTEN.contains(&name) => {}
                _ => draft.note(
                    listen.line,
                    format!("listen {} … {parameter}", listen.first()),
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
            socket_key,
            ServerSite { listener, names: names.clone(), is_default, is_supported: target.is_some() },
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
        for unpaired in certificates.iter().chain(&keys).skip(2 * certificates.len().min(keys.len())) {
            draft.note(unpaired.line, unpaired.text(), "certificates and keys come in pairs");
        }
    }
    for (certificate, key) in certificates.iter().zip(keys) {
        let file = |directive: &NginxDirective| !directive.first().contains(['$', ':']);
        if file(certificate) && file(key) {
            tls.certificates.push((certificate.first().to_owned(), key.first().to_owned()));
        } else {
            draft.note(certificate.line, certificate.text(), "certificates are files here");
        }
    }
    let ca = scope.find("ssl_client_certificate");
    let trusted_certificate = scope.find("ssl_trusted_certificate");
    if let Some(verify) = scope.find("ssl_verify_client").filter(|directive| directive.first() != "off") {
        // Without a file no client can have a valid certificate: the listener falls out, and lets none in.
        tls.client_ca = Some(ca.or(trusted_certificate).map_or("", NginxDirective::first).to_owned());
        tls.is_optional = verify.first() != "on";
        if verify.first() == "optional_no_ca" {
            draft.note(
                verify.line,
                verify.text(),
                "certificates of clients lead to an authority, or are not asked for",
            );
        }
    }
    if let Some(versions) = scope.find("ssl_protocols") {
        let has_version = |version: &str| versions.args.iter().any(|directive| directive == version);
        tls.tls13_only = has_version("TLSv1.3") && !has_version("TLSv1.2");
        if ["TLSv1", "TLSv1.1", "SSLv3", "SSLv2"].iter().any(|old_version| has_version(old_version)) {
            draft.note(versions.line, versions.text(), "1.2 and 1.3 are spoken, and nothing older");
        }
        if !has_version("TLSv1.3") {
            draft.note(versions.line, versions.text(), "1.3 is spoken, too");
        }
    }
    tls
}
