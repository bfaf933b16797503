//! The status as a Prometheus page, text format 0.0.4.
//!
//! Figures of a member have one series per member. Labels are `group`, `member`, `listener`, `protocol`,
//! `strategy`, `state`, `reason`, `source` and `code_class`, never a path or a client. The configuration thus
//! determines the number of series, not the traffic. Every member has every series from the start: a counter
//! that first appears at 1 hides its first increase from `rate()`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_brain::MemberState;
use plimsoll_brain::status::{
    BindingStatus, CertificateStatus, GroupStatus, ListenerStatus, MemberStatus, StatusReport,
};

use crate::process::ProcessSnapshot;

mod discovery;
mod fleet;
mod load_line;
mod scaler;
mod store;

const STATES: [MemberState; 7] = [
    MemberState::Up,
    MemberState::SlowStart,
    MemberState::Unchecked,
    MemberState::Down,
    MemberState::Ejected,
    MemberState::Draining,
    MemberState::Disabled,
];
const CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "none"];

/// Returns the whole page. `buckets` returns the latency histogram of a group, see
/// [`crate::BalancerBackend::buckets`].
pub(crate) fn metrics_page(status: &StatusReport, buckets: impl Fn(&str) -> Vec<(f64, u64)>) -> String {
    let mut page = MetricsPage::default();
    process(&mut page, status);
    listeners(&mut page, &status.listeners);
    bindings(&mut page, &status.listeners);
    certificates(&mut page, &status.certificates);
    groups(&mut page, &status.groups);
    durations(&mut page, &status.groups, buckets);
    members(&mut page, &status.groups);
    load_line::load_lines(&mut page, &status.groups);
    discovery::sources(&mut page, &status.groups);
    fleet::fleet(&mut page, status.fleet.as_ref(), &status.groups);
    store::store(&mut page, status.store.as_ref());
    scaler::scalers(&mut page, &status.groups);
    page.text
}

fn process(page: &mut MetricsPage, status: &StatusReport) {
    page.family("plimsoll_build_info", MetricKind::Gauge, "What runs; always 1.");
    page.sample("", &[("version", &status.version)], 1.0);
    let mut write_one = |name, kind, help, value| {
        page.family(name, kind, help);
        page.sample("", &[], value);
    };
    write_one(
        "plimsoll_config_last_reload_successful",
        MetricKind::Gauge,
        "1 if the configuration in force is the last one given, 0 if that was refused.",
        flag(status.last_reload_successful),
    );
    write_one(
        "plimsoll_config_reloads_total",
        MetricKind::Counter,
        "Reloads that succeeded.",
        status.reloads as f64,
    );
    write_one(
        "plimsoll_stopping",
        MetricKind::Gauge,
        "1 while the process lets its work end.",
        flag(status.stopping),
    );
    write_one(
        "plimsoll_uptime_seconds",
        MetricKind::Gauge,
        "Since the start of the process.",
        status.uptime_seconds,
    );
    let memory = &status.memory;
    write_one(
        "plimsoll_memory_budget_bytes",
        MetricKind::Gauge,
        "Most bytes kept of what peers did not finish or do not read (max_memory).",
        memory.budget_bytes as f64,
    );
    write_one(
        "plimsoll_memory_kept_bytes",
        MetricKind::Gauge,
        "Bytes kept of what peers did not finish or do not read.",
        memory.kept_bytes as f64,
    );
    write_one(
        "plimsoll_memory_refused_total",
        MetricKind::Counter,
        "Connections and requests refused because the memory budget was used up.",
        memory.refused as f64,
    );
    write_one("plimsoll_threads", MetricKind::Gauge, "Data-plane threads.", status.threads as f64);
    write_one(
        "plimsoll_access_log_dropped_total",
        MetricKind::Counter,
        "Access log lines dropped because the disk was slow or full.",
        status.access_log_dropped as f64,
    );
    write_one(
        "plimsoll_spans_exported_total",
        MetricKind::Counter,
        "Spans that the collector took.",
        status.spans_exported as f64,
    );
    write_one(
        "plimsoll_spans_dropped_total",
        MetricKind::Counter,
        "Spans dropped because the collector was slow, away or did not want them.",
        status.spans_dropped as f64,
    );
    if let Ok(unix) = SystemTime::now().duration_since(UNIX_EPOCH) {
        let start = unix.as_secs_f64() - status.uptime_seconds;
        write_one("process_start_time_seconds", MetricKind::Gauge, "Since 1970.", start.round());
    }
    process_metrics(page);
}

/// Writes the kernel's figures of this process.
pub(crate) fn process_metrics(page: &mut MetricsPage) {
    let now = ProcessSnapshot::read();
    let mut one = |name, kind, help, value| {
        page.family(name, kind, help);
        page.sample("", &[], value);
    };
    one("process_cpu_seconds_total", MetricKind::Counter, "User and system time.", now.cpu_seconds);
    for (name, help, value) in [
        ("process_resident_memory_bytes", "Memory in use.", now.resident_bytes),
        ("process_virtual_memory_bytes", "Address space in use.", now.virtual_bytes),
        ("process_open_fds", "Open file descriptors.", now.open_fds),
        ("process_max_fds", "Limit on open file descriptors.", now.max_fds),
    ] {
        if let Some(value) = value {
            one(name, MetricKind::Gauge, help, value);
        }
    }
}

fn listeners(page: &mut MetricsPage, listeners: &[ListenerStatus]) {
    let mut write_each = |name, kind, help, value: fn(&ListenerStatus) -> u64| {
        page.family(name, kind, help);
        for listener in listeners {
            let labels = [
                ("listener", &*listener.address),
                ("protocol", &listener.protocol),
                ("group", &listener.group),
            ];
            page.sample("", &labels, value(listener) as f64);
        }
    };
    write_each("plimsoll_connections", MetricKind::Gauge, "Client connections or flows open now.", |l| {
        l.connections
    });
    write_each(
        "plimsoll_connections_accepted_total",
        MetricKind::Counter,
        "Client connections or flows accepted.",
        |l| l.accepted,
    );
    write_each(
        "plimsoll_connections_refused_total",
        MetricKind::Counter,
        "Client connections refused because of the limit on connections.",
        |l| l.refused,
    );
}

fn bindings(page: &mut MetricsPage, listeners: &[ListenerStatus]) {
    let mut write_each = |name, kind, help, value: fn(&BindingStatus) -> u64| {
        page.family(name, kind, help);
        for listener in listeners {
            for binding in &listener.bindings {
                let labels = [
                    ("listener", &*listener.address),
                    ("protocol", &listener.protocol),
                    ("group", &listener.group),
                    ("member", &binding.member),
                ];
                page.sample("", &labels, value(binding) as f64);
            }
        }
    };
    write_each(
        "plimsoll_sessions_bound",
        MetricKind::Gauge,
        "Sessions of a listener bound to a member.",
        |b| b.bound,
    );
    write_each(
        "plimsoll_sessions_moved_total",
        MetricKind::Counter,
        "Sessions of a listener that a member under alert sent elsewhere.",
        |b| b.moved,
    );
}

fn certificates(page: &mut MetricsPage, certificates: &[CertificateStatus]) {
    let help = "Seconds until a certificate that clients are shown ends, below 0 when it is over.";
    page.family("plimsoll_certificate_expiry_seconds", MetricKind::Gauge, help);
    for (certificate, expires_in) in
        certificates.iter().filter_map(|certificate| Some((certificate, certificate.expires_seconds?)))
    {
        page.sample(
            "",
            &[("certificate", &certificate.name), ("source", &certificate.source)],
            expires_in.round(),
        );
    }
    let help = "1 if a certificate could not be obtained or renewed the last time (ACME).";
    page.family("plimsoll_certificate_failing", MetricKind::Gauge, help);
    for certificate in certificates.iter().filter(|certificate| certificate.acme) {
        page.sample(
            "",
            &[("certificate", &certificate.name), ("source", &certificate.source)],
            flag(certificate.failure.is_some()),
        );
    }
}

fn groups(page: &mut MetricsPage, groups: &[GroupStatus]) {
    page.family("plimsoll_group_info", MetricKind::Gauge, "Strategy in force; always 1.");
    for group in groups {
        page.sample("", &[("group", &group.name), ("strategy", &group.strategy)], 1.0);
    }
    let mut write_each = |name, kind, help, value: fn(&GroupStatus) -> f64| {
        page.family(name, kind, help);
        for group in groups {
            page.sample("", &[("group", &group.name)], value(group));
        }
    };
    write_each("plimsoll_group_healthy", MetricKind::Gauge, "1 if a member of the group can be used.", |g| {
        flag(g.healthy)
    });
    write_each(
        "plimsoll_group_refused_ratio",
        MetricKind::Gauge,
        "Share of the requests of the last ten seconds that were refused for want of room; 0 if none was.",
        |g| g.shedding_share.unwrap_or(0.0),
    );
    write_each("plimsoll_retries_total", MetricKind::Counter, "Requests tried again.", |g| g.retries as f64);
    write_each(
        "plimsoll_retries_denied_total",
        MetricKind::Counter,
        "Retries not done because the budget was spent.",
        |g| g.retries_denied as f64,
    );
    write_each("plimsoll_queued", MetricKind::Gauge, "Requests waiting for a member.", |g| g.queued as f64);
    page.family(
        "plimsoll_hand_overs_total",
        MetricKind::Counter,
        "Sessions' state handed over before they go, by outcome.",
    );
    for group in groups {
        for (outcome, count) in [("ok", group.hand_overs), ("failed", group.hand_overs_failed)] {
            page.sample("", &[("group", &group.name), ("outcome", outcome)], count as f64);
        }
    }
    page.family(
        "plimsoll_queue_wait_seconds",
        MetricKind::Summary,
        "How long requests waited for a member, whatever came of it.",
    );
    for group in groups {
        page.sample("_sum", &[("group", &group.name)], group.waits.sum);
        page.sample("_count", &[("group", &group.name)], group.waits.count as f64);
    }
    page.family(
        "plimsoll_urgency_waits_total",
        MetricKind::Counter,
        "Requests that found no room, by how urgent they said they are.",
    );
    for group in groups {
        for urgency_counts in &group.urgencies {
            let urgency = urgency_counts.urgency.to_string();
            for (outcome, count) in [("served", urgency_counts.served), ("refused", urgency_counts.refused)] {
                let labels = [("group", &*group.name), ("urgency", &*urgency), ("outcome", outcome)];
                page.sample("", &labels, count as f64);
            }
        }
    }
    page.family("plimsoll_rejected_total", MetricKind::Counter, "Requests answered by the balancer itself.");
    for group in groups {
        for (reason, &count) in &group.rejected {
            page.sample("", &[("group", &group.name), ("reason", reason)], count as f64);
        }
    }
}

fn durations(page: &mut MetricsPage, groups: &[GroupStatus], buckets: impl Fn(&str) -> Vec<(f64, u64)>) {
    page.family(
        "plimsoll_request_duration_seconds",
        MetricKind::Histogram,
        "From the first byte of a request to the last of its answer.",
    );
    for group in groups {
        // Under traffic the buckets are read a moment after the count, but no bucket may exceed the last.
        let mut max_count = 0;
        for (bound, count) in buckets(&group.name).into_iter().filter(|(bound, _)| bound.is_finite()) {
            max_count = max_count.max(count);
            page.sample("_bucket", &[("group", &group.name), ("le", &number(bound))], max_count as f64);
        }
        let count = max_count.max(group.latency.count) as f64;
        page.sample("_bucket", &[("group", &group.name), ("le", "+Inf")], count);
        page.sample("_sum", &[("group", &group.name)], group.latency.sum);
        page.sample("_count", &[("group", &group.name)], count);
    }
}

fn members(page: &mut MetricsPage, groups: &[GroupStatus]) {
    let group_members =
        || groups.iter().flat_map(|group| group.members.iter().map(move |member| (group, member)));

    page.family(
        "plimsoll_requests_total",
        MetricKind::Counter,
        "Requests, sessions or flows ended, by answer.",
    );
    for (group, member) in group_members() {
        let known_classes = member.answers.keys().map(String::as_str);
        for class in CLASSES.into_iter().chain(known_classes).collect::<BTreeSet<_>>() {
            let labels = [("group", &*group.name), ("member", &member.name), ("code_class", class)];
            page.sample("", &labels, member.answers.get(class).copied().unwrap_or(0) as f64);
        }
    }
    page.family(
        "plimsoll_member_refused_total",
        MetricKind::Counter,
        "Requests that the group refused while the member took none, by the reason why it did not.",
    );
    for (group, member) in group_members() {
        for (reason, count) in &member.refused {
            let reason = reason.replace(' ', "_");
            let labels = [("group", &*group.name), ("member", &member.name), ("reason", &reason)];
            page.sample("", &labels, *count as f64);
        }
    }
    page.family(
        "plimsoll_member_state",
        MetricKind::Gauge,
        "1 for the state the member is in, 0 for the others.",
    );
    for (group, member) in group_members() {
        for state in STATES {
            let labels = [("group", &*group.name), ("member", &member.name), ("state", state_label(state))];
            page.sample("", &labels, flag(member.state == state));
        }
    }
    page.family(
        "plimsoll_member_request_duration_seconds",
        MetricKind::Summary,
        "From choosing the member to the last byte of its answer.",
    );
    for (group, member) in group_members() {
        let labels = [("group", &*group.name), ("member", &member.name)];
        page.sample("_sum", &labels, member.latency.sum);
        page.sample("_count", &labels, member.latency.count as f64);
    }
    let mut write_each = |name, kind, help, value: fn(&MemberStatus) -> f64| {
        page.family(name, kind, help);
        for (group, member) in group_members() {
            page.sample("", &[("group", &group.name), ("member", &member.name)], value(member));
        }
    };
    write_each(
        "plimsoll_member_in_flight",
        MetricKind::Gauge,
        "Requests, sessions or flows it works on.",
        |m| f64::from(m.in_flight),
    );
    write_each("plimsoll_member_capacity", MetricKind::Gauge, "Configured, relative to the others.", |m| {
        m.capacity
    });
    write_each("plimsoll_member_weight", MetricKind::Gauge, "Capacity times what slow start allows.", |m| {
        m.weight
    });
    write_each("plimsoll_member_idle_connections", MetricKind::Gauge, "Connections kept for reuse.", |m| {
        m.idle_connections as f64
    });
    write_each(
        "plimsoll_member_alert_share",
        MetricKind::Gauge,
        "Part of its sessions that is to go; 0 without an alert.",
        |m| m.alert_share,
    );
    write_each("plimsoll_member_failures_total", MetricKind::Counter, "Requests that failed.", |m| {
        m.failures as f64
    });
    write_each(
        "plimsoll_member_clients_left_total",
        MetricKind::Counter,
        "Requests that clients gave up.",
        |m| m.clients_left as f64,
    );
    write_each("plimsoll_member_leases", MetricKind::Gauge, "Leases of it in force.", |m| m.leases as f64);
    write_each(
        "plimsoll_member_moved_total",
        MetricKind::Counter,
        "Sessions sent elsewhere: under alert, drained, or at their wish.",
        |m| m.moved as f64,
    );
    write_each("plimsoll_member_connects_total", MetricKind::Counter, "Connections opened to it.", |m| {
        m.connects as f64
    });
    write_each("plimsoll_member_sent_bytes_total", MetricKind::Counter, "Bytes sent to it.", |m| {
        m.bytes_out as f64
    });
    write_each("plimsoll_member_received_bytes_total", MetricKind::Counter, "Bytes received from it.", |m| {
        m.bytes_in as f64
    });
    loads(page, groups);
}

/// Writes the members' loads. Unknown values have no sample: 0 would be an idle member.
fn loads(page: &mut MetricsPage, groups: &[GroupStatus]) {
    page.family("plimsoll_group_load", MetricKind::Gauge, "Mean of the loads that strategies go by.");
    for group in groups {
        if let Some(load) = group.load {
            page.sample("", &[("group", &group.name)], load);
        }
    }
    let mut write_each = |name, help, value: fn(&MemberStatus) -> Option<f64>| {
        page.family(name, MetricKind::Gauge, help);
        for (group, member) in
            groups.iter().flat_map(|group| group.members.iter().map(move |member| (group, member)))
        {
            if let Some(value) = value(member) {
                page.sample("", &[("group", &group.name), ("member", &member.name)], value);
            }
        }
    };
    write_each("plimsoll_member_load", "As last reported, in the unit of the group's metric.", |m| {
        m.load.map(|load| load.value)
    });
    write_each("plimsoll_member_report_age_seconds", "Since its load was measured.", |m| {
        m.load.map(|load| load.age_seconds)
    });
    write_each("plimsoll_member_said_age_seconds", "Since it said with an answer what it can do.", |m| {
        m.said_age_seconds
    });
    write_each("plimsoll_member_load_effective", "What strategies make of its loads.", |m| m.load_effective);
    write_each(
        "plimsoll_member_knee",
        "Requests it works on at once before they slow one another down.",
        |m| m.knee,
    );
    write_each("plimsoll_member_limit", "Most requests at once, configured or by its knee.", |m| {
        m.limit.map(f64::from)
    });
}

pub(crate) fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

fn state_label(state: MemberState) -> &'static str {
    match state {
        MemberState::Up => "up",
        MemberState::SlowStart => "slow_start",
        MemberState::Unchecked => "unchecked",
        MemberState::Down => "down",
        MemberState::Ejected => "ejected",
        MemberState::Draining => "draining",
        MemberState::Disabled => "disabled",
    }
}

#[derive(Clone, Copy)]
pub(crate) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
    Summary,
}

/// A page being written: a family, then its samples.
#[derive(Default)]
pub(crate) struct MetricsPage {
    pub(crate) text: String,
    name: &'static str,
}

impl MetricsPage {
    pub(crate) fn family(&mut self, name: &'static str, kind: MetricKind, help: &str) {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
            MetricKind::Summary => "summary",
        };
        self.name = name;
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub(crate) fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        for (index, (name, value)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{name}=\"", if index == 0 { '{' } else { ',' });
            for character in value.chars() {
                match character {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    other => self.text.push(other),
                }
            }
            self.text.push('"');
        }
        let _ = writeln!(self.text, "{} {}", if labels.is_empty() { "" } else { "}" }, number(value));
    }
}

fn number(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".into(),
        f64::NEG_INFINITY => "-Inf".into(),
        value => value.to_string(),
    }
}
