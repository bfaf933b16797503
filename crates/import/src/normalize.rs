//! The order of a draft: values are clamped to Plimsoll's bounds, addresses are taken once, groups have
//! members and listeners groups. Each change gets a note.
//!
//! A place where clients needed a certificate is never served to others. If its listener falls out, those
//! that would get its clients instead do, too ([`remove_exposed`]).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use plimsoll_config::{
    CookieName, FilePath, HashKey, HostName, MemberAddress, ProbeHost, ProbePath, TimeSpan,
};

use super::intermediate::{
    DraftGroup, DraftListener, DraftMemberTls, DraftProbe, DraftProtocol, DraftStrategy, DraftTls,
    ImportDraft,
};
use super::loss::{AccessRule, LossClass};

/// Puts a draft in order. Listeners with access rules that could not be carried over are left out, unless
/// `open`.
pub(super) fn normalize(mut draft: ImportDraft, open: bool) -> ImportDraft {
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
        omit_unprotected(&mut draft);
    }
    remove_exposed(&mut draft, open);
    // Their readers note values out of bounds.
    draft.threads = draft.threads.filter(|threads| (1..=1024).contains(threads));
    draft.max_connections = draft.max_connections.map(|most| most.clamp(16, 10_000_000));
    unused(&mut draft);
    draft
}

/// Removes groups that no listener and no other part uses.
fn unused(draft: &mut ImportDraft) {
    let used: BTreeSet<String> =
        draft.listeners.iter().flat_map(DraftListener::groups).map(str::to_owned).collect();
    let commented: BTreeSet<String> =
        draft.omitted_listeners.iter().flat_map(|(one, _)| one.groups()).map(str::to_owned).collect();
    let (kept, left): (Vec<DraftGroup>, Vec<DraftGroup>) =
        std::mem::take(&mut draft.groups).into_iter().partition(|group| used.contains(&group.name));
    draft.groups = kept;
    let (commented, left): (Vec<DraftGroup>, Vec<DraftGroup>) =
        left.into_iter().partition(|group| commented.contains(&group.name));
    draft.omitted_groups = commented;
    for group in left {
        draft.note(group.line, &group.name, "no listener that was carried over sends clients there");
    }
}

fn valid<T: std::str::FromStr>(text: &str) -> bool {
    text.parse::<T>().is_ok()
}

/// The authorities that the system trusts.
pub(super) const SYSTEM_CA: &str = "/etc/ssl/certs/ca-certificates.crt";

const MS: Duration = Duration::from_millis(1);
/// The value for an unbounded time.
pub(super) const UNBOUNDED: Duration = Duration::from_secs(365 * 86_400);

/// A writer of notes on changed values, for one group or listener.
struct BoundsNotes<'d> {
    draft: &'d mut ImportDraft,
    line: usize,
    of: String,
}

impl BoundsNotes<'_> {
    fn note(&mut self, what: &str, why: impl Into<String>) {
        let what = format!("{}: {what}", self.of);
        self.draft.note(self.line, what, why);
    }

    fn time(&mut self, what: &str, span: &mut Option<Duration>, least: Duration, most: Duration) {
        let Some(now) = *span else { return };
        let kept = now.clamp(least, most);
        if kept != now {
            self.note(&format!("{what} {}", TimeSpan(now)), format!("it is {} here", TimeSpan(kept)));
            *span = Some(kept);
        }
    }

    fn number(&mut self, what: &str, number: &mut Option<u64>, least: u64, most: u64) {
        let Some(now) = *number else { return };
        let kept = now.clamp(least, most);
        if kept != now {
            self.note(&format!("{what} {now}"), format!("it is {kept} here"));
            *number = Some(kept);
        }
    }

    /// Removes a text that Plimsoll does not accept.
    fn text<T: std::str::FromStr>(&mut self, what: &str, text: &mut Option<String>) {
        if let Some(refused) = text.take_if(|text| !valid::<T>(text)) {
            self.note(&format!("{what} {refused}"), "it cannot stand here");
        }
    }
}

fn bounds(draft: &mut ImportDraft, group: &mut DraftGroup) {
    let mut of = BoundsNotes { draft, line: group.line, of: group.name.clone() };
    members(&mut of, group);
    of.number("max_connections", &mut group.limit, 1, 1_000_000);
    of.number("max_idle_connections", &mut group.max_idle_connections, 0, 65_536);
    of.time("queue_timeout", &mut group.queue_timeout, MS, UNBOUNDED);
    of.time("slow_start", &mut group.slow_start, Duration::ZERO, Duration::from_secs(3600));
    of.time("timeouts.connect", &mut group.connect, MS, UNBOUNDED);
    of.time("timeouts.idle", &mut group.idle, MS, UNBOUNDED);
    of.number("retry.attempts", &mut group.attempts, 0, 10);
    if let Some((failures, span)) = group.eject {
        let (mut failures, mut span) = (Some(failures), span);
        of.number("outlier.consecutive", &mut failures, 0, 10_000);
        of.time("outlier.ejection", &mut span, MS, Duration::from_secs(300));
        group.eject = failures.map(|failures| (failures, span));
    }
    of.text::<HashKey>("key", &mut group.key);
    if let DraftStrategy::Rendezvous(factor) = &mut group.strategy {
        let kept = if *factor > 0.0 { factor.clamp(1.0, 100.0) } else { 0.0 };
        if kept != *factor {
            of.note(&format!("a factor of {factor}"), format!("it is {kept} here"));
        }
        *factor = kept;
    }
    if let DraftStrategy::LeastRequest(choices) = &mut group.strategy {
        let mut now = Some(*choices);
        of.number("choices", &mut now, 2, 16);
        *choices = now.unwrap_or(2);
    }
    if let Some(health) = &mut group.health {
        of.time("health.interval", &mut health.interval, 10 * MS, UNBOUNDED);
        of.time("health.timeout", &mut health.timeout, MS, UNBOUNDED);
        of.number("health.rise", &mut health.rise, 1, 1000);
        of.number("health.fall", &mut health.fall, 1, 1000);
        of.number("health.expect", &mut health.expect, 100, 599);
        of.text::<ProbeHost>("health.host", &mut health.host);
        if let DraftProbe::Http(path) = &health.kind
            && !valid::<ProbePath>(path)
        {
            of.note(
                &format!("health.http {path}"),
                "it cannot stand here: checks connect, and ask for nothing",
            );
            health.kind = DraftProbe::Tcp;
            (health.host, health.expect) = (None, None);
        }
    }
    if let Some(tls) = &mut group.tls {
        member_tls(&mut of, tls);
    }
}

fn members(of: &mut BoundsNotes<'_>, group: &mut DraftGroup) {
    let mut seen = BTreeSet::new();
    for mut member in std::mem::take(&mut group.members) {
        if !valid::<MemberAddress>(&member.address) {
            of.note(&member.address, "is no address of a member");
        } else if !seen.insert(member.address.clone()) {
            of.note(&member.address, "a second member at this address");
        } else {
            let capacity = if member.capacity.is_finite() { member.capacity.clamp(0.001, 1e6) } else { 1.0 };
            if capacity != member.capacity {
                of.note(
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
            of.note(&name, "it is no name that has addresses");
        } else if group.dns.contains(&name) {
            of.note(&name, "a second source of this name");
        } else if group.dns.len() >= MOST_SOURCES {
            of.note(&name, format!("a group has at most {MOST_SOURCES} sources of members"));
        } else {
            group.dns.push(name);
        }
    }
    group.limit = group.limit.filter(|limit| *limit > 0);
}

const MOST_SOURCES: usize = 16;

fn member_tls(of: &mut BoundsNotes<'_>, tls: &mut DraftMemberTls) {
    of.text::<FilePath>("tls.ca", &mut tls.ca);
    of.text::<HostName>("tls.server_name", &mut tls.server_name);
    if tls.verify && tls.ca.is_none() {
        tls.ca = Some(SYSTEM_CA.to_owned());
    }
    if let Some((one, key)) =
        tls.client_certificate.take_if(|(one, key)| !valid::<FilePath>(one) || !valid::<FilePath>(key))
    {
        of.note(&format!("tls.own {one} {key}"), "it cannot stand here");
    }
}

fn place(draft: &mut ImportDraft, mut listener: DraftListener) {
    let line = listener.line;
    if !draft.groups.iter().any(|group| group.name == listener.group) {
        let why = format!("its group {} could not be carried over", listener.group);
        return omit_listener(draft, listener, why);
    }
    let mut of = BoundsNotes { draft, line, of: listener.address.to_string() };
    of.time("timeouts.head", &mut listener.head, MS, UNBOUNDED);
    of.time("timeouts.idle", &mut listener.idle, MS, UNBOUNDED);
    of.time("timeouts.body", &mut listener.body, MS, UNBOUNDED);
    of.time("timeouts.tunnel", &mut listener.tunnel, MS, UNBOUNDED);
    of.number("backlog", &mut listener.backlog, 1, 65_535);
    of.text::<CookieName>("cookie", &mut listener.cookie);
    if let Some(mut tls) = listener.tls.take() {
        let refused = tls_fault(draft, &listener, &mut tls);
        listener.tls = Some(tls);
        if let Some(why) = refused {
            return omit_listener(draft, listener, why);
        }
    }
    if listener.protocol == DraftProtocol::Udp && listener.tls.is_some() {
        return omit_listener(draft, listener, "TLS over datagrams");
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
    if listener.is_same_except_address(other) {
        // The text has 0.0.0.0 and [::]: Plimsoll's listener on [::] takes both.
        if listener.address.is_ipv6() {
            other.address = listener.address;
        }
        return;
    }
    omit_listener(
        draft,
        listener,
        "another listener has this address, and requests are not told apart there",
    );
}

/// Returns the fault in the TLS of a listener that makes it impossible.
fn tls_fault(draft: &mut ImportDraft, listener: &DraftListener, tls: &mut DraftTls) -> Option<&'static str> {
    let (line, address) = (listener.line, listener.address);
    for (one, key) in &tls.certificates {
        if !valid::<FilePath>(one) || !valid::<FilePath>(key) {
            draft.note(line, format!("{address}: certificate {one} {key}"), "it cannot stand here");
        }
    }
    tls.certificates.retain(|(one, key)| valid::<FilePath>(one) && valid::<FilePath>(key));
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
    if tls.client_ca.as_ref().is_some_and(|path| !valid::<FilePath>(path)) {
        return Some("clients have to show certificates, and the file of the authority cannot stand here");
    }
    None
}

/// Notes that a listener is left out, and that its place is shut if clients were restricted there.
fn omit_listener(draft: &mut ImportDraft, listener: DraftListener, why: impl Into<String>) {
    draft.note(listener.line, listener.address.to_string(), why);
    if listener.client_ca().is_some() || !listener.access_rules.is_empty() {
        draft.restricted.push(listener);
    }
}

/// Leaves out listeners with access rules that could not be carried over: they would serve every client.
fn omit_unprotected(draft: &mut ImportDraft) {
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
            "the listener is left out: without the access rule in line {}{more} it would let in clients that \
             were refused. \
             Put the rule elsewhere (a firewall, the members) and give --open",
            first.line
        );
        draft.note_as(LossClass::Security, listener.line, listener.address.to_string(), why);
        draft.restricted.push(DraftListener { access_rules: rules.clone(), ..listener.clone() });
        draft.omitted_listeners.push((listener, rules));
    }
}

/// Returns the access rules that a listener would go without: its own, and those of its groups.
fn rules(draft: &ImportDraft, listener: &DraftListener) -> Vec<AccessRule> {
    let mut rules = listener.access_rules.clone();
    for group in listener.groups() {
        rules.extend(
            draft.groups.iter().filter(|one| one.name == group).flat_map(|one| one.access_rules.clone()),
        );
    }
    rules.retain(|rule| !(rule.is_https_redirect && listener.tls.is_some()));
    rules.sort_by_key(|rule| rule.line);
    rules.dedup();
    rules
}

/// Removes listeners that would get clients of a place with a stricter demand for certificates. Removes also
/// those that would get clients of a place with access rules, and have its members.
fn remove_exposed(draft: &mut ImportDraft, open: bool) {
    for place in std::mem::take(&mut draft.restricted) {
        let (to, from) = (place.address, place.line);
        let gets = |one: &DraftListener| {
            let own = one.address.ip();
            let reached = own == to.ip() || (own.is_unspecified() && (own.is_ipv6() || to.is_ipv4()));
            let proved = match (one.client_ca(), place.client_ca()) {
                (Some((ca, optional)), Some((asked, may))) => ca == asked && (!optional || may),
                (None, Some(_)) => false,
                (_, None) => true,
            };
            let shares = one.groups().any(|group| place.groups().any(|other| group == other));
            let enough = proved && (open || place.access_rules.is_empty() || !shares);
            one.transport() == place.transport() && one.address.port() == to.port() && reached && !enough
        };
        let (left, kept): (Vec<DraftListener>, Vec<DraftListener>) =
            std::mem::take(&mut draft.listeners).into_iter().partition(gets);
        draft.listeners = kept;
        for one in left {
            let why = if place.client_ca().is_some() {
                format!(
                    "it would let clients in who have shown nothing, at what line {from} asks certificates \
                     for: give each an address of its own"
                )
            } else {
                format!(
                    "it would let clients in at what the access rules of line {from} are for: give each an \
                     address of its own"
                )
            };
            draft.note_as(LossClass::Security, one.line, one.address.to_string(), why);
        }
    }
}
