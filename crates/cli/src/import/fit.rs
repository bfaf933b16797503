//! The order of a draft: values are clamped to Plimsoll's bounds, addresses are taken once, groups have
//! members and listeners groups. Each change gets a note.
//!
//! A place where clients needed a certificate is never served to others. If its listener falls out, those
//! that would get its clients instead do, too ([`shut`]).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use super::draft::{Draft, Group, Kind, Listener, MemberTls, Protocol, Strategy, Tls};
use super::loss::{Class, Rule};
use crate::config::{CookieName, HostName, Key, LogPath, MemberAddress, ProbeHost, ProbePath, TimeSpan};

/// Puts a draft in order. Listeners with access rules that could not be carried over are left out, unless
/// `open`.
pub(super) fn fit(mut draft: Draft, open: bool) -> Draft {
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
    if !open {
        close(&mut draft);
    }
    shut(&mut draft, open);
    // Their readers note values out of bounds.
    draft.threads = draft.threads.filter(|threads| (1..=1024).contains(threads));
    draft.max_connections = draft.max_connections.map(|most| most.clamp(16, 10_000_000));
    unused(&mut draft);
    draft
}

/// Removes groups that no listener and no other part uses.
fn unused(draft: &mut Draft) {
    let used: BTreeSet<String> =
        draft.listeners.iter().flat_map(Listener::groups).map(str::to_owned).collect();
    let commented: BTreeSet<String> =
        draft.left.iter().flat_map(|(one, _)| one.groups()).map(str::to_owned).collect();
    let (kept, left): (Vec<Group>, Vec<Group>) =
        std::mem::take(&mut draft.groups).into_iter().partition(|group| used.contains(&group.name));
    draft.groups = kept;
    let (commented, left): (Vec<Group>, Vec<Group>) =
        left.into_iter().partition(|group| commented.contains(&group.name));
    draft.left_groups = commented;
    for group in left {
        draft.note(group.line, &group.name, "no listener that was carried over sends clients there");
    }
}

fn valid<T: std::str::FromStr>(text: &str) -> bool {
    text.parse::<T>().is_ok()
}

/// The authorities that the system trusts.
pub(super) const SYSTEM: &str = "/etc/ssl/certs/ca-certificates.crt";

const MS: Duration = Duration::from_millis(1);
/// The value for an unbounded time.
pub(super) const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// A writer of notes on changed values, for one group or listener.
struct Bounds<'d> {
    draft: &'d mut Draft,
    line: usize,
    of: String,
}

impl Bounds<'_> {
    fn say(&mut self, what: &str, why: impl Into<String>) {
        let what = format!("{}: {what}", self.of);
        self.draft.note(self.line, what, why);
    }

    fn time(&mut self, what: &str, span: &mut Option<Duration>, least: Duration, most: Duration) {
        let Some(now) = *span else { return };
        let kept = now.clamp(least, most);
        if kept != now {
            self.say(&format!("{what} {}", TimeSpan(now)), format!("it is {} here", TimeSpan(kept)));
            *span = Some(kept);
        }
    }

    fn number(&mut self, what: &str, number: &mut Option<u64>, least: u64, most: u64) {
        let Some(now) = *number else { return };
        let kept = now.clamp(least, most);
        if kept != now {
            self.say(&format!("{what} {now}"), format!("it is {kept} here"));
            *number = Some(kept);
        }
    }

    /// Removes a text that Plimsoll does not accept.
    fn text<T: std::str::FromStr>(&mut self, what: &str, text: &mut Option<String>) {
        if let Some(refused) = text.take_if(|text| !valid::<T>(text)) {
            self.say(&format!("{what} {refused}"), "it cannot stand here");
        }
    }
}

fn bounds(draft: &mut Draft, group: &mut Group) {
    let mut of = Bounds { draft, line: group.line, of: group.name.clone() };
    members(&mut of, group);
    of.number("max_connections", &mut group.limit, 1, 1_000_000);
    of.number("pool", &mut group.pool, 0, 65_536);
    of.time("queue_timeout", &mut group.queue_timeout, MS, YEAR);
    of.time("slow_start", &mut group.slow_start, Duration::ZERO, Duration::from_secs(3600));
    of.time("timeouts.connect", &mut group.connect, MS, YEAR);
    of.time("timeouts.idle", &mut group.idle, MS, YEAR);
    of.number("retry.attempts", &mut group.attempts, 0, 10);
    if let Some((failures, span)) = group.eject {
        let (mut failures, mut span) = (Some(failures), span);
        of.number("outlier.consecutive", &mut failures, 0, 10_000);
        of.time("outlier.ejection", &mut span, MS, Duration::from_secs(300));
        group.eject = failures.map(|failures| (failures, span));
    }
    of.text::<Key>("key", &mut group.key);
    if let Strategy::Rendezvous(factor) = &mut group.strategy {
        let kept = if *factor > 0.0 { factor.clamp(1.0, 100.0) } else { 0.0 };
        if kept != *factor {
            of.say(&format!("a factor of {factor}"), format!("it is {kept} here"));
        }
        *factor = kept;
    }
    if let Strategy::LeastRequest(choices) = &mut group.strategy {
        let mut now = Some(*choices);
        of.number("choices", &mut now, 2, 16);
        *choices = now.unwrap_or(2);
    }
    if let Some(health) = &mut group.health {
        of.time("health.interval", &mut health.interval, 10 * MS, YEAR);
        of.time("health.timeout", &mut health.timeout, MS, YEAR);
        of.number("health.rise", &mut health.rise, 1, 1000);
        of.number("health.fall", &mut health.fall, 1, 1000);
        of.number("health.expect", &mut health.expect, 100, 599);
        of.text::<ProbeHost>("health.host", &mut health.host);
        if let Kind::Http(path) = &health.kind
            && !valid::<ProbePath>(path)
        {
            of.say(
                &format!("health.http {path}"),
                "it cannot stand here: checks connect, and ask for nothing",
            );
            health.kind = Kind::Tcp;
            (health.host, health.expect) = (None, None);
        }
    }
    if let Some(tls) = &mut group.tls {
        member_tls(&mut of, tls);
    }
}

fn members(of: &mut Bounds<'_>, group: &mut Group) {
    let mut seen = BTreeSet::new();
    for mut member in std::mem::take(&mut group.members) {
        if !valid::<MemberAddress>(&member.address) {
            of.say(&member.address, "is no address of a member");
        } else if !seen.insert(member.address.clone()) {
            of.say(&member.address, "a second member at this address");
        } else {
            let capacity = if member.capacity.is_finite() { member.capacity.clamp(0.001, 1e6) } else { 1.0 };
            if capacity != member.capacity {
                of.say(
                    &format!("{} weight {}", member.address, member.capacity),
                    format!("it is {capacity} here"),
                );
            }
            member.capacity = capacity;
            // 0 means none.
            member.limit = member.limit.filter(|limit| *limit > 0);
            of.number(&format!("{} max_connections", member.address), &mut member.limit, 1, 1_000_000);
            group.members.push(member);
        }
    }
    // Each address of a name is a member; an address has none.
    let named = |text: &str| {
        let address: Option<MemberAddress> = text.parse().ok();
        address.is_some_and(|address| address.host.parse::<IpAddr>().is_err())
    };
    for name in std::mem::take(&mut group.dns) {
        if !named(&name) {
            of.say(&name, "it is no name that has addresses");
        } else if group.dns.contains(&name) {
            of.say(&name, "a second source of this name");
        } else if group.dns.len() >= MOST_SOURCES {
            of.say(&name, format!("a group has at most {MOST_SOURCES} sources of members"));
        } else {
            group.dns.push(name);
        }
    }
    group.limit = group.limit.filter(|limit| *limit > 0);
}

const MOST_SOURCES: usize = 16;

fn member_tls(of: &mut Bounds<'_>, tls: &mut MemberTls) {
    of.text::<LogPath>("tls.ca", &mut tls.ca);
    of.text::<HostName>("tls.server_name", &mut tls.server_name);
    if tls.verify && tls.ca.is_none() {
        tls.ca = Some(SYSTEM.to_owned());
    }
    if let Some((one, key)) = tls.own.take_if(|(one, key)| !valid::<LogPath>(one) || !valid::<LogPath>(key)) {
        of.say(&format!("tls.own {one} {key}"), "it cannot stand here");
    }
}

fn place(draft: &mut Draft, mut listener: Listener) {
    let line = listener.line;
    if !draft.groups.iter().any(|group| group.name == listener.group) {
        let why = format!("its group {} could not be carried over", listener.group);
        return leave(draft, listener, why);
    }
    let mut of = Bounds { draft, line, of: listener.address.to_string() };
    of.time("timeouts.head", &mut listener.head, MS, YEAR);
    of.time("timeouts.idle", &mut listener.idle, MS, YEAR);
    of.time("timeouts.body", &mut listener.body, MS, YEAR);
    of.time("timeouts.tunnel", &mut listener.tunnel, MS, YEAR);
    of.number("backlog", &mut listener.backlog, 1, 65_535);
    of.text::<CookieName>("cookie", &mut listener.cookie);
    if let Some(mut tls) = listener.tls.take() {
        let refused = shown(draft, &listener, &mut tls);
        listener.tls = Some(tls);
        if let Some(why) = refused {
            return leave(draft, listener, why);
        }
    }
    if listener.protocol == Protocol::Udp && listener.tls.is_some() {
        return leave(draft, listener, "TLS over datagrams");
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
    if listener.is_like(other) {
        // The text has 0.0.0.0 and [::]: Plimsoll's listener on [::] takes both.
        if listener.address.is_ipv6() {
            other.address = listener.address;
        }
        return;
    }
    leave(draft, listener, "another listener has this address, and requests are not told apart there");
}

/// Returns the fault in the TLS of a listener that makes it impossible.
fn shown(draft: &mut Draft, listener: &Listener, tls: &mut Tls) -> Option<&'static str> {
    let (line, address) = (listener.line, listener.address);
    for (one, key) in &tls.certificates {
        if !valid::<LogPath>(one) || !valid::<LogPath>(key) {
            draft.note(line, format!("{address}: certificate {one} {key}"), "it cannot stand here");
        }
    }
    tls.certificates.retain(|(one, key)| valid::<LogPath>(one) && valid::<LogPath>(key));
    let mut seen = BTreeSet::new();
    for (name, group) in std::mem::take(&mut tls.names) {
        let name = name.to_ascii_lowercase();
        if !valid::<HostName>(&name) {
            // A placeholder is not a name that clients ask for.
            if !["_", ""].contains(&&*name) {
                let why = "is no name that TLS asks by: who asks for it gets the group of the listener";
                draft.note(line, format!("{address}: {name}"), why);
            }
        } else if !draft.groups.iter().any(|one| one.name == group) {
            let why = format!(
                "its group {group} could not be carried over: who asks for it gets that of the listener"
            );
            draft.note(line, format!("{address}: {name}"), why);
        } else if seen.insert(name.clone()) {
            tls.names.push((name, group));
        }
    }
    if tls.certificates.is_empty() {
        return Some("TLS without a certificate that could be carried over");
    }
    if tls.client_ca.as_ref().is_some_and(|path| !valid::<LogPath>(path)) {
        return Some("clients have to show certificates, and the file of the authority cannot stand here");
    }
    None
}

/// Notes that a listener is left out, and that its place is shut if clients were restricted there.
fn leave(draft: &mut Draft, listener: Listener, why: impl Into<String>) {
    draft.note(listener.line, listener.address.to_string(), why);
    if listener.asks().is_some() || !listener.barred.is_empty() {
        draft.shut.push(listener);
    }
}

/// Leaves out listeners with access rules that could not be carried over: they would serve every client.
fn close(draft: &mut Draft) {
    for listener in std::mem::take(&mut draft.listeners) {
        let rules = rules(draft, &listener);
        let Some(first) = rules.first() else {
            draft.listeners.push(listener);
            continue;
        };
        let more = match rules.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let why = format!(
            "the listener is left out: without the access rule in line {}{more} it would let in clients that were refused. \
             Put the rule elsewhere (a firewall, the members) and give --open",
            first.line
        );
        draft.note_as(Class::Security, listener.line, listener.address.to_string(), why);
        draft.shut.push(Listener { barred: rules.clone(), ..listener.clone() });
        draft.left.push((listener, rules));
    }
}

/// Returns the access rules that a listener would go without: its own, and those of its groups.
fn rules(draft: &Draft, listener: &Listener) -> Vec<Rule> {
    let mut rules = listener.barred.clone();
    for group in listener.groups() {
        rules.extend(draft.groups.iter().filter(|one| one.name == group).flat_map(|one| one.barred.clone()));
    }
    rules.retain(|rule| !(rule.plain && listener.tls.is_some()));
    rules.sort_by_key(|rule| rule.line);
    rules.dedup();
    rules
}

/// Removes listeners that would get clients of a place with a stricter demand for certificates. Removes also
/// those that would get clients of a place with access rules, and have its members.
fn shut(draft: &mut Draft, open: bool) {
    for place in std::mem::take(&mut draft.shut) {
        let (to, from) = (place.address, place.line);
        let gets = |one: &Listener| {
            let own = one.address.ip();
            let reached = own == to.ip() || (own.is_unspecified() && (own.is_ipv6() || to.is_ipv4()));
            let proved = match (one.asks(), place.asks()) {
                (Some((ca, optional)), Some((asked, may))) => ca == asked && (!optional || may),
                (None, Some(_)) => false,
                (_, None) => true,
            };
            let shares = one.groups().any(|group| place.groups().any(|other| group == other));
            let enough = proved && (open || place.barred.is_empty() || !shares);
            one.transport() == place.transport() && one.address.port() == to.port() && reached && !enough
        };
        let (left, kept): (Vec<Listener>, Vec<Listener>) =
            std::mem::take(&mut draft.listeners).into_iter().partition(gets);
        draft.listeners = kept;
        for one in left {
            let why = if place.asks().is_some() {
                format!(
                    "it would let clients in who have shown nothing, at what line {from} asks certificates for: give each an address of its own"
                )
            } else {
                format!(
                    "it would let clients in at what the access rules of line {from} are for: give each an address of its own"
                )
            };
            draft.note_as(Class::Security, one.line, one.address.to_string(), why);
        }
    }
}
