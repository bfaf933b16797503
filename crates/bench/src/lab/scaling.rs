//! Members under autoscaling: their number, the needed number, and a rating of both.
//!
//! *Hindsight* is an ideal scaler that knows the load curve in advance. It starts a needed member in time,
//! pays for it from then on, and keeps it over a gap that is shorter than a start. `crates/brain/tests/scale`
//! compares with it on the same day in virtual time.

use serde::{Deserialize, Serialize};

use super::LabError;
use super::child_process::ProcessLauncher;
use super::experiment::{PointScaler, ScalingPolicy};
use super::horizontal_autoscaler::HorizontalAutoscaler;
use super::point::TimelineTick;
use super::proxy_under_test::{ProxyUnderTest, http_request_within};

/// The numbers of members in a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberCounts {
    /// The mean number of those that were started and have not been stopped.
    pub there: f64,
    /// The minimum number of those that served.
    pub serving: u32,
    /// The number needed to meet the goal.
    pub needed: u32,
}

/// The numbers of members at a time, as reported by plimsoll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ScaledMembers {
    pub(super) existing: u32,
    pub(super) serving: u32,
}

/// The balancer's settings for starting members, and their fixed number if it does not scale itself.
#[derive(Clone, Debug)]
pub(super) struct ScalerSetup {
    pub(super) scaler: PointScaler,
    /// The command that starts a member, with `{address}` and `{index}`.
    pub(super) command: Vec<String>,
    pub(super) count: Option<u32>,
}

/// Sleeps and becomes a member: `$0` is this program, the first argument the time, the others the member's
/// arguments.
const SLEEP_SCRIPT: &str = r#"sleep "$1"; shift; exec "$0" "$@""#;

impl ScalerSetup {
    /// Creates the settings for members with the flags `told`, the same in all points with this `seed`.
    pub(super) fn new(
        launcher: &ProcessLauncher,
        scaler: &PointScaler,
        member_arguments: &[String],
        seed: u64,
    ) -> Self {
        let program = launcher.program.display().to_string();
        // The last argument of the launcher is the parent, which is plimsoll here.
        let launcher_arguments = launcher.arguments.split_last().map_or(&[][..], |(_, head)| head);
        let arguments: Vec<String> =
            launcher_arguments.iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
        // The member ends with plimsoll even if that is killed, as all processes of a point end with the
        // runner.
        let script = format!(
            "exec \"$0\" {} \"$PPID\" /bin/sh -c '{SLEEP_SCRIPT}' \"$0\" \"$@\"",
            arguments.join(" ")
        );
        let mut command: Vec<String> = ["/bin/sh", "-c", &script, &program].map(str::to_owned).to_vec();
        command.push(format!("{:.3}", scaler.settings.start.0.as_secs_f64()));
        command.extend(["member", "--listen={address}", "--name=m{index}"].map(str::to_owned));
        command.push(format!("--seed={}{{index}}", seed.max(1)));
        command.extend_from_slice(member_arguments);
        let count = matches!(scaler.policy, ScalingPolicy::Reactive(_)).then_some(scaler.settings.min);
        Self { scaler: scaler.clone(), command, count }
    }

    /// Returns the minimum number of members.
    pub(super) fn min_members(&self) -> u32 {
        self.scaler.settings.min
    }
}

/// The scaler beside the balancer, if the balancer does not scale itself.
#[derive(Debug)]
pub(super) struct LabScaler(Option<HorizontalAutoscaler>);

impl LabScaler {
    pub(super) fn new(scaler: &PointScaler) -> Self {
        let ScalingPolicy::Reactive(target_utilization) = scaler.policy else { return Self(None) };
        Self(Some(HorizontalAutoscaler::new(
            scaler.settings.reactive,
            target_utilization,
            scaler.settings.min,
            scaler.settings.max,
        )))
    }

    /// Decides if a decision is due; `now` is in seconds since the load began.
    pub(super) fn run_if_due(&mut self, proxy: &mut ProxyUnderTest, now: f64) -> Result<(), LabError> {
        let Some(autoscaler) = self.0.as_mut().filter(|reactive| reactive.is_due(now)) else { return Ok(()) };
        let busy_times = proxy.serving_members().into_iter().filter_map(|address| {
            let text = http_request_within(LOAD_TIMEOUT, address, "GET", "/_plimsoll/load").ok()?;
            let busy_seconds = serde_json::from_str::<serde_json::Value>(&text).ok()?["busy"].as_f64()?;
            Some((address, busy_seconds))
        });
        match autoscaler.decide(now, busy_times.collect()) {
            Some(count) => proxy.set_member_count(count),
            None => Ok(()),
        }
    }
}

/// The time within which a member must report its use.
const LOAD_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(100);

/// The rating of a day.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ScalingRating {
    /// The part of the time in which the goal was met: enough members served, no request failed, and the mean
    /// response time was within its limit.
    pub(super) goal_met: f64,
    /// Member-seconds over those of hindsight.
    pub(super) cost: f64,
}

/// Rates these ticks; `None` if the members were not scaled in them.
pub(super) fn rate_scaling(scaler: &PointScaler, ticks: &[TimelineTick]) -> Option<ScalingRating> {
    let goal = scaler.settings.response.0.as_secs_f64();
    let (mut met_seconds, mut member_seconds, mut total_seconds) = (0.0, 0.0, 0.0);
    for tick in ticks {
        let counts = tick.roll?;
        let goal_kept = tick.ok > 0 && tick.failed == 0 && tick.response <= goal;
        met_seconds += if goal_kept && counts.serving >= counts.needed { tick.seconds } else { 0.0 };
        member_seconds += counts.there * tick.seconds;
        total_seconds += tick.seconds;
    }
    let needed: Vec<(f64, u32)> =
        ticks.iter().filter_map(|tick| Some((tick.seconds, tick.roll?.needed))).collect();
    let optimal_seconds = hindsight_cost(&needed, scaler.settings.start.0.as_secs_f64());
    (total_seconds > 0.0 && optimal_seconds > 0.0).then(|| ScalingRating {
        goal_met: met_seconds / total_seconds,
        cost: member_seconds / optimal_seconds,
    })
}

/// Returns the member-seconds of hindsight for the needed numbers and their times; a member takes `start`
/// seconds to start. The members needed at the beginning are already running.
fn hindsight_cost(needed: &[(f64, u32)], start_seconds: f64) -> f64 {
    let max_needed = needed.iter().map(|(_, count)| *count).max().unwrap_or(0);
    let mut member_seconds = 0.0;
    for member in 1..=max_needed {
        // The time for which it was not needed; `None` before its first use.
        let mut idle_seconds = Some(0.0);
        for (seconds, count) in needed {
            if *count < member {
                idle_seconds = idle_seconds.map(|gap| gap + seconds);
                continue;
            }
            // Keeping a member costs no more than starting a new one.
            member_seconds += seconds + idle_seconds.unwrap_or(0.0).min(start_seconds);
            idle_seconds = Some(0.0);
        }
    }
    member_seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hindsight_pays_for_starts_and_keeps_over_short_gaps() {
        // One all the time, and a second one for the last of three seconds.
        assert_eq!(hindsight_cost(&[(1.0, 1), (1.0, 1), (1.0, 2)], 3.0), 3.0 + 3.0);
        assert_eq!(hindsight_cost(&[(1.0, 1), (9.0, 1), (1.0, 2)], 3.0), 11.0 + 4.0);
        // A gap of a second is cheaper than a start.
        assert_eq!(hindsight_cost(&[(1.0, 2), (1.0, 1), (1.0, 2)], 3.0), 3.0 + 3.0);
        assert_eq!(hindsight_cost(&[(1.0, 2), (9.0, 1), (1.0, 2)], 3.0), 11.0 + 2.0 + 3.0);
        assert_eq!(hindsight_cost(&[], 3.0), 0.0);
    }

    #[test]
    fn the_goal_is_about_members_answers_and_failures() {
        let text = "min = 1\nmax = 9\nstart = \"3s\"\nheadroom = 0.25\nresponse = \"160ms\"\nstabilize = \
                    \"5s\"\ncool_down = \"2s\"\n\
                    step = { scale_out = 4, scale_in = 1 }";
        let scaler = toml::from_str::<super::super::experiment::ScalerSettings>(text)
            .unwrap()
            .for_run(None, 1.0, 25.0);
        let good_tick = TimelineTick {
            seconds: 1.0,
            ok: 9,
            response: 0.05,
            roll: Some(MemberCounts { there: 3.0, serving: 2, needed: 2 }),
            ..TimelineTick::default()
        };
        let rating = rate_scaling(&scaler, &[good_tick.clone(), good_tick.clone()]).unwrap();
        assert_eq!(rating, ScalingRating { goal_met: 1.0, cost: 1.5 });
        let goal_met_with = |bad_tick: TimelineTick| {
            rate_scaling(&scaler, &[good_tick.clone(), bad_tick]).map(|rating| rating.goal_met)
        };
        assert_eq!(goal_met_with(TimelineTick { failed: 1, ..good_tick.clone() }), Some(0.5));
        assert_eq!(goal_met_with(TimelineTick { response: 0.2, ..good_tick.clone() }), Some(0.5));
        assert_eq!(
            goal_met_with(TimelineTick {
                roll: Some(MemberCounts { there: 3.0, serving: 1, needed: 2 }),
                ..good_tick.clone()
            }),
            Some(0.5)
        );
        assert_eq!(goal_met_with(TimelineTick { roll: None, ..good_tick.clone() }), None);
    }

    #[test]
    fn members_sleep_first_and_are_tied_to_the_balancer() {
        let text = "min = 2\nmax = 9\nstart = \"3s\"\nheadroom = 0.25\nresponse = \"160ms\"\nstabilize = \
                    \"5s\"\ncool_down = \"2s\"\n\
                    step = { scale_out = 4, scale_in = 1 }";
        let settings = toml::from_str::<super::super::experiment::ScalerSettings>(text).unwrap();
        let launcher = ProcessLauncher {
            program: "/bin/plimsoll".into(),
            arguments: ["lab", "tie", "17"].map(Into::into).to_vec(),
            open_picker: |_| Err("not here".to_owned()),
        };
        let setup = ScalerSetup::new(
            &launcher,
            &settings.for_run(Some("reactive:0.5"), 0.5, 25.0),
            &["--cores=1".to_owned()],
            3,
        );
        assert_eq!(setup.count, Some(2));
        assert!(
            setup.command[2].starts_with("exec \"$0\" lab tie \"$PPID\" /bin/sh -c 'sleep"),
            "{:?}",
            setup.command
        );
        assert_eq!(setup.command[3..5], ["/bin/plimsoll", "1.500"]);
        assert_eq!(
            setup.command[5..],
            ["member", "--listen={address}", "--name=m{index}", "--seed=3{index}", "--cores=1"]
        );
    }
}
