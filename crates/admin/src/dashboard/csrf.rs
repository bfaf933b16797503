//! Protection of pages and forms against attacks through browsers: a request that a browser sends on its own
//! must neither change nor reveal anything. `host` has already checked the host name.
//!
//! - *Origin*: forms are accepted from pages of this endpoint only.
//! - *Seal*: a form with an action carries a tag over the caller, the described effect and the time
//!   (HMAC-SHA-256, a key of the process). The executed action is the confirmed one, of the same caller,
//!   within a quarter of an hour, and only once.
//! - *Cookie*: the browser stores a token from the sign-in form where scripts and other sites cannot read it.
//!   The cookie is accepted for pages of the dashboard alone: the rest of control ignores cookies.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use hyper::HeaderMap;
use hyper::header::{COOKIE, HOST, ORIGIN};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;

use crate::reply::header;

/// The cookie's name, whose prefix restricts it to this host and to TLS.
const COOKIE_NAME: &str = "__Host-plimsoll-token";
/// The time limit to submit a form, in milliseconds.
const CONFIRM_LIMIT_MS: u64 = 15 * 60 * 1000;
/// The maximum length of a token.
const MAX_TOKEN_LENGTH: usize = 6000;

/// Checks that a page of this endpoint sent the form.
///
/// # Errors
/// The reason why it did not.
pub(super) fn check_origin(headers: &HeaderMap, secure: bool) -> Result<(), String> {
    let host = header(headers, HOST).unwrap_or_default();
    let expected_origin = format!("{}://{host}", if secure { "https" } else { "http" });
    match header(headers, ORIGIN) {
        Some(origin) if origin.eq_ignore_ascii_case(&expected_origin) => Ok(()),
        Some(_) => Err("the form was sent by a page of somebody else".into()),
        None if header(headers, SITE) == Some("same-origin") => Ok(()),
        None => Err("it is not known whose page sent the form; programs act by /v1/…".into()),
    }
}

const SITE: hyper::header::HeaderName = hyper::header::HeaderName::from_static("sec-fetch-site");

/// The random key of the process; `None` if the system provides no randomness.
static KEY: LazyLock<Option<[u8; 32]>> = LazyLock::new(|| {
    let mut key = [0; 32];
    let filled_len = getrandom(&mut key, GetRandomFlags::empty()).ok()?;
    (filled_len == key.len()).then_some(key)
});

/// A confirmed action.
#[derive(Debug)]
pub(super) struct ActionSeal<'a> {
    pub(super) caller: &'a str,
    /// The action and its target, as separate texts.
    pub(super) action: &'a [&'a str],
    /// The time when it was shown, milliseconds since 1970.
    pub(super) shown_at_ms: u64,
}

impl ActionSeal<'_> {
    fn mac(&self) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(KEY.as_ref()?).ok()?;
        let parts = [self.caller].into_iter().chain(self.action.iter().copied());
        // Each part has its length, so that different splits differ.
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        mac.update(&self.shown_at_ms.to_be_bytes());
        Some(mac)
    }

    /// Returns the seal; `None` if there is no key.
    pub(super) fn sign(&self) -> Option<String> {
        let tag = self.mac()?.finalize().into_bytes();
        Some(tag.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns `true` if the seal is valid and in time.
    pub(super) fn is_valid(&self, seal: &str, now: u64) -> bool {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let byte = |pair: &[u8]| match pair {
            [high, low] => Some(16 * digit(*high)? + digit(*low)?),
            _ => None,
        };
        let tag: Option<Vec<u8>> = seal.as_bytes().chunks(2).map(byte).collect();
        let is_fresh = (self.shown_at_ms..=self.shown_at_ms.saturating_add(CONFIRM_LIMIT_MS)).contains(&now);
        let (Some(tag), Some(mac)) = (tag, self.mac()) else { return false };
        is_fresh && mac.verify_slice(&tag).is_ok()
    }

    /// Returns `true` at the first use of a [valid](Self::is_valid) seal.
    pub(super) fn mark_used(&self, used: &Mutex<BTreeMap<String, u64>>, now: u64) -> bool {
        let Some(seal) = self.sign() else { return false };
        let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
        // Expired seals are removed.
        used.retain(|_, expires_at| *expires_at >= now);
        used.insert(seal, self.shown_at_ms.saturating_add(CONFIRM_LIMIT_MS)).is_none()
    }
}

/// The used seals with their expiry: only callers that received seals can add to them.
pub(super) static USED_SEALS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// Returns the time in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the token in the browser's cookie.
pub(crate) fn cookie_token(headers: &HeaderMap) -> Option<String> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut own_tokens = cookies.flat_map(|value| value.split(';')).filter_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        (name == COOKIE_NAME).then(|| value.to_owned())
    });
    own_tokens.next().filter(|token| is_token(token))
}

/// Returns `true` if the text may be a token.
pub(super) fn is_token(token: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !token.is_empty() && token.len() <= MAX_TOKEN_LENGTH && token.bytes().all(is_allowed)
}

/// Returns the header that stores a token until the browser is closed, or removes it.
pub(super) fn set_cookie(token: Option<&str>) -> String {
    let max_age = if token.is_some() { "" } else { "; Max-Age=0" };
    format!("{COOKIE_NAME}={}; Path=/; Secure; HttpOnly; SameSite=Strict{max_age}", token.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (hyper::header::HeaderName::from_static(name), value.parse().unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn forms_come_from_our_own_pages() {
        let check_form = |pairs: &[(&'static str, &str)], secure| check_origin(&headers(pairs), secure);
        let host = ("host", "10.0.0.1:9905");
        assert_eq!(check_form(&[host, ("origin", "https://10.0.0.1:9905")], true), Ok(()));
        assert_eq!(check_form(&[host, ("origin", "http://10.0.0.1:9905")], false), Ok(()));
        assert_eq!(check_form(&[host, ("sec-fetch-site", "same-origin")], true), Ok(()));
        for invalid_origin in
            ["https://evil.example", "http://10.0.0.1:9905", "null", "https://10.0.0.1:9906", ""]
        {
            assert!(check_form(&[host, ("origin", invalid_origin)], true).is_err(), "{invalid_origin}");
            assert!(
                check_form(&[host, ("origin", invalid_origin), ("sec-fetch-site", "same-origin")], true)
                    .is_err(),
                "{invalid_origin}"
            );
        }
        assert!(
            check_form(&[host], true).is_err()
                && check_form(&[host, ("sec-fetch-site", "cross-site")], true).is_err()
        );
    }

    #[test]
    fn what_was_confirmed_is_what_is_done() {
        let action = ["drain", "web", "10.0.0.1:80"];
        let confirmed = ActionSeal { caller: "jwt:olga", action: &action, shown_at_ms: 1000 };
        let seal = confirmed.sign().unwrap();
        assert!(confirmed.is_valid(&seal, 1000) && confirmed.is_valid(&seal, 901_000));
        assert!(!confirmed.is_valid(&seal, 901_001) && !confirmed.is_valid(&seal, 999));
        for other_seal in [
            ActionSeal { caller: "jwt:eve", action: &action, shown_at_ms: 1000 },
            ActionSeal { caller: "jwt:olga", action: &["drain", "web", "10.0.0.2:80"], shown_at_ms: 1000 },
            ActionSeal { caller: "jwt:olga", action: &["drain", "web1", "0.0.0.1:80"], shown_at_ms: 1000 },
            ActionSeal { caller: "jwt:olga", action: &action, shown_at_ms: 1001 },
        ] {
            assert!(!other_seal.is_valid(&seal, 1001), "{other_seal:?}");
        }
        for invalid_seal in ["", "00", "zz", &seal[1..], &format!("{seal}00"), "é"] {
            assert!(!confirmed.is_valid(invalid_seal, 1000), "{invalid_seal}");
        }
    }

    #[test]
    fn what_was_confirmed_is_done_once() {
        let used = Mutex::default();
        let seal_of =
            |at| ActionSeal { caller: "jwt:olga", action: &["drain", "web", "a:80"], shown_at_ms: at };
        assert!(seal_of(1000).mark_used(&used, 1500) && !seal_of(1000).mark_used(&used, 2000));
        assert!(seal_of(2500).mark_used(&used, 3000) && !seal_of(1000).mark_used(&used, 901_000));
        assert!(seal_of(1_000_000).mark_used(&used, 1_000_000));
        assert_eq!(used.lock().unwrap().len(), 1, "those that are too old are forgotten");
    }

    #[test]
    fn a_token_is_kept_where_scripts_and_others_do_not_get_at_it() {
        let cookie = set_cookie(Some("a.b-c_d"));
        assert_eq!(cookie, "__Host-plimsoll-token=a.b-c_d; Path=/; Secure; HttpOnly; SameSite=Strict");
        let cookie_header = format!("x=1; {}", cookie.split(';').next().unwrap());
        assert_eq!(cookie_token(&headers(&[("cookie", &cookie_header)])).as_deref(), Some("a.b-c_d"));
        for invalid_cookie in
            ["x=1", "__Host-plimsoll-token=", "__Host-plimsoll-token=a b", "plimsoll-token=a"]
        {
            assert_eq!(cookie_token(&headers(&[("cookie", invalid_cookie)])), None, "{invalid_cookie}");
        }
        assert!(set_cookie(None).contains("Max-Age=0") && !is_token(&"a".repeat(MAX_TOKEN_LENGTH + 1)));
    }
}
