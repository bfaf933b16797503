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
pub(crate) fn parse(
    operation: Operation,
    lease_id: Option<&str>,
    body: &[u8],
) -> Result<LeaseOperation, String> {
    let lease_id = lease_id.unwrap_or_default().to_owned();
    let request = match body.trim_ascii() {
        b"" => LeaseRequest::default(),
        _ if operation == Operation::Release => return Err("a lease is released without a body".into()),
        // serde would also accept a list.
        body if !body.starts_with(b"{") => return Err(format!("the body is no object: {GIVE}")),
        body => json_body::parse(body, GIVE)?,
    };
    let LeaseRequest { key, lease_seconds, exclude, from: _ } = &request;
    if lease_seconds.is_some_and(|seconds| !LEASE_SECONDS.contains(&seconds)) {
        let (min_seconds, max_seconds) = (*LEASE_SECONDS.start(), *LEASE_SECONDS.end());
        return Err(format!("lease_seconds: a lease is for {min_seconds} to {max_seconds} seconds"));
    }
    if exclude.len() > MAX_EXCLUDED {
        return Err(format!("exclude: at most {MAX_EXCLUDED} members"));
    }
    if let Some(length) = key
        .iter()
        .chain(exclude)
        .map(|text| text.chars().count())
        .find(|long_key| *long_key > MAX_TEXT_LENGTH)
    {
        return Err(format!("a word of {length} characters: {MAX_TEXT_LENGTH} are enough"));
    }
    match operation {
        Operation::Bind => Ok(LeaseOperation::Bind(request)),
        Operation::Release => Ok(LeaseOperation::Release(lease_id)),
        _ if key.is_some() => Err("key: a lease that is renewed has it already".into()),
        _ => Ok(LeaseOperation::Renew(lease_id, request)),
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
    backend: &AdminBackend,
    group: &str,
    operation: LeaseOperation,
    from: Option<IpAddr>,
) -> Response<ResponseBody> {
    let AdminBackend::Balancer(balancer) = backend else {
        // The path belongs to a balancer, so other processes have no leases.
        return error(StatusCode::NOT_FOUND, "there are no leases here".into());
    };
    let result = match operation {
        LeaseOperation::Bind(request) => {
            balancer.grant_lease(group, &LeaseRequest { from, ..request }).map(Some)
        }
        LeaseOperation::Renew(lease, request) => balancer.renew_lease(group, &lease, &request).map(Some),
        LeaseOperation::Release(lease) => balancer.release_lease(group, &lease).map(|()| None),
    };
    match result {
        Ok(Some(lease)) => to_json(StatusCode::OK, &lease),
        Ok(None) => response(StatusCode::NO_CONTENT, "text/plain", Either::Left(Full::default())),
        Err(LeaseError::Unknown(reason)) => error(StatusCode::NOT_FOUND, reason),
        Err(LeaseError::NoMember(reason)) => retry_later(StatusCode::SERVICE_UNAVAILABLE, reason),
        Err(LeaseError::LimitReached(reason)) => retry_later(StatusCode::TOO_MANY_REQUESTS, reason),
    }
}

fn retry_later(status: StatusCode, reason: String) -> Response<ResponseBody> {
    let mut response = error(status, reason);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_says_whose_leases_are_to_end() {
        let end_leases_body = |member: Option<&str>, from: Option<&str>| EndLeasesBody {
            member: member.map(str::to_owned),
            from: from.map(|from| from.parse().unwrap()),
        };
        assert_eq!(EndLeasesBody::parse(b" "), Ok(end_leases_body(None, None)));
        assert_eq!(
            EndLeasesBody::parse(br#"{"member":"a:1","from":"10.0.0.7"}"#),
            Ok(end_leases_body(Some("a:1"), Some("10.0.0.7")))
        );
        for body in ["[]", "{\"members\":1}", "{\"from\":\"10.0.0.0/8\"}", "member=a"] {
            let parse_error = EndLeasesBody::parse(body.as_bytes()).expect_err(body);
            assert!(parse_error.contains("give nothing for all"), "{parse_error}");
        }
    }

    #[test]
    fn a_wish_may_say_nothing_and_must_make_sense() {
        let bind = |body: &str| parse(Operation::Bind, None, body.as_bytes());
        assert_eq!(bind(""), Ok(LeaseOperation::Bind(LeaseRequest::default())));
        assert_eq!(bind(" {}\n"), Ok(LeaseOperation::Bind(LeaseRequest::default())));
        let body = r#"{"key": "me", "lease_seconds": 1.5, "exclude": ["a:1"]}"#;
        let request = LeaseRequest {
            from: None,
            key: Some("me".into()),
            lease_seconds: Some(1.5),
            exclude: vec!["a:1".into()],
        };
        assert_eq!(bind(body), Ok(LeaseOperation::Bind(request)));
        let renew = parse(Operation::Renew, Some("0a"), br#"{"lease_seconds": 3600}"#);
        let request = LeaseRequest { lease_seconds: Some(3600.0), ..LeaseRequest::default() };
        assert_eq!(renew, Ok(LeaseOperation::Renew("0a".into(), request)));
        assert_eq!(parse(Operation::Release, Some("0a"), b""), Ok(LeaseOperation::Release("0a".into())));
        for (body, reason) in [
            ("me", "is no object"),
            (r#"["me", 9, []]"#, "give nothing, or"),
            ("{", "the body: "),
            (r#"{"seconds": 1}"#, "unknown field `seconds`"),
            (r#"{"lease_seconds": 0.9}"#, "1 to 3600 seconds"),
            (r#"{"lease_seconds": 3601}"#, "1 to 3600 seconds"),
            (r#"{"lease_seconds": "1"}"#, "invalid type"),
            (r#"{"exclude": "a:1"}"#, "invalid type"),
        ] {
            let parse_error = bind(body).expect_err(body);
            assert!(parse_error.contains(reason), "{body}: {parse_error}");
        }
        let long_key = format!(r#"{{"key": "{}"}}"#, "é".repeat(257));
        assert!(bind(&long_key).unwrap_err().contains("257 characters"));
        let many_excluded = format!(r#"{{"exclude": [{}"a:1"]}}"#, r#""a:1", "#.repeat(64));
        assert!(bind(&many_excluded).unwrap_err().contains("at most 64"));
        assert!(
            parse(Operation::Renew, Some("0a"), br#"{"key": "me"}"#).unwrap_err().contains("has it already")
        );
        assert!(parse(Operation::Release, Some("0a"), b"{}").unwrap_err().contains("without a body"));
    }
}
