//! Puts a draft in order: what ours bounds is bounded, addresses are taken once, groups have members and listeners groups.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use super::draft::{Draft, Group, Listener, Protocol, Strategy};
use crate::config::{CookieName, HostName, Key, LogPath, MemberAddress, ProbeHost, ProbePath};

/// In order.
pub(super) fn fit(mut draft: Draft) -> Draft {
    let mut taken = BTreeSet::new();
    let groups = std::mem::take(&mut draft.groups);
    for mut group in groups {
        if !taken.insert(group.name.clone()) {
            draft.note(group.line, &group.name, "a second group of this name");
            continue;
        }
        bounds(&mut draft, &mut group);
        if group.members.is_empty() && group.dns.is_empty() {
            draft.note(group.line, &group.name, "it has no members that could be carried over");
            continue;
        }
        draft.groups.push(group);
    }
    let listeners = std::mem::take(&mut draft.listeners);
    for listener in listeners {
        place(&mut draft, listener);
    }
    draft.threads = draft.threads.filter(|threads| (1..=1024).contains(threads));
    draft.max_connections = draft.max_connections.map(|most| most.clamp(16, 10_000_000));
    unused(&mut draft);
    draft
}

/// Who is sent nowhere and is there for nobody is left out.
fn unused(draft: &mut Draft) {
    let used: BTreeSet<String> = draft
        .listeners
        .iter()
        .flat_map(|one| {
            let names = one.tls.iter().flat_map(|tls| tls.names.iter().map(|(_, group)| group.clone()));
            names.chain([one.group.clone()])
        })
        .collect();
    let (kept, left): (Vec<Group>, Vec<Group>) =
        std::mem::take(&mut draft.groups).into_iter().partition(|group| used.contains(&group.name));
    draft.groups = kept;
    for group in left {
        draft.note(group.line, &group.name, "no listener that was carried over sends clients there");
    }
}

fn valid<T: std::str::FromStr>(text: &str) -> bool {
    text.parse::<T>().is_ok()
}

fn within(span: &mut Option<Duration>, least: Duration, most: Duration) {
    *span = span.map(|span| span.clamp(least, most));
}

/// The authorities that the system trusts.
pub(super) const SYSTEM: &str = "/etc/ssl/certs/ca-certificates.crt";

const MS: Duration = Duration::from_millis(1);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn bounds(draft: &mut Draft, group: &mut Group) {
    let mut seen = BTreeSet::new();
    let members = std::mem::take(&mut group.members);
    for mut member in members {
        if !valid::<MemberAddress>(&member.address) {
            draft.note(group.line, &member.address, "is no address of a member");
        } else if !seen.insert(member.address.clone()) {
            draft.note(
                group.line,
                format!("{}: {}", group.name, member.address),
                "a second member at this address",
            );
        } else {
            member.capacity =
                if member.capacity.is_finite() { member.capacity.clamp(0.001, 1e6) } else { 1.0 };
            member.limit = member.limit.filter(|limit| *limit > 0).map(|limit| limit.min(1_000_000));
            group.members.push(member);
        }
    }
    // Of a name each address is a member; an address has none.
    let named = |text: &String| {
        let address: Option<MemberAddress> = text.parse().ok();
        address.is_some_and(|address| address.host.parse::<IpAddr>().is_err())
    };
    group.dns.retain(named);
    // More sources than that are no sources any more.
    group.dns.truncate(16);
    group.pool = group.pool.map(|pool| pool.min(65_536));
    within(&mut group.queue_timeout, MS, YEAR);
    within(&mut group.slow_start, Duration::ZERO, Duration::from_secs(3600));
    within(&mut group.connect, MS, YEAR);
    within(&mut group.idle, MS, YEAR);
    group.attempts = group.attempts.map(|attempts| attempts.min(10));
    group.eject = group.eject.map(|(failures, span)| {
        (failures.min(10_000), span.map(|span| span.clamp(MS, Duration::from_secs(300))))
    });
    if group.key.as_ref().is_some_and(|key| !valid::<Key>(key)) {
        group.key = None;
    }
    if let Strategy::Rendezvous(factor) = &mut group.strategy {
        *factor = if *factor > 0.0 { factor.clamp(1.0, 100.0) } else { 0.0 };
    }
    if let Strategy::LeastRequest(choices) = &mut group.strategy {
        *choices = (*choices).clamp(2, 16);
    }
    if let Some(health) = &mut group.health {
        within(&mut health.interval, 10 * MS, YEAR);
        within(&mut health.timeout, MS, YEAR);
        health.rise = health.rise.map(|rise| rise.clamp(1, 1000));
        health.fall = health.fall.map(|fall| fall.clamp(1, 1000));
        health.expect = health.expect.filter(|status| (100..=599).contains(status));
        health.host = health.host.take().filter(|host| valid::<ProbeHost>(host));
        if let super::draft::Kind::Http(path) = &health.kind
            && !valid::<ProbePath>(path)
        {
            health.kind = super::draft::Kind::Tcp;
            (health.host, health.expect) = (None, None);
        }
    }
    if let Some(tls) = &mut group.tls {
        let path = |path: &mut Option<String>| *path = path.take().filter(|path| valid::<LogPath>(path));
        path(&mut tls.ca);
        tls.server_name = tls.server_name.take().filter(|name| valid::<HostName>(name));
        if tls.verify && tls.ca.is_none() {
            tls.ca = Some(SYSTEM.to_owned());
        }
        tls.own = tls.own.take().filter(|(one, key)| valid::<LogPath>(one) && valid::<LogPath>(key));
    }
}

fn place(draft: &mut Draft, mut listener: Listener) {
    let line = listener.line;
    if !draft.groups.iter().any(|group| group.name == listener.group) {
        let why = format!("its group {} could not be carried over", listener.group);
        draft.note(line, listener.address.to_string(), why);
        return;
    }
    within(&mut listener.head, MS, YEAR);
    within(&mut listener.idle, MS, YEAR);
    within(&mut listener.body, MS, YEAR);
    within(&mut listener.tunnel, MS, YEAR);
    listener.backlog = listener.backlog.map(|backlog| backlog.clamp(1, 65_535));
    listener.cookie = listener.cookie.take().filter(|name| valid::<CookieName>(name));
    if let Some(tls) = &mut listener.tls {
        tls.certificates.retain(|(one, key)| valid::<LogPath>(one) && valid::<LogPath>(key));
        tls.client_ca = tls.client_ca.take().filter(|path| valid::<LogPath>(path));
        let mut seen = BTreeSet::new();
        let known = |group: &String| draft.groups.iter().any(|one| one.name == *group);
        tls.names.iter_mut().for_each(|(name, _)| *name = name.to_ascii_lowercase());
        tls.names
            .retain(|(name, group)| valid::<HostName>(name) && known(group) && seen.insert(name.clone()));
        if tls.certificates.is_empty() {
            draft.note(
                line,
                listener.address.to_string(),
                "TLS without a certificate that could be carried over",
            );
            return;
        }
    }
    if listener.protocol == Protocol::Udp && listener.tls.is_some() {
        draft.note(line, listener.address.to_string(), "TLS over datagrams");
        return;
    }
    let port = listener.address.port();
    let any = |address: IpAddr| address.is_unspecified();
    let clash = draft.listeners.iter().position(|other| {
        other.transport() == listener.transport()
            && other.address.port() == port
            && (other.address.ip() == listener.address.ip()
                || (any(other.address.ip()) && any(listener.address.ip())))
    });
    let Some(at) = clash.filter(|_| port != 0) else {
        draft.listeners.push(listener);
        return;
    };
    let other = &mut draft.listeners[at];
    if other.group == listener.group && other.tls == listener.tls {
        // 0.0.0.0 and [::]: ours on [::] takes both.
        if listener.address.is_ipv6() {
            other.address = listener.address;
        }
        return;
    }
    draft.note(
        line,
        listener.address.to_string(),
        "another listener has this address, and requests are not told apart there",
    );
}
