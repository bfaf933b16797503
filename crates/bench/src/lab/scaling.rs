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
const SLEEP: &str = r#"sleep "$1"; shift; exec "$0" "$@""#;

impl ScalerSetup {
    /// Creates the settings for members with the flags `told`, the same in all points with this `seed`.
    pub(super) fn new(tie: &ProcessLauncher, crew: &PointScaler, told: &[String], seed: u64) -> Self {
        let program = tie.program.display().to_string();
        // The last argument of the launcher is the parent, which is plimsoll here.
        let words = tie.arguments.split_last().map_or(&[][..], |(_, words)| words);
        let tied: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        // The member ends with plimsoll even if that is killed, as all processes of a point end with the
        // runner.
        let script = format!("exec \"$0\" {} \"$PPID\" /bin/sh -c '{SLEEP}' \"$0\" \"$@\"", tied.join(" "));
        let mut command: Vec<String> = ["/bin/sh", "-c", &script, &program].map(str::to_owned).to_vec();
        command.push(format!("{:.3}", crew.settings.start.0.as_secs_f64()));
        command.extend(["member", "--listen={address}", "--name=m{index}"].map(str::to_owned));
        command.push(format!("--seed={}{{index}}", seed.max(1)));
        command.extend_from_slice(told);
        let count = matches!(crew.policy, ScalingPolicy::Reactive(_)).then_some(crew.settings.min);
        Self { scaler: crew.clone(), command, count }
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
    pub(super) fn new(crew: &PointScaler) -> Self {
        let ScalingPolicy::Reactive(wanted) = crew.policy else { return Self(None) };
        Self(Some(HorizontalAutoscaler::new(
            crew.settings.reactive,
            wanted,
            crew.settings.min,
            crew.settings.max,
        )))
    }

    /// Decides if a decision is due; `now` is in seconds since the load began.
    pub(super) fn run_if_due(&mut self, front: &mut ProxyUnderTest, now: f64) -> Result<(), LabError> {
        let Some(reactive) = self.0.as_mut().filter(|reactive| reactive.is_due(now)) else { return Ok(()) };
        let busy = front.serving_members().into_iter().filter_map(|address| {
            let text = http_request_within(PATIENCE, address, "GET", "/_plimsoll/load").ok()?;
            let busy = serde_json::from_str::<serde_json::Value>(&text).ok()?["busy"].as_f64()?;
            Some((address, busy))
        });
        match reactive.decide(now, busy.collect()) {
            Some(count) => front.set_member_count(count),
            None => Ok(()),
        }
    }
}

/// The time within which a member must report its use.
const PATIENCE: std::time::Duration = std::time::Duration::from_millis(100);

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
pub(super) fn rate_scaling(crew: &PointScaler, ticks: &[TimelineTick]) -> Option<ScalingRating> {
    let goal = crew.settings.response.0.as_secs_f64();
    let (mut met, mut paid, mut all) = (0.0, 0.0, 0.0);
    for tick in ticks {
        let roll = tick.roll?;
        let kept = tick.ok > 0 && tick.failed == 0 && tick.response <= goal;
        met += if kept && roll.serving >= roll.needed { tick.seconds } else { 0.0 };
        paid += roll.there * tick.seconds;
        all += tick.seconds;
    }
    let needed: Vec<(f64, u32)> =
        ticks.iter().filter_map(|tick| Some((tick.seconds, tick.roll?.needed))).collect();
    let hindsight = hindsight(&needed, crew.settings.start.0.as_secs_f64());
    (all > 0.0 && hindsight > 0.0).then(|| ScalingRating { goal_met: met / all, cost: paid / hindsight })
}

/// Returns the member-seconds of hindsight for the needed numbers and their times; a member takes `start`
/// seconds to start. The members needed at the beginning are already running.
fn hindsight(needed: &[(f64, u32)], start: f64) -> f64 {
    let most = needed.iter().map(|(_, count)| *count).max().unwrap_or(0);
    let mut paid = 0.0;
    for member in 1..=most {
        // The time for which it was not needed; `None` before its first use.
        let mut idle = Some(0.0);
        for (seconds, count) in needed {
            if *count < member {
                idle = idle.map(|idle| idle + seconds);
                continue;
            }
            // Keeping a member costs no more than starting a new one.
            paid += seconds + idle.unwrap_or(0.0).min(start);
            idle = Some(0.0);
        }
    }
    paid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hindsight_pays_for_starts_and_keeps_over_short_gaps() {
        // One all the time, and a second one for the last of three seconds.
        assert_eq!(hindsight(&[(1.0, 1), (1.0, 1), (1.0, 2)], 3.0), 3.0 + 3.0);
        assert_eq!(hindsight(&[(1.0, 1), (9.0, 1), (1.0, 2)], 3.0), 11.0 + 4.0);
        // A gap of a second is cheaper than a start.
        assert_eq!(hindsight(&[(1.0, 2), (1.0, 1), (1.0, 2)], 3.0), 3.0 + 3.0);
        assert_eq!(hindsight(&[(1.0, 2), (9.0, 1), (1.0, 2)], 3.0), 11.0 + 2.0 + 3.0);
        assert_eq!(hindsight(&[], 3.0), 0.0);
    }

    #[test]
    fn the_goal_is_about_members_answers_and_failures() {
        let text = "min = 1\nmax = 9\nstart = \"3s\"\nheadroom = 0.25\nresponse = \"160ms\"\nstabilize = \
                    \"5s\"\ncool_down = \"2s\"\n\
                    step = { scale_out = 4, scale_in = 1 }";
        let crew = toml::from_str::<super::super::experiment::ScalerSettings>(text)
            .unwrap()
            .for_run(None, 1.0, 25.0);
        let good = TimelineTick {
            seconds: 1.0,
            ok: 9,
            response: 0.05,
            roll: Some(MemberCounts { there: 3.0, serving: 2, needed: 2 }),
            ..TimelineTick::default()
        };
        let day = rate_scaling(&crew, &[good.clone(), good.clone()]).unwrap();
        assert_eq!(day, ScalingRating { goal_met: 1.0, cost: 1.5 });
        let met = |bad: TimelineTick| rate_scaling(&crew, &[good.clone(), bad]).map(|day| day.goal_met);
        assert_eq!(met(TimelineTick { failed: 1, ..good.clone() }), Some(0.5));
        assert_eq!(met(TimelineTick { response: 0.2, ..good.clone() }), Some(0.5));
        assert_eq!(
            met(TimelineTick {
                roll: Some(MemberCounts { there: 3.0, serving: 1, needed: 2 }),
                ..good.clone()
            }),
            Some(0.5)
        );
        assert_eq!(met(TimelineTick { roll: None, ..good.clone() }), None);
    }

    #[test]
    fn members_sleep_first_and_are_tied_to_the_balancer() {
        let text = "min = 2\nmax = 9\nstart = \"3s\"\nheadroom = 0.25\nresponse = \"160ms\"\nstabilize = \
                    \"5s\"\ncool_down = \"2s\"\n\
                    step = { scale_out = 4, scale_in = 1 }";
        let crew = toml::from_str::<super::super::experiment::ScalerSettings>(text).unwrap();
        let tie = ProcessLauncher {
            program: "/bin/plimsoll".into(),
            arguments: ["lab", "tie", "17"].map(Into::into).to_vec(),
            open_picker: |_| Err("not here".to_owned()),
        };
        let hire = ScalerSetup::new(
            &tie,
            &crew.for_run(Some("reactive:0.5"), 0.5, 25.0),
            &["--cores=1".to_owned()],
            3,
        );
        assert_eq!(hire.count, Some(2));
        assert!(
            hire.command[2].starts_with("exec \"$0\" lab tie \"$PPID\" /bin/sh -c 'sleep"),
            "{:?}",
            hire.command
        );
        assert_eq!(hire.command[3..5], ["/bin/plimsoll", "1.500"]);
        assert_eq!(
            hire.command[5..],
            ["member", "--listen={address}", "--name=m{index}", "--seed=3{index}", "--cores=1"]
        );
    }
}
