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
pub(super) fn normalize(mut draft: ImportDraft, keeps_exposed: bool) -> ImportDraft {
    let mut taken_names = BTreeSet::new();
    let groups = std::mem::take(&mut draft.groups);
    for mut group in groups {
        if !taken_names.insert(group.name.clone()) {
            draft.note(group.line, &group.name, "a second group of this name");
            continue;
        }
        clamp_bounds(&mut draft, &mut group);
        if group.members.is_empty() && group.dns.is_empty() {
            draft.note(group.line, &group.name, "it has no members that could be carried over");
            continue;
        }
        draft.groups.push(group);
    }
    let listeners = std::mem::take(&mut draft.listeners);
    for listener in listeners {
        add_listener(&mut draft, listener);
    }
    if !keeps_exposed {
        omit_unprotected(&mut draft);
    }
    remove_exposed(&mut draft, keeps_exposed);
    // Their readers note values out of bounds.
    draft.threads = draft.threads.filter(|threads| (1..=1024).contains(threads));
    draft.max_connections = draft.max_connections.map(|max| max.clamp(16, 10_000_000));
    remove_unused(&mut draft);
    draft
}

/// Removes groups that no listener and no other part uses.
fn remove_unused(draft: &mut ImportDraft) {
    let used_groups: BTreeSet<String> =
        draft.listeners.iter().flat_map(DraftListener::groups).map(str::to_owned).collect();
    let commented_groups: BTreeSet<String> = draft
        .omitted_listeners
        .iter()
        .flat_map(|(listener, _)| listener.groups())
        .map(str::to_owned)
        .collect();
    let (kept_groups, unused_groups): (Vec<DraftGroup>, Vec<DraftGroup>) =
        std::mem::take(&mut draft.groups).into_iter().partition(|group| used_groups.contains(&group.name));
    draft.groups = kept_groups;
    let (commented_groups, dropped_groups): (Vec<DraftGroup>, Vec<DraftGroup>) =
        unused_groups.into_iter().partition(|group| commented_groups.contains(&group.name));
    draft.omitted_groups = commented_groups;
    for group in dropped_groups {
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
    owner: String,
}

impl BoundsNotes<'_> {
    fn note(&mut self, subject: &str, reason: impl Into<String>) {
        let subject = format!("{}: {subject}", self.owner);
        self.draft.note(self.line, subject, reason);
    }

    fn time(&mut self, subject: &str, span: &mut Option<Duration>, min: Duration, max: Duration) {
        let Some(now) = *span else { return };
        let clamped = now.clamp(min, max);
        if clamped != now {
            self.note(&format!("{subject} {}", TimeSpan(now)), format!("it is {} here", TimeSpan(clamped)));
            *span = Some(clamped);
        }
    }

    fn number(&mut self, subject: &str, number: &mut Option<u64>, min: u64, max: u64) {
        let Some(now) = *number else { return };
        let clamped = now.clamp(min, max);
        if clamped != now {
            self.note(&format!("{subject} {now}"), format!("it is {clamped} here"));
            *number = Some(clamped);
        }
    }

    /// Removes a text that Plimsoll does not accept.
    fn text<T: std::str::FromStr>(&mut self, subject: &str, text: &mut Option<String>) {
        if let Some(invalid_text) = text.take_if(|text| !valid::<T>(text)) {
            self.note(&format!("{subject} {invalid_text}"), "it cannot stand here");
        }
    }
}

fn clamp_bounds(draft: &mut ImportDraft, group: &mut DraftGroup) {
    let mut bounds_notes = BoundsNotes { draft, line: group.line, owner: group.name.clone() };
    members(&mut bounds_notes, group);
    bounds_notes.number("max_connections", &mut group.limit, 1, 1_000_000);
    bounds_notes.number("max_idle_connections", &mut group.max_idle_connections, 0, 65_536);
    bounds_notes.time("queue_timeout", &mut group.queue_timeout, MS, UNBOUNDED);
    bounds_notes.time("slow_start", &mut group.slow_start, Duration::ZERO, Duration::from_secs(3600));
    bounds_notes.time("timeouts.connect", &mut group.connect, MS, UNBOUNDED);
    bounds_notes.time("timeouts.idle", &mut group.idle, MS, UNBOUNDED);
    bounds_notes.number("retry.attempts", &mut group.attempts, 0, 10);
    if let Some((failures, span)) = group.ejection {
        let (mut failures, mut span) = (Some(failures), span);
        bounds_notes.number("outlier.consecutive", &mut failures, 0, 10_000);
        bounds_notes.time("outlier.ejection", &mut span, MS, Duration::from_secs(300));
        group.ejection = failures.map(|failures| (failures, span));
    }
    bounds_notes.text::<HashKey>("key", &mut group.key);
    if let DraftStrategy::Rendezvous(factor) = &mut group.strategy {
        let clamped = if *factor > 0.0 { factor.clamp(1.0, 100.0) } else { 0.0 };
        if clamped != *factor {
            bounds_notes.note(&format!("a factor of {factor}"), format!("it is {clamped} here"));
        }
        *factor = clamped;
    }
    if let DraftStrategy::LeastRequest(choices) = &mut group.strategy {
        let mut now = Some(*choices);
        bounds_notes.number("choices", &mut now, 2, 16);
        *choices = now.unwrap_or(2);
    }
    if let Some(health) = &mut group.health {
        bounds_notes.time("health.interval", &mut health.interval, 10 * MS, UNBOUNDED);
        bounds_notes.time("health.timeout", &mut health.timeout, MS, UNBOUNDED);
        bounds_notes.number("health.rise", &mut health.rise, 1, 1000);
        bounds_notes.number("health.fall", &mut health.fall, 1, 1000);
        bounds_notes.number("health.expect", &mut health.expect, 100, 599);
        bounds_notes.text::<ProbeHost>("health.host", &mut health.host);
        if let DraftProbe::Http(path) = &health.kind
            && !valid::<ProbePath>(path)
        {
            bounds_notes.note(
                &format!("health.http {path}"),
                "it cannot stand here: checks connect, and ask for nothing",
            );
            health.kind = DraftProbe::Tcp;
            (health.host, health.expect) = (None, None);
        }
    }
    if let Some(tls) = &mut group.tls {
        member_tls(&mut bounds_notes, tls);
    }
}

fn members(bounds_notes: &mut BoundsNotes<'_>, group: &mut DraftGroup) {
    let mut seen_addresses = BTreeSet::new();
    for mut member in std::mem::take(&mut group.members) {
        if !valid::<MemberAddress>(&member.address) {
            bounds_notes.note(&member.address, "is no address of a member");
        } else if !seen_addresses.insert(member.address.clone()) {
            bounds_notes.note(&member.address, "a second member at this address");
        } else {
            let capacity = if member.capacity.is_finite() { member.capacity.clamp(0.001, 1e6) } else { 1.0 };
            if capacity != member.capacity {
                bounds_notes.note(
                    &format!("{} weight {}", member.address, member.capacity),
                    format!("it is {capacity} here"),
                );
            }
            member.capacity = capacity;
            // 0 means none.
            member.limit = member.limit.filter(|limit| *limit > 0);
            bounds_notes.number(
                &format!("{} max_connections", member.address),
                &mut member.limit,
                1,
                1_000_000,
            );
            group.members.push(member);
        }
    }
    // Each address of a name is a member; an address has none.
    let has_host_name = |text: &str| {
        let address: Option<MemberAddress> = text.parse().ok();
        address.is_some_and(|address| address.host.parse::<IpAddr>().is_err())
    };
    for name in std::mem::take(&mut group.dns) {
        if !has_host_name(&name) {
            bounds_notes.note(&name, "it is no name that has addresses");
        } else if group.dns.contains(&name) {
            bounds_notes.note(&name, "a second source of this name");
        } else if group.dns.len() >= MOST_SOURCES {
            bounds_notes.note(&name, format!("a group has at most {MOST_SOURCES} sources of members"));
        } else {
            group.dns.push(name);
        }
    }
    group.limit = group.limit.filter(|limit| *limit > 0);
}

const MOST_SOURCES: usize = 16;

fn member_tls(bounds_notes: &mut BoundsNotes<'_>, tls: &mut DraftMemberTls) {
    bounds_notes.text::<FilePath>("tls.ca", &mut tls.ca);
    bounds_notes.text::<HostName>("tls.server_name", &mut tls.server_name);
    if tls.verify && tls.ca.is_none() {
        tls.ca = Some(SYSTEM_CA.to_owned());
    }
    if let Some((certificate, key)) = tls
        .client_certificate
        .take_if(|(certificate, key)| !valid::<FilePath>(certificate) || !valid::<FilePath>(key))
    {
        bounds_notes.note(&format!("tls.own {certificate} {key}"), "it cannot stand here");
    }
}

fn add_listener(draft: &mut ImportDraft, mut listener: DraftListener) {
    let line = listener.line;
    if !draft.groups.iter().any(|group| group.name == listener.group) {
        let reason = format!("its group {} could not be carried over", listener.group);
        return omit_listener(draft, listener, reason);
    }
    let mut bounds_notes = BoundsNotes { draft, line, owner: listener.address.to_string() };
    bounds_notes.time("timeouts.head", &mut listener.head, MS, UNBOUNDED);
    bounds_notes.time("timeouts.idle", &mut listener.idle, MS, UNBOUNDED);
    bounds_notes.time("timeouts.body", &mut listener.body, MS, UNBOUNDED);
    bounds_notes.time("timeouts.tunnel", &mut listener.tunnel, MS, UNBOUNDED);
    bounds_notes.number("backlog", &mut listener.backlog, 1, 65_535);
    bounds_notes.text::<CookieName>("cookie", &mut listener.cookie);
    if let Some(mut tls) = listener.tls.take() {
        let fault = tls_fault(draft, &listener, &mut tls);
        listener.tls = Some(tls);
        if let Some(reason) = fault {
            return omit_listener(draft, listener, reason);
        }
    }
    if listener.protocol == DraftProtocol::Udp && listener.tls.is_some() {
        return omit_listener(draft, listener, "TLS over datagrams");
    }
    let port = listener.address.port();
    let is_wildcard = |address: IpAddr| address.is_unspecified();
    let clashing_index = draft.listeners.iter().position(|existing_listener| {
        existing_listener.transport() == listener.transport()
            && existing_listener.address.port() == port
            && (existing_listener.address.ip() == listener.address.ip()
                || (is_wildcard(existing_listener.address.ip()) && is_wildcard(listener.address.ip())))
    });
    let Some(existing_index) = clashing_index.filter(|_| port != 0) else {
        draft.listeners.push(listener);
        return;
    };
    let existing = &mut draft.listeners[existing_index];
    if listener.is_same_except_address(existing) {
        // The text has 0.0.0.0 and [::]: Plimsoll's listener on [::] takes both.
        if listener.address.is_ipv6() {
            existing.address = listener.address;
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
    for (certificate, key) in &tls.certificates {
        if !valid::<FilePath>(certificate) || !valid::<FilePath>(key) {
            draft.note(line, format!("{address}: certificate {certificate} {key}"), "it cannot stand here");
        }
    }
    tls.certificates.retain(|(certificate, key)| valid::<FilePath>(certificate) && valid::<FilePath>(key));
    let mut seen_names = BTreeSet::new();
    for (name, group) in std::mem::take(&mut tls.names) {
        let name = name.to_ascii_lowercase();
        if !valid::<HostName>(&name) {
            // A placeholder is not a name that clients ask for.
            if !["_", ""].contains(&&*name) {
                let reason = "is no name that TLS asks by: who asks for it gets the group of the listener";
                draft.note(line, format!("{address}: {name}"), reason);
            }
        } else if !draft.groups.iter().any(|group_draft| group_draft.name == group) {
            let reason = format!(
                "its group {group} could not be carried over: who asks for it gets that of the listener"
            );
            draft.note(line, format!("{address}: {name}"), reason);
        } else if seen_names.insert(name.clone()) {
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
fn omit_listener(draft: &mut ImportDraft, listener: DraftListener, reason: impl Into<String>) {
    draft.note(listener.line, listener.address.to_string(), reason);
    if listener.client_ca().is_some() || !listener.access_rules.is_empty() {
        draft.restricted.push(listener);
    }
}

/// Leaves out listeners with access rules that could not be carried over: they would serve every client.
fn omit_unprotected(draft: &mut ImportDraft) {
    for listener in std::mem::take(&mut draft.listeners) {
        let rules = access_rules_of(draft, &listener);
        let Some(first_rule) = rules.first() else {
            draft.listeners.push(listener);
            continue;
        };
        let suffix = match rules.len() - 1 {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        let reason = format!(
            "the listener is left out: without the access rule in line {}{suffix} it would let in clients \
             that were refused. \
             Put the rule elsewhere (a firewall, the members) and give --open",
            first_rule.line
        );
        draft.note_as(LossClass::Security, listener.line, listener.address.to_string(), reason);
        draft.restricted.push(DraftListener { access_rules: rules.clone(), ..listener.clone() });
        draft.omitted_listeners.push((listener, rules));
    }
}

/// Returns the access rules that a listener would go without: its own, and those of its groups.
fn access_rules_of(draft: &ImportDraft, listener: &DraftListener) -> Vec<AccessRule> {
    let mut rules = listener.access_rules.clone();
    for group in listener.groups() {
        rules.extend(
            draft
                .groups
                .iter()
                .filter(|group_draft| group_draft.name == group)
                .flat_map(|group_draft| group_draft.access_rules.clone()),
        );
    }
    rules.retain(|rule| !(rule.is_https_redirect && listener.tls.is_some()));
    rules.sort_by_key(|rule| rule.line);
    rules.dedup();
    rules
}

/// Removes listeners that would get clients of a place with a stricter demand for certificates. Removes also
/// those that would get clients of a place with access rules, and have its members.
fn remove_exposed(draft: &mut ImportDraft, keeps_exposed: bool) {
    for restricted_listener in std::mem::take(&mut draft.restricted) {
        let (target_address, target_line) = (restricted_listener.address, restricted_listener.line);
        let receives_clients = |listener: &DraftListener| {
            let listener_ip = listener.address.ip();
            let is_reached = listener_ip == target_address.ip()
                || (listener_ip.is_unspecified() && (listener_ip.is_ipv6() || target_address.is_ipv4()));
            let is_proved = match (listener.client_ca(), restricted_listener.client_ca()) {
                (Some((ca, allows_missing)), Some((restricted_ca, is_optional))) => {
                    ca == restricted_ca && (!allows_missing || is_optional)
                }
                (None, Some(_)) => false,
                (_, None) => true,
            };
            let shares = listener
                .groups()
                .any(|group| restricted_listener.groups().any(|other_group| group == other_group));
            let is_safe =
                is_proved && (keeps_exposed || restricted_listener.access_rules.is_empty() || !shares);
            listener.transport() == restricted_listener.transport()
                && listener.address.port() == target_address.port()
                && is_reached
                && !is_safe
        };
        let (exposed, unexposed): (Vec<DraftListener>, Vec<DraftListener>) =
            std::mem::take(&mut draft.listeners).into_iter().partition(receives_clients);
        draft.listeners = unexposed;
        for listener in exposed {
            let reason = if restricted_listener.client_ca().is_some() {
                format!(
                    "it would let clients in who have shown nothing, at what line {target_line} asks \
                     certificates for: give each an address of its own"
                )
            } else {
                format!(
                    "it would let clients in at what the access rules of line {target_line} are for: give \
                     each an address of its own"
                )
            };
            draft.note_as(LossClass::Security, listener.line, listener.address.to_string(), reason);
        }
    }
}
