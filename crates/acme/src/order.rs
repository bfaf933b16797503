//! One ACME order: answers the authority's challenges and downloads the certificate.

use std::any::Any;
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeHandle, ChallengeType, Error, Identifier,
    NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};
use rcgen::{
    CertificateParams, CustomExtension, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256,
    PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256,
};

use crate::account::{explain, is_general, problem_text};
use crate::{AcmeHandler, CertificateSettings, ChallengeMethod, ChallengeResponse, KeyType, LeafCertificate};

/// The poll intervals and the timeout for each step of an order. Some authorities validate from several
/// places and take half a minute.
const POLL_POLICY: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(300))
    .backoff(1.5)
    .timeout(Duration::from_secs(120));

/// The reason why an order failed.
pub(crate) enum OrderFailure {
    /// An error of the authority or of the connection to it.
    Acme(Error),
    /// Any other reason, as a complete text.
    Other(String),
}

impl From<Error> for OrderFailure {
    fn from(error: Error) -> Self {
        Self::Acme(error)
    }
}

impl From<String> for OrderFailure {
    fn from(reason: String) -> Self {
        Self::Other(reason)
    }
}

impl From<rcgen::Error> for OrderFailure {
    fn from(error: rcgen::Error) -> Self {
        Self::Other(format!("cannot make a key or a request: {error}"))
    }
}

impl OrderFailure {
    pub(crate) fn explain(&self) -> String {
        match self {
            Self::Acme(error) => explain(error),
            Self::Other(reason) => reason.clone(),
        }
    }
}

/// Orders a certificate and returns its key and chain in PEM form. `replaces` is the certificate that it
/// renews, if the authority supports ARI.
pub(crate) async fn order(
    settings: &CertificateSettings,
    account: &Account,
    handler: &dyn AcmeHandler,
    replaces: Option<CertificateIdentifier<'static>>,
) -> Result<String, OrderFailure> {
    let names: Vec<Identifier> = settings.domains.iter().cloned().map(Identifier::Dns).collect();
    let mut order = place_order(settings, account, &names, replaces).await?;
    // Keep the answers in place until the authority has validated all names or given up.
    let challenge_guards = answer_challenges(settings, &mut order, handler).await?;
    match order.poll_ready(&POLL_POLICY).await {
        Ok(OrderStatus::Ready) => {}
        Ok(_) => return Err(order_failure(&mut order, None).await),
        // The problem concerns one of the names and does not identify it.
        Err(Error::Api(problem)) => return Err(order_failure(&mut order, Some(problem)).await),
        Err(error) => return Err(error.into()),
    }
    drop(challenge_guards);
    let key = new_key(settings.key_type)?;
    let mut params = CertificateParams::new(settings.domains.clone())?;
    params.distinguished_name = DistinguishedName::new();
    order.finalize_csr(params.serialize_request(&key)?.der()).await?;
    let chain = order.poll_certificate(&POLL_POLICY).await?;
    let leaf = LeafCertificate::first_in_pem(chain.as_bytes())
        .ok_or_else(|| "the authority gave no certificate".to_owned())?;
    if !leaf.covers(&settings.domains) {
        return Err(OrderFailure::Other(format!(
            "the authority gave a certificate for {} alone",
            leaf.names.join(", ")
        )));
    }
    Ok(key.serialize_pem() + &chain)
}

/// Places the order. Retries without `replaces` if the authority rejects that field, because the certificate
/// is unknown there or was replaced already.
async fn place_order(
    settings: &CertificateSettings,
    account: &Account,
    identifiers: &[Identifier],
    replaces: Option<CertificateIdentifier<'static>>,
) -> Result<Order, Error> {
    let new_order = |replaces: Option<CertificateIdentifier<'static>>| {
        let order = NewOrder::new(identifiers);
        let order = match &settings.profile {
            Some(profile) => order.profile(profile),
            None => order,
        };
        match replaces {
            Some(replaced) => order.replaces(replaced),
            None => order,
        }
    };
    if let Some(replaced) = replaces {
        match account.new_order(&new_order(Some(replaced))).await {
            // The problem has nothing to do with `replaces`.
            Err(Error::Api(problem)) if is_general(&problem) => return Err(Error::Api(problem)),
            Err(error) => {
                tracing::debug!(
                    "{}: the authority rejected the order that names the replaced certificate: {}",
                    settings.names_text(),
                    explain(&error)
                )
            }
            result => return result,
        }
    }
    account.new_order(&new_order(None)).await
}

/// Answers a challenge for each name that the authority requires a proof for.
async fn answer_challenges(
    settings: &CertificateSettings,
    order: &mut Order,
    handler: &dyn AcmeHandler,
) -> Result<Vec<Box<dyn Any + Send>>, OrderFailure> {
    let mut challenge_guards = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        let name = authorization.identifier().to_string();
        match authorization.status {
            AuthorizationStatus::Valid => continue,
            AuthorizationStatus::Pending => {}
            status => {
                return Err(format!("{name}: the authority's authorization is {status:?} already").into());
            }
        }
        let (challenge_type, label) = match settings.method {
            ChallengeMethod::Http => (ChallengeType::Http01, "http-01"),
            ChallengeMethod::Tls => (ChallengeType::TlsAlpn01, "tls-alpn-01"),
        };
        let Some(mut challenge) = authorization.challenge(challenge_type) else {
            return Err(format!("{name}: the authority does not offer the challenge {label} for it").into());
        };
        challenge_guards.push(build_response(settings.method, &name, &challenge, handler)?);
        challenge.set_ready().await.map_err(|error| failure_of_name(&name, error))?;
    }
    Ok(challenge_guards)
}

/// Adds the name to an authority's refusal. An authority that validates at once may respond with the result
/// for the name, or with an unrelated problem.
fn failure_of_name(name: &str, error: Error) -> OrderFailure {
    match error {
        Error::Api(problem) if !is_general(&problem) => {
            OrderFailure::Other(format!("{name}: {}", problem_text(&problem)))
        }
        error => error.into(),
    }
}

fn build_response(
    method: ChallengeMethod,
    name: &str,
    challenge: &ChallengeHandle<'_>,
    handler: &dyn AcmeHandler,
) -> Result<Box<dyn Any + Send>, OrderFailure> {
    let key_authorization = challenge.key_authorization();
    match method {
        ChallengeMethod::Http => {
            // The token becomes a segment of a path.
            let token = challenge.token.as_str();
            let is_token_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            if token.is_empty() || !token.bytes().all(is_token_byte) {
                return Err(
                    format!("{name}: the authority's token has other characters than base64url").into()
                );
            }
            Ok(handler
                .answer_challenge(&ChallengeResponse::Http { token, text: key_authorization.as_str() })?)
        }
        ChallengeMethod::Tls => {
            let mut params = CertificateParams::new(vec![name.to_owned()])?;
            params.custom_extensions =
                vec![CustomExtension::new_acme_identifier(key_authorization.digest().as_ref())];
            let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
            let certificate = params.self_signed(&key)?.pem();
            let key = key.serialize_pem();
            Ok(handler.answer_challenge(&ChallengeResponse::Tls {
                name,
                certificate: &certificate,
                key: &key,
            })?)
        }
    }
}

/// Returns the reason why an order was refused: the problem of each failed name, or else that of the whole
/// order.
async fn order_failure(order: &mut Order, order_problem: Option<Problem>) -> OrderFailure {
    let mut messages = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let name = authorization.identifier().to_string();
        let Ok(state) = authorization.refresh().await else { continue };
        let problems = state.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
        messages.extend(problems.map(|problem| format!("{name}: {}", problem_text(problem))));
    }
    match (messages.is_empty(), order_problem) {
        (false, _) => OrderFailure::Other(messages.join("; ")),
        (true, Some(problem)) => OrderFailure::Acme(Error::Api(problem)),
        (true, None) => {
            OrderFailure::Other("the authority refuses the order and does not say why".to_owned())
        }
    }
}

fn new_key(key_type: KeyType) -> Result<KeyPair, rcgen::Error> {
    KeyPair::generate_for(match key_type {
        KeyType::P256 => &PKCS_ECDSA_P256_SHA256,
        KeyType::P384 => &PKCS_ECDSA_P384_SHA384,
        KeyType::Rsa2048 => &PKCS_RSA_SHA256,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_that_has_looked_already_is_quoted_with_the_name() {
        let failure = |problem_type: &str| {
            let text =
                format!(r#"{{"type": "urn:ietf:params:acme:error:{problem_type}", "detail": "refused"}}"#);
            failure_of_name("one.test", Error::Api(serde_json::from_str(&text).unwrap()))
        };
        assert_eq!(failure("connection").explain(), "one.test: refused (connection)");
        assert!(matches!(failure("badNonce"), OrderFailure::Acme(_)));
        assert!(matches!(failure("accountDoesNotExist"), OrderFailure::Acme(_)));
    }

    #[test]
    fn keys_are_of_the_kind_that_is_wanted() {
        let length = |kind| new_key(kind).unwrap().serialize_der().len();
        assert!(length(KeyType::P256) < length(KeyType::P384));
        assert!(length(KeyType::P384) < 300 && length(KeyType::Rsa2048) > 1000);
    }
}
