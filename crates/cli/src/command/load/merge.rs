//! Saved results, added up: generators that ran side by side make one result.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_bench::record::{FailureKind, LatencyHistogram, RunRecord};
use serde::Deserialize;

use super::result::{LoadResult, RunSetup, TimelineSlice};
use super::{CliError, usage_error};
use crate::command::GlobalArgs;

/// The parts of a result that are read back.
#[derive(Deserialize)]
struct SavedResult {
    version: u32,
    targets: Vec<String>,
    arrival: String,
    closed: bool,
    // These three may be missing in a file.
    #[serde(default)]
    seed: Option<u64>,
    #[serde(default)]
    interrupted: bool,
    #[serde(default)]
    reason: Option<String>,
    seconds: f64,
    due: u64,
    on_time: u64,
    waited: u64,
    ok: u64,
    failed: BTreeMap<String, u64>,
    // The exceptions may be missing in a file.
    #[serde(default)]
    exceptions: BTreeMap<String, u64>,
    #[serde(default)]
    forwarded: u64,
    #[serde(default)]
    returned: u64,
    ok_in_time: u64,
    cut: u64,
    cpu_seconds: f64,
    members: BTreeMap<String, SavedMember>,
    timeline: Vec<SavedSlice>,
    histograms: SavedHistograms,
}

#[derive(Deserialize)]
struct SavedMember {
    ok: u64,
    failed: u64,
}

#[derive(Deserialize)]
struct SavedSlice {
    at: f64,
    seconds: f64,
    due: u64,
    ok: u64,
    failed: u64,
}

#[derive(Deserialize)]
struct SavedHistograms {
    latency: String,
    service: String,
    lateness: String,
}

/// Returns the sum of several results. Percentiles are those of all requests together; values that the
/// histograms do not hold (latency over time, latency by member) are left out.
pub(super) fn merge_results(files: &[PathBuf], globals: &GlobalArgs) -> Result<LoadResult, CliError> {
    let mut sum = LoadResult::default();
    let mut seeds: HashMap<u64, &Path> = HashMap::new();
    for file in files {
        let result = read(file).map_err(|error| usage_error(format_args!("{}: {error}", file.display())))?;
        if sum.record.due > 0 && sum.setup.is_closed_loop != result.setup.is_closed_loop {
            return Err(usage_error(format_args!(
                "{}: a closed loop and an open one do not add up",
                file.display()
            )));
        }
        if let Some(seed) = result.setup.seed.filter(|_| !result.setup.is_closed_loop)
            && let Some(other_file) = seeds.insert(seed, file)
        {
            globals.print_always(&format!(
                "warning: {} and {} have the same seed: their requests were due at the same moments, in \
                 pairs; leave \
                 --seed out\n",
                other_file.display(),
                file.display()
            ));
        }
        sum.is_interrupted |= result.is_interrupted;
        if sum.run_flaw.is_none() {
            sum.run_flaw = result.run_flaw.map(|flaw| format!("{}: {flaw}", file.display()));
        }
        sum.record.merge(&result.record);
        sum.setup.is_closed_loop = result.setup.is_closed_loop;
        for target in result.setup.targets {
            if !sum.setup.targets.contains(&target) {
                sum.setup.targets.push(target);
            }
        }
        sum.setup.pace = match sum.setup.pace.as_str() {
            "" => result.setup.pace,
            pace => format!("{pace} + {}", result.setup.pace),
        };
        sum.elapsed = sum.elapsed.max(result.elapsed);
        sum.answered_in_time += result.answered_in_time;
        sum.cpu_time += result.cpu_time;
        for (index, slice) in result.timeline.into_iter().enumerate() {
            match sum.timeline.get_mut(index) {
                Some(merged) => {
                    merged.due += slice.due;
                    merged.ok += slice.ok;
                    merged.failed += slice.failed;
                }
                None => sum.timeline.push(slice),
            }
        }
    }
    Ok(sum)
}

fn read(file: &Path) -> Result<LoadResult, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let saved: SavedResult = serde_json::from_str(&text)
        .map_err(|error| format!("{error}; expected what `plimsoll load --save` wrote"))?;
    if saved.version != 1 {
        return Err(format!("version {}: this program reads version 1", saved.version));
    }
    // The bounds are a century and a quadrillion: larger values would not add up.
    let seconds = |value: f64| match (0.0..=3.2e9).contains(&value) {
        true => Ok(Duration::from_secs_f64(value)),
        false => Err(format!("{value} is no length of time in seconds")),
    };
    let slices = saved.timeline.iter().flat_map(|slice| [slice.due, slice.ok, slice.failed]);
    let members = saved.members.values().flat_map(|member| [member.ok, member.failed]);
    let counts = [saved.due, saved.on_time, saved.waited, saved.ok, saved.ok_in_time, saved.cut];
    let counts = counts.into_iter().chain([saved.forwarded, saved.returned]);
    let reasons = saved.failed.values().chain(saved.exceptions.values()).copied();
    let mut counts = counts.chain(reasons).chain(slices).chain(members);
    if let Some(count) = counts.find(|count| *count > 1_000_000_000_000_000) {
        return Err(format!("{count} is no number of requests"));
    }
    let mut record = RunRecord {
        due: saved.due,
        on_time: saved.on_time,
        waited: saved.waited,
        ok: saved.ok,
        exceptions: saved.exceptions.into_iter().map(|(name, count)| (name.into(), count)).collect(),
        forwarded: saved.forwarded,
        returned_sessions: saved.returned,
        cut: saved.cut,
        latency: LatencyHistogram::decode(&saved.histograms.latency)?,
        service: LatencyHistogram::decode(&saved.histograms.service)?,
        lateness: LatencyHistogram::decode(&saved.histograms.lateness)?,
        ..RunRecord::new()
    };
    for (name, count) in saved.failed {
        let fault = FailureKind::from_name(&name).ok_or_else(|| format!("`{name}` is no kind of failure"))?;
        record.failed.insert(fault, count);
    }
    for (name, member) in saved.members {
        let answers = record.members.entry(name.into()).or_default();
        (answers.ok, answers.failed) = (member.ok, member.failed);
    }
    let slice = |slice: SavedSlice| TimelineSlice {
        at: slice.at,
        span: slice.seconds,
        due: slice.due,
        ok: slice.ok,
        failed: slice.failed,
        p50: None,
        p99: None,
    };
    Ok(LoadResult {
        setup: RunSetup {
            targets: saved.targets,
            pace: saved.arrival,
            is_closed_loop: saved.closed,
            seed: saved.seed,
        },
        record,
        timeline: saved.timeline.into_iter().map(slice).collect(),
        elapsed: seconds(saved.seconds)?,
        answered_in_time: saved.ok_in_time,
        cpu_time: seconds(saved.cpu_seconds)?,
        is_interrupted: saved.interrupted,
        run_flaw: saved.reason,
    })
}
