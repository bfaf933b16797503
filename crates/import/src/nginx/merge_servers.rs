//! All servers of one address as one listener.
//!
//! NGINX tells them apart by the Host of each request. Here listeners with TLS tell them apart by the name
//! that the client asks for there (SNI), which browsers fill with the same; others do not.
//!
//! A listener has the same demands on all of its clients, and serves every name. So if one server asks for
//! certificates of clients, all do: a server behind a certificate is never served without. If they ask for
//! certificates of different authorities the listener is left out.

use super::super::intermediate::{DraftListener, ImportDraft};
use super::super::loss::LossClass;

/// A server at one of its addresses.
pub(super) struct ServerSite {
    pub(super) listener: DraftListener,
    pub(super) names: Vec<String>,
    /// Whether it serves names that no other has.
    pub(super) is_default: bool,
    /// Whether it could be carried over. If not, only its demands on clients count.
    pub(super) is_supported: bool,
}

impl ServerSite {
    fn display_name(&self) -> String {
        format!("server {}", self.names.join(" ")).trim_end().to_owned()
    }
}

/// Returns one listener for all servers of an address.
pub(super) fn merge_sites(mut sites: Vec<ServerSite>, draft: &mut ImportDraft) -> Option<DraftListener> {
    let default_index = sites.iter().position(|site| site.is_default).unwrap_or(0);
    if default_index >= sites.len() {
        return None;
    }
    sites[..=default_index].rotate_right(1);
    let Some(supported_index) = sites.iter().position(|site| site.is_supported) else {
        draft.restricted.extend(
            sites.into_iter().map(|site| site.listener).filter(|candidate| candidate.client_ca().is_some()),
        );
        return None;
    };
    if !agree_client_certificates(&mut sites, draft) {
        draft.restricted.push(sites.swap_remove(supported_index).listener);
        return None;
    }
    let ServerSite { mut listener, names, .. } = sites.remove(supported_index);
    // Requests that one server of the address refused would go to the others.
    for site in &sites {
        for rule in &site.listener.access_rules {
            if !site.is_supported && !draft.has_note_on(rule.line, &rule.text) {
                let reason = "an access rule of a server that could not be carried over: its clients come to \
                    the others of its address";
                draft.note_as(LossClass::Security, rule.line, rule.text.clone(), reason);
            }
            if !listener.access_rules.contains(rule) {
                listener.access_rules.push(rule.clone());
            }
        }
    }
    if let Some(tls) = &mut listener.tls
        && !sites.is_empty()
    {
        let group = listener.group.clone();
        tls.names
            .extend(names.into_iter().filter(|name| name.contains('.')).map(|name| (name, group.clone())));
    }
    for site in sites {
        merge_into(&mut listener, site, draft);
    }
    Some(listener)
}

fn merge_into(listener: &mut DraftListener, site: ServerSite, draft: &mut ImportDraft) {
    let (server_name, line) = (site.display_name(), site.listener.line);
    if !site.is_supported {
        let reason =
            format!("it could not be carried over: who asks for it gets the group {}", listener.group);
        draft.note(line, server_name, reason);
        return;
    }
    let group = &site.listener.group;
    match (&mut listener.tls, &site.listener.tls) {
        (Some(tls), Some(other_tls)) => {
            for certificate_pair in &other_tls.certificates {
                if !tls.certificates.contains(certificate_pair) {
                    tls.certificates.push(certificate_pair.clone());
                }
            }
            if tls.tls13_only != other_tls.tls13_only {
                tls.tls13_only = true;
                draft.note(
                    line,
                    &server_name,
                    "versions of TLS are of the listener: 1.3 alone, as one of its servers has it",
                );
            }
            tls.names.extend(site.names.iter().map(|name| (name.clone(), group.clone())));
            let reason = "it is told apart by the name that TLS asks for, and not by Host";
            draft.note(line, &server_name, reason);
        }
        _ if *group == listener.group => {}
        _ => {
            let reason = "servers of one address are not told apart by Host here: give it an address of its \
                own, or TLS";
            draft.note(line, server_name, reason);
            return;
        }
    }
    let listener_timeouts = |draft_listener: &DraftListener| {
        (
            draft_listener.forwarded,
            draft_listener.head,
            draft_listener.idle,
            draft_listener.body,
            draft_listener.tunnel,
        )
    };
    if listener_timeouts(&site.listener) != listener_timeouts(listener) {
        let reason =
            "times and X-Forwarded-For are of the listener: as the first server of the address has them";
        draft.note(line, &server_name, reason);
    }
    if site.listener.backlog.is_some() {
        listener.backlog = site.listener.backlog;
    }
}

/// Settles the common demands on clients; returns `false` if there are none.
fn agree_client_certificates(sites: &mut [ServerSite], draft: &mut ImportDraft) -> bool {
    let certificate_requests: Vec<(String, bool)> = sites
        .iter()
        .filter_map(|site| site.listener.client_ca())
        .map(|(ca, allows_missing)| (ca.to_owned(), allows_missing))
        .collect();
    let Some((ca, _)) = certificate_requests.first() else { return true };
    if certificate_requests.iter().any(|(other_ca, _)| other_ca != ca) {
        for site in sites.iter().filter(|site| site.listener.client_ca().is_some()) {
            let reason = "servers of one address ask for certificates of different authorities, and a \
                listener knows those of one file: it is left out";
            draft.note(site.listener.line, site.display_name(), reason);
        }
        return false;
    }
    let is_optional = certificate_requests.iter().all(|(_, is_optional)| *is_optional);
    for site in sites {
        if site.listener.client_ca() == Some((ca, is_optional)) {
            continue;
        }
        let reason = match is_optional {
            true => {
                "a listener asks all of its clients alike: here, too, they may show certificates, as another \
                 server of this address has it"
            }
            false => {
                "a listener asks all of its clients alike: here, too, they have to show certificates, as \
                 another server of this address has it; give one of them an address of its own"
            }
        };
        draft.note(site.listener.line, site.display_name(), reason);
        if let Some(tls) = &mut site.listener.tls {
            (tls.client_ca, tls.is_optional) = (Some(ca.clone()), is_optional);
        }
    }
    true
}
