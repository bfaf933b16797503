//! A draft as TOML, in the order in which a person would write it; defaults are left out.

use std::fmt::Write as _;
use std::time::Duration;

use plimsoll_config::TimeSpan;

use super::intermediate::{
    DraftGroup, DraftHealth, DraftListener, DraftMember, DraftProbe, DraftProtocol, DraftStrategy,
    ImportDraft,
};
use super::loss::AccessRule;

/// Returns the text. `name` is the file that it is from, `program` its balancer.
pub(super) fn toml(draft: &ImportDraft, name: &str, program: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut out = format!("# From {program}'s {name}, by plimsoll config import.\n");
    if draft.threads.is_some() || draft.max_connections.is_some() {
        out.push('\n');
    }
    number(&mut out, "threads", draft.threads);
    number(&mut out, "max_connections", draft.max_connections);
    for listener in &draft.listeners {
        write_listener(&mut out, listener);
    }
    for (listener, rules) in &draft.omitted_listeners {
        out.push_str(&omitted_listener(listener, rules));
    }
    for group in &draft.groups {
        write_group(&mut out, group);
    }
    for group in &draft.omitted_groups {
        let mut body = String::new();
        write_group(&mut body, group);
        out.push_str(&commented(&body));
    }
    out
}

/// Returns a listener that is left out, as a comment with the reason.
fn omitted_listener(listener: &DraftListener, rules: &[AccessRule]) -> String {
    let mut out = format!(
        "\n# Left out: these access rules of {} are not carried over, and without them it lets in clients \
         that were\n\
         # refused. To have it all the same: plimsoll config import --open\n",
        listener.address
    );
    for rule in rules {
        let rule_text: String = rule.text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let _ = writeln!(out, "#   line {}: {rule_text}", rule.line);
    }
    let mut body = String::new();
    write_listener(&mut body, listener);
    out + commented(&body).trim_start_matches('\n')
}

/// Returns lines of TOML as lines of a comment.
fn commented(text: &str) -> String {
    let line = |line: &str| if line.is_empty() { "\n".to_owned() } else { format!("# {line}\n") };
    text.lines().map(line).collect()
}

/// Returns text as a string of TOML.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn text(out: &mut String, key: &str, value: Option<&str>) {
    if let Some(value) = value {
        let _ = writeln!(out, "{key} = {}", quoted(value));
    }
}

fn number(out: &mut String, key: &str, value: Option<u64>) {
    if let Some(value) = value {
        let _ = writeln!(out, "{key} = {value}");
    }
}

fn time(out: &mut String, key: &str, value: Option<Duration>) {
    if let Some(value) = value {
        let _ = writeln!(out, "{key} = \"{}\"", TimeSpan(value));
    }
}

/// Writes a table if it has any keys.
fn table(out: &mut String, name: &str, write_body: impl Fn(&mut String)) {
    let mut body = String::new();
    write_body(&mut body);
    if !body.is_empty() {
        let _ = write!(out, "\n[{name}]\n{body}");
    }
}

fn write_listener(out: &mut String, listener: &DraftListener) {
    let protocol = match (listener.protocol, &listener.tls) {
        (DraftProtocol::Http, Some(_)) => Some("https"),
        (DraftProtocol::Http, None) => None,
        (DraftProtocol::Tcp, _) => Some("tcp"),
        (DraftProtocol::Udp, _) => Some("udp"),
    };
    let _ = writeln!(out, "\n[[listener]]\naddress = \"{}\"", listener.address);
    text(out, "protocol", protocol);
    text(out, "group", Some(&listener.group));
    if listener.accept_proxy && listener.protocol != DraftProtocol::Udp {
        out.push_str("accept_proxy = true\n");
    }
    if listener.protocol != DraftProtocol::Udp {
        number(out, "backlog", listener.backlog);
    }
    if listener.protocol == DraftProtocol::Http {
        if !listener.forwarded {
            out.push_str("forwarded = \"off\"\n");
        }
        if let Some(cookie) = &listener.cookie {
            // The cookie has no end, as in the text.
            let _ = writeln!(out, "affinity = {{ cookie = {}, ttl = \"0s\" }}", quoted(cookie));
        }
    }
    table(out, "listener.timeouts", |out| {
        if listener.protocol == DraftProtocol::Http {
            time(out, "head", listener.head);
        }
        time(out, "idle", listener.idle);
        if listener.protocol == DraftProtocol::Http {
            time(out, "body", listener.body);
            time(out, "tunnel", listener.tunnel);
        }
    });
    let Some(tls) = &listener.tls else { return };
    table(out, "listener.tls", |out| {
        let certificate_entry = |(certificate, key): &(String, String)| {
            format!("    {{ certificate = {}, key = {} }},\n", quoted(certificate), quoted(key))
        };
        let entries: String = tls.certificates.iter().map(certificate_entry).collect();
        let _ = writeln!(out, "certificates = [\n{entries}]");
        text(out, "client_ca", tls.client_ca.as_deref());
        if tls.is_optional && tls.client_ca.is_some() {
            out.push_str("client_certificate = \"optional\"\n");
        }
        if tls.tls13_only {
            out.push_str("min_version = \"1.3\"\n");
        }
        if !tls.names.is_empty() {
            let name_entry = |(name, group): &(String, String)| {
                format!("    {{ name = {}, group = {} }},\n", quoted(name), quoted(group))
            };
            let entries: String = tls.names.iter().map(name_entry).collect();
            let _ = writeln!(out, "names = [\n{entries}]");
        }
    });
}

fn write_group(out: &mut String, group: &DraftGroup) {
    let _ = writeln!(out, "\n[[group]]\nname = {}", quoted(&group.name));
    let _ = writeln!(out, "strategy = {}", strategy(group));
    if matches!(group.strategy, DraftStrategy::Rendezvous(_)) {
        text(out, "key", group.key.as_deref().filter(|key| *key != "client"));
    }
    if !group.members.is_empty() {
        let entries: String = group.members.iter().map(member).collect();
        let _ = writeln!(out, "members = [\n{entries}]");
    }
    if !group.dns.is_empty() {
        let entries: Vec<String> =
            group.dns.iter().map(|name| format!("{{ dns = {} }}", quoted(name))).collect();
        let _ = writeln!(out, "discover = [{}]", entries.join(", "));
    }
    number(out, "max_connections", group.limit);
    time(out, "queue_timeout", group.queue_timeout);
    time(out, "slow_start", Some(group.slow_start.unwrap_or_default()));
    number(out, "max_idle_connections", group.max_idle_connections);
    text(out, "send_proxy", group.send_proxy.map(|version| if version == 1 { "v1" } else { "v2" }));
    if group.h2 {
        out.push_str("protocol = \"h2\"\n");
    }
    if let Some(tls) = &group.tls {
        let mut tls_entries = Vec::new();
        tls_entries.extend(tls.ca.as_ref().map(|ca| format!("ca = {}", quoted(ca))));
        if !tls.verify {
            tls_entries.push("verify = false".to_owned());
        }
        tls_entries.extend(tls.server_name.as_ref().map(|name| format!("server_name = {}", quoted(name))));
        tls_entries.extend(tls.client_certificate.as_ref().map(|(certificate, key)| {
            format!("own = {{ certificate = {}, key = {} }}", quoted(certificate), quoted(key))
        }));
        let _ = writeln!(out, "tls = {{ {} }}", tls_entries.join(", "));
    }
    if let Some((0, _)) = group.ejection {
        out.push_str("outlier = false\n");
    }
    if let Some(health) = &group.health {
        write_health(out, health);
    }
    table(out, "group.timeouts", |out| {
        time(out, "connect", group.connect);
        time(out, "idle", group.idle);
    });
    table(out, "group.retry", |out| number(out, "attempts", group.attempts));
    if let Some((failures @ 1.., span)) = group.ejection {
        table(out, "group.outlier", |out| {
            number(out, "consecutive", Some(failures));
            time(out, "ejection", span);
        });
    }
}

fn strategy(group: &DraftGroup) -> String {
    let has_equal_capacities =
        group.members.windows(2).all(|neighbours| neighbours[0].capacity == neighbours[1].capacity);
    match &group.strategy {
        DraftStrategy::RoundRobin if has_equal_capacities => "\"round_robin\"".to_owned(),
        DraftStrategy::RoundRobin => "\"weighted_round_robin\"".to_owned(),
        DraftStrategy::LeastConnections => "\"least_connections\"".to_owned(),
        DraftStrategy::Random => "\"random\"".to_owned(),
        DraftStrategy::LeastRequest(choices) => format!("{{ least_request = {{ choices = {choices} }} }}"),
        DraftStrategy::FirstAvailable => "\"first_available\"".to_owned(),
        DraftStrategy::Rendezvous(factor) => format!("{{ rendezvous = {{ load_factor = {factor} }} }}"),
    }
}

fn member(member: &DraftMember) -> String {
    if member.capacity == 1.0 && member.limit.is_none() {
        return format!("    {},\n", quoted(&member.address));
    }
    let mut line = format!("    {{ address = {}", quoted(&member.address));
    if member.capacity != 1.0 {
        let _ = write!(line, ", capacity = {}", member.capacity);
    }
    if let Some(limit) = member.limit {
        let _ = write!(line, ", max_connections = {limit}");
    }
    line + " },\n"
}

fn write_health(out: &mut String, health: &DraftHealth) {
    table(out, "group.health", |out| {
        match &health.kind {
            DraftProbe::Http(path) => text(out, "http", Some(path)),
            DraftProbe::Tcp => out.push_str("tcp = true\n"),
        }
        time(out, "interval", health.interval);
        time(out, "timeout", health.timeout);
        number(out, "rise", health.rise);
        number(out, "fall", health.fall);
        if let DraftProbe::Http(_) = health.kind {
            text(out, "host", health.host.as_deref());
            number(out, "expect", health.expect);
        }
    });
}
