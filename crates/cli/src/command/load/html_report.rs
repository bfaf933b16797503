//! The outcome as one self-contained page.

use std::fmt::Write as _;

use plimsoll_bench::plot::{self, Chart, ChartAxis, ChartPoint, ChartSeries, SeriesStyle, escape};
use plimsoll_bench::record::LatencyHistogram;
use plimsoll_bench::units::format_duration;

use super::result::{LoadResult, QUANTILES, TimelineSlice};
use super::text_report::format_percentile;
use super::threshold::ThresholdVerdict;
use crate::control::format::group_digits;

/// The maximum number of points of a line over time: neighbours are thinned out.
const MAX_POINTS: usize = 600;

/// Returns the page in HTML.
pub(super) fn render(outcome: &LoadResult, verdicts: &[ThresholdVerdict]) -> String {
    let record = &outcome.record;
    let title = format!("Load on {}", outcome.setup.targets.join(", "));
    let mut body = format!(
        "<h1>{}</h1>\n<p class=\"dim\">{}, {:.1} s, Plimsoll {}</p>\n",
        escape(&title),
        escape(&outcome.setup.pace),
        outcome.elapsed.as_secs_f64(),
        env!("CARGO_PKG_VERSION")
    );
    let verdict = match outcome.invalid_reason() {
        None => "<p><span class=\"good\">✔ valid</span> · the generator kept its times</p>\n".to_owned(),
        Some(reason) => format!("<p><span class=\"bad\">✘ INVALID</span> · {}</p>\n", escape(&reason)),
    };
    body += &verdict;
    for threshold_verdict in verdicts {
        let (class, label) =
            if threshold_verdict.passed { ("good", "✔ passed") } else { ("bad", "✘ FAILED") };
        let _ = writeln!(
            body,
            "<p><span class=\"{class}\">{label}</span> · fail if {}: {}</p>",
            escape(&threshold_verdict.text),
            escape(&threshold_verdict.display_value)
        );
    }
    let failed: Vec<_> = record
        .failed
        .iter()
        .map(|(fault, count)| format!("{} {}", group_digits(*count), fault.name()))
        .collect();
    let _ = writeln!(
        body,
        "<div class=\"scroll\"><table><tr><th>requests \
         due</th><th>answered</th><th>failed</th><th>offered</th>\
         <th>completed</th><th>on \
         time</th></tr><tr><td>{}</td><td>{}</td><td>{}</td><td>{:.1}/s</td><td>{:.1}/s</td>\
         <td>{:.3} %</td></tr></table></div>",
        group_digits(record.due),
        group_digits(record.ok),
        if failed.is_empty() { "none".to_owned() } else { failed.join(", ") },
        outcome.offered_rate(),
        outcome.completed_rate(),
        record.punctuality() * 100.0
    );
    body += "<h2>Latency</h2>\n";
    body += &latency_table(outcome);
    body += &render_figure(
        &distribution_chart(outcome),
        "Read it from the right: one request in a hundred took longer than at 100. \
         Requests that failed count with the time-out at least.",
    );
    body += "<h2>Over time</h2>\n";
    body += &render_figure(
        &rate_chart(outcome),
        "Requests that became due, were answered and failed, per second.",
    );
    body += &render_figure(&latency_chart(outcome), "Latency of the requests that ended in each slice.");
    if !record.members.is_empty() {
        body += "<h2>Members</h2>\n";
        body += &member_table(outcome);
    }
    plot::page(&title, &body)
}

fn render_figure(chart: &Chart, caption: &str) -> String {
    format!("<figure>{}<figcaption>{}</figcaption></figure>\n", chart.svg(), escape(caption))
}

fn latency_table(outcome: &LoadResult) -> String {
    let mut out = String::from("<div class=\"scroll\"><table><tr><th></th><th>mean</th>");
    for (name, _) in QUANTILES {
        let name = name.replace("p999", "p99.9");
        let _ = write!(out, "<th>{name}</th>");
    }
    out += "<th>max</th></tr>\n";
    let mut row = |name: &str, latencies: &LatencyHistogram| {
        let _ = write!(out, "<tr><td>{name}</td><td>{}</td>", format_duration(latencies.mean()));
        for (_, q) in QUANTILES {
            let _ = write!(out, "<td>{}</td>", format_percentile(latencies, q));
        }
        let _ = writeln!(out, "<td>{}</td></tr>", format_percentile(latencies, 1.0));
    };
    let record = &outcome.record;
    if !outcome.setup.is_closed_loop {
        row("latency, from when a request was due", &record.latency);
    }
    row("service time, from when it was sent", &record.service);
    if !outcome.setup.is_closed_loop {
        row("lateness of the generator itself", &record.lateness);
    }
    out + "</table></div>\n"
}

fn distribution_chart(outcome: &LoadResult) -> Chart {
    let series = |name: &str, latencies: &LatencyHistogram, style| ChartSeries {
        name: name.to_owned(),
        points: latencies
            .percentiles(5)
            .filter(|step| step.quantile < 1.0)
            .map(|step| ChartPoint::at(1.0 / (1.0 - step.quantile), step.value.as_secs_f64() * 1e3))
            .collect(),
        style,
    };
    let mut all_series = vec![series("service time", &outcome.record.service, SeriesStyle::Dashed)];
    if !outcome.setup.is_closed_loop {
        all_series.insert(0, series("latency", &outcome.record.latency, SeriesStyle::Line));
    }
    Chart {
        title: "Latency by percentile".into(),
        x: ChartAxis { label: "1 request in …".into(), log: true, zero: false },
        y: ChartAxis { label: "milliseconds".into(), log: true, zero: false },
        series: all_series,
        notes: Vec::new(),
    }
}

fn rate_chart(outcome: &LoadResult) -> Chart {
    let series = |name: &str, count: fn(&TimelineSlice) -> u64, style| ChartSeries {
        name: name.to_owned(),
        points: thin_timeline(&outcome.timeline)
            .map(|slice| ChartPoint::at(slice.at, count(slice) as f64 / slice.span.max(1e-9)))
            .collect(),
        style,
    };
    Chart {
        title: "Requests per second".into(),
        x: ChartAxis { label: "seconds".into(), log: false, zero: true },
        y: ChartAxis { label: "per second".into(), log: false, zero: true },
        series: vec![
            series("answered", |slice| slice.ok, SeriesStyle::Line),
            series("failed", |slice| slice.failed, SeriesStyle::Line),
            series("offered", |slice| slice.due, SeriesStyle::Dashed),
        ],
        notes: Vec::new(),
    }
}

fn latency_chart(outcome: &LoadResult) -> Chart {
    let series = |name: &str, value: fn(&TimelineSlice) -> Option<f64>| ChartSeries {
        name: name.to_owned(),
        points: thin_timeline(&outcome.timeline)
            .filter_map(|slice| Some(ChartPoint::at(slice.at, value(slice)? * 1e3)))
            .collect(),
        style: SeriesStyle::Line,
    };
    Chart {
        title: "Latency over time".into(),
        x: ChartAxis { label: "seconds".into(), log: false, zero: true },
        y: ChartAxis { label: "milliseconds".into(), log: true, zero: false },
        series: vec![series("p50", |slice| slice.p50), series("p99", |slice| slice.p99)],
        notes: Vec::new(),
    }
}

fn thin_timeline(timeline: &[TimelineSlice]) -> impl Iterator<Item = &TimelineSlice> {
    timeline.iter().step_by(timeline.len().div_ceil(MAX_POINTS).max(1))
}

fn member_table(outcome: &LoadResult) -> String {
    let mut out = String::from(
        "<div class=\"scroll\"><table>\
         <tr><th>member</th><th>answered</th><th>share</th><th>failed</th><th>p99</th></tr>\n",
    );
    let shares = outcome.record.shares();
    for (name, answers) in &outcome.record.members {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{:.1} %</td><td>{}</td><td>{}</td></tr>",
            escape(name),
            group_digits(answers.ok),
            shares.get(name).copied().unwrap_or(0.0) * 100.0,
            group_digits(answers.failed),
            format_percentile(&answers.latency, 0.99)
        );
    }
    out + "</table></div>\n"
}

#[cfg(test)]
mod tests {
    use super::super::result::sample;
    use super::*;

    #[test]
    fn the_page_says_it_all_and_trusts_no_name() {
        let mut outcome = sample::outcome();
        outcome.record.on_time = 90;
        outcome.record.members.entry("<script>alert(1)</script>".into()).or_default();
        let verdict = "p99>50ms".parse::<super::super::Threshold>().unwrap().judge(&outcome);
        let page = render(&outcome, &[verdict]);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
        assert!(page.contains("INVALID") && page.contains("✘ FAILED") && page.contains("2 timeout"));
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(!page.contains("src=") && !page.contains("href="), "it needs nothing from elsewhere");
    }

    #[test]
    fn a_long_run_is_thinned_out() {
        let timeline = vec![TimelineSlice::default(); 86_400];
        assert!((300..=MAX_POINTS).contains(&thin_timeline(&timeline).count()));
        assert_eq!(thin_timeline(&timeline[..10]).count(), 10);
    }
}
