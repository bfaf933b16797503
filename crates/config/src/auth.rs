//! `[admin.tls]`, `[admin.jwt]` and `[admin.kerberos]`: the credentials of clients of control over TLS.

use std::fmt;
use std::str::FromStr;

use plimsoll_admin as admin;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::spans::SpanTree;
use super::text::{TextValue, text};
use super::{ConfigDiagnostic, ControlSection, FilePath};

/// TLS (1.3) of the control address: the daemon's certificate, and the verification of clients. All files are
/// reloaded when they change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ControlTls {
    /// Certificate chain, PEM: the certificate and its intermediates.
    pub certificate: FilePath,

    /// Private key of the certificate, PEM.
    pub key: FilePath,

    /// CA certificates that verify client certificates, PEM. Clients then need a certificate, unless
    /// `[admin.jwt]` permits a token instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<FilePath>,

    /// SPIFFE trust domain: client certificates must have a SPIFFE ID of this domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_domain: Option<TrustDomain>,
}

/// Bearer tokens (JWT) that authenticate clients of control over TLS: signed with ES256, RS256 or EdDSA, and
/// not expired.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JwtConfig {
    /// Required issuer: the token's claim `iss` must equal it exactly.
    pub issuer: String,

    /// Required audience: the token's claim `aud`, or one element of its list.
    pub audience: String,

    /// File with the issuer's public keys, a JWK set. Reloaded when it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_file: Option<FilePath>,

    /// URL of the issuer's public keys, instead of a file. Fetched when due, and when a token names an
    /// unknown key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<JwksUrl>,

    /// CA certificates that verify the certificate at `jwks_url`, PEM. Default: those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_ca: Option<FilePath>,
}

/// The authorities that Debian and its derivatives trust.
pub(super) const SYSTEM_CA: &str = "/etc/ssl/certs/ca-certificates.crt";

impl JwtConfig {
    /// Returns the place of the keys; a checked table has exactly one.
    pub(super) fn keys(&self) -> Option<admin::KeySet> {
        match (&self.jwks_file, &self.jwks_url) {
            (Some(FilePath(path)), _) => Some(admin::KeySet::File(path.clone())),
            (None, Some(JwksUrl(url))) => {
                let ca_path = self.jwks_ca.as_ref().map(|FilePath(path)| path.clone());
                let authorities = ca_path.unwrap_or_else(|| SYSTEM_CA.into());
                Some(admin::KeySet::Published { url: url.clone(), authorities })
            }
            (None, None) => None,
        }
    }
}

/// The URL where keys are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwksUrl(pub admin::Url);

text! {
    JwksUrl,
    format: "plimsoll-keys-url",
    what: "a URL",
    example: "https://id.example.org/.well-known/jwks.json",
    pattern: "^https?://.+$",
}

impl FromStr for JwksUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

impl fmt::Display for JwksUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// Kerberos tickets that authenticate clients of control over TLS: those for `HTTP/HOST` of this host, sent
/// with `Authorization: Negotiate` and bound to the connection. Requires a build with the feature `kerberos`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KerberosConfig {
    /// Keytab with the service's keys. Read again with each ticket.
    pub keytab: FilePath,
}

/// The trust domain of accepted ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustDomain(pub String);

text! {
    TrustDomain,
    format: "plimsoll-trust-domain",
    what: "a trust domain",
    example: "example.org",
    pattern: "^[a-z0-9._-]{1,255}$",
}

impl FromStr for TrustDomain {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        admin::trust_domain(text)?;
        Ok(Self(text.into()))
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Checks the tables of a section against one another.
pub(super) fn check(
    control_section: &ControlSection<'_>,
    spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    let section = control_section.section;
    let Some(address) = control_section.control.tls() else {
        if !spans.is_broken("control") {
            for key in ["tls", "jwt", "kerberos", "access"].into_iter().filter(|key| spans.has_key(key)) {
                let message = format!("`{key}` has no effect: no control over TLS");
                let hint = "add \"tls://0.0.0.0:9905\" to control";
                diagnostics.push(ConfigDiagnostic::warning(spans.key_span(key), message).hint(hint));
            }
        }
        return;
    };
    match control_section.tls {
        None if spans.is_broken("tls") => {}
        None => {
            let message = format!("control on tls://{address} needs a certificate");
            let hint = format!(
                "add [{section}.tls] with certificate, key, client_ca and trust_domain: plimsoll cert init \
                 makes them"
            );
            diagnostics.push(ConfigDiagnostic::error(spans.key("control").value_span(), message).hint(hint));
        }
        Some(tls) => {
            let tls_spans = spans.key("tls");
            if tls.client_ca.is_some() && tls.trust_domain.is_none() && !tls_spans.is_broken("trust_domain") {
                let message = "`client_ca` needs a `trust_domain`, of which the ids of clients are";
                let hint = "add trust_domain = \"example.org\"";
                diagnostics
                    .push(ConfigDiagnostic::error(tls_spans.key_span("client_ca"), message).hint(hint));
            }
            let has_no_authentication = tls.client_ca.is_none()
                && control_section.jwt.is_none()
                && control_section.kerberos.is_none();
            if has_no_authentication
                && !tls_spans.is_broken("client_ca")
                && !spans.is_broken("jwt")
                && !spans.is_broken("kerberos")
            {
                let hint =
                    format!("add client_ca to [{section}.tls], or [{section}.jwt] or [{section}.kerberos]");
                diagnostics.push(
                    ConfigDiagnostic::error(tls_spans.value_span(), "nobody could prove who they are")
                        .hint(hint),
                );
            }
        }
    }
    if control_section.kerberos.is_some() && !plimsoll_kerberos::BUILT_IN {
        let hint = "take it out, or build with: cargo build --features kerberos";
        diagnostics.push(
            ConfigDiagnostic::error(spans.key_span("kerberos"), "this plimsoll was built without Kerberos")
                .hint(hint),
        );
    }
    if let Some(jwt) = control_section.jwt {
        check_keys(jwt, spans.key("jwt"), diagnostics);
    }
    let access = control_section.access;
    if access.file.is_none() && access.grants.is_empty() && !spans.is_broken("access") {
        let message = "nobody may do anything over TLS: there is no grant";
        let hint = format!("add [[{section}.access.grant]] with identity and role");
        diagnostics.push(ConfigDiagnostic::warning(spans.key("control").value_span(), message).hint(hint));
    }
}

fn check_keys(jwt: &JwtConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    match (&jwt.jwks_file, &jwt.jwks_url) {
        (None, None) if !spans.is_broken("jwks_file") && !spans.is_broken("jwks_url") => {
            let hint = "add jwks_url, where the issuer publishes them, or jwks_file";
            diagnostics.push(
                ConfigDiagnostic::error(spans.value_span(), "no keys by which tokens could be judged")
                    .hint(hint),
            );
        }
        (Some(_), Some(_)) => {
            let message = "the keys are in a file, and at `jwks_url` as well";
            diagnostics.push(
                ConfigDiagnostic::error(spans.key_span("jwks_url"), message).hint("keep one of the two"),
            );
        }
        (_, Some(JwksUrl(url))) if !url.https && !matches!(&*url.host, "127.0.0.1" | "::1" | "localhost") => {
            let message = "whoever is on the way to `jwks_url` can put keys of their own into it";
            diagnostics.push(
                ConfigDiagnostic::warning(spans.key("jwks_url").value_span(), message).hint("use https://"),
            );
        }
        _ => {}
    }
    if jwt.jwks_ca.is_some() && !jwt.jwks_url.as_ref().is_some_and(|JwksUrl(url)| url.https) {
        let message = "`jwks_ca` has no effect: nothing is fetched over https";
        diagnostics.push(ConfigDiagnostic::warning(spans.key_span("jwks_ca"), message).hint("take it out"));
    }
}
