//! The clients' results: the report at the end, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use plimsoll_bench::record::{FailureKind, LatencyHistogram, RunRecord};
use plimsoll_bench::units::format_duration;
use serde::Serialize;

use super::Args;
use super::counts::{DemoEvent, DemoPhase, RunCounts};
use super::processes::{MemberSummary, WORKERS};
use super::scenario::PUNCTUALITY_TOLERANCE;
use crate::command::CliExitCode;
use crate::control::format::{TableCell, TextStyle, group_digits, table};

/// The least share of the requests on time; a run below it proves nothing.
const MIN_ON_TIME_SHARE: f64 = 0.99;

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum RunVerdict {
    /// No request failed.
    Ok,
    /// At least one request failed.
    Failed,
    /// The load generator was late too often.
    Invalid,
    /// Ctrl-C ended the run.
    Interrupted,
}

/// The whole report; field names are a contract.
#[derive(Debug, Serialize)]
pub(super) struct DemoReport {
    schema: u32,
    verdict: RunVerdict,
    why: String,
    strategy: String,
    members: usize,
    /// The members, for people.
    #[serde(skip)]
    cast: String,
    service_seconds: f64,
    workers: usize,
    offered_per_second: f64,
    seed: u64,
    seconds: f64,
    #[serde(flatten)]
    requests: RequestTotals,
    /// The lateness up to which a request left on time, in seconds.
    tolerance: f64,
    lateness: LatencyQuantiles,
    phases: Vec<PhaseReport>,
    events: Vec<DemoEvent>,
    /// The retries by the balancer's count; `null` if it could not be asked.
    retries: Option<u64>,
    /// Whether this binary was compiled for speed; latencies of one that was not are higher.
    optimized: bool,
}

/// The results of requests.
#[derive(Debug, Serialize)]
struct RequestTotals {
    requests: u64,
    answered: u64,
    failed: u64,
    failures: BTreeMap<FailureKind, u64>,
    /// The requests in flight at an interruption.
    cut: u64,
    /// The share that left on time.
    on_time: f64,
    /// The latency from the moment each was due; failures count with the time-out.
    latency: LatencyQuantiles,
}

#[derive(Debug, Serialize)]
struct PhaseReport {
    name: String,
    from: f64,
    to: f64,
    #[serde(flatten)]
    requests: RequestTotals,
    members: Vec<MemberReport>,
}

#[derive(Debug, Serialize)]
struct MemberReport {
    name: String,
    answered: u64,
    share: f64,
    latency: LatencyQuantiles,
}

/// Quantiles in seconds.
#[derive(Debug, Serialize)]
struct LatencyQuantiles {
    p50: f64,
    p99: f64,
    max: f64,
}

impl LatencyQuantiles {
    fn from_latencies(latencies: &LatencyHistogram) -> Self {
        let seconds = |q| latencies.quantile(q).as_secs_f64();
        Self { p50: seconds(0.5), p99: seconds(0.99), max: latencies.max().as_secs_f64() }
    }

    /// Returns median and 99th percentile: `4.6 / 118 ms`
    fn median_and_p99(&self) -> String {
        if self.p99 >= 0.9995 {
            return format!("{} / {}", format_seconds(self.p50), format_seconds(self.p99));
        }
        let ms = |seconds: f64| format!("{:.*}", usize::from(seconds < 0.009_95), seconds * 1e3);
        format!("{} / {} ms", ms(self.p50), ms(self.p99))
    }
}

impl RequestTotals {
    fn from_record(record: &RunRecord) -> Self {
        Self {
            requests: record.due,
            answered: record.ok,
            failed: record.failures(),
            failures: record.failed.clone(),
            cut: record.cut,
            on_time: record.punctuality(),
            latency: LatencyQuantiles::from_latencies(&record.latency),
        }
    }
}

/// Makes the report. `retries` is the balancer's count, if it could be asked.
pub(super) fn build_report(
    args: &Args,
    member_summary: &MemberSummary,
    counts: &RunCounts,
    retries: Option<u64>,
    interrupted: bool,
) -> DemoReport {
    let total = counts.total();
    let (verdict, reason) = verdict(&total, interrupted);
    DemoReport {
        schema: 1,
        verdict,
        why: reason,
        strategy: args.strategy.clone(),
        members: member_summary.members.len(),
        cast: member_summary.to_string(),
        service_seconds: member_summary.service_time.as_secs_f64(),
        workers: WORKERS,
        offered_per_second: args.rate,
        seed: args.seed,
        seconds: counts.phases.last().map_or(0.0, |phase| phase.end.as_secs_f64()),
        requests: RequestTotals::from_record(&total),
        tolerance: PUNCTUALITY_TOLERANCE.as_secs_f64(),
        lateness: LatencyQuantiles::from_latencies(&total.lateness),
        phases: counts.phases.iter().map(|phase| phase_report(phase, &member_summary.members)).collect(),
        events: counts.events.clone(),
        retries,
        optimized: !cfg!(debug_assertions),
    }
}

fn verdict(total: &RunRecord, interrupted: bool) -> (RunVerdict, String) {
    let on_time = total.punctuality() * 100.0;
    if interrupted {
        (RunVerdict::Interrupted, format!("{} failed until then", format_count(total.failures(), "request")))
    } else if total.punctuality() < MIN_ON_TIME_SHARE {
        let reason = format!(
            "only {on_time:.1} % of the requests left on time; end what else runs here, or lower --rate"
        );
        (RunVerdict::Invalid, reason)
    } else if total.failures() > 0 {
        let reasons: Vec<String> =
            total.failed.iter().map(|(fault, count)| format!("{count} {}", fault.name())).collect();
        (
            RunVerdict::Failed,
            format!("{} failed: {}", format_count(total.failures(), "request"), reasons.join(", ")),
        )
    } else {
        (RunVerdict::Ok, format!("{} sent, none failed", format_count(total.due, "request")))
    }
}

fn phase_report(phase: &DemoPhase, names: &[String]) -> PhaseReport {
    let shares = phase.record.shares();
    let member = |name: &String| {
        let answers = phase.record.members.get(name.as_str());
        MemberReport {
            name: name.clone(),
            answered: answers.map_or(0, |answers| answers.ok),
            share: shares.get(name.as_str()).copied().unwrap_or(0.0),
            latency: answers.map_or_else(
                || LatencyQuantiles::from_latencies(&LatencyHistogram::new()),
                |answers| LatencyQuantiles::from_latencies(&answers.latency),
            ),
        }
    };
    PhaseReport {
        name: phase.name.clone(),
        from: phase.start.as_secs_f64(),
        to: phase.end.as_secs_f64(),
        requests: RequestTotals::from_record(&phase.record),
        members: names.iter().map(member).collect(),
    }
}

impl DemoReport {
    pub(super) fn exit_code(&self) -> ExitCode {
        match self.verdict {
            RunVerdict::Ok => ExitCode::SUCCESS,
            RunVerdict::Failed | RunVerdict::Invalid => ExitCode::FAILURE,
            RunVerdict::Interrupted => CliExitCode::Interrupted.into(),
        }
    }

    /// Returns the report for people.
    pub(super) fn render(&self, color: bool) -> String {
        let mut out = format!(
            "{} requests per second for {:.0} s, {}\n{}\n\n",
            self.offered_per_second, self.seconds, self.strategy, self.cast,
        );
        out.push_str(&table(&self.rows(), color));
        out.push('\n');
        for event in &self.events {
            let source = if event.by == "balancer" { "balancer: " } else { "" };
            let _ = writeln!(out, "{:>6.1} s  {source}{}", event.at, event.what);
        }
        let _ = writeln!(out, "\nload      {}", self.load_summary());
        if let Some(retries) = self.retries {
            let _ = writeln!(
                out,
                "balancer  {} tried again on another connection or member",
                format_count(retries, "request")
            );
        }
        if !self.optimized {
            let _ = writeln!(
                out,
                "build     compiled quickly, not for speed: latencies are higher than those of `make build`"
            );
        }
        let (label, style) = match self.verdict {
            RunVerdict::Ok => ("OK", TextStyle::Good),
            RunVerdict::Failed => ("FAILED", TextStyle::Bad),
            RunVerdict::Invalid => ("INVALID", TextStyle::Bad),
            RunVerdict::Interrupted => ("INTERRUPTED", TextStyle::Fair),
        };
        let _ = writeln!(out, "verdict   {}: {}", style.paint(label, color), self.why);
        out
    }

    fn load_summary(&self) -> String {
        format!(
            "Poisson; {:.2} % left on time (late by p99 {}, at most {})",
            self.requests.on_time * 100.0,
            format_seconds(self.lateness.p99),
            format_seconds(self.lateness.max),
        )
    }

    /// Returns a table with a column for each phase.
    fn rows(&self) -> Vec<Vec<TableCell>> {
        let row = |name: &str, value: &dyn Fn(&PhaseReport) -> TableCell| {
            let mut row = vec![TableCell::text(name)];
            row.extend(self.phases.iter().map(value));
            row
        };
        let mut rows = vec![
            row("", &|phase| TableCell::text(&phase.name).style(TextStyle::Strong)),
            row("", &|phase| {
                TableCell::text(&format!("{:.0} to {:.0} s", phase.from, phase.to)).style(TextStyle::Faint)
            }),
            row("requests", &|phase| TableCell::text(&group_digits(phase.requests.requests))),
            row("failed", &|phase| {
                let style = if phase.requests.failed > 0 { TextStyle::Bad } else { TextStyle::Good };
                TableCell::text(&group_digits(phase.requests.failed)).style(style)
            }),
            row("p50 / p99", &|phase| TableCell::text(&phase.requests.latency.median_and_p99())),
        ];
        for (index, member) in self.phases.first().iter().flat_map(|phase| phase.members.iter().enumerate()) {
            rows.push(row(&member.name, &|phase| {
                let member = &phase.members[index];
                TableCell::text(&match member.answered {
                    0 => " 0 %".to_owned(),
                    _ => format!("{:>2.0} %, {}", member.share * 100.0, member.latency.median_and_p99()),
                })
            }));
        }
        rows
    }
}

fn format_seconds(seconds: f64) -> String {
    format_duration(std::time::Duration::from_secs_f64(seconds))
}

/// Returns a number with its noun: `1 request`, `12 000 requests`
fn format_count(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", group_digits(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use plimsoll_bench::record::MemberTally as Answers;

    use super::*;

    fn record(failed: u64, on_time: u64) -> RunRecord {
        let mut record = RunRecord::new();
        (record.due, record.on_time, record.ok) = (1000, on_time, 1000 - failed);
        if failed > 0 {
            record.failed.insert(FailureKind::Timeout, failed);
        }
        record.latency.record(Duration::from_micros(4600));
        let mut answers = Answers { ok: 1000 - failed, ..Answers::default() };
        answers.latency.record(Duration::from_micros(4600));
        record.members.insert("m1".into(), answers);
        record
    }

    #[test]
    fn verdicts() {
        let judge = |failed, on_time, interrupted| verdict(&record(failed, on_time), interrupted);
        assert_eq!(judge(0, 1000, false), (RunVerdict::Ok, "1 000 requests sent, none failed".to_owned()));
        assert_eq!(judge(1, 1000, false), (RunVerdict::Failed, "1 request failed: 1 timeout".to_owned()));
        let (outcome, reason) = judge(1, 989, false);
        assert!(outcome == RunVerdict::Invalid && reason.contains("only 98.9 %"), "{reason}");
        assert_eq!(judge(0, 10, true).0, RunVerdict::Interrupted);
    }

    #[test]
    fn pairs_of_latencies() {
        let pair = |p50, p99| LatencyQuantiles { p50, p99, max: 9.0 }.median_and_p99();
        assert_eq!(pair(0.000_2, 0.004_6), "0.2 / 4.6 ms");
        assert_eq!(pair(0.004_6, 0.118), "4.6 / 118 ms");
        assert_eq!(pair(0.043, 1.2), "43.0 ms / 1.20 s");
    }

    fn report() -> DemoReport {
        let mut counts = RunCounts::new("all is well");
        counts.add(Duration::from_secs(10), record(0, 1000));
        counts.begin_phase(Duration::from_secs(10), "m2 10x slower");
        counts.add(Duration::from_secs(20), record(3, 1000));
        counts.add_event(Duration::from_secs(10), "demo", "m2 is now 10 times slower".to_owned());
        let member_summary =
            MemberSummary { members: vec!["m1".into(), "m2".into()], service_time: Duration::from_millis(6) };
        let args = Args {
            duration: Duration::from_secs(20),
            rate: 100.0,
            members: 2,
            strategy: "round_robin".to_owned(),
            seed: 1,
            no_live: true,
            tie: Vec::new(),
        };
        build_report(&args, &member_summary, &counts, Some(7), false)
    }

    #[test]
    fn the_report() {
        let report = DemoReport { optimized: false, ..report() };
        insta::assert_snapshot!(report.render(false), @r"
        100 requests per second for 20 s, round_robin
        2 members, 4 workers each, exp 6.00 ms

                   all is well          m2 10x slower
                   0 to 10 s            10 to 20 s
        requests   1 000                1 000
        failed     0                    3
        p50 / p99  4.6 / 4.6 ms         4.6 / 4.6 ms
        m1         100 %, 4.6 / 4.6 ms  100 %, 4.6 / 4.6 ms
        m2          0 %                  0 %

          10.0 s  m2 is now 10 times slower

        load      Poisson; 100.00 % left on time (late by p99 0 µs, at most 0 µs)
        balancer  7 requests tried again on another connection or member
        build     compiled quickly, not for speed: latencies are higher than those of `make build`
        verdict   FAILED: 3 requests failed: 3 timeout
        ");
    }

    #[test]
    fn shares_and_failures_by_phase_are_in_the_json() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["verdict"], "failed");
        assert_eq!(json["requests"], 2000);
        assert_eq!(json["failures"]["timeout"], 3);
        assert_eq!(json["phases"][1]["failed"], 3);
        assert_eq!(json["phases"][0]["members"][0]["share"], 1.0);
        assert_eq!(json["phases"][0]["members"][1]["answered"], 0);
        assert_eq!(json["events"][0]["by"], "demo");
        assert_eq!(json["retries"], 7);
    }
}
