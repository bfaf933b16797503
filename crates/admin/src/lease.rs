//! Leases of members for clients that connect directly: requests and responses.
//!
//! Requests are frequent. Each is answered in microseconds on the admin thread, and none is in the audit log,
//! as with load reports.

use std::net::IpAddr;

use http_body_util::{Either, Full};
use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde::Deserialize;

use crate::plane::Behind;
use crate::reply::{Body, error, response, to_json};
use crate::sent;
use crate::subject::LEASE_SECONDS;
use crate::verb::Verb;
use crate::{NoLease, Wish};

/// A client's request.
#[derive(Debug, PartialEq)]
pub(crate) enum Ask {
    Bind(Wish),
    /// Renews the lease with this number.
    Renew(String, Wish),
    /// Ends the lease with this number.
    Release(String),
}

/// The maximum length of keys and names in characters, as in the OpenAPI document.
const WORD: usize = 256;
/// The maximum number of excluded members.
const EXCLUDED: usize = 64;

/// Parses the body of a request; `lease` is the number in its path.
///
/// # Errors
/// The reason why it is invalid, for the client.
pub(crate) fn read(verb: Verb, lease: Option<&str>, body: &[u8]) -> Result<Ask, String> {
    let lease = lease.unwrap_or_default().to_owned();
    let wish = match body.trim_ascii() {
        b"" => Wish::default(),
        _ if verb == Verb::Release => return Err("a lease is released without a body".into()),
        // serde would also accept a list.
        body if !body.starts_with(b"{") => return Err(format!("the body is no object: {GIVE}")),
        body => sent::read(body, GIVE)?,
    };
    let Wish { key, lease_seconds, exclude, from: _ } = &wish;
    if lease_seconds.is_some_and(|seconds| !LEASE_SECONDS.contains(&seconds)) {
        let (least, most) = (*LEASE_SECONDS.start(), *LEASE_SECONDS.end());
        return Err(format!("lease_seconds: a lease is for {least} to {most} seconds"));
    }
    if exclude.len() > EXCLUDED {
        return Err(format!("exclude: at most {EXCLUDED} members"));
    }
    if let Some(long) = key.iter().chain(exclude).map(|word| word.chars().count()).find(|long| *long > WORD) {
        return Err(format!("a word of {long} characters: {WORD} are enough"));
    }
    match verb {
        Verb::Bind => Ok(Ask::Bind(wish)),
        Verb::Release => Ok(Ask::Release(lease)),
        _ if key.is_some() => Err("key: a lease that is renewed has it already".into()),
        _ => Ok(Ask::Renew(lease, wish)),
    }
}

/// The leases to end: those of one member, of clients at one address, of both; else all.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lessees {
    pub(crate) member: Option<String>,
    pub(crate) from: Option<IpAddr>,
}

impl Lessees {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// The reason why it is invalid, for its sender.
    pub(crate) fn read(body: &[u8]) -> Result<Self, String> {
        const GIVE: &str = "give nothing for all of the group, or {\"member\": …, \"from\": \"10.0.0.7\"}";
        match body.trim_ascii() {
            b"" => Ok(Self::default()),
            body if !body.starts_with(b"{") => Err(format!("the body is no object: {GIVE}")),
            body => sent::read(body, GIVE),
        }
    }
}

const GIVE: &str = "give nothing, or {\"key\": …, \"lease_seconds\": …, \"exclude\": [MEMBER]}";

/// Executes a request for a client at `from`, if that is an address.
pub(crate) fn answer(behind: &Behind, group: &str, ask: Ask, from: Option<IpAddr>) -> Response<Body> {
    let Behind::Balancer(subject) = behind else {
        // The path belongs to a balancer, so other processes have no leases.
        return error(StatusCode::NOT_FOUND, "there are no leases here".into());
    };
    let lent = match ask {
        Ask::Bind(wish) => subject.bind(group, &Wish { from, ..wish }).map(Some),
        Ask::Renew(lease, wish) => subject.renew(group, &lease, &wish).map(Some),
        Ask::Release(lease) => subject.release(group, &lease).map(|()| None),
    };
    match lent {
        Ok(Some(lease)) => to_json(StatusCode::OK, &lease),
        Ok(None) => response(StatusCode::NO_CONTENT, "text/plain", Either::Left(Full::default())),
        Err(NoLease::Unknown(why)) => error(StatusCode::NOT_FOUND, why),
        Err(NoLease::Nobody(why)) => later(StatusCode::SERVICE_UNAVAILABLE, why),
        Err(NoLease::Refused(why)) => later(StatusCode::TOO_MANY_REQUESTS, why),
    }
}

fn later(status: StatusCode, why: String) -> Response<Body> {
    let mut refused = error(status, why);
    refused.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_says_whose_leases_are_to_end() {
        let of = |member: Option<&str>, from: Option<&str>| Lessees {
            member: member.map(str::to_owned),
            from: from.map(|from| from.parse().unwrap()),
        };
        assert_eq!(Lessees::read(b" "), Ok(of(None, None)));
        assert_eq!(
            Lessees::read(br#"{"member":"a:1","from":"10.0.0.7"}"#),
            Ok(of(Some("a:1"), Some("10.0.0.7")))
        );
        for body in ["[]", "{\"members\":1}", "{\"from\":\"10.0.0.0/8\"}", "member=a"] {
            let said = Lessees::read(body.as_bytes()).expect_err(body);
            assert!(said.contains("give nothing for all"), "{said}");
        }
    }

    #[test]
    fn a_wish_may_say_nothing_and_must_make_sense() {
        let bind = |body: &str| read(Verb::Bind, None, body.as_bytes());
        assert_eq!(bind(""), Ok(Ask::Bind(Wish::default())));
        assert_eq!(bind(" {}\n"), Ok(Ask::Bind(Wish::default())));
        let body = r#"{"key": "me", "lease_seconds": 1.5, "exclude": ["a:1"]}"#;
        let wish = Wish {
            from: None,
            key: Some("me".into()),
            lease_seconds: Some(1.5),
            exclude: vec!["a:1".into()],
        };
        assert_eq!(bind(body), Ok(Ask::Bind(wish)));
        let renew = read(Verb::Renew, Some("0a"), br#"{"lease_seconds": 3600}"#);
        let wish = Wish { lease_seconds: Some(3600.0), ..Wish::default() };
        assert_eq!(renew, Ok(Ask::Renew("0a".into(), wish)));
        assert_eq!(read(Verb::Release, Some("0a"), b""), Ok(Ask::Release("0a".into())));
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
        assert!(read(Verb::Renew, Some("0a"), br#"{"key": "me"}"#).unwrap_err().contains("has it already"));
        assert!(read(Verb::Release, Some("0a"), b"{}").unwrap_err().contains("without a body"));
    }
}
