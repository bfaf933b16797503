//! All servers of one address as one listener.
//!
//! NGINX tells them apart by the Host of each request. Here listeners with TLS tell them apart by the name
//! that the client asks for there (SNI), which browsers fill with the same; others do not.
//!
//! A listener has the same demands on all of its clients, and serves every name. So if one server asks for
//! certificates of clients, all do: a server behind a certificate is never served without. If they ask for
//! certificates of different authorities the listener is left out.

use super::super::draft::{Draft, Listener};
use super::super::loss::Class;

/// A server at one of its addresses.
pub(super) struct Site {
    pub(super) listener: Listener,
    pub(super) names: Vec<String>,
    /// Whether it serves names that no other has.
    pub(super) usual: bool,
    /// Whether it could be carried over. If not, only its demands on clients count.
    pub(super) carried: bool,
}

impl Site {
    fn called(&self) -> String {
        format!("server {}", self.names.join(" ")).trim_end().to_owned()
    }
}

/// Returns one listener for all servers of an address.
pub(super) fn together(mut sites: Vec<Site>, draft: &mut Draft) -> Option<Listener> {
    let first = sites.iter().position(|site| site.usual).unwrap_or(0);
    if first >= sites.len() {
        return None;
    }
    sites[..=first].rotate_right(1);
    let Some(at) = sites.iter().position(|site| site.carried) else {
        draft.shut.extend(sites.into_iter().map(|site| site.listener).filter(|one| one.asks().is_some()));
        return None;
    };
    if !asked(&mut sites, draft) {
        draft.shut.push(sites.swap_remove(at).listener);
        return None;
    }
    let Site { mut listener, names, .. } = sites.remove(at);
    // Requests that one server of the address refused would go to the others.
    for site in &sites {
        for rule in &site.listener.barred {
            if !site.carried && !draft.lists(rule.line, &rule.said) {
                let why = "an access rule of a server that could not be carried over: its clients come to the others of its address";
                draft.note_as(Class::Security, rule.line, rule.said.clone(), why);
            }
            if !listener.barred.contains(rule) {
                listener.barred.push(rule.clone());
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
        join(&mut listener, site, draft);
    }
    Some(listener)
}

fn join(listener: &mut Listener, site: Site, draft: &mut Draft) {
    let (called, line) = (site.called(), site.listener.line);
    if !site.carried {
        let why = format!("it could not be carried over: who asks for it gets the group {}", listener.group);
        draft.note(line, called, why);
        return;
    }
    let group = &site.listener.group;
    match (&mut listener.tls, &site.listener.tls) {
        (Some(tls), Some(other)) => {
            for pair in &other.certificates {
                if !tls.certificates.contains(pair) {
                    tls.certificates.push(pair.clone());
                }
            }
            if tls.only_13 != other.only_13 {
                tls.only_13 = true;
                draft.note(
                    line,
                    &called,
                    "versions of TLS are of the listener: 1.3 alone, as one of its servers has it",
                );
            }
            tls.names.extend(site.names.iter().map(|name| (name.clone(), group.clone())));
            let why = "it is told apart by the name that TLS asks for, and not by Host";
            draft.note(line, &called, why);
        }
        _ if *group == listener.group => {}
        _ => {
            let why = "servers of one address are not told apart by Host here: give it an address of its own, or TLS";
            draft.note(line, called, why);
            return;
        }
    }
    let own = |one: &Listener| (one.forwarded, one.head, one.idle, one.body, one.tunnel);
    if own(&site.listener) != own(listener) {
        let why =
            "times and X-Forwarded-For are of the listener: as the first server of the address has them";
        draft.note(line, &called, why);
    }
    if site.listener.backlog.is_some() {
        listener.backlog = site.listener.backlog;
    }
}

/// Settles the common demands on clients; returns `false` if there are none.
fn asked(sites: &mut [Site], draft: &mut Draft) -> bool {
    let asks: Vec<(String, bool)> =
        sites.iter().filter_map(|site| site.listener.asks()).map(|(ca, may)| (ca.to_owned(), may)).collect();
    let Some((ca, _)) = asks.first() else { return true };
    if asks.iter().any(|(other, _)| other != ca) {
        for site in sites.iter().filter(|site| site.listener.asks().is_some()) {
            let why = "servers of one address ask for certificates of different authorities, and a listener knows those of one file: it is left out";
            draft.note(site.listener.line, site.called(), why);
        }
        return false;
    }
    let optional = asks.iter().all(|(_, optional)| *optional);
    for site in sites {
        if site.listener.asks() == Some((ca, optional)) {
            continue;
        }
        let why = match optional {
            true => {
                "a listener asks all of its clients alike: here, too, they may show certificates, as another server of this address has it"
            }
            false => {
                "a listener asks all of its clients alike: here, too, they have to show certificates, as another server of this address has it; give one of them an address of its own"
            }
        };
        draft.note(site.listener.line, site.called(), why);
        if let Some(tls) = &mut site.listener.tls {
            (tls.client_ca, tls.optional) = (Some(ca.clone()), optional);
        }
    }
    true
}
