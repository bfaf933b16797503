//! `listener.tls.acme`: certificates that an authority issues while the balancer runs.

use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use plimsoll_acme as acme;
use plimsoll_proxy as proxy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::diagnostic::{ConfigDiagnostic, quoted};
use super::spans::SpanTree;
use super::text::{TextValue, text};
use super::{Config, ConfigDiagnostics, ConfigFile, FilePath, FolderPath, HostName, ListenerProtocol};

/// A certificate that an authority issues over ACME (RFC 8555) and that the balancer renews in time. Accounts
/// and certificates are stored in a folder. A stored certificate is used; the balancer orders one only if
/// there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcmeConfig {
    /// Names that the certificate covers. Each must lead to this balancer.
    #[schemars(length(min = 1))]
    pub domains: Vec<HostName>,

    /// URL of the authority's ACME directory. There is no default: the balancer contacts no authority that is
    /// not named here.
    pub directory: DirectoryUrl,

    /// Agreement to the authority's terms of service, whose address is in its directory. Must be `true`.
    #[schemars(extend("examples" = [true]))]
    pub terms_agreed: bool,

    /// Contact URLs by which the authority reaches a person.
    #[schemars(extend("examples" = [["mailto:ops@example.com"]]))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contact: Vec<String>,

    /// Folder that stores accounts and certificates with their keys. Created if missing, for the owner alone.
    #[serde(default = "cache")]
    pub cache: FolderPath,

    /// Challenge type by which the authority verifies that the names lead to this balancer.
    #[serde(default)]
    pub challenge: ChallengeMethod,

    /// Type of the certificate's key.
    #[serde(default)]
    pub key_type: CertificateKeyType,

    /// Certificate profile, by the authority's name for it, if it offers several. Default: the authority's
    /// default.
    #[schemars(extend("examples" = ["shortlived"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,

    /// Orders a separate certificate for each name instead of one for all, so that a name that fails does not
    /// keep the others from getting theirs.
    #[serde(default)]
    pub separate: bool,

    /// CA certificates that verify the certificate of the directory, PEM: for private authorities. Reloaded
    /// with the configuration. Default: the authorities that the system trusts.
    #[schemars(extend("examples" = ["/etc/plimsoll/internal-ca.pem"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<FilePath>,

    /// External account binding, for authorities that require one: an account that the authority already
    /// knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_account: Option<ExternalAccount>,
}

/// External account binding: an account that the authority already knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalAccount {
    /// Identifier that the authority assigned to the account, often called "key id".
    #[schemars(extend("examples" = ["kid-1"]))]
    pub id: String,

    /// File with the key that the authority issued with it, in base64url as issued.
    #[schemars(extend("examples" = ["/etc/plimsoll/acme-account.key"]))]
    pub key_file: FilePath,
}

/// Challenge type by which an authority verifies that a name leads to this balancer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ChallengeMethod {
    /// Validation by a certificate on port 443, which must lead to this listener.
    #[default]
    #[serde(rename = "tls-alpn-01")]
    Tls,
    /// Validation by a page on port 80, which must lead to an http listener of this file.
    #[serde(rename = "http-01")]
    Http,
}

/// Type of a certificate's key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CertificateKeyType {
    /// ECDSA on P-256: small and fast, supported by every client of the last fifteen years.
    #[default]
    #[serde(rename = "ecdsa-p256")]
    P256,
    /// ECDSA on P-384.
    #[serde(rename = "ecdsa-p384")]
    P384,
    /// RSA with 2048 bits, for older clients: a handshake costs many times as much.
    #[serde(rename = "rsa-2048")]
    Rsa2048,
}

fn cache() -> FolderPath {
    FolderPath("/var/lib/plimsoll/acme".into())
}

/// The URL of an authority's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryUrl(pub acme::DirectoryUrl);

text! {
    DirectoryUrl,
    format: "plimsoll-acme-directory",
    what: "the URL of an authority's directory",
    example: "https://acme-v02.api.letsencrypt.org/directory",
    pattern: "^https://.+$",
}

impl FromStr for DirectoryUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

impl std::fmt::Display for DirectoryUrl {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(out)
    }
}

/// Checks each table by itself, and with the rest of the file.
pub(super) fn check(config: &Config, root_spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let listeners = root_spans.key("listener");
    let acme_tables = config.listeners.iter().enumerate().filter_map(|(index, listener)| {
        let acme = listener.tls.as_ref()?.acme.as_ref()?;
        Some((acme, listeners.item(index).key("tls").key("acme")))
    });
    let acme_tables: Vec<(&AcmeConfig, &SpanTree)> = acme_tables.collect();
    let answers_http = config.listeners.iter().any(|listener| listener.protocol == ListenerProtocol::Http);
    for (table_index, &(acme, spans)) in acme_tables.iter().enumerate() {
        check_one(acme, spans, diagnostics);
        if acme.challenge == ChallengeMethod::Http && !answers_http && !root_spans.is_broken("listener") {
            let message = "nobody would answer the authority: there is no listener with protocol = \"http\"";
            let problem = ConfigDiagnostic::error(spans.key("challenge").value_span(), message);
            diagnostics.push(problem.hint("add one that port 80 leads to, or use tls-alpn-01"));
        }
        let has_same_key = |other_entry: &&(&AcmeConfig, &SpanTree)| {
            keys(other_entry.0).any(|key| keys(acme).any(|other_key| other_key == key))
        };
        if let Some(&(other_acme, other_spans)) = acme_tables[..table_index].iter().find(has_same_key)
            && other_acme != acme
        {
            let message = "another listener has the same certificate with other settings";
            let problem = ConfigDiagnostic::error(spans.value_span(), message)
                .with_related(other_spans.value_span(), "here");
            diagnostics.push(problem.hint("write the same in both, or begin with another name"));
        }
    }
}

/// Returns the keys that identify certificates.
fn keys(acme: &AcmeConfig) -> impl Iterator<Item = (&str, &std::path::Path, &HostName, CertificateKeyType)> {
    let names_per_certificate = if acme.separate { acme.domains.len() } else { 1 };
    let key = |name| (acme.directory.0.as_str(), acme.cache.0.as_path(), name, acme.key_type);
    acme.domains.iter().take(names_per_certificate).map(key)
}

fn check_one(acme: &AcmeConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    if !acme.terms_agreed && !spans.is_broken("terms_agreed") {
        let problem = ConfigDiagnostic::error(
            spans.key("terms_agreed").value_span(),
            "an authority gives nothing to those who do not agree",
        );
        diagnostics.push(problem.hint("read its terms of service, then write terms_agreed = true"));
    }
    let domains = spans.key("domains");
    for (domain_index, domain) in acme.domains.iter().enumerate().filter(|_| !spans.is_broken("domains")) {
        let domain_span = domains.item(domain_index);
        if domain.0.starts_with("*.") {
            let message = format!(
                "{} cannot be shown to lead here: that takes the challenge dns-01, which is not there",
                quoted(&domain.0)
            );
            diagnostics.push(
                ConfigDiagnostic::error(domain_span.value_span(), message)
                    .hint("name each host, or take a certificate from a file"),
            );
        } else if domain.0.parse::<std::net::Ipv4Addr>().is_ok() {
            let message = format!("{} is an address: certificates are for names", quoted(&domain.0));
            diagnostics.push(ConfigDiagnostic::error(domain_span.value_span(), message));
        }
        if let Some(first) = acme.domains[..domain_index].iter().position(|earlier| earlier == domain) {
            let problem = ConfigDiagnostic::error(
                domain_span.value_span(),
                format!("{} is there twice", quoted(&domain.0)),
            );
            diagnostics.push(problem.with_related(domains.item(first).value_span(), "the first is here"));
        }
    }
    for (contact_index, contact) in acme.contact.iter().enumerate().filter(|_| !spans.is_broken("contact")) {
        let is_url =
            contact.split_once(':').is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty());
        if !is_url || !contact.bytes().all(|byte| byte.is_ascii_graphic()) {
            let message = format!("{} is no URL", quoted(contact));
            let contact_span = spans.key("contact").item(contact_index).value_span();
            diagnostics
                .push(ConfigDiagnostic::error(contact_span, message).hint("such as mailto:ops@example.com"));
        }
    }
    if acme.profile.as_ref().is_some_and(String::is_empty) {
        diagnostics.push(
            ConfigDiagnostic::error(spans.key("profile").value_span(), "`profile` names none")
                .hint("take it out"),
        );
    }
    if let Some(account) = &acme.external_account
        && account.id.is_empty()
    {
        let span = spans.key("external_account").key("id").value_span();
        diagnostics.push(
            ConfigDiagnostic::error(span, "`id` is empty").hint("the authority gives one with the key"),
        );
    }
}

/// Returns the certificates that a table asks for, with files as they are now; problems are added to `found`.
pub(super) fn requested_certificates(
    acme: &AcmeConfig,
    spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) -> Vec<acme::CertificateSettings> {
    let trust_roots = match &acme.root {
        Some(path) => std::fs::read(&path.0)
            .map_err(|error| format!("cannot read {path}: {error}"))
            .and_then(|pem| acme::TrustRoots::new(&pem)),
        None => acme::system_authorities()
            .map_err(|error| format!("cannot read whom the system trusts: {error}; name a file as `root`"))
            .and_then(|pem| acme::TrustRoots::new(&pem)),
    };
    let trust_roots = trust_roots
        .map_err(|cause| diagnostics.push(ConfigDiagnostic::error(spans.key("root").value_span(), cause)));
    let binding = acme.external_account.as_ref().map(|account| {
        let spans = spans.key("external_account").key("key_file");
        key(&account.key_file).map(|key| acme::AccountBinding { id: account.id.clone(), key }).map_err(
            |reason| {
                let problem = ConfigDiagnostic::error(spans.value_span(), reason);
                diagnostics.push(problem.hint("it is what the authority gave with the id, in base64url"));
            },
        )
    });
    let (Ok(trust_roots), Ok(binding)) = (trust_roots, binding.transpose()) else { return Vec::new() };
    let settings = |domains: &[HostName]| acme::CertificateSettings {
        domains: domains.iter().map(|domain| domain.0.clone()).collect(),
        directory: acme.directory.0.clone(),
        trust: trust_roots.clone(),
        contact: acme.contact.clone(),
        binding: binding.clone(),
        method: match acme.challenge {
            ChallengeMethod::Tls => acme::ChallengeMethod::Tls,
            ChallengeMethod::Http => acme::ChallengeMethod::Http,
        },
        key_type: match acme.key_type {
            CertificateKeyType::P256 => acme::KeyType::P256,
            CertificateKeyType::P384 => acme::KeyType::P384,
            CertificateKeyType::Rsa2048 => acme::KeyType::Rsa2048,
        },
        profile: acme.profile.clone(),
        cache: acme.cache.0.clone(),
    };
    if acme.separate { acme.domains.chunks(1).map(settings).collect() } else { vec![settings(&acme.domains)] }
}

/// Returns the slots of these certificates.
pub(super) fn certificate_slots(
    certificates: &[acme::CertificateSettings],
) -> Vec<(Arc<proxy::AcmeSlot>, Vec<String>)> {
    let to_slot = |settings: &acme::CertificateSettings| {
        (proxy::AcmeSlot::with_id(&settings.id()), settings.domains.clone())
    };
    certificates.iter().map(to_slot).collect()
}

/// Reads a key as authorities give it: base64url, with or without its padding.
fn key(path: &FilePath) -> Result<Vec<u8>, String> {
    let text = std::fs::read_to_string(&path.0).map_err(|error| format!("cannot read {path}: {error}"))?;
    let text = text.trim().trim_end_matches('=').replace('+', "-").replace('/', "_");
    match BASE64_URL_SAFE_NO_PAD.decode(&text) {
        Ok(key) if !key.is_empty() => Ok(key),
        // The message does not quote the file.
        _ => Err(format!("cannot read {path}: it has no key in base64url")),
    }
}

impl ConfigFile {
    /// Returns the certificates that are wanted of authorities, each once.
    ///
    /// # Errors
    /// Fails if files that they need cannot be read, each with its place.
    pub fn authorities(&self) -> Result<Vec<acme::CertificateSettings>, ConfigDiagnostics> {
        let (mut certificates, mut problems) = (Vec::<acme::CertificateSettings>::new(), Vec::new());
        for (index, listener) in self.config.listeners.iter().enumerate() {
            let Some(acme) = listener.tls.as_ref().and_then(|tls| tls.acme.as_ref()) else { continue };
            let spans = self.spans.key("listener").item(index).key("tls").key("acme");
            for settings in requested_certificates(acme, spans, &mut problems) {
                if !certificates.contains(&settings) {
                    certificates.push(settings);
                }
            }
        }
        if problems.is_empty() {
            Ok(certificates)
        } else {
            Err(ConfigDiagnostics::new(Arc::clone(&self.source), problems))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    const ACME: &str =
        "domains = [\"a.example\"], directory = \"https://ca.example/dir\", terms_agreed = true";

    fn read(listeners: &[(&str, &str)]) -> Result<(), String> {
        let listener = |(listener_index, (protocol, tls)): (usize, &(&str, &str))| {
            format!(
                "[[listener]]\naddress = \"127.0.0.1:{}\"\ngroup = \"web\"\nprotocol = \
                 \"{protocol}\"\n{tls}\n",
                listener_index + 1
            )
        };
        let listeners: String = listeners.iter().enumerate().map(listener).collect();
        let text = format!("{listeners}[[group]]\nname = \"web\"\nmembers = [\"127.0.0.1:99\"]\n");
        parse("plimsoll.toml", text.into_bytes()).map(drop).map_err(|problems| problems.to_string())
    }

    fn read_one(acme: &str) -> Result<(), String> {
        read(&[("https", &format!("tls = {{ acme = {{ {acme} }} }}"))])
    }

    #[test]
    fn what_is_wrong_is_told_at_its_place() {
        assert_eq!(read_one(ACME), Ok(()));
        for (original, replacement, expected) in [
            (
                "terms_agreed = true",
                "terms_agreed = false",
                "5:96: an authority gives nothing to those who do not agree",
            ),
            (", terms_agreed = true", "", "missing key `terms_agreed`"),
            ("https://ca", "http://ca", "does not begin with https://"),
            ("\"a.example\"", "\"*.a.example\"", "5:29: `*.a.example` cannot be shown to lead here"),
            ("\"a.example\"", "\"127.0.0.1\"", "`127.0.0.1` is an address"),
            ("\"a.example\"", "\"a.example\", \"A.example\"", "`a.example` is there twice"),
            ("[\"a.example\"]", "[]", "`domains` must not be empty"),
            ("true", "true, contact = [\"ops@example.org\"]", "`ops@example.org` is no URL"),
            ("true", "true, challenge = \"http-01\"", "nobody would answer the authority"),
            ("true", "true, challenge = \"dns-01\"", "unknown challenge `dns-01`"),
            ("true", "true, external_account = { id = \"\", key_file = \"k\" }", "`id` is empty"),
            ("true", "true, profile = \"\"", "`profile` names none"),
        ] {
            let error = read_one(&ACME.replace(original, replacement)).expect_err(replacement);
            assert!(error.contains(expected), "{replacement}: {error}");
        }
    }

    #[test]
    fn a_certificate_has_one_table() {
        let tls = |extra: &str| format!("tls = {{ acme = {{ {ACME}{extra} }} }}");
        let (plain_tls, other_tls) = (tls(""), tls(", profile = \"x\""));
        assert_eq!(read(&[("https", &plain_tls), ("https", &plain_tls)]), Ok(()));
        let error = read(&[("https", &plain_tls), ("tcp", &other_tls)]).unwrap_err();
        assert!(error.contains("another listener has the same certificate with other settings"), "{error}");
        let rsa = tls(", key_type = \"rsa-2048\"");
        assert_eq!(read(&[("https", &plain_tls), ("https", &rsa)]), Ok(()));
        assert_eq!(read(&[("https", &tls(", challenge = \"http-01\"")), ("http", "")]), Ok(()));
        let error = read(&[("https", "tls = {}")]).unwrap_err();
        assert!(error.contains("missing key `certificates`"), "{error}");
    }
}
