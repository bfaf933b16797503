//! Leases of members for clients that connect directly: requests and responses.
//!
//! Requests are frequent. Each is answered in microseconds on the admin thread, and none is in the audit log,
//! as with load reports.

use std::net::IpAddr;

use http_body_util::{Either, Full};
use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde::Deserialize;

use crate::api::Operation;
use crate::balancer::LEASE_SECONDS;
use crate::endpoint::AdminBackend;
use crate::json_body;
use crate::reply::{ResponseBody, error, response, to_json};
use crate::{LeaseError, LeaseRequest};

/// A client's request.
#[derive(Debug, PartialEq)]
pub(crate) enum LeaseOperation {
    Bind(LeaseRequest),
    /// Renews the lease with this number.
    Renew(String, LeaseRequest),
    /// Ends the lease with this number.
    Release(String),
}

/// The maximum length of keys and names in characters, as in the OpenAPI document.
const MAX_TEXT_LENGTH: usize = 256;
/// The maximum number of excluded members.
const MAX_EXCLUDED: usize = 64;

/// Parses the body of a request; `lease` is the number in its path.
///
/// # Errors
/// The reason why it is invalid, for the client.
pub(crate) fn parse(verb: Operation, lease: Option<&str>, body: &[u8]) -> Result<LeaseOperation, String> {
    let lease = lease.unwrap_or_default().to_owned();
    let wish = match body.trim_ascii() {
        b"" => LeaseRequest::default(),
        _ if verb == Operation::Release => return Err("a lease is released without a body".into()),
        // serde would also accept a list.
        body if !body.starts_with(b"{") => return Err(format!("the body is no object: {GIVE}")),
        body => json_body::parse(body, GIVE)?,
    };
    let LeaseRequest { key, lease_seconds, exclude, from: _ } = &wish;
    if lease_seconds.is_some_and(|seconds| !LEASE_SECONDS.contains(&seconds)) {
        let (least, most) = (*LEASE_SECONDS.start(), *LEASE_SECONDS.end());
        return Err(format!("lease_seconds: a lease is for {least} to {most} seconds"));
    }
    if exclude.len() > MAX_EXCLUDED {
        return Err(format!("exclude: at most {MAX_EXCLUDED} members"));
    }
    if let Some(long) =
        key.iter().chain(exclude).map(|word| word.chars().count()).find(|long| *long > MAX_TEXT_LENGTH)
    {
        return Err(format!("a word of {long} characters: {MAX_TEXT_LENGTH} are enough"));
    }
    match verb {
        Operation::Bind => Ok(LeaseOperation::Bind(wish)),
        Operation::Release => Ok(LeaseOperation::Release(lease)),
        _ if key.is_some() => Err("key: a lease that is renewed has it already".into()),
        _ => Ok(LeaseOperation::Renew(lease, wish)),
    }
}

/// The leases to end: those of one member, of clients at one address, of both; else all.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct EndLeasesBody {
    pub(crate) member: Option<String>,
    pub(crate) from: Option<IpAddr>,
}

impl EndLeasesBody {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// The reason why it is invalid, for its sender.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, String> {
        const GIVE: &str = "give nothing for all of the group, or {\"member\": …, \"from\": \"10.0.0.7\"}";
        match body.trim_ascii() {
            b"" => Ok(Self::default()),
            body if !body.starts_with(b"{") => Err(format!("the body is no object: {GIVE}")),
            body => json_body::parse(body, GIVE),
        }
    }
}

const GIVE: &str = "give nothing, or {\"key\": …, \"lease_seconds\": …, \"exclude\": [MEMBER]}";

/// Executes a request for a client at `from`, if that is an address.
pub(crate) fn respond(
    behind: &AdminBackend,
    group: &str,
    ask: LeaseOperation,
    from: Option<IpAddr>,
) -> Response<ResponseBody> {
    let AdminBackend::Balancer(subject) = behind else {
        // The path belongs to a balancer, so other processes have no leases.
        return error(StatusCode::NOT_FOUND, "there are no leases here".into());
    };
    let lent = match ask {
        LeaseOperation::Bind(wish) => subject.grant_lease(group, &LeaseRequest { from, ..wish }).map(Some),
        LeaseOperation::Renew(lease, wish) => subject.renew_lease(group, &lease, &wish).map(Some),
        LeaseOperation::Release(lease) => subject.release_lease(group, &lease).map(|()| None),
    };
    match lent {
        Ok(Some(lease)) => to_json(StatusCode::OK, &lease),
        Ok(None) => response(StatusCode::NO_CONTENT, "text/plain", Either::Left(Full::default())),
        Err(LeaseError::Unknown(why)) => error(StatusCode::NOT_FOUND, why),
        Err(LeaseError::NoMember(why)) => retry_later(StatusCode::SERVICE_UNAVAILABLE, why),
        Err(LeaseError::LimitReached(why)) => retry_later(StatusCode::TOO_MANY_REQUESTS, why),
    }
}

fn retry_later(status: StatusCode, why: String) -> Response<ResponseBody> {
    let mut refused = error(status, why);
    refused.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_says_whose_leases_are_to_end() {
        let of = |member: Option<&str>, from: Option<&str>| EndLeasesBody {
            member: member.map(str::to_owned),
            from: from.map(|from| from.parse().unwrap()),
        };
        assert_eq!(EndLeasesBody::parse(b" "), Ok(of(None, None)));
        assert_eq!(
            EndLeasesBody::parse(br#"{"member":"a:1","from":"10.0.0.7"}"#),
            Ok(of(Some("a:1"), Some("10.0.0.7")))
        );
        for body in ["[]", "{\"members\":1}", "{\"from\":\"10.0.0.0/8\"}", "member=a"] {
            let said = EndLeasesBody::parse(body.as_bytes()).expect_err(body);
            assert!(said.contains("give nothing for all"), "{said}");
        }
    }

    #[test]
    fn a_wish_may_say_nothing_and_must_make_sense() {
        let bind = |body: &str| parse(Operation::Bind, None, body.as_bytes());
        assert_eq!(bind(""), Ok(LeaseOperation::Bind(LeaseRequest::default())));
        assert_eq!(bind(" {}\n"), Ok(LeaseOperation::Bind(LeaseRequest::default())));
        let body = r#"{"key": "me", "lease_seconds": 1.5, "exclude": ["a:1"]}"#;
        let wish = LeaseRequest {
            from: None,
            key: Some("me".into()),
            lease_seconds: Some(1.5),
            exclude: vec!["a:1".into()],
        };
        assert_eq!(bind(body), Ok(LeaseOperation::Bind(wish)));
        let renew = parse(Operation::Renew, Some("0a"), br#"{"lease_seconds": 3600}"#);
        let wish = LeaseRequest { lease_seconds: Some(3600.0), ..LeaseRequest::default() };
        assert_eq!(renew, Ok(LeaseOperation::Renew("0a".into(), wish)));
        assert_eq!(parse(Operation::Release, Some("0a"), b""), Ok(LeaseOperation::Release("0a".into())));
        for (body, why) in [
            ("me", "is no object"),
            (r#"["me", 9, []]"#, "give nothing, or"),
            ("{", "the body: "),
            (r#"{"seconds": 1}"#, "unknown field `seconds`"),
            (r#"{"lease_seconds": 0.9}"#, "1 to 3600 seconds"),
            (r#"{"lease_seconds": 3601}"#, "1 to 3600 seconds"),
            (r#"{"lease_seconds": "1"}"#, "invalid type"),
            (r#"{"exclude": "a:1"}"#, "invalid type"),
        ] {
            let said = bind(body).expect_err(body);
            assert!(said.contains(why), "{body}: {said}");
        }
        let long = format!(r#"{{"key": "{}"}}"#, "é".repeat(257));
        assert!(bind(&long).unwrap_err().contains("257 characters"));
        let many = format!(r#"{{"exclude": [{}"a:1"]}}"#, r#""a:1", "#.repeat(64));
        assert!(bind(&many).unwrap_err().contains("at most 64"));
        assert!(
            parse(Operation::Renew, Some("0a"), br#"{"key": "me"}"#).unwrap_err().contains("has it already")
        );
        assert!(parse(Operation::Release, Some("0a"), b"{}").unwrap_err().contains("without a body"));
    }
}
