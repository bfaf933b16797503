//! Members that are registered: by themselves, for as long as they say that they are there, or by an operator, until they are taken away.
//!
//! A member that says again what is known of it only renews its lease: that happens all the time, is answered on the admin thread, and is
//! not in the audit log. What is new is written down and done as any other change.

use hyper::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::plane::Behind;
use crate::reply::{Body, error, to_json};
use crate::sent;
use crate::subject::Subject;
use crate::verb::Verb;
use crate::whole::whole_or_none;

/// The shortest and the longest lease of a member, seconds.
pub const REGISTER_SECONDS: std::ops::RangeInclusive<f64> = 2.0..=3600.0;

/// A member as it is registered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// Relative to the others; from 0.001 to 1000000.
    #[serde(default = "one")]
    pub capacity: f64,
    /// Requests, connections or flows at once, from 1 to 1000000; the group's if `None`.
    #[serde(default, deserialize_with = "whole_or_none")]
    pub max_connections: Option<u32>,
    /// It goes if nobody says it again for so long, between [`REGISTER_SECONDS`]; `None` for one that stays.
    #[serde(default)]
    pub ttl_seconds: Option<f64>,
    /// It is about to leave: it gets nothing new.
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

/// What whoever registered is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registered {
    /// Of which group.
    pub group: String,
    /// As it is called from now on: `host:port`.
    pub member: String,
    /// Where it is: an IP address and a port.
    pub address: String,
    /// For how long from now, seconds; `None` for one that stays.
    pub ttl_seconds: Option<f64>,
    /// It gets nothing new.
    pub draining: bool,
    /// Requests, connections or flows that it has of this balancer.
    pub in_flight: u64,
}

/// Why it was not done: one line for whoever asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unregistered {
    /// There is no such group or member (404).
    Unknown(String),
    /// It cannot be so (422).
    Wrong(String),
    /// Where it would be kept is away: another balancer may do it (503).
    Away(String),
}

/// What somebody wants.
#[derive(Debug, PartialEq)]
pub(crate) enum Ask {
    Register(Registration),
    Deregister,
}

const GIVE: &str =
    "give nothing, or {\"capacity\": 1, \"max_connections\": …, \"ttl_seconds\": 10, \"draining\": false}";

/// Reads the body of a request.
///
/// # Errors
/// What is wrong with it, for whoever sent it.
pub(crate) fn read(verb: Verb, body: &[u8]) -> Result<Ask, String> {
    let asked: Registration = match body.trim_ascii() {
        b"" => Registration::default(),
        _ if verb == Verb::Deregister => return Err("a member is taken away without a body".into()),
        // Of a list something could be made, too.
        body if !body.starts_with(b"{") => return Err(format!("the body is no object: {GIVE}")),
        body => sent::read(body, GIVE)?,
    };
    if verb == Verb::Deregister {
        return Ok(Ask::Deregister);
    }
    if !(0.001..=1e6).contains(&asked.capacity) {
        return Err("capacity: from 0.001 to 1000000".into());
    }
    if !asked.max_connections.is_none_or(|most| (1..=1_000_000).contains(&most)) {
        return Err("max_connections: from 1 to 1000000".into());
    }
    if asked.ttl_seconds.is_some_and(|seconds| !REGISTER_SECONDS.contains(&seconds)) {
        let (least, most) = (REGISTER_SECONDS.start(), REGISTER_SECONDS.end());
        return Err(format!("ttl_seconds: {least} to {most} seconds"));
    }
    Ok(Ask::Register(asked))
}

impl Ask {
    /// For the audit log.
    pub(crate) fn arguments(&self) -> Value {
        match self {
            Self::Register(asked) => json!(asked),
            Self::Deregister => Value::Null,
        }
    }

    /// Does it.
    pub(crate) fn done(
        self,
        subject: &dyn Subject,
        group: &str,
        member: &str,
    ) -> Result<(StatusCode, Value), (StatusCode, String)> {
        match self {
            Self::Register(asked) => {
                let done = subject.register(group, member, &asked).map_err(refused)?;
                Ok((StatusCode::OK, json!(done)))
            }
            Self::Deregister => {
                subject.deregister(group, member).map_err(refused)?;
                Ok((StatusCode::OK, json!({"deregistered": member})))
            }
        }
    }
}

/// The answer to one who says once more what is known; `None` if that is not so.
pub(crate) fn renewed(behind: &Behind, group: &str, member: &str, ask: &Ask) -> Option<Response<Body>> {
    let (Behind::Balancer(subject), Ask::Register(asked)) = (behind, ask) else { return None };
    Some(match subject.renewed(group, member, asked)? {
        Ok(done) => to_json(StatusCode::OK, &done),
        Err(why) => {
            let (status, why) = refused(why);
            error(status, why)
        }
    })
}

fn refused(why: Unregistered) -> (StatusCode, String) {
    match why {
        Unregistered::Unknown(why) => (StatusCode::NOT_FOUND, why),
        Unregistered::Wrong(why) => (StatusCode::UNPROCESSABLE_ENTITY, why),
        Unregistered::Away(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_may_say_nothing_and_must_make_sense() {
        let read = |body: &str| read(Verb::Register, body.as_bytes());
        assert_eq!(read(" "), Ok(Ask::Register(Registration::default())));
        let whole = r#"{"capacity":2,"max_connections":9,"ttl_seconds":2,"draining":true}"#;
        let wanted =
            Registration { capacity: 2.0, max_connections: Some(9), ttl_seconds: Some(2.0), draining: true };
        assert_eq!(read(whole), Ok(Ask::Register(wanted)));
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
        assert_eq!(super::read(Verb::Deregister, b""), Ok(Ask::Deregister));
        assert!(super::read(Verb::Deregister, b"{}").unwrap_err().contains("without a body"));
    }
}
