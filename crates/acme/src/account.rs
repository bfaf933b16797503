//! The account at an ACME authority: created once and then loaded from the cache folder.

use instant_acme::{Account, AccountCredentials, Error, ExternalAccountKey, NewAccount, Problem};
use serde::{Deserialize, Serialize};

use crate::client::{AcmeClient, RetryAfter};
use crate::{CertificateCache, CertificateSettings};

/// The contents of an account file: the credentials that the authority issued and the contact URLs sent to
/// it.
#[derive(Serialize, Deserialize)]
struct StoredAccount {
    credentials: AccountCredentials,
    contact: Vec<String>,
}

/// Opens the account at the authority, or creates one.
///
/// # Errors
/// Returns the reason as text, and the delay that the authority asked for, if it gave one.
pub(crate) async fn open(
    settings: &CertificateSettings,
    cache: &CertificateCache,
) -> Result<(Account, RetryAfter), (RetryAfter, String)> {
    let (client, retry_after) = AcmeClient::new(settings.trust.clone());
    match load_or_create(settings, cache, client).await {
        Ok(account) => Ok((account, retry_after)),
        Err(error) => Err((retry_after, error)),
    }
}

async fn load_or_create(
    settings: &CertificateSettings,
    cache: &CertificateCache,
    client: AcmeClient,
) -> Result<Account, String> {
    let file = settings.account_file();
    let contact: Vec<&str> = settings.contact.iter().map(String::as_str).collect();
    let stored_bytes = cache.read(&file).map_err(|error| unreadable_text(settings, &error.to_string()))?;
    if let Some(bytes) = stored_bytes
        && let Some(account) = load(settings, cache, &client, &contact, &bytes).await?
    {
        return Ok(account);
    }
    let new_account =
        NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
    let external_key =
        settings.binding.as_ref().map(|binding| ExternalAccountKey::new(binding.id.clone(), &binding.key));
    let create_account = || {
        builder(client.clone()).create(&new_account, settings.directory.to_string(), external_key.as_ref())
    };
    let mut creation = create_account().await;
    // The library gives up after three rejected nonces in a row, which is neither party's fault: try once
    // more.
    if creation.as_ref().is_err_and(is_stale) {
        creation = create_account().await;
    }
    let (account, credentials) = creation.map_err(|error| format!("no account: {}", explain(&error)))?;
    store(settings, cache, credentials)?;
    Ok(account)
}

/// Loads the account from the folder. Returns `None` if the authority no longer knows it.
async fn load(
    settings: &CertificateSettings,
    cache: &CertificateCache,
    client: &AcmeClient,
    contact: &[&str],
    bytes: &[u8],
) -> Result<Option<Account>, String> {
    let parse_account = || {
        serde_json::from_slice::<StoredAccount>(bytes)
            .map_err(|error| unreadable_text(settings, &error.to_string()))
    };
    let stored_account = parse_account()?;
    let account = builder(client.clone()).from_credentials(stored_account.credentials).await;
    let account = account.map_err(|error| explain(&error))?;
    if stored_account.contact != settings.contact {
        match account.update_contacts(contact).await {
            // `from_credentials` consumed the first copy of the credentials.
            Ok(()) => store(settings, cache, parse_account()?.credentials)?,
            Err(error) if is_unknown(&error) => return Ok(None),
            Err(error) => return Err(explain(&error)),
        }
    }
    Ok(Some(account))
}

/// Removes the account file of an account that the authority no longer knows: the next `open` creates a new
/// one.
pub(crate) fn remove_account(settings: &CertificateSettings, cache: &CertificateCache) {
    if let Err(error) = cache.remove(&settings.account_file()) {
        tracing::warn!("cannot take out {}: {error}", settings.cache.join(settings.account_file()).display());
    }
}

fn builder(client: AcmeClient) -> instant_acme::AccountBuilder {
    Account::builder_with_http(Box::new(client))
}

fn unreadable_text(settings: &CertificateSettings, reason: &str) -> String {
    format!("cannot read the account {}: {reason}", settings.cache.join(settings.account_file()).display())
}

fn store(
    settings: &CertificateSettings,
    cache: &CertificateCache,
    credentials: AccountCredentials,
) -> Result<(), String> {
    let stored_account = StoredAccount { credentials, contact: settings.contact.clone() };
    let bytes = serde_json::to_vec(&stored_account).map_err(|error| error.to_string())?;
    cache
        .write(&settings.account_file(), &bytes)
        .map_err(|error| format!("cannot write to {}: {error}", settings.cache.display()))
}

/// Returns `true` if the authority does not know the account, which may have been deleted there.
pub(crate) fn is_unknown(error: &Error) -> bool {
    matches!(error, Error::Api(problem) if problem_kind(problem) == "accountDoesNotExist")
}

/// Returns `true` if the authority rejected all nonces that it issued itself (RFC 8555, section 6.5).
pub(crate) fn is_stale(error: &Error) -> bool {
    matches!(error, Error::Api(problem) if problem_kind(problem) == "badNonce")
}

/// Returns `true` if the problem concerns the account or the request, not the content of the order.
pub(crate) fn is_general(problem: &Problem) -> bool {
    matches!(problem_kind(problem), "accountDoesNotExist" | "badNonce" | "rateLimited")
}

/// Returns the last part of a problem's type URN (RFC 8555, section 6.7), or an empty string.
fn problem_kind(problem: &Problem) -> &str {
    problem.r#type.as_deref().and_then(|kind| kind.rsplit(':').next()).unwrap_or_default()
}

/// Formats an error for an operator.
pub(crate) fn explain(error: &Error) -> String {
    match error {
        Error::Api(problem) => problem_text(problem),
        Error::Json(error) => format!("the authority's answer is not as it should be: {error}"),
        Error::Timeout(_) => "the authority does not come to an end with it".to_owned(),
        other => other.to_string(),
    }
}

/// Formats the authority's problem document: its detail, its subproblems, its kind and a hint.
pub(crate) fn problem_text(problem: &Problem) -> String {
    let mut text = problem.detail.clone().unwrap_or_else(|| "the authority does not say why".to_owned());
    for subproblem in &problem.subproblems {
        let name = subproblem.identifier.as_ref().map(|name| format!("{}: ", name.authorized(false)));
        let detail = subproblem.detail.as_deref().unwrap_or_default();
        text.push_str(&format!("; {}{detail}", name.unwrap_or_default()));
    }
    let hint = match problem_kind(problem) {
        "" => return printable(&text),
        "externalAccountRequired" => "; it wants external_account = { id, key_file }",
        "userActionRequired" => "; its terms may have changed",
        _ => "",
    };
    printable(&format!("{text} ({}){hint}", problem_kind(problem)))
}

/// Makes text from the network safe to print: replaces control characters by spaces, cuts at 1000 characters.
fn printable(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).take(1000).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_told_in_a_line() {
        let problem = |text: &str| serde_json::from_str::<Problem>(text).unwrap();
        let unauthorized = problem(
            r#"{"type": "urn:ietf:params:acme:error:unauthorized", "detail": "no\nway", "status": 403, "subproblems": [
            {"type": "x", "detail": "blocked", "identifier": {"type": "dns", "value": "a.example"}}]}"#,
        );
        assert_eq!(problem_text(&unauthorized), "no way; a.example: blocked (unauthorized)");
        assert!(is_unknown(&Error::Api(problem(
            r#"{"type": "urn:ietf:params:acme:error:accountDoesNotExist"}"#
        ))));
        let binding_required =
            problem(r#"{"type": "urn:ietf:params:acme:error:externalAccountRequired", "detail": "no"}"#);
        assert!(
            problem_text(&binding_required).ends_with("external_account = { id, key_file }"),
            "{}",
            problem_text(&binding_required)
        );
        assert_eq!(problem_text(&problem("{}")), "the authority does not say why");
    }
}
