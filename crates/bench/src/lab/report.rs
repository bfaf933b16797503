//! The output of a run: one HTML page with every figure and every claim, the figures as SVG beside it, and
//! the machine-readable `claims.json`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::claim::{Verdict, format_estimate};
use super::experiment::Experiment;
use super::metric::Metric;
use super::point::MIN_PUNCTUALITY;
use super::statistics::Estimate;
use super::store::{self, PointFile, RunFile};
use super::table::{EstimateTable, format_levels};
use super::{LabError, figure, plan};
use crate::plot::{escape, page};

mod model;

/// The summary of a report.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The version of this format.
    pub version: u32,
    /// The name of the experiment.
    pub name: String,
    /// The length: `quick` or `full`.
    pub mode: String,
    /// Whether all required and decided claims hold, and all points that were not skipped exist and are
    /// valid.
    pub pass: bool,
    /// The reason why nothing was run, so that no claim is decided.
    pub skipped: Option<String>,
    /// The balancers that this machine lacks, with the reasons: their points were skipped.
    pub missing: BTreeMap<String, String>,
    /// The number of existing points, and of those that belong to the run and were not skipped.
    pub points: (usize, usize),
    /// The points with a late load.
    pub invalid: Vec<String>,
    /// The claims.
    pub claims: Vec<DecidedClaim>,
    /// The differences of the results from the paper's.
    pub differs: String,
    /// The path of the page.
    #[serde(skip)]
    pub page: PathBuf,
}

/// A claim and its verdict.
#[derive(Clone, Debug, Serialize)]
pub struct DecidedClaim {
    /// The claim as a sentence.
    pub says: String,
    /// The paper's statement.
    pub paper: String,
    /// Whether the results support the claim.
    pub pass: bool,
    /// Whether the claim is decided. If its points were skipped it is undecided and does not pass either.
    pub decided: bool,
    /// Whether the claim must hold.
    pub required: bool,
    /// The numbers that decided it.
    pub numbers: Vec<String>,
}

/// Writes the report of the run in `folder`, from the existing points.
///
/// # Errors
/// Fails if the run cannot be read or a file cannot be written.
pub fn write(folder: &Path) -> Result<RunReport, LabError> {
    let run = RunFile::read(folder)?;
    let experiment = run.experiment()?;
    let points = store::read_points(folder)?;
    let mut table = store::build_table(&points);
    let mut expected = run.points;
    let planned = plan::points(&experiment, run.mode());
    for point in &planned {
        if let Some(reason) = run.skip_reason(&point.levels) {
            table.push_skipped(point.levels.clone(), reason);
            expected = expected.saturating_sub(1);
        }
    }
    let claims = experiment.claims.iter().map(|claim| {
        let Verdict { pass, decided, numbers } = match &run.skipped {
            None if !claim.is_decidable_by(&planned) => {
                Verdict::undecided("not asked: the quick form has no points for it")
            }
            None => claim.test.get_ref().decide(&table.filtered(&claim.only).with_source(claim.column)),
            Some(_) => Verdict::undecided("not decided: the run was skipped"),
        };
        DecidedClaim {
            says: claim.says.clone(),
            paper: claim.paper.clone(),
            pass,
            decided,
            required: claim.required,
            numbers,
        }
    });
    let claims: Vec<DecidedClaim> = claims.collect();
    let late_points = points.iter().filter(|point| point.outcome.is_late());
    let invalid: Vec<String> = late_points.map(|point| format_levels(&point.levels)).collect();
    let report = RunReport {
        version: store::VERSION,
        name: run.name.clone(),
        mode: run.mode.clone(),
        pass: claims.iter().all(|claim| claim.pass || !claim.decided || !claim.required)
            && invalid.is_empty()
            && points.len() == expected
            && run.skipped.is_none(),
        skipped: run.skipped.clone(),
        missing: run.missing.clone(),
        points: (points.len(), expected),
        invalid,
        claims,
        differs: experiment.differs.trim().to_owned(),
        page: folder.join("report.html"),
    };
    let mut figures = String::new();
    for figure_settings in &experiment.figures {
        let chart = figure::chart(figure_settings, &experiment, &points, &table);
        let svg = chart.svg();
        store::write_text(&folder.join(format!("{}.svg", figure_settings.name)), &svg)?;
        let paper = labelled_paragraphs("The paper: ", &figure_settings.paper);
        let empty_note = if chart.series.is_empty() { "No point of it has been measured yet. " } else { "" };
        let time_note = if figure::is_over_time(figure_settings) {
            "Mean of the repetitions, second by second. "
        } else {
            ""
        };
        let _ = writeln!(
            figures,
            "<figure>{svg}<figcaption>{empty_note}{time_note}{paper}</figcaption></figure>"
        );
    }
    let body = [
        head(&run, &experiment, &report, points.iter().map(|point| point.outcome.again).sum()),
        verdicts(&report),
        format!("<h2>Figures</h2>\n{figures}"),
        model::section(&table, &points),
        numbers(&table, &points),
        origin(&run, &experiment),
    ];
    store::write_text(&report.page, &page(&format!("{}: {}", run.name, experiment.title), &body.concat()))?;
    store::write(&folder.join("claims.json"), &report)?;
    Ok(report)
}

fn head(run: &RunFile, experiment: &Experiment, report: &RunReport, retried_repetitions: u32) -> String {
    let mut out = format!(
        "<h1>{}</h1>\n<p class=\"dim\">{} · {} run · {} of {} points · {} · plimsoll {}</p>\n",
        escape(&experiment.title),
        escape(&run.name),
        escape(&run.mode),
        report.points.0,
        report.points.1,
        escape(&run.machine),
        escape(&run.program)
    );
    if let Some(reason) = &report.skipped {
        let reason = escape(reason);
        let _ =
            writeln!(out, "<p class=\"bad\">SKIPPED: {reason}. Nothing was run and no claim is decided.</p>");
    } else {
        let passed = report.claims.iter().filter(|claim| claim.pass).count();
        let class = if report.pass { "good" } else { "bad" };
        let undecided_count = report.claims.iter().filter(|claim| !claim.decided).count();
        let undecided_note =
            if undecided_count > 0 { format!(", {undecided_count} not decided") } else { String::new() };
        let _ = writeln!(
            out,
            "<p class=\"{class}\">{passed} of {} claims hold{undecided_note}</p>",
            report.claims.len()
        );
    }
    for (balancer, reason) in &report.missing {
        let (balancer, reason) = (escape(balancer), escape(reason));
        let _ = writeln!(
            out,
            "<p class=\"bad\">SKIPPED: {balancer}: {reason}. No claim that needs it is decided.</p>"
        );
    }
    if report.skipped.is_none() && report.points.0 < report.points.1 {
        out += "<p class=\"bad\">Not all points have been measured: <code>--resume</code> goes on.</p>\n";
    }
    for name in &report.invalid {
        let _ = writeln!(
            out,
            "<p class=\"bad\">INVALID: {}: less than {:.0} % of the requests left on time; the load \
             generator was the \
             bottleneck and the point proves nothing.</p>",
            escape(name),
            MIN_PUNCTUALITY * 100.0
        );
    }
    if retried_repetitions > 0 {
        let _ = writeln!(
            out,
            "<p>Run again because requests left late, and not counted: {retried_repetitions} repetitions.</p>"
        );
    }
    if !experiment.paper.is_empty() {
        let _ = writeln!(out, "<p>{}</p>", escape(&experiment.paper));
    }
    for paragraph in paragraphs(&experiment.about) {
        let _ = writeln!(out, "<p>{}</p>", escape(&paragraph));
    }
    let _ = writeln!(out, "<p>Servers: {}.</p>", escape(&experiment.members.description()));
    let _ = writeln!(out, "<p>Network: {}.</p>", escape(&experiment.network_description()));
    for sentence in run.before.sentences(experiment) {
        let _ = writeln!(out, "<p>Measured before: {}.</p>", escape(&sentence));
    }
    out
}

fn verdicts(report: &RunReport) -> String {
    let mut out = "<h2>Claims</h2>\n<div class=\"scroll\"><table>\n<tr><th class=\"text\">claim</th><th \
                   class=\"text\">\
                   holds</th><th class=\"text\">decided by</th></tr>\n"
        .to_owned();
    for claim in &report.claims {
        let (class, outcome) = match (claim.pass, claim.decided, claim.required) {
            (true, ..) => ("good", "✔ pass"),
            (false, false, _) => ("dim", "? not decided"),
            (false, true, true) => ("bad", "✘ FAIL"),
            (false, true, false) => ("bad", "✘ fails, see below"),
        };
        let numbers: Vec<String> = claim.numbers.iter().map(|number| escape(number)).collect();
        let paper = labelled_paragraphs("<br>The paper: ", &claim.paper);
        let _ = writeln!(
            out,
            "<tr><td class=\"text\">{}<span class=\"dim\">{paper}</span></td><td class=\"text {class}\" \
             style=\"white-space:nowrap\">{outcome}</td>\
             <td class=\"text\">{}</td></tr>",
            escape(&claim.says),
            numbers.join("<br>")
        );
    }
    out += "</table></div>\n";
    if !report.differs.is_empty() {
        out += "<h2>Where it differs from the paper, and why</h2>\n";
        for paragraph in paragraphs(&report.differs) {
            let _ = writeln!(out, "<p>{}</p>", escape(&paragraph));
        }
    }
    out
}

/// Returns a table of every estimate of every point.
fn numbers(table: &EstimateTable, points: &[PointFile]) -> String {
    let metrics = [
        Metric::Throughput,
        Metric::Response,
        Metric::P99,
        Metric::Speed,
        Metric::Speedup,
        Metric::Efficiency,
        Metric::Utilisation,
        Metric::Success,
        Metric::TimedOut,
        Metric::Refused,
        Metric::Shed,
        Metric::Unpicked,
        Metric::Pick,
        Metric::PickP99,
        Metric::Duplicates,
        Metric::TwoMembers,
        Metric::CommitDelay,
        Metric::DaemonCpu,
        Metric::DaemonBusy,
        Metric::Dispersion,
        Metric::Moves,
        Metric::Moved,
        Metric::Surge,
        Metric::FirstSecond,
        Metric::Regained,
        Metric::BalancerCpu,
        Metric::HostCpu,
        Metric::ServerA,
        Metric::ServerB,
        Metric::CpuA,
        Metric::CpuB,
        Metric::Agent,
        Metric::CpuAgent,
        Metric::Met,
        Metric::Cost,
        Metric::Members,
    ];
    let metric_values: Vec<(Metric, Vec<_>)> =
        metrics.map(|metric| (metric, table.values(metric, |_| true).collect())).into_iter().collect();
    let shown_metrics: Vec<_> = metric_values.iter().filter(|(_, values)| !values.is_empty()).collect();
    let mut out =
        "<h2>Numbers</h2>\n<details><summary>All points, with 95 % confidence intervals</summary>\n<div \
                   class=\"scroll\"><table>\n<tr><th class=\"text\">point</th>"
            .to_owned();
    for (metric, _) in &shown_metrics {
        let _ = write!(out, "<th>{}</th>", escape(metric.label()));
    }
    out += "</tr>\n";
    for point in points {
        let _ = write!(out, "<tr><td class=\"text\">{}</td>", escape(&format_levels(&point.levels)));
        for (_, values) in &shown_metrics {
            let value: Option<&(_, Estimate)> = values.iter().find(|(levels, _)| **levels == point.levels);
            let _ = write!(
                out,
                "<td>{}</td>",
                value.map_or_else(String::new, |(_, estimate)| format_estimate(estimate))
            );
        }
        out += "</tr>\n";
    }
    out + "</table></div></details>\n"
}

fn origin(run: &RunFile, experiment: &Experiment) -> String {
    let mode = run.mode();
    let plan = &experiment.plan;
    let interleaving_note = if plan.interleaved { ", the balancers in turn" } else { "" };
    let is_closed_loop =
        |point: &plan::ExperimentPoint| matches!(point.load, plan::OfferedLoad::Concurrency(_));
    let lengthening_note = match plan::points(experiment, mode).iter().any(is_closed_loop) {
        true => " (both longer where clients take long to go around)",
        false => "",
    };
    format!(
        "<h2>How it was made</h2>\n<p>Each point: {} repetitions of {} s in {} batches{interleaving_note}, \
         after {} s of warm-up{lengthening_note}; the \
         samples of all of them give the intervals (Student's t). The load came from this program's own \
         generator, \
         in a process apart from balancer and members, on the same machine. The run took {:.0} s.</p>\n\
         <p class=\"dim\">SHA-256 of the experiment <code>{}</code>, of the binary <code>{}</code></p>\n\
         <details><summary>The experiment file</summary><pre>{}</pre></details>\n",
        plan.repetitions.for_length(mode).get_ref(),
        plan.duration.for_length(mode).0.as_secs_f64(),
        plan.batches.for_length(mode),
        plan.warmup.for_length(mode).0.as_secs_f64(),
        run.took,
        run.experiment_sha256,
        run.binary_sha256,
        escape(&run.experiment)
    )
}

fn labelled_paragraphs(label: &str, text: &str) -> String {
    if text.trim().is_empty() { String::new() } else { format!("{label}{}", escape(text.trim())) }
}

/// Splits a text at empty lines and joins the lines of each part.
fn paragraphs(text: &str) -> Vec<String> {
    let join_words = |paragraph: &str| paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    text.split("\n\n").map(join_words).filter(|paragraph| !paragraph.is_empty()).collect()
}
