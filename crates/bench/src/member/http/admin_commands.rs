//! Operators' orders to a member, sent as requests for `/_plimsoll/...`: slow down, fail, count.

use std::time::Duration;

use super::{FailureResponse, HttpConnection};
use crate::member::workers::MAX_SLOW;
use crate::member::{FailureMode, MemberState};
use crate::units;

/// An operator's order.
pub(super) enum AdminCommand {
    /// Multiplies service times by this factor.
    Slow(f64),
    /// Fails like this from now on.
    Fail(FailureMode),
    /// Reports the numbers of received requests and of those in flight, and the busy times of threads and
    /// processor with steps.
    Count,
    /// Reports the load as an agent would.
    Load,
    /// An unknown order.
    Unknown,
}

/// Parses the order in a request for `/_plimsoll/REST`.
pub(super) fn parse_command(method: &str, rest: &str) -> AdminCommand {
    let factor = rest.strip_prefix("slow?factor=").and_then(|factor| factor.parse().ok());
    match factor {
        None if method == "GET" && rest == "count" => AdminCommand::Count,
        None if method == "GET" && rest == "load" => AdminCommand::Load,
        None if method == "POST" => rest
            .strip_prefix("fail?")
            .and_then(parse_failure_mode)
            .map_or(AdminCommand::Unknown, AdminCommand::Fail),
        Some(factor) if method == "POST" && (0.0..=MAX_SLOW).contains(&factor) => AdminCommand::Slow(factor),
        _ => AdminCommand::Unknown,
    }
}

/// Parses a query such as `rate=1&after=500us&with=close`. The defaults are to fail at once and with 500.
fn parse_failure_mode(query: &str) -> Option<FailureMode> {
    let mut failing =
        FailureMode { rate: f64::NAN, after: Some(Duration::ZERO), refusal: FailureResponse::Status(500) };
    for (key, value) in query.split('&').map(|part| part.split_once('=').unwrap_or((part, ""))) {
        match key {
            "rate" => failing.rate = value.parse().ok()?,
            "after" => failing.after = Some(units::parse_duration(value).ok()?),
            "with" => failing.refusal = value.parse().ok()?,
            _ => return None,
        }
    }
    (0.0..=1.0).contains(&failing.rate).then_some(failing)
}

/// Executes the order and answers.
pub(super) fn execute_command(
    wire: &mut HttpConnection,
    member: &MemberState,
    order: &AdminCommand,
    is_head: bool,
    keep: bool,
) {
    match *order {
        AdminCommand::Slow(factor) => {
            member.work.set_slowdown(factor);
            let body = serde_json::json!({ "member": member.name, "slow": member.work.slowdown_factor() });
            wire.answer(member, 200, &format!("{body}\n"), is_head, !keep);
        }
        AdminCommand::Fail(failing) => {
            member.failure_mode.set(failing);
            let body = serde_json::json!({ "member": member.name, "fail": failing.rate });
            wire.answer(member, 200, &format!("{body}\n"), is_head, !keep);
        }
        AdminCommand::Count => {
            let mut body = serde_json::json!({ "member": member.name, "requests": member.requests.get() });
            if member.spec.steps.is_some() {
                let (threads, processor) = member.work.busy_times();
                body["threads"] = threads.into();
                body["processor"] = processor.into();
                body["values"] = serde_json::json!({ "in_flight": member.in_flight.get() });
            }
            wire.answer(member, 200, &format!("{body}\n"), is_head, !keep);
        }
        AdminCommand::Load => {
            let in_flight = member.in_flight.get();
            let (count, busy) = member.work.capacity_and_busy();
            let used = member.recent_utilization.cores_in_use(member.start.elapsed().as_secs_f64(), busy);
            let cpu = (used / count.max(f64::MIN_POSITIVE)).min(1.0);
            let body = serde_json::json!({
                "member": member.name,
                "busy": busy,
                // The fields that an agent reports for processors.
                "values": { "in_flight": in_flight, "cpu": cpu, "cpus": count },
            });
            wire.answer(member, 200, &format!("{body}\n"), is_head, !keep);
        }
        AdminCommand::Unknown => {
            let body = format!(
                "expected GET /_plimsoll/count or /_plimsoll/load, POST /_plimsoll/slow?factor=N with N from \
                 0 to {MAX_SLOW}, or POST \
                 /_plimsoll/fail?rate=R with R from 0 to 1 and, if wanted, after=TIME and with=STATUS or \
                 with=close\n"
            );
            wire.answer(member, 400, &body, is_head, !keep);
        }
    }
}
