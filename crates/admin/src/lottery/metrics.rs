//! The status of a lottery daemon as a Prometheus page.

use super::{DaemonCounters, DaemonStatus};
use crate::metrics::{MetricKind, MetricsPage, flag};

type CounterRow = (&'static str, &'static str, fn(&DaemonCounters) -> u64);

const COUNTS: [CounterRow; 18] = [
    ("plimsoll_lottery_received_total", "Datagrams that came.", |it| it.received),
    ("plimsoll_lottery_sent_total", "Datagrams that went.", |it| it.sent),
    ("plimsoll_lottery_referred_total", "Answers by referral.", |it| it.referred),
    ("plimsoll_lottery_won_total", "Answers by lottery.", |it| it.won),
    ("plimsoll_lottery_stood_in_total", "Those of them that were another's.", |it| it.stood_in),
    ("plimsoll_lottery_turned_away_total", "Answers without a server.", |it| it.turned_away),
    ("plimsoll_lottery_repeated_total", "Answers repeated for a repeated request.", |it| it.repeated),
    ("plimsoll_lottery_duplicates_total", "Requests that another answered as well.", |it| it.duplicates),
    ("plimsoll_lottery_limited_total", "Requests of sources that ask too much.", |it| it.limited),
    ("plimsoll_lottery_forgotten_total", "Requests forgotten before their time.", |it| it.forgotten),
    ("plimsoll_lottery_dropped_total", "What did not fit into a queue.", |it| it.dropped),
    ("plimsoll_lottery_unsent_total", "What was to be sent and could not be.", |it| it.unsent),
    ("plimsoll_lottery_forged_total", "Datagrams with a wrong tag.", |it| it.forged),
    ("plimsoll_lottery_unknown_key_total", "Datagrams of a key that does not count.", |it| it.unknown_key),
    ("plimsoll_lottery_malformed_total", "Datagrams that say nothing.", |it| it.malformed),
    ("plimsoll_lottery_replayed_total", "What came again.", |it| it.replayed),
    ("plimsoll_lottery_misused_total", "Datagrams that a key for clients may not seal.", |it| it.misused),
    ("plimsoll_lottery_implausible_total", "What is said of lives of long after now.", |it| it.implausible),
];

/// Returns the whole page.
pub(super) fn metrics_page(status: &DaemonStatus) -> String {
    let mut page = MetricsPage::default();
    page.family("plimsoll_build_info", MetricKind::Gauge, "What runs; always 1.");
    page.sample("", &[("version", &status.version)], 1.0);
    for (name, help, count) in COUNTS {
        page.family(name, MetricKind::Counter, help);
        page.sample("", &[], count(&status.counts) as f64);
    }
    let mut gauge = |name, help, value: f64| {
        page.family(name, MetricKind::Gauge, help);
        page.sample("", &[], value);
    };
    gauge(
        "plimsoll_lottery_last_reload_successful",
        "0 if it was refused.",
        flag(status.reload_error.is_none()),
    );
    gauge("plimsoll_lottery_draining", "1 if clients are sent to others.", flag(status.state != "up"));
    gauge("plimsoll_lottery_members", "Other daemons that are there.", status.members.len() as f64);
    gauge("plimsoll_lottery_pending", "Requests that wait for another daemon.", status.pending as f64);
    gauge("plimsoll_lottery_queued", "Messages, commits and ids that wait.", status.queued as f64);
    gauge("plimsoll_lottery_duplicate_share", "Of its answers by lottery.", status.duplicate_share);
    gauge(
        "plimsoll_lottery_digest_disagreement",
        "Members that know something else.",
        status.digest_disagreement,
    );
    gauge("plimsoll_lottery_step_seconds", "How long a rank waits for the one before.", status.step_seconds);
    gauge(
        "plimsoll_lottery_prefer_referral",
        "1 if clients do better to ask one.",
        flag(status.prefer_referral),
    );
    gauge("plimsoll_lottery_remembers", "Requests that there is room to remember.", status.remembers as f64);
    gauge(
        "plimsoll_lottery_lag_seconds",
        "Delay of its last steps behind their due time.",
        status.lag_seconds,
    );
    if let Some(delay) = status.commit_delay_seconds {
        gauge("plimsoll_lottery_commit_delay_seconds", "39 of 40 commits came within it.", delay);
    }
    page.family("plimsoll_lottery_service_ready", MetricKind::Gauge, "1 if the server can do it.");
    for service in &status.services {
        page.sample("", &[("service", &service.name)], flag(service.ready));
    }
    page.family("plimsoll_lottery_service_enabled", MetricKind::Gauge, "0 if it was disabled.");
    for service in &status.services {
        page.sample("", &[("service", &service.name)], flag(service.enabled));
    }
    page.family("plimsoll_lottery_service_weight", MetricKind::Gauge, "What the server wants of the work.");
    for service in &status.services {
        page.sample("", &[("service", &service.name)], service.weight);
    }
    page.family("plimsoll_lottery_service_load", MetricKind::Gauge, "A share of what the server can do.");
    for service in &status.services {
        if let Some(load) = service.load {
            page.sample("", &[("service", &service.name)], load);
        }
    }
    crate::metrics::process_metrics(&mut page);
    page.text
}
