//! `[listener.tls]` and `[group.tls]`: the certificates for clients, and the authorities of members.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use plimsoll_acme::LeafCertificate;
use plimsoll_proxy as proxy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::diagnostic::ConfigDiagnostic;
use super::ocsp::OcspResponse;
use super::spans::SpanTree;
use super::{
    AcmeConfig, ConfigDiagnostics, ConfigFile, ConfigName, FilePath, GroupConfig, HostName, ListenerConfig,
    ListenerProtocol, MemberProtocol, acme, affinity, trace,
};

/// TLS for clients: the listener's certificates, and the verification of client certificates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-required" = { "certificates": ["acme"] }))]
pub struct ListenerTls {
    /// Certificates of the listener. Clients get the one with the name they request, and the first if none
    /// has it. The files are reloaded with the configuration. Required unless `acme` is set; both may be.
    #[schemars(length(min = 1))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<CertificateFiles>,

    /// Certificate that an authority issues while the balancer runs (ACME).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acme: Option<AcmeConfig>,

    /// CA certificates that verify client certificates, PEM. Default: no client certificate is requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<FilePath>,

    /// Whether clients must present a certificate, if there is a `client_ca`.
    #[serde(default)]
    pub client_certificate: ClientCertificate,

    /// Minimum TLS version.
    #[serde(default)]
    pub min_version: TlsVersion,

    /// Groups for other names that clients request (SNI): `{ name = "api.example.com", group = "api" }`.
    /// Clients that request another name, or none, get the listener's `group`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<SniRoute>,
}

/// A name (SNI) that leads to another group than that of the listener.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SniRoute {
    /// Host name; `*.example.com` matches every name directly below.
    pub name: HostName,

    /// Name of the group.
    pub group: ConfigName,
}

/// A certificate and its private key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertificateFiles {
    /// Certificate chain, PEM: the certificate and its intermediates.
    #[schemars(extend("examples" = ["/etc/plimsoll/web.pem"]))]
    pub certificate: FilePath,

    /// Private key of the certificate, PEM.
    #[schemars(extend("examples" = ["/etc/plimsoll/web.key"]))]
    pub key: FilePath,

    /// OCSP response of the certificate's authority, DER, sent with the certificate (OCSP stapling).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ocsp: Option<FilePath>,
}

/// Whether clients must present a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientCertificate {
    /// Clients need a certificate that `client_ca` verifies.
    #[default]
    Required,
    /// Clients without a certificate are accepted, too.
    Optional,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TlsVersion {
    /// TLS 1.2 and 1.3.
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    /// TLS 1.3 only.
    #[serde(rename = "1.3")]
    Tls13,
}

/// TLS for connections to members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberTls {
    /// CA certificates that verify members' certificates, PEM; required unless `verify = false`. Reloaded
    /// with the configuration.
    #[schemars(extend("examples" = ["/etc/ssl/certs/ca-certificates.crt"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<FilePath>,

    /// Verifies members' certificates. `false` accepts any server: for tests.
    #[serde(default = "super::root::yes")]
    pub verify: bool,

    /// Name that members' certificates must have, and that is sent as SNI. Default: the host in a member's
    /// address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,

    /// Client certificate for members that request one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<CertificateFiles>,

    /// Minimum TLS version.
    #[serde(default)]
    pub min_version: TlsVersion,
}

/// Checks the listener's protocol against its TLS, and TLS's own settings against each other.
pub(super) fn check(listener: &ListenerConfig, spot: &SpanTree, found: &mut Vec<ConfigDiagnostic>) {
    let protocol = listener.protocol;
    let Some(tls) = &listener.tls else {
        if protocol == ListenerProtocol::Https && !spot.is_broken("tls") {
            let problem = ConfigDiagnostic::error(spot.value_span(), "an https listener needs a certificate");
            found.push(
                problem
                    .hint("add tls = { certificates = [{ certificate = \"web.pem\", key = \"web.key\" }] }"),
            );
        }
        return;
    };
    match protocol {
        ListenerProtocol::Https | ListenerProtocol::Tcp | ListenerProtocol::Xds => {}
        ListenerProtocol::Http => {
            let problem =
                ConfigDiagnostic::error(spot.key_span("tls"), "an http listener does not speak TLS");
            found.push(problem.hint("write protocol = \"https\""));
        }
        ListenerProtocol::Udp | ListenerProtocol::Iiop | ListenerProtocol::Dns => {
            let message = format!("tls is not supported for {}", protocol.name());
            found.push(
                ConfigDiagnostic::error(spot.key_span("tls"), message).hint("https, tcp and xds have it"),
            );
        }
    }
    let spot = spot.key("tls");
    if tls.client_ca.is_none() && spot.has_key("client_certificate") {
        let message = "`client_certificate` has no effect: clients are asked for none";
        found.push(
            ConfigDiagnostic::warning(spot.key_span("client_certificate"), message).hint("add client_ca"),
        );
    }
    for (place, named) in tls.names.iter().enumerate() {
        if let Some(first) = tls.names[..place].iter().position(|before| before.name == named.name) {
            let names = spot.key("names");
            let message = format!("a second group for the name {}", named.name);
            let problem = ConfigDiagnostic::error(names.item(place).key("name").value_span(), message);
            found.push(problem.with_related(names.item(first).key("name").value_span(), "the first is here"));
        }
    }
}

/// Checks that members' certificates can be verified.
pub(super) fn check_members(group: &GroupConfig, spot: &SpanTree, found: &mut Vec<ConfigDiagnostic>) {
    let Some(tls) = &group.tls else { return };
    if tls.verify && tls.ca.is_none() && !spot.key("tls").is_broken("ca") {
        let message = "`tls` names no authorities to check members' certificates by";
        let problem = ConfigDiagnostic::error(spot.key_span("tls"), message);
        let hint =
            "add ca = \"/etc/ssl/certs/ca-certificates.crt\" or your own; verify = false believes anybody";
        found.push(problem.hint(hint));
    }
}

/// Reads a file; a failure is added to `found` at its place.
fn read(path: &FilePath, spot: &SpanTree, found: &mut Vec<ConfigDiagnostic>) -> Vec<u8> {
    std::fs::read(&path.0).unwrap_or_else(|error| {
        let message = format!("cannot read {}: {error}", path.0.display());
        found.push(ConfigDiagnostic::error(spot.value_span(), message));
        Vec::new()
    })
}

/// Reads an OCSP response in the same way.
fn read_ocsp(path: &FilePath, spot: &SpanTree, found: &mut Vec<ConfigDiagnostic>) -> Vec<u8> {
    let before = found.len();
    let der = read(path, spot, found);
    if found.len() == before
        && let Err(why) = OcspResponse::read(&der)
    {
        let problem = ConfigDiagnostic::error(spot.value_span(), format!("{}: {why}", path.0.display()));
        found.push(problem.hint("`openssl ocsp … -respout FILE` writes one"));
    }
    der
}

/// The contents of the files of a certificate.
struct CertificateContents {
    source: String,
    chain: Vec<u8>,
    key: Vec<u8>,
    ocsp: Vec<u8>,
}

impl CertificateContents {
    fn read(certificate: &CertificateFiles, spot: &SpanTree, found: &mut Vec<ConfigDiagnostic>) -> Self {
        Self {
            source: certificate.certificate.to_string(),
            chain: read(&certificate.certificate, spot.key("certificate"), found),
            key: read(&certificate.key, spot.key("key"), found),
            ocsp: certificate
                .ocsp
                .as_ref()
                .map_or_else(Vec::new, |path| read_ocsp(path, spot.key("ocsp"), found)),
        }
    }

    fn borrow(&self) -> proxy::CertificateBundle<'_> {
        proxy::CertificateBundle {
            source: &self.source,
            chain: &self.chain,
            key: &self.key,
            ocsp: &self.ocsp,
        }
    }
}

/// Returns the certificates of a listener, from the files as they are now; `None` with the problems in
/// `found`.
pub(super) fn of_listener(
    listener: &ListenerConfig,
    spot: &SpanTree,
    found: &mut Vec<ConfigDiagnostic>,
) -> Option<proxy::ListenerTls> {
    let tls = listener.tls.as_ref()?;
    let before = found.len();
    let spots = spot.key("certificates");
    let held = tls.certificates.iter().enumerate();
    let held: Vec<CertificateContents> =
        held.map(|(place, one)| CertificateContents::read(one, spots.item(place), found)).collect();
    let authorities = tls.client_ca.as_ref().map(|path| read(path, spot.key("client_ca"), found));
    let issued = tls.acme.as_ref().map(|acme| acme::requested_certificates(acme, spot.key("acme"), found));
    if found.len() > before {
        return None;
    }
    let certificates: Vec<proxy::CertificateBundle<'_>> =
        held.iter().map(CertificateContents::borrow).collect();
    let clients = authorities.as_ref().map(|authorities| proxy::ClientVerification {
        authorities,
        optional: tls.client_certificate == ClientCertificate::Optional,
    });
    let protocols: &[&[u8]] = match listener.protocol {
        ListenerProtocol::Https => &[b"h2", b"http/1.1"],
        ListenerProtocol::Xds => &[b"h2"],
        _ => &[],
    };
    let names = tls.names.iter();
    let groups: BTreeMap<Box<str>, Arc<str>> =
        names.map(|named| (named.name.0.as_str().into(), named.group.0.as_str().into())).collect();
    let tls12 = tls.min_version == TlsVersion::Tls12;
    let issued = acme::certificate_slots(&issued.unwrap_or_default());
    let made = proxy::ListenerTls::new(&certificates, &issued, clients, tls12, protocols, groups);
    made.map_err(|(place, why)| {
        let at = match place {
            Some(place) => spots.item(place),
            None => spot.key("client_ca"),
        };
        found.push(ConfigDiagnostic::error(at.value_span(), why));
    })
    .ok()
}

impl ConfigFile {
    /// Checks the certificates that it names against one another, and the keys of cookies, as they are now.
    /// Returns the warnings about the file and these.
    ///
    /// # Errors
    /// Fails with their problems, each with its place in the file.
    pub fn check_files(&self) -> Result<ConfigDiagnostics, ConfigDiagnostics> {
        let mut found = Vec::new();
        for (index, listener) in self.config.listeners.iter().enumerate() {
            let spot = self.spans.key("listener").item(index);
            if let Some(tls) = of_listener(listener, spot.key("tls"), &mut found) {
                warn_of_expiry(&tls, spot.key("tls"), SystemTime::now(), &mut found);
                warn_of_staples(listener, spot.key("tls"), SystemTime::now(), &mut found);
            }
            affinity::of_listener(listener, spot, &mut found);
        }
        for (index, group) in self.config.groups.iter().enumerate() {
            if let Some(tls) = &group.tls {
                let spot = self.spans.key("group").item(index).key("tls");
                of_group(tls, group.protocol, spot, &mut found);
            }
        }
        if let Some(tracing) = &self.config.tracing {
            trace::check_files(tracing, self.spans.key("tracing"), &mut found);
        }
        found.extend(self.warnings.list().iter().cloned());
        let problems = ConfigDiagnostics::new(Arc::clone(&self.source), found);
        if problems.has_errors() { Err(problems) } else { Ok(problems) }
    }
}

/// Warns of certificates from files that have expired, or will soon.
fn warn_of_expiry(
    tls: &proxy::ListenerTls,
    spot: &SpanTree,
    now: SystemTime,
    found: &mut Vec<ConfigDiagnostic>,
) {
    let shown = tls.certificates().filter(|shown| !shown.issued).enumerate();
    for (place, shown) in shown {
        let Some(leaf) = shown.leaf.as_ref().and_then(|leaf| LeafCertificate::from_der(leaf)) else {
            continue;
        };
        let left = leaf.seconds_left(now);
        let message = if left < 0.0 {
            format!("the certificate {} is over", shown.source)
        } else if leaf.expires_soon(now) {
            format!("the certificate {} ends in {}", shown.source, crate::time_span::short_duration(left))
        } else {
            continue;
        };
        let at = spot.key("certificates").item(place).key("certificate").value_span();
        found.push(ConfigDiagnostic::warning(at, message).hint("put a new one in its place and reload"));
    }
}

/// Warns of OCSP responses that make clients refuse the certificate.
fn warn_of_staples(
    listener: &ListenerConfig,
    spot: &SpanTree,
    now: SystemTime,
    found: &mut Vec<ConfigDiagnostic>,
) {
    let certificates = listener.tls.iter().flat_map(|tls| &tls.certificates).enumerate();
    for (place, path) in certificates.filter_map(|(place, one)| Some((place, one.ocsp.as_ref()?))) {
        // A file that cannot be read was reported before.
        let Some(stapled) = std::fs::read(&path.0).ok().and_then(|der| OcspResponse::read(&der).ok()) else {
            continue;
        };
        let over = stapled.valid_until.and_then(|until| now.duration_since(until).ok());
        let message = match over {
            Some(over) => {
                let ago = crate::time_span::short_duration(over.as_secs_f64());
                format!(
                    "the OCSP response {path} was good until {ago} ago: clients may refuse the certificate"
                )
            }
            None if !stapled.is_good => {
                format!("the OCSP response {path} does not say that the certificate is good")
            }
            None => continue,
        };
        let at = spot.key("certificates").item(place).key("ocsp").value_span();
        found.push(ConfigDiagnostic::warning(at, message).hint("fetch a new one and reload, or take it out"));
    }
}

/// Returns the trust of a group in its members, from the files as they are now; `None` with the problems in
/// `found`.
pub(super) fn of_group(
    tls: &MemberTls,
    protocol: MemberProtocol,
    spot: &SpanTree,
    found: &mut Vec<ConfigDiagnostic>,
) -> Option<proxy::MemberTls> {
    let before = found.len();
    let authorities = tls.ca.as_ref().map(|path| read(path, spot.key("ca"), found));
    let own = tls.own.as_ref().map(|own| CertificateContents::read(own, spot.key("own"), found));
    if found.len() > before {
        return None;
    }
    let trust = if tls.verify {
        // A table without authorities was refused before; if not, no member is trusted.
        proxy::MemberTrust::Authorities(authorities.as_deref().unwrap_or_default())
    } else {
        proxy::MemberTrust::AnyCertificate
    };
    let tls12 = tls.min_version == TlsVersion::Tls12;
    let name = tls.server_name.as_deref();
    let protocols: &[&[u8]] = if protocol == MemberProtocol::H2 { &[b"h2"] } else { &[] };
    let made =
        proxy::MemberTls::new(trust, name, own.as_ref().map(CertificateContents::borrow), tls12, protocols);
    made.map_err(|(fault, why)| {
        let at = match fault {
            proxy::InvalidTlsPart::OwnCertificate => "own",
            proxy::InvalidTlsPart::Name => "server_name",
            proxy::InvalidTlsPart::Authorities => "ca",
        };
        found.push(ConfigDiagnostic::error(spot.key(at).value_span(), why));
    })
    .ok()
}
