//! JSON Web Tokens (RFC 7519) that an identity provider has signed for people.
//!
//! A token is valid if a known key signed it by ES256, RS256 or EdDSA, for the configured issuer and
//! audience. It must be within its time limits, with half a minute of tolerance. The key determines the
//! algorithm, never the token alone. This prevents the attacks with `none` and with public keys used as
//! secrets. Keys are a JWK set (RFC 7517): a file that is reloaded on changes, or the provider's published
//! set, which is fetched (`refresh.rs`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::access::Caller;
use crate::refresh::{RefreshedResource, Url};
use crate::reload::WatchedFiles;

/// The tolerance for clocks, in seconds.
const LEEWAY: u64 = 30;
/// The maximum length of a token, in bytes.
const MAX_TOKEN_LENGTH: usize = 8 * 1024;

/// The conditions on tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtSettings {
    /// The required issuer (`iss`).
    pub issuer: String,
    /// The accepted audiences (`aud`).
    pub audience: Vec<String>,
    /// The issuer's public keys, a JWK set.
    pub keys: KeySet,
}

/// The location of a JWK set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySet {
    /// A file.
    File(PathBuf),
    /// An address of the provider.
    Published {
        /// The address.
        url: Url,
        /// The authorities of the provider's certificate, PEM.
        authorities: PathBuf,
    },
}

/// Verifies tokens.
#[derive(Debug)]
pub(crate) struct TokenVerifier {
    config: JwtSettings,
    keys: KeySource,
}

#[derive(Debug)]
enum KeySource {
    File(WatchedFiles<Vec<VerificationKey>>),
    Published(Arc<RefreshedResource<Vec<VerificationKey>>>),
}

/// The reason why a token is invalid.
enum TokenError {
    /// Its key is unknown.
    UnknownKey,
    Invalid(String),
}

impl From<String> for TokenError {
    fn from(reason: String) -> Self {
        Self::Invalid(reason)
    }
}

impl From<&str> for TokenError {
    fn from(reason: &str) -> Self {
        Self::Invalid(reason.into())
    }
}

struct VerificationKey {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

impl TokenVerifier {
    /// Reads the keys of a file, or prepares to fetch them.
    ///
    /// # Errors
    /// The keys cannot be read, or none is usable.
    pub(crate) fn open(config: JwtSettings) -> Result<Self, String> {
        let keys = match &config.keys {
            KeySet::File(path) => {
                let name = path.display().to_string();
                KeySource::File(WatchedFiles::open(vec![path.clone()], move |bytes| {
                    let key_set = bytes.first().map_or(&[][..], Vec::as_slice);
                    keys(key_set).map_err(|error| format!("{name}: {error}"))
                })?)
            }
            KeySet::Published { url, authorities } => {
                KeySource::Published(RefreshedResource::new(url.clone(), authorities.clone(), keys)?)
            }
        };
        Ok(Self { config, keys })
    }

    /// Fetches the published keys while the runtime lives.
    pub(crate) fn keep(&self) {
        if let KeySource::Published(resource) = &self.keys {
            tokio::spawn(Arc::clone(resource).keep());
        }
    }

    /// Returns the caller of a token. If its key is unknown, published keys are fetched again.
    ///
    /// # Errors
    /// The reason why the token is invalid, without its contents.
    pub(crate) async fn check(&self, token: &str) -> Result<Caller, String> {
        let verified = match (self.verify_cached(token), &self.keys) {
            (Err(TokenError::UnknownKey), KeySource::Published(resource)) if resource.refresh().await => {
                self.verify_cached(token)
            }
            (result, _) => result,
        };
        verified.map_err(|error| match error {
            TokenError::UnknownKey => "the token is signed by a key that is not known here".into(),
            TokenError::Invalid(reason) => reason,
        })
    }

    fn verify_cached(&self, token: &str) -> Result<Caller, TokenError> {
        let keys = match &self.keys {
            KeySource::File(files) => files.current_or_log("the keys of tokens"),
            KeySource::Published(resource) => resource.current().ok_or(TokenError::UnknownKey)?,
        };
        verify_with(&keys, &self.config, token)
    }
}

fn verify_with(keys: &[VerificationKey], config: &JwtSettings, token: &str) -> Result<Caller, TokenError> {
    if token.len() > MAX_TOKEN_LENGTH {
        return Err("the token is too long".into());
    }
    let header = decode_header(token).map_err(|_| "the token is not one that is signed by a key")?;
    if header.crit.is_some() {
        return Err("the token asks for extensions that are not known here".into());
    }
    let key = select_key(keys, &header)?;
    let mut validation = Validation::new(key.algorithm);
    validation.leeway = LEEWAY;
    validation.validate_nbf = true;
    validation.set_issuer(&[&config.issuer]);
    validation.set_audience(&config.audience);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    let token_data = decode::<Map<String, Value>>(token, &key.key, &validation)
        .map_err(|error| error_text(error.kind()))?;
    Ok(caller_of(&token_data.claims)?)
}

/// Returns the key for a token. Without a key ID there must be only one candidate.
fn select_key<'k>(keys: &'k [VerificationKey], header: &Header) -> Result<&'k VerificationKey, TokenError> {
    let mut matching_keys = keys.iter().filter(|key| {
        key.algorithm == header.alg && (header.kid.is_none() || key.id.as_ref() == header.kid.as_ref())
    });
    match (matching_keys.next(), matching_keys.next()) {
        (Some(key), None) => Ok(key),
        (Some(_), Some(_)) => Err("the token does not say which of several keys signed it".into()),
        (None, _) => Err(TokenError::UnknownKey),
    }
}

fn caller_of(claims: &Map<String, Value>) -> Result<Caller, String> {
    let to_texts = |value: &Value| match value {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Array(list) => list.iter().map(|element| element.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    let subject = claims.get("sub").and_then(Value::as_str).filter(|subject| !subject.is_empty());
    let subject = subject.ok_or("the token names no subject")?;
    let claim_texts: BTreeMap<String, Vec<String>> =
        claims.iter().filter_map(|(key, value)| Some((key.clone(), to_texts(value)?))).collect();
    // A number of seconds, not necessarily an integer (RFC 7519 section 2).
    let expires_at = claims.get("exp").and_then(Value::as_f64).ok_or("the token's exp is no number")?;
    let expires_at = Some((expires_at as u64).saturating_add(LEEWAY));
    Ok(Caller { valid_until: expires_at, ..Caller::jwt(subject, claim_texts) })
}

fn error_text(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::ExpiredSignature => "the token has expired",
        ErrorKind::ImmatureSignature => "the token is not valid yet",
        ErrorKind::InvalidIssuer => "the token is from another issuer",
        ErrorKind::InvalidAudience => "the token is for another audience",
        ErrorKind::MissingRequiredClaim(_) => "the token lacks one of exp, iss, aud, sub",
        ErrorKind::InvalidSignature => "the token's signature is wrong",
        _ => "the token is malformed",
    }
}

/// Returns the keys of a set that may sign tokens; others are ignored.
fn keys(key_set: &[u8]) -> Result<Vec<VerificationKey>, String> {
    #[derive(Deserialize)]
    struct RawKeySet {
        keys: Vec<Value>,
    }
    let key_set: RawKeySet =
        serde_json::from_slice(key_set).map_err(|error| format!("is not a JWK set: {error}"))?;
    // Key types that the library does not know are not usable.
    let parsed_keys = key_set.keys.into_iter().filter_map(|raw_key| Jwk::deserialize(raw_key).ok());
    let keys: Vec<VerificationKey> = parsed_keys.filter_map(|jwk| parse_key(&jwk)).collect();
    if keys.is_empty() {
        return Err("has no key for ES256, RS256 or EdDSA".into());
    }
    Ok(keys)
}

fn parse_key(jwk: &Jwk) -> Option<VerificationKey> {
    let (algorithm, key_algorithm) = match &jwk.algorithm {
        AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256)
        }
        AlgorithmParameters::OctetKeyPair(key_pair) if key_pair.curve == EllipticCurve::Ed25519 => {
            (Algorithm::EdDSA, KeyAlgorithm::EdDSA)
        }
        AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
        _ => return None,
    };
    let is_for_signatures =
        !matches!(&jwk.common.public_key_use, Some(using) if *using != PublicKeyUse::Signature);
    if !is_for_signatures
        || jwk.common.key_algorithm.is_some_and(|stated_algorithm| stated_algorithm != key_algorithm)
    {
        return None;
    }
    let key = DecodingKey::from_jwk(jwk).ok()?;
    Some(VerificationKey { id: jwk.common.key_id.clone(), algorithm, key })
}

impl std::fmt::Debug for VerificationKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("id", &self.id).field("algorithm", &self.algorithm).finish()
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) mod invariants;
#[cfg(test)]
mod tests;
