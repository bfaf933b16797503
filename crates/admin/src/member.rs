//! Registered members: by themselves, while they renew their registration, or by an operator, until they are
//! removed.
//!
//! Renewals with unchanged settings are frequent, are answered on the admin thread, and are not in the audit
//! log. New settings are logged and applied like any other change.

use hyper::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::Operation;
use crate::balancer::BalancerBackend;
use crate::endpoint::AdminBackend;
use crate::integers::whole_or_none;
use crate::json_body;
use crate::reply::{ResponseBody, error, to_json};

/// The range of a registration's duration, in seconds.
pub const REGISTER_SECONDS: std::ops::RangeInclusive<f64> = 2.0..=3600.0;

/// The settings of a registered member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// The capacity relative to the others; from 0.001 to 1000000.
    #[serde(default = "one")]
    pub capacity: f64,
    /// The maximum number of requests, connections or flows in flight, from 1 to 1000000; the group's if
    /// `None`.
    #[serde(default, deserialize_with = "whole_or_none")]
    pub max_connections: Option<u32>,
    /// The time within which the registration must be renewed, between [`REGISTER_SECONDS`]; `None` for no
    /// limit.
    #[serde(default)]
    pub ttl_seconds: Option<f64>,
    /// Whether it is about to leave and gets no new work.
    #[serde(default)]
    pub draining: bool,
}

fn one() -> f64 {
    1.0
}

impl Default for Registration {
    fn default() -> Self {
        Self { capacity: 1.0, max_connections: None, ttl_seconds: None, draining: false }
    }
}

/// The result of a registration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegisteredMember {
    /// The group.
    pub group: String,
    /// The member's name from now on: `host:port`.
    pub member: String,
    /// The member's IP address and port.
    pub address: String,
    /// The time until the registration expires, in seconds; `None` for no limit.
    pub ttl_seconds: Option<f64>,
    /// Whether it gets no new work.
    pub draining: bool,
    /// The requests, connections or flows that this balancer has in flight there.
    pub in_flight: u64,
}

/// The reason of a rejection: one line for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistrationError {
    /// There is no such group or member (404).
    Unknown(String),
    /// The settings are invalid (422).
    Invalid(String),
    /// The store is unreachable: another balancer may succeed (503).
    StoreUnavailable(String),
}

/// A client's request.
#[derive(Debug, PartialEq)]
pub(crate) enum MemberOperation {
    Register(Registration),
    Deregister,
}

const GIVE: &str =
    "give nothing, or {\"capacity\": 1, \"max_connections\": …, \"ttl_seconds\": 10, \"draining\": false}";

/// Parses the body of a request.
///
/// # Errors
/// The reason why it is invalid, for its sender.
pub(crate) fn parse(operation: Operation, body: &[u8]) -> Result<MemberOperation, String> {
    let registration: Registration = match body.trim_ascii() {
        b"" => Registration::default(),
        _ if operation == Operation::Deregister => return Err("a member is taken away without a body".into()),
        // serde would also accept a list.
        body if !body.starts_with(b"{") => return Err(format!("the body is no object: {GIVE}")),
        body => json_body::parse(body, GIVE)?,
    };
    if operation == Operation::Deregister {
        return Ok(MemberOperation::Deregister);
    }
    if !(0.001..=1e6).contains(&registration.capacity) {
        return Err("capacity: from 0.001 to 1000000".into());
    }
    if !registration.max_connections.is_none_or(|max_connections| (1..=1_000_000).contains(&max_connections))
    {
        return Err("max_connections: from 1 to 1000000".into());
    }
    if registration.ttl_seconds.is_some_and(|seconds| !REGISTER_SECONDS.contains(&seconds)) {
        let (min_seconds, max_seconds) = (REGISTER_SECONDS.start(), REGISTER_SECONDS.end());
        return Err(format!("ttl_seconds: {min_seconds} to {max_seconds} seconds"));
    }
    Ok(MemberOperation::Register(registration))
}

impl MemberOperation {
    /// Returns the arguments for the audit log.
    pub(crate) fn arguments(&self) -> Value {
        match self {
            Self::Register(registration) => json!(registration),
            Self::Deregister => Value::Null,
        }
    }

    /// Executes the request.
    pub(crate) fn execute(
        self,
        balancer: &dyn BalancerBackend,
        group: &str,
        member: &str,
    ) -> Result<(StatusCode, Value), (StatusCode, String)> {
        match self {
            Self::Register(registration) => {
                let registered = balancer.register(group, member, &registration).map_err(rejection)?;
                Ok((StatusCode::OK, json!(registered)))
            }
            Self::Deregister => {
                balancer.deregister(group, member).map_err(rejection)?;
                Ok((StatusCode::OK, json!({"deregistered": member})))
            }
        }
    }
}

/// Responds to a renewal with unchanged settings; `None` if they differ.
pub(crate) fn renew_unchanged(
    backend: &AdminBackend,
    group: &str,
    member: &str,
    operation: &MemberOperation,
) -> Option<Response<ResponseBody>> {
    let (AdminBackend::Balancer(balancer), MemberOperation::Register(registration)) = (backend, operation)
    else {
        return None;
    };
    Some(match balancer.renew_registration(group, member, registration)? {
        Ok(registered) => to_json(StatusCode::OK, &registered),
        Err(why) => {
            let (status, why) = rejection(why);
            error(status, why)
        }
    })
}

fn rejection(why: RegistrationError) -> (StatusCode, String) {
    match why {
        RegistrationError::Unknown(why) => (StatusCode::NOT_FOUND, why),
        RegistrationError::Invalid(why) => (StatusCode::UNPROCESSABLE_ENTITY, why),
        RegistrationError::StoreUnavailable(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_may_say_nothing_and_must_make_sense() {
        let read = |body: &str| parse(Operation::Register, body.as_bytes());
        assert_eq!(read(" "), Ok(MemberOperation::Register(Registration::default())));
        let whole = r#"{"capacity":2,"max_connections":9,"ttl_seconds":2,"draining":true}"#;
        let wanted =
            Registration { capacity: 2.0, max_connections: Some(9), ttl_seconds: Some(2.0), draining: true };
        assert_eq!(read(whole), Ok(MemberOperation::Register(wanted)));
        for (body, why) in [
            ("[]", "is no object"),
            ("{", "the body: "),
            (r#"{"ttl": 1}"#, "unknown field `ttl`"),
            (r#"{"capacity": 0}"#, "from 0.001"),
            (r#"{"max_connections": 0}"#, "from 1 to"),
            (r#"{"ttl_seconds": 1.9}"#, "2 to 3600"),
            (r#"{"ttl_seconds": 3601}"#, "2 to 3600"),
        ] {
            let said = read(body).expect_err(body);
            assert!(said.contains(why), "{body}: {said}");
        }
        assert_eq!(parse(Operation::Deregister, b""), Ok(MemberOperation::Deregister));
        assert!(parse(Operation::Deregister, b"{}").unwrap_err().contains("without a body"));
    }
}
