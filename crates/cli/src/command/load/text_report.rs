//! The outcome on a terminal, and as HdrHistogram's percentile distribution.

use std::fmt::Write as _;

use plimsoll_bench::record::LatencyHistogram;
use plimsoll_bench::units::format_duration;

use super::result::LoadResult;
use super::threshold::ThresholdVerdict;
use crate::control::format::{TextStyle, group_digits, sanitize};

/// Returns the text for people.
pub(super) fn render(outcome: &LoadResult, verdicts: &[ThresholdVerdict], color: bool) -> String {
    let record = &outcome.record;
    let mut out = String::new();
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(out, "{name:<10} {text}");
    };
    line("target", &sanitize(&outcome.setup.targets.join("  ")));
    let seed = outcome.setup.seed.map_or_else(String::new, |seed| format!(", seed {seed}"));
    line("load", &format!("{}, {:.1} s{seed}", sanitize(&outcome.setup.pace), outcome.elapsed.as_secs_f64()));
    let share = |count: u64| count as f64 * 100.0 / record.due.max(1) as f64;
    let mut requests = format!(
        "{} due, {} answered ({:.2} %)",
        group_digits(record.due),
        group_digits(record.ok),
        share(record.ok)
    );
    if record.cut > 0 {
        let _ = write!(requests, ", {} cut off at the end", group_digits(record.cut));
    }
    line("requests", &requests);
    let failed: Vec<_> = record
        .failed
        .iter()
        .map(|(fault, count)| format!("{} {}", group_digits(*count), fault.name()))
        .collect();
    let failures = match failed.is_empty() {
        true => "none".to_owned(),
        false => format!(
            "{} ({:.3} %): {}",
            group_digits(record.failures()),
            share(record.failures()),
            failed.join(", ")
        ),
    };
    let style = if failed.is_empty() { TextStyle::Plain } else { TextStyle::Bad };
    line("failed", &style.paint(&failures, color));
    for (name, count) in &record.exceptions {
        line("exception", &format!("{}  {}", group_digits(*count), sanitize(name)));
    }
    if record.forwarded + record.returned_sessions > 0 {
        let (forwarded, returned) = (group_digits(record.forwarded), group_digits(record.returned_sessions));
        line("forwards", &format!("{forwarded} followed, {returned} sessions begun anew"));
    }
    line(
        "rate",
        &format!("offered {:.1}/s   completed {:.1}/s", outcome.offered_rate(), outcome.completed_rate()),
    );
    if !outcome.setup.is_closed_loop {
        line("latency", &format!("{}   from when it was due", quantiles(&record.latency)));
    }
    line("service", &format!("{}   from when it was sent", quantiles(&record.service)));
    if record.picks.count() > 0 {
        line("pick", &format!("{}   a part of these", quantiles(&record.picks)));
    }
    if !outcome.setup.is_closed_loop {
        let mut text = format!(
            "{:.3} % of the requests; late by p99 {}, at most {}",
            record.punctuality() * 100.0,
            format_duration(record.lateness.quantile(0.99)),
            format_duration(record.lateness.max())
        );
        if record.waited > 0 {
            let _ = write!(text, "; {} waited for a connection", group_digits(record.waited));
        }
        line("on time", &text);
    }
    let per_request = outcome.cpu_time.as_secs_f64() * 1e6 / record.due.max(1) as f64;
    line("generator", &format!("{per_request:.1} µs of processor time per request"));
    let shares = record.shares();
    for (name, answers) in &record.members {
        let share = shares.get(name).copied().unwrap_or(0.0) * 100.0;
        let mut text =
            format!("{}  {share:.1} %  p99 {}", sanitize(name), format_percentile(&answers.latency, 0.99));
        if answers.failed > 0 {
            let _ = write!(text, "  failed {}", group_digits(answers.failed));
        }
        line("member", &text);
    }
    for threshold_verdict in verdicts {
        let (label, style) =
            if threshold_verdict.passed { ("passed", TextStyle::Good) } else { ("FAILED", TextStyle::Bad) };
        line(
            "fail if",
            &format!(
                "{}: {}, {}",
                threshold_verdict.text,
                threshold_verdict.display_value,
                style.paint(label, color)
            ),
        );
    }
    match outcome.invalid_reason() {
        None => line("verdict", &TextStyle::Good.paint("valid", color)),
        Some(reason) => line("verdict", &format!("{}: {reason}", TextStyle::Bad.paint("INVALID", color))),
    }
    out
}

fn quantiles(latencies: &LatencyHistogram) -> String {
    let format_part = |name: &str, q: f64| format!("{name} {}", format_percentile(latencies, q));
    format!(
        "{}  {}  {}  {}  max {}",
        format_part("p50", 0.5),
        format_part("p90", 0.9),
        format_part("p99", 0.99),
        format_part("p99.9", 0.999),
        format_percentile(latencies, 1.0)
    )
}

/// Returns a percentile, or `-` if there is none.
pub(super) fn format_percentile(latencies: &LatencyHistogram, q: f64) -> String {
    if latencies.count() == 0 { "-".to_owned() } else { format_duration(latencies.quantile(q)) }
}

/// Returns HdrHistogram's percentile distribution, in milliseconds, which its plotter reads.
pub(super) fn percentile_distribution(latencies: &LatencyHistogram) -> String {
    let mut out = String::from("       Value     Percentile TotalCount 1/(1-Percentile)\n\n");
    for step in latencies.percentiles(5) {
        let value = step.value.as_secs_f64() * 1e3;
        let _ = match step.quantile < 1.0 {
            true => writeln!(
                out,
                "{value:12.3} {:14.12} {:10} {:14.2}",
                step.quantile,
                step.count,
                1.0 / (1.0 - step.quantile)
            ),
            false => writeln!(out, "{value:12.3} {:14.12} {:10}", step.quantile, step.count),
        };
    }
    let mean = latencies.mean().as_secs_f64() * 1e3;
    let _ = writeln!(
        out,
        "#[Mean    = {mean:12.3}, StdDeviation   = {:12.3}]",
        latencies.deviation().as_secs_f64() * 1e3
    );
    let max = latencies.max().as_secs_f64() * 1e3;
    let _ = writeln!(out, "#[Max     = {max:12.3}, Total count    = {:12}]", latencies.count());
    out
}

#[cfg(test)]
mod tests {
    use super::super::result::sample;
    use super::*;

    #[test]
    fn the_summary() {
        let outcome = sample::outcome();
        let verdicts = ["p99>50ms".parse(), "failed>5%".parse()]
            .map(|threshold: Result<super::super::Threshold, _>| threshold.unwrap().judge(&outcome));
        insta::assert_snapshot!(render(&outcome, &verdicts, false), @r"
        target     http://127.0.0.1:8080/
        load       poisson, 10/s, 10.0 s, seed 7
        requests   100 due, 98 answered (98.00 %)
        failed     2 (2.000 %): 2 timeout
        rate       offered 10.0/s   completed 9.8/s
        latency    p50 50.0 ms  p90 90.0 ms  p99 5.00 s  p99.9 5.00 s  max 5.00 s   from when it was due
        service    p50 49.0 ms  p90 89.0 ms  p99 98.0 ms  p99.9 98.0 ms  max 98.0 ms   from when it was sent
        on time    100.000 % of the requests; late by p99 40 µs, at most 40 µs
        generator  1200.0 µs of processor time per request
        member     m1  75.5 %  p99 98.3 ms
        member     m2  24.5 %  p99 96.3 ms
        fail if    p99>50ms: 5.00 s, FAILED
        fail if    failed>5%: 2.000 %, passed
        verdict    valid
        ");
    }

    #[test]
    fn the_distribution() {
        let text = percentile_distribution(&sample::outcome().record.latency);
        assert!(text.lines().nth(2).unwrap().contains("0.000000000000"), "{text}");
        assert!(text.contains("#[Max     =     5001.215, Total count    =          100]"), "{text}");
        let rows: Vec<f64> = text
            .lines()
            .skip(2)
            .take_while(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
            .collect();
        assert!(rows.len() > 20 && rows.is_sorted());
    }
}
