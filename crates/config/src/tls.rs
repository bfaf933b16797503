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
    ListenerProtocol, MemberProtocol, acme, affinity, route, trace,
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
pub(super) fn check(listener: &ListenerConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let protocol = listener.protocol;
    let Some(tls) = &listener.tls else {
        if protocol == ListenerProtocol::Https && !spans.is_broken("tls") {
            let problem =
                ConfigDiagnostic::error(spans.value_span(), "an https listener needs a certificate");
            diagnostics.push(
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
                ConfigDiagnostic::error(spans.key_span("tls"), "an http listener does not speak TLS");
            diagnostics.push(problem.hint("write protocol = \"https\""));
        }
        ListenerProtocol::Udp | ListenerProtocol::Iiop | ListenerProtocol::Dns => {
            let message = format!("tls is not supported for {}", protocol.name());
            diagnostics.push(
                ConfigDiagnostic::error(spans.key_span("tls"), message).hint("https, tcp and xds have it"),
            );
        }
    }
    let spans = spans.key("tls");
    if tls.client_ca.is_none() && spans.has_key("client_certificate") {
        let message = "`client_certificate` has no effect: clients are asked for none";
        diagnostics.push(
            ConfigDiagnostic::warning(spans.key_span("client_certificate"), message).hint("add client_ca"),
        );
    }
    for (name_index, server_name) in tls.names.iter().enumerate() {
        if let Some(first) =
            tls.names[..name_index].iter().position(|earlier| earlier.name == server_name.name)
        {
            let names = spans.key("names");
            let message = format!("a second group for the name {}", server_name.name);
            let problem = ConfigDiagnostic::error(names.item(name_index).key("name").value_span(), message);
            diagnostics
                .push(problem.with_related(names.item(first).key("name").value_span(), "the first is here"));
        }
    }
}

/// Checks that members' certificates can be verified.
pub(super) fn check_members(group: &GroupConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let Some(tls) = &group.tls else { return };
    if tls.verify && tls.ca.is_none() && !spans.key("tls").is_broken("ca") {
        let message = "`tls` names no authorities to check members' certificates by";
        let problem = ConfigDiagnostic::error(spans.key_span("tls"), message);
        let hint =
            "add ca = \"/etc/ssl/certs/ca-certificates.crt\" or your own; verify = false believes anybody";
        diagnostics.push(problem.hint(hint));
    }
}

/// Reads a file; a failure is added to `found` at its place.
fn read(path: &FilePath, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) -> Vec<u8> {
    std::fs::read(&path.0).unwrap_or_else(|error| {
        let message = format!("cannot read {}: {error}", path.0.display());
        diagnostics.push(ConfigDiagnostic::error(spans.value_span(), message));
        Vec::new()
    })
}

/// Reads an OCSP response in the same way.
fn read_ocsp(path: &FilePath, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) -> Vec<u8> {
    let previous_len = diagnostics.len();
    let der = read(path, spans, diagnostics);
    if diagnostics.len() == previous_len
        && let Err(error) = OcspResponse::read(&der)
    {
        let problem = ConfigDiagnostic::error(spans.value_span(), format!("{}: {error}", path.0.display()));
        diagnostics.push(problem.hint("`openssl ocsp … -respout FILE` writes one"));
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
    fn read(
        certificate: &CertificateFiles,
        spans: &SpanTree,
        diagnostics: &mut Vec<ConfigDiagnostic>,
    ) -> Self {
        Self {
            source: certificate.certificate.to_string(),
            chain: read(&certificate.certificate, spans.key("certificate"), diagnostics),
            key: read(&certificate.key, spans.key("key"), diagnostics),
            ocsp: certificate
                .ocsp
                .as_ref()
                .map_or_else(Vec::new, |path| read_ocsp(path, spans.key("ocsp"), diagnostics)),
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
    spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) -> Option<proxy::ListenerTls> {
    let tls = listener.tls.as_ref()?;
    let previous_len = diagnostics.len();
    let root_spans = spans.key("certificates");
    let contents = tls.certificates.iter().enumerate();
    let contents: Vec<CertificateContents> = contents
        .map(|(index, files)| CertificateContents::read(files, root_spans.item(index), diagnostics))
        .collect();
    let authorities = tls.client_ca.as_ref().map(|path| read(path, spans.key("client_ca"), diagnostics));
    let requested =
        tls.acme.as_ref().map(|acme| acme::requested_certificates(acme, spans.key("acme"), diagnostics));
    if diagnostics.len() > previous_len {
        return None;
    }
    let certificates: Vec<proxy::CertificateBundle<'_>> =
        contents.iter().map(CertificateContents::borrow).collect();
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
    let groups: BTreeMap<Box<str>, Arc<str>> = names
        .map(|server_name| (server_name.name.0.as_str().into(), server_name.group.0.as_str().into()))
        .collect();
    let allows_tls12 = tls.min_version == TlsVersion::Tls12;
    let slots = acme::certificate_slots(&requested.unwrap_or_default());
    let result = proxy::ListenerTls::new(&certificates, &slots, clients, allows_tls12, protocols, groups);
    result
        .map_err(|(failed_index, reason)| {
            let fault_spans = match failed_index {
                Some(index) => root_spans.item(index),
                None => spans.key("client_ca"),
            };
            diagnostics.push(ConfigDiagnostic::error(fault_spans.value_span(), reason));
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
        let mut diagnostics = Vec::new();
        for (index, listener) in self.config.listeners.iter().enumerate() {
            let spans = self.spans.key("listener").item(index);
            if let Some(tls) = of_listener(listener, spans.key("tls"), &mut diagnostics) {
                warn_of_expiry(&tls, spans.key("tls"), SystemTime::now(), &mut diagnostics);
                warn_of_staples(listener, spans.key("tls"), SystemTime::now(), &mut diagnostics);
            }
            affinity::of_listener(listener, spans, &mut diagnostics);
            route::of_listener(listener, spans, &mut diagnostics);
        }
        for (index, group) in self.config.groups.iter().enumerate() {
            if let Some(tls) = &group.tls {
                let spans = self.spans.key("group").item(index).key("tls");
                of_group(tls, group.protocol, spans, &mut diagnostics);
            }
        }
        if let Some(tracing) = &self.config.tracing {
            trace::check_files(tracing, self.spans.key("tracing"), &mut diagnostics);
        }
        diagnostics.extend(self.warnings.list().iter().cloned());
        let problems = ConfigDiagnostics::new(Arc::clone(&self.source), diagnostics);
        if problems.has_errors() { Err(problems) } else { Ok(problems) }
    }
}

/// Warns of certificates from files that have expired, or will soon.
fn warn_of_expiry(
    tls: &proxy::ListenerTls,
    spans: &SpanTree,
    now: SystemTime,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    let certificate = tls.certificates().filter(|certificate| !certificate.issued).enumerate();
    for (index, certificate) in certificate {
        let Some(leaf_certificate) = certificate
            .leaf
            .as_ref()
            .and_then(|leaf_certificate| LeafCertificate::from_der(leaf_certificate))
        else {
            continue;
        };
        let seconds_left = leaf_certificate.seconds_left(now);
        let message = if seconds_left < 0.0 {
            format!("the certificate {} is over", certificate.source)
        } else if leaf_certificate.expires_soon(now) {
            format!(
                "the certificate {} ends in {}",
                certificate.source,
                crate::time_span::short_duration(seconds_left)
            )
        } else {
            continue;
        };
        let span = spans.key("certificates").item(index).key("certificate").value_span();
        diagnostics
            .push(ConfigDiagnostic::warning(span, message).hint("put a new one in its place and reload"));
    }
}

/// Warns of OCSP responses that make clients refuse the certificate.
fn warn_of_staples(
    listener: &ListenerConfig,
    spans: &SpanTree,
    now: SystemTime,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    let certificates = listener.tls.iter().flat_map(|tls| &tls.certificates).enumerate();
    for (index, path) in certificates.filter_map(|(index, files)| Some((index, files.ocsp.as_ref()?))) {
        // A file that cannot be read was reported before.
        let Some(ocsp_response) = std::fs::read(&path.0).ok().and_then(|der| OcspResponse::read(&der).ok())
        else {
            continue;
        };
        let expired_for =
            ocsp_response.valid_until.and_then(|valid_until| now.duration_since(valid_until).ok());
        let message = match expired_for {
            Some(expired_for) => {
                let ago = crate::time_span::short_duration(expired_for.as_secs_f64());
                format!(
                    "the OCSP response {path} was good until {ago} ago: clients may refuse the certificate"
                )
            }
            None if !ocsp_response.is_good => {
                format!("the OCSP response {path} does not say that the certificate is good")
            }
            None => continue,
        };
        let span = spans.key("certificates").item(index).key("ocsp").value_span();
        diagnostics.push(
            ConfigDiagnostic::warning(span, message).hint("fetch a new one and reload, or take it out"),
        );
    }
}

/// Returns the trust of a group in its members, from the files as they are now; `None` with the problems in
/// `found`.
pub(super) fn of_group(
    tls: &MemberTls,
    protocol: MemberProtocol,
    spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) -> Option<proxy::MemberTls> {
    let previous_len = diagnostics.len();
    let authorities = tls.ca.as_ref().map(|path| read(path, spans.key("ca"), diagnostics));
    let client_certificate = tls.own.as_ref().map(|client_certificate| {
        CertificateContents::read(client_certificate, spans.key("own"), diagnostics)
    });
    if diagnostics.len() > previous_len {
        return None;
    }
    let member_trust = if tls.verify {
        // A table without authorities was refused before; if not, no member is trusted.
        proxy::MemberTrust::Authorities(authorities.as_deref().unwrap_or_default())
    } else {
        proxy::MemberTrust::AnyCertificate
    };
    let allows_tls12 = tls.min_version == TlsVersion::Tls12;
    let name = tls.server_name.as_deref();
    let protocols: &[&[u8]] = if protocol == MemberProtocol::H2 { &[b"h2"] } else { &[] };
    let result = proxy::MemberTls::new(
        member_trust,
        name,
        client_certificate.as_ref().map(CertificateContents::borrow),
        allows_tls12,
        protocols,
    );
    result
        .map_err(|(invalid_part, reason)| {
            let fault_key = match invalid_part {
                proxy::InvalidTlsPart::OwnCertificate => "own",
                proxy::InvalidTlsPart::Name => "server_name",
                proxy::InvalidTlsPart::Authorities => "ca",
            };
            diagnostics.push(ConfigDiagnostic::error(spans.key(fault_key).value_span(), reason));
        })
        .ok()
}
