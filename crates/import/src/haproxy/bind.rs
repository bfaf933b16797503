//! `bind` lines as listeners.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::super::ImportSource;
use super::super::intermediate::{DraftListener, DraftTls, ImportDraft};
use super::super::loss::{AccessRule, LossClass};
use super::super::normalize::SYSTEM_CA;
use super::super::value;
use super::section::{HaproxySection, SharedStatement};
use super::{FrontendSettings, protocol, unsupported};

/// The number of ports of a range that become listeners.
const RANGE: u16 = 64;

/// Returns the listeners of a section.
pub(super) fn listeners(
    section: &HaproxySection,
    groups: &BTreeMap<String, String>,
    of_listeners: &FrontendSettings,
    refusing: &BTreeSet<&str>,
    draft: &mut ImportDraft,
) {
    if section.is_disabled() {
        draft.note(section.line, &section.name, "it is disabled");
        return section.mark_all_used();
    }
    let Some(target) = target(section, groups, draft) else {
        record_restrictions(section, draft);
        return section.mark_all_used();
    };
    if let Some(most) = section.first("maxconn") {
        let why = "max_connections is of the whole process";
        draft.note(section.line_of("maxconn"), format!("maxconn {most}"), why);
    }
    let mut barred = section.access_rules.clone();
    barred.extend(
        section
            .use_backends
            .iter()
            .filter(|line| is_refusing(section, line, refusing))
            .map(|line| AccessRule { line: line.line, text: line.text.clone(), is_https_redirect: false }),
    );
    if section.binds.is_empty() {
        draft.note(section.line, &section.name, "it does not say where to listen");
    }
    for bind in &section.binds {
        let Some((places, params)) = bind.consume()[1..].split_first() else {
            draft.note(bind.line, &bind.text, "it is not complete");
            continue;
        };
        for place in places.split(',') {
            let addresses = addresses(place);
            if addresses.is_empty() {
                let why = "is no IP address with a port (names, sockets in the file system and variables are \
                    not carried over)";
                draft.note(bind.line, format!("bind {place}"), why);
            }
            for address in addresses {
                let mut listener = DraftListener::new(bind.line, address, protocol(section), &target);
                listener.access_rules.clone_from(&barred);
                timeouts(&mut listener, section);
                listener.forwarded = section.http()
                    && (section.option("forwardfor") || of_listeners.forwarded.contains(&target));
                listener.backlog = section.number("backlog");
                listener.cookie = of_listeners.cookies.get(&target).cloned();
                parameters(&mut listener, params, bind.line, draft);
                names(&mut listener, section, groups);
                draft.listeners.push(listener);
            }
        }
    }
    rules(section, groups, refusing, draft);
}

/// Remembers the demands for certificates at the places of a section that is left out.
fn record_restrictions(section: &HaproxySection, draft: &mut ImportDraft) {
    // The notes on these lines exist already.
    let mut quiet = ImportDraft::default();
    for bind in &section.binds {
        let Some((places, params)) = bind.peek()[1..].split_first() else { continue };
        for address in places.split(',').flat_map(addresses) {
            let mut listener = DraftListener::new(bind.line, address, protocol(section), "");
            parameters(&mut listener, params, bind.line, &mut quiet);
            if listener.client_ca().is_some() {
                draft.restricted.push(listener);
            }
        }
    }
}

/// Returns the group of clients that meet no condition.
fn target(
    section: &HaproxySection,
    groups: &BTreeMap<String, String>,
    draft: &mut ImportDraft,
) -> Option<String> {
    let always = section.use_backends.iter().find(|line| line.peek().len() == 2);
    let named = always
        .and_then(|line| line.peek().get(1).map(String::as_str))
        .or_else(|| section.first("default_backend"));
    let named = match named {
        Some(name) => name,
        None if section.kind.has_servers() && !section.servers.is_empty() => &section.name,
        None => {
            let why = "it has no default_backend: a listener needs a group for who meets no condition";
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

/// Returns the addresses of a place: `10.0.0.1:80`, `:80-89`, `*:80`.
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

fn timeouts(listener: &mut DraftListener, section: &HaproxySection) {
    if section.http() {
        listener.head = section.timeout(&["http-request", "client"]);
        listener.idle = section.timeout(&["http-keep-alive", "http-request", "client"]);
        listener.body = section.timeout(&["client"]);
        listener.tunnel = section.timeout(&["tunnel", "client"]);
    } else {
        listener.idle = section.timeout(&["tunnel", "client"]);
    }
}

/// Reads the parameters behind the address.
fn parameters(listener: &mut DraftListener, params: &[String], line: usize, draft: &mut ImportDraft) {
    let mut tls = DraftTls::default();
    let (mut secure, mut verified, mut ca) = (false, None, None);
    let mut words = params.iter().map(String::as_str).peekable();
    while let Some(word) = words.next() {
        let barred = &mut listener.access_rules;
        let mut otherwise = |what: String, why: &str| {
            let what = format!("bind … {what}");
            barred.extend(AccessRule::of(ImportSource::Haproxy, line, &what));
            draft.note(line, what, why);
        };
        match word {
            "ssl" => secure = true,
            "crt" => {
                let file = words.next().unwrap_or_default().to_owned();
                // One file has both, the key behind the certificates.
                tls.certificates.push((file.clone(), file));
            }
            "ca-file" => {
                ca = words.next().map(|file| if file == "@system-ca" { SYSTEM_CA } else { file }.to_owned())
            }
            "verify" => verified = words.next(),
            "alpn" => {
                let list = words.next().unwrap_or_default();
                if !list.contains("h2") && listener.protocol == super::DraftProtocol::Http {
                    otherwise(format!("alpn {list}"), "https listeners speak HTTP/2, too");
                } else if listener.protocol != super::DraftProtocol::Http {
                    otherwise(format!("alpn {list}"), "listeners of tcp agree on no protocol");
                }
            }
            "ssl-min-ver" => match words.next() {
                Some("TLSv1.3") => tls.tls13_only = true,
                Some("TLSv1.2") => {}
                other => otherwise(
                    format!("ssl-min-ver {}", other.unwrap_or_default()),
                    "1.2 and 1.3 are spoken, and nothing older",
                ),
            },
            "no-tlsv12" | "force-tlsv13" => tls.tls13_only = true,
            "accept-proxy" => listener.accept_proxy = true,
            "backlog" => {
                let word = words.next().unwrap_or_default();
                match word.parse() {
                    Ok(backlog) => listener.backlog = Some(backlog),
                    Err(_) => otherwise(format!("backlog {word}"), "it is no number"),
                }
            }
            "proto" => {
                let proto = words.next().unwrap_or_default();
                otherwise(
                    format!("proto {proto}"),
                    "a listener takes both versions of HTTP as clients begin",
                );
            }
            word if unsupported::HARMLESS_OF_BIND.contains(&word) => {}
            word if unsupported::HARMLESS_VALUES_OF_BIND.contains(&word) => drop(words.next()),
            word if unsupported::BIND_FLAGS.contains(&word) => {
                otherwise(word.to_owned(), "there is nothing like it here")
            }
            other => {
                // An unknown word has a value, unless a known word follows.
                let value = words.next_if(|next| !known(next)).unwrap_or_default();
                let why = match other {
                    "crl-file" => "certificates that were revoked are not told from others",
                    _ => "there is nothing like it here",
                };
                otherwise(format!("{other} {value}").trim_end().to_owned(), why);
            }
        }
    }
    if !secure {
        return;
    }
    // Nothing is looked up: a file has an ending.
    let folder = |file: &str| !file.rsplit('/').next().is_some_and(|last| last.contains('.'));
    for (file, _) in tls.certificates.iter().filter(|(file, _)| folder(file)) {
        let why = "it looks like a folder of certificates, which is not read: name each with its key";
        draft.note(line, format!("bind … crt {file}"), why);
    }
    tls.certificates.retain(|(file, _)| !folder(file));
    // Without its file no client can have a valid certificate: the listener falls out, and lets none in.
    match verified {
        Some("required") => tls.client_ca = Some(ca.unwrap_or_default()),
        Some("optional") => (tls.client_ca, tls.optional) = (Some(ca.unwrap_or_default()), true),
        _ => {}
    }
    listener.tls = Some(tls);
}

/// Returns `true` for a word that may be behind an address, and is not the value of one.
fn known(word: &str) -> bool {
    let read = [
        "ssl",
        "crt",
        "ca-file",
        "verify",
        "alpn",
        "ssl-min-ver",
        "no-tlsv12",
        "force-tlsv13",
        "accept-proxy",
        "backlog",
        "proto",
    ];
    read.contains(&word)
        || unsupported::HARMLESS_OF_BIND.contains(&word)
        || unsupported::HARMLESS_VALUES_OF_BIND.contains(&word)
        || unsupported::BIND_FLAGS.contains(&word)
}

/// Reads `use_backend b if { ssl_fc_sni name }`, or an acl of that, as names of a listener with TLS.
fn names(listener: &mut DraftListener, section: &HaproxySection, groups: &BTreeMap<String, String>) {
    let Some(tls) = &mut listener.tls else { return };
    // The first match counts; rules behind one without a condition have no effect.
    for line in section.use_backends.iter().take_while(|line| line.peek().len() != 2) {
        let Some((backend, asked)) = sni_rule(section, line) else { continue };
        if let Some(group) = groups.get(backend) {
            tls.names.extend(asked.into_iter().map(|name| (name, group.clone())));
        }
    }
}

/// Returns backend and names, if a line depends on nothing but the name that TLS asks for.
fn sni_rule<'s>(section: &'s HaproxySection, line: &'s SharedStatement) -> Option<(&'s str, Vec<String>)> {
    let [_, backend, condition, test @ ..] = line.peek() else { return None };
    if condition != "if" {
        return None;
    }
    match test {
        // Several acls of one name are alternatives.
        [acl] => {
            let all: Option<Vec<_>> =
                section.acls.get(acl)?.iter().map(|one| sni_names(one.peek().get(2..)?)).collect();
            Some((backend, all?.concat()))
        }
        [open, inside @ .., close] if open == "{" && close == "}" => Some((backend, sni_names(inside)?)),
        _ => None,
    }
}

/// Returns the names of a test for nothing else.
fn sni_names(test: &[String]) -> Option<Vec<String>> {
    let [fetch, values @ ..] = test else { return None };
    if !["ssl_fc_sni", "req.ssl_sni", "req_ssl_sni"].contains(&&**fetch) {
        return None;
    }
    let values: Vec<String> = values.iter().filter(|word| *word != "-i").cloned().collect();
    let plain = |name: &String| name.contains('.') && !name.starts_with('-') && !name.contains('*');
    (!values.is_empty() && values.iter().all(plain)).then_some(values)
}

/// Returns whether a line sends clients, by a condition that is not carried over, to a backend that refuses
/// some of them.
fn is_refusing(section: &HaproxySection, line: &SharedStatement, refusing: &BTreeSet<&str>) -> bool {
    let words = line.peek();
    words.len() > 2 && refusing.contains(&*words[1]) && sni_rule(section, line).is_none()
}

/// Notes the rules that were not carried over, each once.
fn rules(
    section: &HaproxySection,
    groups: &BTreeMap<String, String>,
    refusing: &BTreeSet<&str>,
    draft: &mut ImportDraft,
) {
    let secure = section.binds.iter().any(|bind| bind.peek().iter().any(|word| word == "ssl"));
    let mut always = false;
    let mut used: BTreeSet<&str> = BTreeSet::new();
    for line in &section.use_backends {
        let words = line.consume();
        let named = sni_rule(section, line).filter(|_| secure && !always);
        let why = match &named {
            _ if always => "a line before it sends everything elsewhere",
            Some((backend, _)) if !groups.contains_key(*backend) => "there is no backend of this name",
            Some(_) => {
                used.extend(words.last().map(String::as_str));
                continue;
            }
            None if words.len() == 2 => {
                always = true;
                continue;
            }
            None if words.iter().any(|word| word.contains("sni")) => {
                "names of TLS are told apart by listeners with certificates only"
            }
            None => {
                "clients are not sent to groups by what they ask for: give each group a listener, or a name \
                 of its own (tls names)"
            }
        };
        let class =
            if is_refusing(section, line, refusing) { LossClass::Security } else { LossClass::Changed };
        draft.note_as(class, line.line, words.join(" "), why);
    }
    if always && let Some(name) = section.first("default_backend") {
        let why = "a line before it sends everything elsewhere";
        draft.note(section.line_of("default_backend"), format!("default_backend {name}"), why);
    }
    for (_, lines) in section.acls.iter().filter(|(name, _)| used.contains(&***name)) {
        lines.iter().for_each(|line| line.mark_used());
    }
}
