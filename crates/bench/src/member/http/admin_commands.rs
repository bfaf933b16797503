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
pub(super) fn parse_command(method: &str, command: &str) -> AdminCommand {
    let factor = command.strip_prefix("slow?factor=").and_then(|factor| factor.parse().ok());
    match factor {
        None if method == "GET" && command == "count" => AdminCommand::Count,
        None if method == "GET" && command == "load" => AdminCommand::Load,
        None if method == "POST" => command
            .strip_prefix("fail?")
            .and_then(parse_failure_mode)
            .map_or(AdminCommand::Unknown, AdminCommand::Fail),
        Some(factor) if method == "POST" && (0.0..=MAX_SLOW).contains(&factor) => AdminCommand::Slow(factor),
        _ => AdminCommand::Unknown,
    }
}

/// Parses a query such as `rate=1&after=500us&with=close`. The defaults are to fail at once and with 500.
fn parse_failure_mode(query: &str) -> Option<FailureMode> {
    let mut failure_mode =
        FailureMode { rate: f64::NAN, after: Some(Duration::ZERO), refusal: FailureResponse::Status(500) };
    for (key, value) in query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, ""))) {
        match key {
            "rate" => failure_mode.rate = value.parse().ok()?,
            "after" => failure_mode.after = Some(units::parse_duration(value).ok()?),
            "with" => failure_mode.refusal = value.parse().ok()?,
            _ => return None,
        }
    }
    (0.0..=1.0).contains(&failure_mode.rate).then_some(failure_mode)
}

/// Executes the order and answers.
pub(super) fn execute_command(
    connection: &mut HttpConnection,
    member: &MemberState,
    command: &AdminCommand,
    is_head: bool,
    keep_alive: bool,
) {
    match *command {
        AdminCommand::Slow(factor) => {
            member.worker_pool.set_slowdown(factor);
            let body =
                serde_json::json!({ "member": member.name, "slow": member.worker_pool.slowdown_factor() });
            connection.write_answer(member, 200, &format!("{body}\n"), is_head, !keep_alive);
        }
        AdminCommand::Fail(failure_mode) => {
            member.failure_mode.set(failure_mode);
            let body = serde_json::json!({ "member": member.name, "fail": failure_mode.rate });
            connection.write_answer(member, 200, &format!("{body}\n"), is_head, !keep_alive);
        }
        AdminCommand::Count => {
            let mut body = serde_json::json!({ "member": member.name, "requests": member.requests.get() });
            if member.spec.steps.is_some() {
                let (threads, processor) = member.worker_pool.busy_times();
                body["threads"] = threads.into();
                body["processor"] = processor.into();
                body["values"] = serde_json::json!({ "in_flight": member.in_flight.get() });
            }
            connection.write_answer(member, 200, &format!("{body}\n"), is_head, !keep_alive);
        }
        AdminCommand::Load => {
            let in_flight = member.in_flight.get();
            let (capacity, busy) = member.worker_pool.capacity_and_busy();
            let cores_in_use =
                member.recent_utilization.cores_in_use(member.start.elapsed().as_secs_f64(), busy);
            let cpu = (cores_in_use / capacity.max(f64::MIN_POSITIVE)).min(1.0);
            let body = serde_json::json!({
                "member": member.name,
                "busy": busy,
                // The fields that an agent reports for processors.
                "values": { "in_flight": in_flight, "cpu": cpu, "cpus": capacity },
            });
            connection.write_answer(member, 200, &format!("{body}\n"), is_head, !keep_alive);
        }
        AdminCommand::Unknown => {
            let body = format!(
                "expected GET /_plimsoll/count or /_plimsoll/load, POST /_plimsoll/slow?factor=N with N from \
                 0 to {MAX_SLOW}, or POST \
                 /_plimsoll/fail?rate=R with R from 0 to 1 and, if wanted, after=TIME and with=STATUS or \
                 with=close\n"
            );
            connection.write_answer(member, 400, &body, is_head, !keep_alive);
        }
    }
}
