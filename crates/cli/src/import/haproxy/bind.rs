//! `bind` lines as listeners.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::super::From;
use super::super::draft::{Draft, Listener, Tls};
use super::super::fit::SYSTEM;
use super::super::loss::{Class, Rule};
use super::super::value;
use super::section::{Line, Section};
use super::{OfListeners, protocol, why};

/// The number of ports of a range that become listeners.
const RANGE: u16 = 64;

/// Returns the listeners of a section.
pub(super) fn listeners(
    section: &Section,
    groups: &BTreeMap<String, String>,
    of_listeners: &OfListeners,
    refusing: &BTreeSet<&str>,
    draft: &mut Draft,
) {
    if section.disabled() {
        draft.note(section.line, &section.name, "it is disabled");
        return section.leave();
    }
    let Some(target) = target(section, groups, draft) else {
        shut(section, draft);
        return section.leave();
    };
    if let Some(most) = section.first("maxconn") {
        let why = "max_connections is of the whole process";
        draft.note(section.line_of("maxconn"), format!("maxconn {most}"), why);
    }
    let mut barred = section.barred.clone();
    barred.extend(section.uses.iter().filter(|line| refuses(section, line, refusing)).map(|line| Rule {
        line: line.line,
        said: line.said.clone(),
        plain: false,
    }));
    if section.binds.is_empty() {
        draft.note(section.line, &section.name, "it does not say where to listen");
    }
    for bind in &section.binds {
        let Some((places, params)) = bind.take()[1..].split_first() else {
            draft.note(bind.line, &bind.said, "it is not complete");
            continue;
        };
        for place in places.split(',') {
            let addresses = addresses(place);
            if addresses.is_empty() {
                let why = "is no IP address with a port (names, sockets in the file system and variables are not carried over)";
                draft.note(bind.line, format!("bind {place}"), why);
            }
            for address in addresses {
                let mut listener = Listener::new(bind.line, address, protocol(section), &target);
                listener.barred.clone_from(&barred);
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
fn shut(section: &Section, draft: &mut Draft) {
    // The notes on these lines exist already.
    let mut quiet = Draft::default();
    for bind in &section.binds {
        let Some((places, params)) = bind.look()[1..].split_first() else { continue };
        for address in places.split(',').flat_map(addresses) {
            let mut listener = Listener::new(bind.line, address, protocol(section), "");
            parameters(&mut listener, params, bind.line, &mut quiet);
            if listener.asks().is_some() {
                draft.shut.push(listener);
            }
        }
    }
}

/// Returns the group of clients that meet no condition.
fn target(section: &Section, groups: &BTreeMap<String, String>, draft: &mut Draft) -> Option<String> {
    let always = section.uses.iter().find(|line| line.look().len() == 2);
    let named = always
        .and_then(|line| line.look().get(1).map(String::as_str))
        .or_else(|| section.first("default_backend"));
    let named = match named {
        Some(name) => name,
        None if section.kind.serves() && !section.servers.is_empty() => &section.name,
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

fn timeouts(listener: &mut Listener, section: &Section) {
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
fn parameters(listener: &mut Listener, params: &[String], line: usize, draft: &mut Draft) {
    let mut tls = Tls::default();
    let (mut secure, mut verified, mut ca) = (false, None, None);
    let mut words = params.iter().map(String::as_str).peekable();
    while let Some(word) = words.next() {
        let barred = &mut listener.barred;
        let mut otherwise = |what: String, why: &str| {
            let what = format!("bind … {what}");
            barred.extend(Rule::of(From::Haproxy, line, &what));
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
                ca = words.next().map(|file| if file == "@system-ca" { SYSTEM } else { file }.to_owned())
            }
            "verify" => verified = words.next(),
            "alpn" => {
                let list = words.next().unwrap_or_default();
                if !list.contains("h2") && listener.protocol == super::Protocol::Http {
                    otherwise(format!("alpn {list}"), "https listeners speak HTTP/2, too");
                } else if listener.protocol != super::Protocol::Http {
                    otherwise(format!("alpn {list}"), "listeners of tcp agree on no protocol");
                }
            }
            "ssl-min-ver" => match words.next() {
                Some("TLSv1.3") => tls.only_13 = true,
                Some("TLSv1.2") => {}
                other => otherwise(
                    format!("ssl-min-ver {}", other.unwrap_or_default()),
                    "1.2 and 1.3 are spoken, and nothing older",
                ),
            },
            "no-tlsv12" | "force-tlsv13" => tls.only_13 = true,
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
            word if why::HARMLESS_OF_BIND.contains(&word) => {}
            word if why::HARMLESS_VALUES_OF_BIND.contains(&word) => drop(words.next()),
            word if why::FLAGS_OF_BIND.contains(&word) => {
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
        || why::HARMLESS_OF_BIND.contains(&word)
        || why::HARMLESS_VALUES_OF_BIND.contains(&word)
        || why::FLAGS_OF_BIND.contains(&word)
}

/// Reads `use_backend b if { ssl_fc_sni name }`, or an acl of that, as names of a listener with TLS.
fn names(listener: &mut Listener, section: &Section, groups: &BTreeMap<String, String>) {
    let Some(tls) = &mut listener.tls else { return };
    // The first match counts; rules behind one without a condition have no effect.
    for line in section.uses.iter().take_while(|line| line.look().len() != 2) {
        let Some((backend, asked)) = by_name(section, line) else { continue };
        if let Some(group) = groups.get(backend) {
            tls.names.extend(asked.into_iter().map(|name| (name, group.clone())));
        }
    }
}

/// Returns backend and names, if a line depends on nothing but the name that TLS asks for.
fn by_name<'s>(section: &'s Section, line: &'s Line) -> Option<(&'s str, Vec<String>)> {
    let [_, backend, condition, test @ ..] = line.look() else { return None };
    if condition != "if" {
        return None;
    }
    match test {
        // Several acls of one name are alternatives.
        [acl] => {
            let all: Option<Vec<_>> =
                section.acls.get(acl)?.iter().map(|one| names_of(one.look().get(2..)?)).collect();
            Some((backend, all?.concat()))
        }
        [open, inside @ .., close] if open == "{" && close == "}" => Some((backend, names_of(inside)?)),
        _ => None,
    }
}

/// Returns the names of a test for nothing else.
fn names_of(test: &[String]) -> Option<Vec<String>> {
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
fn refuses(section: &Section, line: &Line, refusing: &BTreeSet<&str>) -> bool {
    let words = line.look();
    words.len() > 2 && refusing.contains(&*words[1]) && by_name(section, line).is_none()
}

/// Notes the rules that were not carried over, each once.
fn rules(section: &Section, groups: &BTreeMap<String, String>, refusing: &BTreeSet<&str>, draft: &mut Draft) {
    let secure = section.binds.iter().any(|bind| bind.look().iter().any(|word| word == "ssl"));
    let mut always = false;
    let mut used: BTreeSet<&str> = BTreeSet::new();
    for line in &section.uses {
        let words = line.take();
        let named = by_name(section, line).filter(|_| secure && !always);
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
                "clients are not sent to groups by what they ask for: give each group a listener, or a name of its own (tls names)"
            }
        };
        let class = if refuses(section, line, refusing) { Class::Security } else { Class::Changed };
        draft.note_as(class, line.line, words.join(" "), why);
    }
    if always && let Some(name) = section.first("default_backend") {
        let why = "a line before it sends everything elsewhere";
        draft.note(section.line_of("default_backend"), format!("default_backend {name}"), why);
    }
    for (_, lines) in section.acls.iter().filter(|(name, _)| used.contains(&***name)) {
        lines.iter().for_each(|line| line.settle());
    }
}
