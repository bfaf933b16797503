//! The outcome as one self-contained page.

use std::fmt::Write as _;

use plimsoll_bench::plot::{self, Axis, Chart, Point, Series, Style, escape};
use plimsoll_bench::record::Latencies;
use plimsoll_bench::units::short;

use super::outcome::{Outcome, QUANTILES, Slice};
use super::text::at;
use super::threshold::Judged;
use crate::control::text::grouped;

/// The maximum number of points of a line over time: neighbours are thinned out.
const POINTS: usize = 600;

/// Returns the page in HTML.
pub(super) fn render(outcome: &Outcome, judged: &[Judged]) -> String {
    let record = &outcome.record;
    let title = format!("Load on {}", outcome.setup.targets.join(", "));
    let mut body = format!(
        "<h1>{}</h1>\n<p class=\"dim\">{}, {:.1} s, Plimsoll {}</p>\n",
        escape(&title),
        escape(&outcome.setup.pace),
        outcome.elapsed.as_secs_f64(),
        env!("CARGO_PKG_VERSION")
    );
    let verdict = match outcome.invalid() {
        None => "<p><span class=\"good\">✔ valid</span> · the generator kept its times</p>\n".to_owned(),
        Some(reason) => format!("<p><span class=\"bad\">✘ INVALID</span> · {}</p>\n", escape(&reason)),
    };
    body += &verdict;
    for judged in judged {
        let (class, word) = if judged.passed { ("good", "✔ passed") } else { ("bad", "✘ FAILED") };
        let _ = writeln!(
            body,
            "<p><span class=\"{class}\">{word}</span> · fail if {}: {}</p>",
            escape(&judged.text),
            escape(&judged.shown)
        );
    }
    let failed: Vec<_> =
        record.failed.iter().map(|(fault, count)| format!("{} {}", grouped(*count), fault.name())).collect();
    let _ = writeln!(
        body,
        "<div class=\"scroll\"><table><tr><th>requests due</th><th>answered</th><th>failed</th><th>offered</th>\
         <th>completed</th><th>on time</th></tr><tr><td>{}</td><td>{}</td><td>{}</td><td>{:.1}/s</td><td>{:.1}/s</td>\
         <td>{:.3} %</td></tr></table></div>",
        grouped(record.due),
        grouped(record.ok),
        if failed.is_empty() { "none".to_owned() } else { failed.join(", ") },
        outcome.offered(),
        outcome.completed(),
        record.punctuality() * 100.0
    );
    body += "<h2>Latency</h2>\n";
    body += &latencies(outcome);
    body += &figure(
        &distribution(outcome),
        "Read it from the right: one request in a hundred took longer than at 100. \
         Requests that failed count with the time-out at least.",
    );
    body += "<h2>Over time</h2>\n";
    body += &figure(&rates(outcome), "Requests that became due, were answered and failed, per second.");
    body += &figure(&over_time(outcome), "Latency of the requests that ended in each slice.");
    if !record.members.is_empty() {
        body += "<h2>Members</h2>\n";
        body += &members(outcome);
    }
    plot::page(&title, &body)
}

fn figure(chart: &Chart, caption: &str) -> String {
    format!("<figure>{}<figcaption>{}</figcaption></figure>\n", chart.svg(), escape(caption))
}

fn latencies(outcome: &Outcome) -> String {
    let mut out = String::from("<div class=\"scroll\"><table><tr><th></th><th>mean</th>");
    for (name, _) in QUANTILES {
        let name = name.replace("p999", "p99.9");
        let _ = write!(out, "<th>{name}</th>");
    }
    out += "<th>max</th></tr>\n";
    let mut row = |name: &str, latencies: &Latencies| {
        let _ = write!(out, "<tr><td>{name}</td><td>{}</td>", short(latencies.mean()));
        for (_, q) in QUANTILES {
            let _ = write!(out, "<td>{}</td>", at(latencies, q));
        }
        let _ = writeln!(out, "<td>{}</td></tr>", at(latencies, 1.0));
    };
    let record = &outcome.record;
    if !outcome.setup.closed {
        row("latency, from when a request was due", &record.latency);
    }
    row("service time, from when it was sent", &record.service);
    if !outcome.setup.closed {
        row("lateness of the generator itself", &record.lateness);
    }
    out + "</table></div>\n"
}

fn distribution(outcome: &Outcome) -> Chart {
    let series = |name: &str, latencies: &Latencies, style| Series {
        name: name.to_owned(),
        points: latencies
            .percentiles(5)
            .filter(|step| step.quantile < 1.0)
            .map(|step| Point::at(1.0 / (1.0 - step.quantile), step.value.as_secs_f64() * 1e3))
            .collect(),
        style,
    };
    let mut all = vec![series("service time", &outcome.record.service, Style::Dashed)];
    if !outcome.setup.closed {
        all.insert(0, series("latency", &outcome.record.latency, Style::Line));
    }
    Chart {
        title: "Latency by percentile".into(),
        x: Axis { label: "1 request in …".into(), log: true, zero: false },
        y: Axis { label: "milliseconds".into(), log: true, zero: false },
        series: all,
        notes: Vec::new(),
    }
}

fn rates(outcome: &Outcome) -> Chart {
    let series = |name: &str, count: fn(&Slice) -> u64, style| Series {
        name: name.to_owned(),
        points: thinned(&outcome.timeline)
            .map(|slice| Point::at(slice.at, count(slice) as f64 / slice.span.max(1e-9)))
            .collect(),
        style,
    };
    Chart {
        title: "Requests per second".into(),
        x: Axis { label: "seconds".into(), log: false, zero: true },
        y: Axis { label: "per second".into(), log: false, zero: true },
        series: vec![
            series("answered", |slice| slice.ok, Style::Line),
            series("failed", |slice| slice.failed, Style::Line),
            series("offered", |slice| slice.due, Style::Dashed),
        ],
        notes: Vec::new(),
    }
}

fn over_time(outcome: &Outcome) -> Chart {
    let series = |name: &str, value: fn(&Slice) -> Option<f64>| Series {
        name: name.to_owned(),
        points: thinned(&outcome.timeline)
            .filter_map(|slice| Some(Point::at(slice.at, value(slice)? * 1e3)))
            .collect(),
        style: Style::Line,
    };
    Chart {
        title: "Latency over time".into(),
        x: Axis { label: "seconds".into(), log: false, zero: true },
        y: Axis { label: "milliseconds".into(), log: true, zero: false },
        series: vec![series("p50", |slice| slice.p50), series("p99", |slice| slice.p99)],
        notes: Vec::new(),
    }
}

fn thinned(timeline: &[Slice]) -> impl Iterator<Item = &Slice> {
    timeline.iter().step_by(timeline.len().div_ceil(POINTS).max(1))
}

fn members(outcome: &Outcome) -> String {
    let mut out = String::from(
        "<div class=\"scroll\"><table><tr><th>member</th><th>answered</th><th>share</th><th>failed</th><th>p99</th></tr>\n",
    );
    let shares = outcome.record.shares();
    for (name, tally) in &outcome.record.members {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{:.1} %</td><td>{}</td><td>{}</td></tr>",
            escape(name),
            grouped(tally.ok),
            shares.get(name).copied().unwrap_or(0.0) * 100.0,
            grouped(tally.failed),
            at(&tally.latency, 0.99)
        );
    }
    out + "</table></div>\n"
}

#[cfg(test)]
mod tests {
    use super::super::outcome::sample;
    use super::*;

    #[test]
    fn the_page_says_it_all_and_trusts_no_name() {
        let mut outcome = sample::outcome();
        outcome.record.on_time = 90;
        outcome.record.members.entry("<script>alert(1)</script>".into()).or_default();
        let judged = "p99>50ms".parse::<super::super::Threshold>().unwrap().judge(&outcome);
        let page = render(&outcome, &[judged]);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
        assert!(page.contains("INVALID") && page.contains("✘ FAILED") && page.contains("2 timeout"));
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(!page.contains("src=") && !page.contains("href="), "it needs nothing from elsewhere");
    }

    #[test]
    fn a_long_run_is_thinned_out() {
        let timeline = vec![Slice::default(); 86_400];
        assert!((300..=POINTS).contains(&thinned(&timeline).count()));
        assert_eq!(thinned(&timeline[..10]).count(), 10);
    }
}
