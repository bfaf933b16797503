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
pub(super) fn check(config: &Config, spots: &SpanTree, found: &mut Vec<ConfigDiagnostic>) {
    let listeners = spots.key("listener");
    let tables = config.listeners.iter().enumerate().filter_map(|(index, listener)| {
        let acme = listener.tls.as_ref()?.acme.as_ref()?;
        Some((acme, listeners.item(index).key("tls").key("acme")))
    });
    let tables: Vec<(&AcmeConfig, &SpanTree)> = tables.collect();
    let answers = config.listeners.iter().any(|listener| listener.protocol == ListenerProtocol::Http);
    for (place, &(acme, spot)) in tables.iter().enumerate() {
        check_one(acme, spot, found);
        if acme.challenge == ChallengeMethod::Http && !answers && !spots.is_broken("listener") {
            let message = "nobody would answer the authority: there is no listener with protocol = \"http\"";
            let problem = ConfigDiagnostic::error(spot.key("challenge").value_span(), message);
            found.push(problem.hint("add one that port 80 leads to, or use tls-alpn-01"));
        }
        let same =
            |other: &&(&AcmeConfig, &SpanTree)| keys(other.0).any(|key| keys(acme).any(|own| own == key));
        if let Some(&(other, there)) = tables[..place].iter().find(same)
            && other != acme
        {
            let message = "another listener has the same certificate with other settings";
            let problem =
                ConfigDiagnostic::error(spot.value_span(), message).with_related(there.value_span(), "here");
            found.push(problem.hint("write the same in both, or begin with another name"));
        }
    }
}

/// Returns the keys that identify certificates.
fn keys(acme: &AcmeConfig) -> impl Iterator<Item = (&str, &std::path::Path, &HostName, CertificateKeyType)> {
    let each = if acme.separate { acme.domains.len() } else { 1 };
    let key = |name| (acme.directory.0.as_str(), acme.cache.0.as_path(), name, acme.key_type);
    acme.domains.iter().take(each).map(key)
}

fn check_one(acme: &AcmeConfig, spot: &SpanTree, found: &mut Vec<ConfigDiagnostic>) {
    if !acme.terms_agreed && !spot.is_broken("terms_agreed") {
        let problem = ConfigDiagnostic::error(
            spot.key("terms_agreed").value_span(),
            "an authority gives nothing to those who do not agree",
        );
        found.push(problem.hint("read its terms of service, then write terms_agreed = true"));
    }
    let domains = spot.key("domains");
    for (place, domain) in acme.domains.iter().enumerate().filter(|_| !spot.is_broken("domains")) {
        let at = domains.item(place);
        if domain.0.starts_with("*.") {
            let message = format!(
                "{} cannot be shown to lead here: that takes the challenge dns-01, which is not there",
                quoted(&domain.0)
            );
            found.push(
                ConfigDiagnostic::error(at.value_span(), message)
                    .hint("name each host, or take a certificate from a file"),
            );
        } else if domain.0.parse::<std::net::Ipv4Addr>().is_ok() {
            let message = format!("{} is an address: certificates are for names", quoted(&domain.0));
            found.push(ConfigDiagnostic::error(at.value_span(), message));
        }
        if let Some(first) = acme.domains[..place].iter().position(|before| before == domain) {
            let problem =
                ConfigDiagnostic::error(at.value_span(), format!("{} is there twice", quoted(&domain.0)));
            found.push(problem.with_related(domains.item(first).value_span(), "the first is here"));
        }
    }
    for (place, contact) in acme.contact.iter().enumerate().filter(|_| !spot.is_broken("contact")) {
        let fine =
            contact.split_once(':').is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty());
        if !fine || !contact.bytes().all(|byte| byte.is_ascii_graphic()) {
            let message = format!("{} is no URL", quoted(contact));
            let at = spot.key("contact").item(place).value_span();
            found.push(ConfigDiagnostic::error(at, message).hint("such as mailto:ops@example.com"));
        }
    }
    if acme.profile.as_ref().is_some_and(String::is_empty) {
        found.push(
            ConfigDiagnostic::error(spot.key("profile").value_span(), "`profile` names none")
                .hint("take it out"),
        );
    }
    if let Some(account) = &acme.external_account
        && account.id.is_empty()
    {
        let at = spot.key("external_account").key("id").value_span();
        found.push(ConfigDiagnostic::error(at, "`id` is empty").hint("the authority gives one with the key"));
    }
}

/// Returns the certificates that a table asks for, with files as they are now; problems are added to `found`.
pub(super) fn requested_certificates(
    acme: &AcmeConfig,
    spot: &SpanTree,
    found: &mut Vec<ConfigDiagnostic>,
) -> Vec<acme::CertificateSettings> {
    let trust = match &acme.root {
        Some(path) => std::fs::read(&path.0)
            .map_err(|error| format!("cannot read {path}: {error}"))
            .and_then(|pem| acme::TrustRoots::new(&pem)),
        None => acme::system_authorities()
            .map_err(|error| format!("cannot read whom the system trusts: {error}; name a file as `root`"))
            .and_then(|pem| acme::TrustRoots::new(&pem)),
    };
    let trust = trust.map_err(|why| found.push(ConfigDiagnostic::error(spot.key("root").value_span(), why)));
    let binding = acme.external_account.as_ref().map(|account| {
        let spot = spot.key("external_account").key("key_file");
        key(&account.key_file).map(|key| acme::AccountBinding { id: account.id.clone(), key }).map_err(
            |why| {
                let problem = ConfigDiagnostic::error(spot.value_span(), why);
                found.push(problem.hint("it is what the authority gave with the id, in base64url"));
            },
        )
    });
    let (Ok(trust), Ok(binding)) = (trust, binding.transpose()) else { return Vec::new() };
    let settings = |domains: &[HostName]| acme::CertificateSettings {
        domains: domains.iter().map(|domain| domain.0.clone()).collect(),
        directory: acme.directory.0.clone(),
        trust: trust.clone(),
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
    wanted: &[acme::CertificateSettings],
) -> Vec<(Arc<proxy::AcmeSlot>, Vec<String>)> {
    let place = |settings: &acme::CertificateSettings| {
        (proxy::AcmeSlot::with_id(&settings.id()), settings.domains.clone())
    };
    wanted.iter().map(place).collect()
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
        let (mut all, mut problems) = (Vec::<acme::CertificateSettings>::new(), Vec::new());
        for (index, listener) in self.config.listeners.iter().enumerate() {
            let Some(acme) = listener.tls.as_ref().and_then(|tls| tls.acme.as_ref()) else { continue };
            let spot = self.spans.key("listener").item(index).key("tls").key("acme");
            for settings in requested_certificates(acme, spot, &mut problems) {
                if !all.contains(&settings) {
                    all.push(settings);
                }
            }
        }
        if problems.is_empty() {
            Ok(all)
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
        let listener = |(place, (protocol, tls)): (usize, &(&str, &str))| {
            format!(
                "[[listener]]\naddress = \"127.0.0.1:{}\"\ngroup = \"web\"\nprotocol = \
                 \"{protocol}\"\n{tls}\n",
                place + 1
            )
        };
        let listeners: String = listeners.iter().enumerate().map(listener).collect();
        let text = format!("{listeners}[[group]]\nname = \"web\"\nmembers = [\"127.0.0.1:99\"]\n");
        parse("plimsoll.toml", text.into_bytes()).map(drop).map_err(|problems| problems.to_string())
    }

    fn one(acme: &str) -> Result<(), String> {
        read(&[("https", &format!("tls = {{ acme = {{ {acme} }} }}"))])
    }

    #[test]
    fn what_is_wrong_is_told_at_its_place() {
        assert_eq!(one(ACME), Ok(()));
        for (from, to, why) in [
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
            let said = one(&ACME.replace(from, to)).expect_err(to);
            assert!(said.contains(why), "{to}: {said}");
        }
    }

    #[test]
    fn a_certificate_has_one_table() {
        let tls = |more: &str| format!("tls = {{ acme = {{ {ACME}{more} }} }}");
        let (plain, other) = (tls(""), tls(", profile = \"x\""));
        assert_eq!(read(&[("https", &plain), ("https", &plain)]), Ok(()));
        let said = read(&[("https", &plain), ("tcp", &other)]).unwrap_err();
        assert!(said.contains("another listener has the same certificate with other settings"), "{said}");
        let rsa = tls(", key_type = \"rsa-2048\"");
        assert_eq!(read(&[("https", &plain), ("https", &rsa)]), Ok(()));
        assert_eq!(read(&[("https", &tls(", challenge = \"http-01\"")), ("http", "")]), Ok(()));
        let said = read(&[("https", "tls = {}")]).unwrap_err();
        assert!(said.contains("missing key `certificates`"), "{said}");
    }
}
