//! `bind` lines as listeners.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::super::draft::{Draft, Listener, Tls};
use super::super::value;
use super::section::{Line, Section};
use super::{NO_RULES, OfListeners, protocol};

/// Ports of a range that become listeners.
const RANGE: u16 = 64;

/// The listeners of a section.
pub(super) fn listeners(
    section: &Section,
    groups: &BTreeMap<String, String>,
    of_listeners: &OfListeners,
    draft: &mut Draft,
) {
    if section.set.contains_key("disabled") {
        draft.note(section.line, &section.name, "it is disabled");
        return;
    }
    let Some(target) = target(section, groups, draft) else { return };
    if let Some(most) = section.first("maxconn") {
        let why = "max_connections is of the whole process";
        draft.note(section.line_of("maxconn"), format!("maxconn {most}"), why);
    }
    for (line, words) in &section.binds {
        let Some((places, params)) = words.split_first() else { continue };
        for place in places.split(',') {
            let addresses = addresses(place);
            if addresses.is_empty() {
                let why = "is no IP address with a port (names, sockets in the file system and variables are not carried over)";
                draft.note(*line, format!("bind {place}"), why);
            }
            for address in addresses {
                let mut listener = Listener::new(*line, address, protocol(section), &target);
                timeouts(&mut listener, section);
                listener.forwarded = section.option("forwardfor") || of_listeners.forwarded.contains(&target);
                listener.backlog = section.first("backlog").and_then(|word| word.parse().ok());
                listener.cookie = of_listeners.cookies.get(&target).cloned();
                if parameters(&mut listener, params, *line, draft) {
                    names(&mut listener, section, groups);
                    draft.listeners.push(listener);
                }
            }
        }
    }
    rules(section, draft);
    if section.option("forwardfor") && section.get("option forwardfor").is_some_and(|words| !words.is_empty())
    {
        let line = section.line_of("option forwardfor");
        draft.note(
            line,
            "parameters of option forwardfor",
            "networks whose headers are kept are listed in `trusted`",
        );
    }
}

/// Where clients go who meet no condition.
fn target(section: &Section, groups: &BTreeMap<String, String>, draft: &mut Draft) -> Option<String> {
    let always = section.uses.iter().find(|(_, words)| words[0] == "use_backend" && words.len() == 2);
    let named = always
        .and_then(|(_, words)| words.get(1).map(String::as_str))
        .or_else(|| section.first("default_backend"));
    let named = match named {
        Some(name) => name,
        None if section.kind.serves() && !section.servers.is_empty() => &section.name,
        None => {
            let why = "it has no default_backend, and there are no conditions here";
            draft.note(section.line, format!("frontend {}", section.name), why);
            return None;
        }
    };
    let found = groups.get(named).cloned();
    if found.is_none() {
        draft.note(
            section.line,
            format!("frontend {}", section.name),
            format!("there is no backend {named}"),
        );
    }
    found
}

/// `10.0.0.1:80`, `:80-89`, `*:80`.
fn addresses(place: &str) -> Vec<SocketAddr> {
    if let Some(address) = value::listen(place, false) {
        return vec![address];
    }
    let Some((before, range)) = place.rsplit_once(':') else { return Vec::new() };
    let ends = range
        .split_once('-')
        .and_then(|(from, to)| Some((from.parse::<u16>().ok()?, to.parse::<u16>().ok()?)));
    let Some((from, to)) = ends.filter(|(from, to)| from <= to && to - from < RANGE) else {
        return Vec::new();
    };
    (from..=to).filter_map(|port| value::listen(&format!("{before}:{port}"), false)).collect()
}

fn timeouts(listener: &mut Listener, section: &Section) {
    let client = section.timeout("client");
    if section.http() {
        listener.head = section.timeout("http-request").or(client);
        listener.idle =
            section.timeout("http-keep-alive").or_else(|| section.timeout("http-request")).or(client);
        listener.body = client;
        listener.tunnel = section.timeout("tunnel").or(client);
    } else {
        listener.idle = section.timeout("tunnel").or(client);
    }
}

/// Takes what stands behind the address. False if the listener cannot be what it was.
fn parameters(listener: &mut Listener, params: &[String], line: usize, draft: &mut Draft) -> bool {
    let mut tls = Tls::default();
    let (mut secure, mut verified, mut ca) = (false, None, None);
    let mut words = params.iter();
    while let Some(word) = words.next() {
        match &**word {
            "ssl" => secure = true,
            "crt" => {
                let file = words.next().cloned().unwrap_or_default();
                // One file has both, the key behind the certificates.
                tls.certificates.push((file.clone(), file));
            }
            "ca-file" => ca = words.next().cloned(),
            "verify" => verified = words.next().cloned(),
            "alpn" | "npn" => {
                let list = words.next().map_or("", String::as_str);
                if word == "alpn" && !list.contains("h2") && listener.protocol == super::Protocol::Http {
                    draft.note(line, format!("alpn {list}"), "https listeners speak HTTP/2, too");
                }
            }
            "ssl-min-ver" => tls.only_13 = words.next().is_some_and(|word| word == "TLSv1.3"),
            "no-sslv3" | "no-tlsv10" | "no-tlsv11" | "force-tlsv12" => {}
            "no-tlsv12" | "force-tlsv13" => tls.only_13 = true,
            "accept-proxy" => listener.accept_proxy = true,
            "backlog" => listener.backlog = words.next().and_then(|word| word.parse().ok()),
            "name" | "id" => drop(words.next()),
            "v4v6" | "defer-accept" | "tfo" => {}
            "proto" => {
                let proto = words.next().map_or("", String::as_str);
                draft.note(
                    line,
                    format!("proto {proto}"),
                    "a listener takes both versions of HTTP as clients begin",
                );
            }
            "transparent"
            | "v6only"
            | "strict-sni"
            | "prefer-client-ciphers"
            | "allow-0rtt"
            | "no-tls-tickets"
            | "expose-fd"
            | "generate-certificates"
            | "accept-netscaler-cip" => {
                draft.note(line, format!("bind … {word}"), "there is nothing like it here");
            }
            other => {
                let value = words.next().map_or("", String::as_str);
                draft.note(line, format!("bind … {other} {value}"), "there is nothing like it here");
            }
        }
    }
    if !secure {
        return true;
    }
    if tls.certificates.iter().any(|(file, _)| file.ends_with('/') || !file.contains('.')) {
        let why = "folders of certificates are not read: name each with its key";
        draft.note(line, "bind … crt", why);
        tls.certificates.retain(|(file, _)| !file.ends_with('/') && file.contains('.'));
    }
    match verified.as_deref() {
        Some("required") => tls.client_ca = ca,
        Some("optional") => (tls.client_ca, tls.optional) = (ca, true),
        _ => {}
    }
    listener.tls = Some(tls);
    true
}

/// `use_backend b if { ssl_fc_sni name }`, or by an acl of that: names of a listener with TLS.
fn names(listener: &mut Listener, section: &Section, groups: &BTreeMap<String, String>) {
    let Some(tls) = &mut listener.tls else { return };
    for line in &section.uses {
        let Some((backend, asked)) = by_name(section, line) else { continue };
        if let Some(group) = groups.get(backend) {
            tls.names.extend(asked.into_iter().map(|name| (name, group.clone())));
        }
    }
}

/// Backend and names, if a line is about nothing but the name that TLS asks for.
fn by_name<'s>(section: &'s Section, (_, words): &'s Line) -> Option<(&'s str, Vec<String>)> {
    let [verb, backend, condition, test @ ..] = words.as_slice() else { return None };
    if verb != "use_backend" || condition != "if" {
        return None;
    }
    let asked = match test {
        [acl] => section.acls.get(acl).map(|(_, words)| words.as_slice())?,
        [open, inside @ .., close] if open == "{" && close == "}" => inside,
        _ => return None,
    };
    let [fetch, values @ ..] = asked else { return None };
    if !["ssl_fc_sni", "req.ssl_sni", "req_ssl_sni"].contains(&&**fetch) {
        return None;
    }
    let values: Vec<String> = values.iter().filter(|word| *word != "-i").cloned().collect();
    let plain = |name: &String| name.contains('.') && !name.starts_with('-') && !name.contains('*');
    (!values.is_empty() && values.iter().all(plain)).then_some((backend, values))
}

/// Rules that were not carried over, each once.
fn rules(section: &Section, draft: &mut Draft) {
    let secure = section.binds.iter().any(|(_, words)| words.iter().any(|word| word == "ssl"));
    for line in &section.uses {
        let (number, words) = line;
        let carried = words.len() == 2 || (secure && by_name(section, line).is_some());
        if !carried {
            let why = match words.iter().any(|word| word.contains("sni")) {
                true => "names of TLS are told apart by listeners with certificates only",
                false => {
                    "clients are not sent to groups by what they ask for: give each group a listener, or a name of its own (tls names)"
                }
            };
            draft.note(*number, words.join(" "), why);
        }
    }
    let used = |name: &String| {
        section.uses.iter().any(|line| by_name(section, line).is_some() && line.1.contains(name))
    };
    for (name, (number, words)) in section.acls.iter().filter(|(name, _)| !used(name)) {
        draft.note(*number, format!("acl {name} {}", words.join(" ")), NO_RULES);
    }
}
