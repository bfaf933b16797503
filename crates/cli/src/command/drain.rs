//! `plimsoll drain`: take a member out of service without cutting its work.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use plimsoll_brain::EventKind;
use plimsoll_brain::status::StatusReport;
use plimsoll_config::pluralize;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{CliError, GlobalArgs};
use crate::control::{self, BalancerSelector, CommandOutput, ControlEndpoint};

/// The time between two looks while waiting.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Stop sending new work to a member and let its work in flight end
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    target: MemberTargetArgs,

    /// Wait until its work in flight has ended
    #[arg(long)]
    wait: bool,
}

/// A member of a running balancer.
#[derive(clap::Args, Debug)]
pub(super) struct MemberTargetArgs {
    /// Member address as configured: HOST:PORT
    pub(super) member: String,

    /// Group of the member, if it is in several groups
    #[arg(short, long, value_name = "GROUP")]
    group: Option<String>,

    #[command(flatten)]
    pub(super) at: BalancerSelector,
}

impl MemberTargetArgs {
    /// Returns the body of the request to control.
    pub(super) fn request_body(&self) -> Value {
        json!({"group": self.group, "member": self.member})
    }
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    control::run_each(&args.target.at, globals, |balancer, print| drain(args, balancer, print))
}

fn drain(args: &Args, balancer: &ControlEndpoint, print: &dyn Fn(&str)) -> Result<CommandOutput, CliError> {
    let target = &args.target;
    let last_seq = last_event_seq(balancer);
    let mut response = balancer.post("/v1/drain", &target.request_body())?;
    // The answer comes when the hand-over server has been notified, or could not be.
    if let Some(failure) = last_seq.and_then(|seq| handover_failure(balancer, seq, target)) {
        print(&format!("{}: {failure}\n", target.member));
        response["hand_over_failed"] = failure.into();
    }
    if args.wait {
        let mut last_count = 0;
        loop {
            let (_, status) = balancer.status()?;
            match drain_progress(&status, target.group.as_deref(), &target.member) {
                DrainProgress::Done => break,
                DrainProgress::Undrained => {
                    let message = format!("{} was taken back while it was drained", target.member);
                    return Err(CliError::failed(message));
                }
                DrainProgress::InFlight(in_flight) if in_flight != last_count => {
                    print(&format!("{}: {} in flight\n", target.member, pluralize(in_flight, "request")));
                    last_count = in_flight;
                }
                DrainProgress::InFlight(_) => {}
            }
            sleep(POLL_INTERVAL);
        }
        response["drained"] = true.into();
    }
    let outcome = if args.wait { "drained" } else { "draining: it gets nothing new, its work goes on" };
    Ok(CommandOutput::from_action(response, format!("{}: {outcome}\n", target.member)))
}

/// Returns the number of the last event; `None` if events cannot be read, for which the right to drain does
/// not suffice.
fn last_event_seq(balancer: &ControlEndpoint) -> Option<u64> {
    let events = balancer.get::<Vec<Value>>("/events?follow=0").ok()?;
    events.last().map_or(Some(0), |event| event["seq"].as_u64())
}

/// Returns the reason why the sessions of a member that was drained after this event were not handed over, if
/// they should have been.
fn handover_failure(balancer: &ControlEndpoint, seq: u64, target: &MemberTargetArgs) -> Option<String> {
    let events = balancer.get::<Vec<Value>>(&format!("/events?follow=0&since={seq}")).ok()?;
    find_handover_failure(&events, target.group.as_deref(), &target.member)
}

fn find_handover_failure(events: &[Value], group: Option<&str>, member: &str) -> Option<String> {
    let is_about_member =
        |event: &&Value| event["member"] == member && group.is_none_or(|group| event["group"] == group);
    let failure_reason = |event: &Value| {
        let (kind, inputs) = (EventKind::deserialize(&event["kind"]).ok()?, &event["inputs"]);
        // An event with a decision belongs to an alert, not to a drain.
        let failed = kind == EventKind::HandedOver && inputs["failed"] == 1.0 && inputs["decision"].is_null();
        failed.then(|| event["why"].as_str().map(str::to_owned)).flatten()
    };
    events.iter().rev().filter(is_about_member).find_map(failure_reason)
}

/// The rest of a drain.
#[derive(Debug, PartialEq)]
enum DrainProgress {
    /// Nothing is left, or the member has left.
    Done,
    /// The number of requests in flight.
    InFlight(usize),
    /// Another operator ended the drain.
    Undrained,
}

fn drain_progress(status: &StatusReport, group: Option<&str>, member: &str) -> DrainProgress {
    let groups = status.groups.iter().filter(|candidate| group.is_none_or(|group| group == candidate.name));
    let members: Vec<_> =
        groups.flat_map(|group| &group.members).filter(|candidate| candidate.name == member).collect();
    // A member that went down meanwhile may be shown as down rather than drained.
    let drained: Vec<_> = members.iter().filter(|member| !member.state.is_eligible()).collect();
    match drained.iter().map(|member| member.in_flight as usize).sum() {
        _ if members.is_empty() => DrainProgress::Done,
        _ if drained.is_empty() => DrainProgress::Undrained,
        0 => DrainProgress::Done,
        in_flight => DrainProgress::InFlight(in_flight),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::sample_status;

    #[test]
    fn the_rest_of_a_drain() {
        let mut status = sample_status();
        assert_eq!(drain_progress(&status, None, "10.0.0.4:80"), DrainProgress::InFlight(7));
        assert_eq!(drain_progress(&status, Some("web"), "10.0.0.4:80"), DrainProgress::InFlight(7));
        assert_eq!(drain_progress(&status, Some("web"), "10.0.0.1:80"), DrainProgress::Undrained);
        assert_eq!(drain_progress(&status, Some("game servers"), "10.0.0.4:80"), DrainProgress::Done);
        assert_eq!(drain_progress(&status, None, "gone:80"), DrainProgress::Done);
        status.groups[0].members[3].in_flight = 0;
        assert_eq!(drain_progress(&status, None, "10.0.0.4:80"), DrainProgress::Done);
    }

    #[test]
    fn sessions_that_nobody_took_over_are_told_of() {
        let reason = "its sessions were not handed over (connection refused); it is drained all the same";
        let event = |member: &str, kind: &str, inputs: Value| {
            json!({
                "seq": 7, "kind": kind, "group": "web", "member": member, "why": reason, "inputs": inputs,
            })
        };
        let events = [
            event("a:80", "handed_over", json!({"failed": 1.0})),
            event("b:80", "handed_over", json!({"failed": 0.0})),
            event("c:80", "handed_over", json!({"failed": 1.0, "decision": 3.0, "share": 0.2})),
            event("d:80", "what is this", json!({"failed": 1.0})),
        ];
        assert_eq!(find_handover_failure(&events, None, "a:80").as_deref(), Some(reason));
        assert_eq!(find_handover_failure(&events, Some("web"), "a:80").as_deref(), Some(reason));
        assert_eq!(find_handover_failure(&events, Some("mail"), "a:80"), None);
        for name in ["b:80", "c:80", "d:80", "e:80"] {
            assert_eq!(find_handover_failure(&events, None, name), None, "{name}");
        }
    }
}
