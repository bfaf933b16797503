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
    frontend_settings: &FrontendSettings,
    refusing_sections: &BTreeSet<&str>,
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
    if let Some(max) = section.first("maxconn") {
        let reason = "max_connections is of the whole process";
        draft.note(section.line_of("maxconn"), format!("maxconn {max}"), reason);
    }
    let mut access_rules = section.access_rules.clone();
    access_rules.extend(
        section
            .use_backends
            .iter()
            .filter(|line| is_refusing(section, line, refusing_sections))
            .map(|line| AccessRule { line: line.line, text: line.text.clone(), is_https_redirect: false }),
    );
    if section.binds.is_empty() {
        draft.note(section.line, &section.name, "it does not say where to listen");
    }
    for bind in &section.binds {
        let Some((address_list, params)) = bind.consume()[1..].split_first() else {
            draft.note(bind.line, &bind.text, "it is not complete");
            continue;
        };
        for address_text in address_list.split(',') {
            let addresses = addresses(address_text);
            if addresses.is_empty() {
                let reason = "is no IP address with a port (names, sockets in the file system and \
                    variables are not carried over)";
                draft.note(bind.line, format!("bind {address_text}"), reason);
            }
            for address in addresses {
                let mut listener = DraftListener::new(bind.line, address, protocol(section), &target);
                listener.access_rules.clone_from(&access_rules);
                timeouts(&mut listener, section);
                listener.forwarded = section.http()
                    && (section.option("forwardfor") || frontend_settings.forwarded.contains(&target));
                listener.backlog = section.number("backlog");
                listener.cookie = frontend_settings.cookies.get(&target).cloned();
                parameters(&mut listener, params, bind.line, draft);
                names(&mut listener, section, groups);
                draft.listeners.push(listener);
            }
        }
    }
    rules(section, groups, refusing_sections, draft);
}

/// Remembers the demands for certificates at the places of a section that is left out.
fn record_restrictions(section: &HaproxySection, draft: &mut ImportDraft) {
    // The notes on these lines exist already.
    let mut ignored_notes = ImportDraft::default();
    for bind in &section.binds {
        let Some((address_list, params)) = bind.peek()[1..].split_first() else { continue };
        for address in address_list.split(',').flat_map(addresses) {
            let mut listener = DraftListener::new(bind.line, address, protocol(section), "");
            parameters(&mut listener, params, bind.line, &mut ignored_notes);
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
    let unconditional = section.use_backends.iter().find(|line| line.peek().len() == 2);
    let default_backend = unconditional
        .and_then(|line| line.peek().get(1).map(String::as_str))
        .or_else(|| section.first("default_backend"));
    let group_name = match default_backend {
        Some(name) => name,
        None if section.kind.has_servers() && !section.servers.is_empty() => &section.name,
        None => {
            let reason = "it has no default_backend: a listener needs a group for who meets no condition";
            draft.note(section.line, format!("frontend {}", section.name), reason);
            return None;
        }
    };
    let group = groups.get(group_name).cloned();
    if group.is_none() {
        draft.note(
            section.line,
            format!("frontend {}", section.name),
            format!("there is no backend {group_name}"),
        );
    }
    group
}

/// Returns the addresses of a place: `10.0.0.1:80`, `:80-89`, `*:80`.
fn addresses(address_text: &str) -> Vec<SocketAddr> {
    if let Some(address) = value::listen(address_text, false) {
        return vec![address];
    }
    let Some((host, range)) = address_text.rsplit_once(':') else { return Vec::new() };
    let port_range = range.split_once('-').and_then(|(first_port, last_port)| {
        Some((first_port.parse::<u16>().ok()?, last_port.parse::<u16>().ok()?))
    });
    let Some((first_port, last_port)) = port_range
        .filter(|(first_port, last_port)| first_port <= last_port && last_port - first_port < RANGE)
    else {
        return Vec::new();
    };
    (first_port..=last_port).filter_map(|port| value::listen(&format!("{host}:{port}"), false)).collect()
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
    let (mut is_tls, mut verify_mode, mut ca) = (false, None, None);
    let mut words = params.iter().map(String::as_str).peekable();
    while let Some(word) = words.next() {
        let access_rules = &mut listener.access_rules;
        let mut note_unsupported = |subject: String, reason: &str| {
            let subject = format!("bind … {subject}");
            access_rules.extend(AccessRule::of(ImportSource::Haproxy, line, &subject));
            draft.note(line, subject, reason);
        };
        match word {
            "ssl" => is_tls = true,
            "crt" => {
                let file = words.next().unwrap_or_default().to_owned();
                // One file has both, the key behind the certificates.
                tls.certificates.push((file.clone(), file));
            }
            "ca-file" => {
                ca = words.next().map(|file| if file == "@system-ca" { SYSTEM_CA } else { file }.to_owned())
            }
            "verify" => verify_mode = words.next(),
            "alpn" => {
                let protocol_list = words.next().unwrap_or_default();
                if !protocol_list.contains("h2") && listener.protocol == super::DraftProtocol::Http {
                    note_unsupported(format!("alpn {protocol_list}"), "https listeners speak HTTP/2, too");
                } else if listener.protocol != super::DraftProtocol::Http {
                    note_unsupported(
                        format!("alpn {protocol_list}"),
                        "listeners of tcp agree on no protocol",
                    );
                }
            }
            "ssl-min-ver" => match words.next() {
                Some("TLSv1.3") => tls.tls13_only = true,
                Some("TLSv1.2") => {}
                version => note_unsupported(
                    format!("ssl-min-ver {}", version.unwrap_or_default()),
                    "1.2 and 1.3 are spoken, and nothing older",
                ),
            },
            "no-tlsv12" | "force-tlsv13" => tls.tls13_only = true,
            "accept-proxy" => listener.accept_proxy = true,
            "backlog" => {
                let word = words.next().unwrap_or_default();
                match word.parse() {
                    Ok(backlog) => listener.backlog = Some(backlog),
                    Err(_) => note_unsupported(format!("backlog {word}"), "it is no number"),
                }
            }
            "proto" => {
                let proto = words.next().unwrap_or_default();
                note_unsupported(
                    format!("proto {proto}"),
                    "a listener takes both versions of HTTP as clients begin",
                );
            }
            word if unsupported::HARMLESS_OF_BIND.contains(&word) => {}
            word if unsupported::HARMLESS_VALUES_OF_BIND.contains(&word) => drop(words.next()),
            word if unsupported::BIND_FLAGS.contains(&word) => {
                note_unsupported(word.to_owned(), "there is nothing like it here")
            }
            parameter => {
                // An unknown word has a value, unless a known word follows.
                let value = words.next_if(|next_word| !is_known_parameter(next_word)).unwrap_or_default();
                let reason = match parameter {
                    "crl-file" => "certificates that were revoked are not told from others",
                    _ => "there is nothing like it here",
                };
                note_unsupported(format!("{parameter} {value}").trim_end().to_owned(), reason);
            }
        }
    }
    if !is_tls {
        return;
    }
    // Nothing is looked up: a file has an ending.
    let is_folder = |file: &str| !file.rsplit('/').next().is_some_and(|file_name| file_name.contains('.'));
    for (file, _) in tls.certificates.iter().filter(|(file, _)| is_folder(file)) {
        let reason = "it looks like a folder of certificates, which is not read: name each with its key";
        draft.note(line, format!("bind … crt {file}"), reason);
    }
    tls.certificates.retain(|(file, _)| !is_folder(file));
    // Without its file no client can have a valid certificate: the listener falls out, and lets none in.
    match verify_mode {
        Some("required") => tls.client_ca = Some(ca.unwrap_or_default()),
        Some("optional") => (tls.client_ca, tls.is_optional) = (Some(ca.unwrap_or_default()), true),
        _ => {}
    }
    listener.tls = Some(tls);
}

/// Returns `true` for a word that may be behind an address, and is not the value of one.
fn is_known_parameter(word: &str) -> bool {
    let supported = [
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
    supported.contains(&word)
        || unsupported::HARMLESS_OF_BIND.contains(&word)
        || unsupported::HARMLESS_VALUES_OF_BIND.contains(&word)
        || unsupported::BIND_FLAGS.contains(&word)
}

/// Reads `use_backend b if { ssl_fc_sni name }`, or an acl of that, as names of a listener with TLS.
fn names(listener: &mut DraftListener, section: &HaproxySection, groups: &BTreeMap<String, String>) {
    let Some(tls) = &mut listener.tls else { return };
    // The first match counts; rules behind one without a condition have no effect.
    for line in section.use_backends.iter().take_while(|line| line.peek().len() != 2) {
        let Some((backend, server_names)) = sni_rule(section, line) else { continue };
        if let Some(group) = groups.get(backend) {
            tls.names.extend(server_names.into_iter().map(|name| (name, group.clone())));
        }
    }
}

/// Returns backend and names, if a line depends on nothing but the name that TLS asks for.
fn sni_rule<'s>(section: &'s HaproxySection, line: &'s SharedStatement) -> Option<(&'s str, Vec<String>)> {
    let [_, backend, condition, acl_test @ ..] = line.peek() else { return None };
    if condition != "if" {
        return None;
    }
    match acl_test {
        // Several acls of one name are alternatives.
        [acl] => {
            let all_names: Option<Vec<_>> =
                section.acls.get(acl)?.iter().map(|acl_line| sni_names(acl_line.peek().get(2..)?)).collect();
            Some((backend, all_names?.concat()))
        }
        [opening, condition_words @ .., closing] if opening == "{" && closing == "}" => {
            Some((backend, sni_names(condition_words)?))
        }
        _ => None,
    }
}

/// Returns the names of a test for nothing else.
fn sni_names(acl_test: &[String]) -> Option<Vec<String>> {
    let [fetch, values @ ..] = acl_test else { return None };
    if !["ssl_fc_sni", "req.ssl_sni", "req_ssl_sni"].contains(&&**fetch) {
        return None;
    }
    let values: Vec<String> = values.iter().filter(|word| *word != "-i").cloned().collect();
    let is_plain_name = |name: &String| name.contains('.') && !name.starts_with('-') && !name.contains('*');
    (!values.is_empty() && values.iter().all(is_plain_name)).then_some(values)
}

/// Returns whether a line sends clients, by a condition that is not carried over, to a backend that refuses
/// some of them.
fn is_refusing(section: &HaproxySection, line: &SharedStatement, refusing_sections: &BTreeSet<&str>) -> bool {
    let words = line.peek();
    words.len() > 2 && refusing_sections.contains(&*words[1]) && sni_rule(section, line).is_none()
}

/// Notes the rules that were not carried over, each once.
fn rules(
    section: &HaproxySection,
    groups: &BTreeMap<String, String>,
    refusing_sections: &BTreeSet<&str>,
    draft: &mut ImportDraft,
) {
    let is_tls = section.binds.iter().any(|bind| bind.peek().iter().any(|word| word == "ssl"));
    let mut has_unconditional = false;
    let mut used_acls: BTreeSet<&str> = BTreeSet::new();
    for line in &section.use_backends {
        let words = line.consume();
        let sni_match = sni_rule(section, line).filter(|_| is_tls && !has_unconditional);
        let reason = match &sni_match {
            _ if has_unconditional => "a line before it sends everything elsewhere",
            Some((backend, _)) if !groups.contains_key(*backend) => "there is no backend of this name",
            Some(_) => {
                used_acls.extend(words.last().map(String::as_str));
                continue;
            }
            None if words.len() == 2 => {
                has_unconditional = true;
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
        let class = if is_refusing(section, line, refusing_sections) {
            LossClass::Security
        } else {
            LossClass::Changed
        };
        draft.note_as(class, line.line, words.join(" "), reason);
    }
    if has_unconditional && let Some(name) = section.first("default_backend") {
        let reason = "a line before it sends everything elsewhere";
        draft.note(section.line_of("default_backend"), format!("default_backend {name}"), reason);
    }
    for (_, lines) in section.acls.iter().filter(|(name, _)| used_acls.contains(&***name)) {
        lines.iter().for_each(|line| line.mark_used());
    }
}
