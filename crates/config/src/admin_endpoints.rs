//! The part that files of a balancer, a lottery's daemon and a Supervisor share about control: its address,
//! its credentials, the rights of clients, and the audit log.

use std::path::PathBuf;

use plimsoll_admin::{ActiveRules, JwtSettings, TlsSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::spans::SpanTree;
use super::{
    AccessConfig, ConfigDiagnostic, ControlAddress, ControlAddresses, ControlTls, FilePath, JwtConfig,
    KerberosConfig, access, auth,
};

/// Control of a daemon: its addresses, credentials, authorization and audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ControlConfig {
    /// Addresses that accept control commands: a unix socket (mode 0600), an address with TLS
    /// (`tls://0.0.0.0:9905`) whose clients must authenticate, or a list of both. `off` for none, which is
    /// the default.
    pub control: ControlAddresses,

    /// File to which the daemon appends each change and each refused attempt, one JSON object per line. While
    /// it cannot be written, changes over the control addresses are refused. Default: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<FilePath>,

    /// TLS certificates of the control address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ControlTls>,

    /// Bearer tokens (JWT) accepted for control over TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtConfig>,

    /// Kerberos tickets accepted for control over TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kerberos: Option<KerberosConfig>,

    /// Authorization of clients over TLS.
    pub access: AccessConfig,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            control: ControlAddresses::One(ControlAddress::Off),
            audit: None,
            tls: None,
            jwt: None,
            kerberos: None,
            access: AccessConfig::default(),
        }
    }
}

impl ControlConfig {
    /// Returns the table as a part of a file.
    pub fn control_section(&self) -> ControlSection<'_> {
        ControlSection {
            section: "admin",
            control: &self.control,
            tls: self.tls.as_ref(),
            jwt: self.jwt.as_ref(),
            kerberos: self.kerberos.as_ref(),
            access: &self.access,
        }
    }
}

/// The part of a file about control, in whatever section it is.
#[derive(Clone, Copy)]
pub struct ControlSection<'c> {
    /// The name of the section: `admin` or `supervise`.
    pub section: &'static str,
    /// The addresses of its control.
    pub control: &'c ControlAddresses,
    /// The certificate and keys of TLS control.
    pub tls: Option<&'c ControlTls>,
    /// The verification of bearer tokens.
    pub jwt: Option<&'c JwtConfig>,
    /// The acceptance of Kerberos tickets.
    pub kerberos: Option<&'c KerberosConfig>,
    /// The roles of identities.
    pub access: &'c AccessConfig,
}

impl ControlSection<'_> {
    /// Returns the unix socket.
    pub fn unix(&self) -> Option<PathBuf> {
        self.control.unix().cloned()
    }

    /// Returns control over TLS, the tokens that are valid there, and the keytab for tickets.
    pub fn tls_control(&self) -> Option<(TlsSettings, Option<JwtSettings>, Option<PathBuf>)> {
        let (address, tls) = self.control.tls().zip(self.tls)?;
        let jwt = self.jwt.and_then(|jwt| {
            let (issuer, audience) = (jwt.issuer.clone(), vec![jwt.audience.clone()]);
            Some(JwtSettings { issuer, audience, keys: jwt.keys()? })
        });
        let keytab = self.kerberos.map(|kerberos| kerberos.keytab.0.clone());
        let tls = TlsSettings {
            address,
            certificate: tls.certificate.0.clone(),
            key: tls.key.0.clone(),
            client_ca: tls.client_ca.as_ref().map(|path| path.0.clone()),
            trust_domain: tls.trust_domain.as_ref().map(|domain| domain.0.clone()),
        };
        Some((tls, jwt, keytab))
    }

    /// Returns the rights of clients over TLS.
    ///
    /// # Errors
    /// Fails with one line if the file of rules cannot be read, or is wrong.
    pub fn rules(&self) -> Result<ActiveRules, String> {
        access::rules(self.access)
    }
}

/// Checks the parts of a section about control against one another.
pub(super) fn check(
    control_section: &ControlSection<'_>,
    spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    let addresses = control_section.control.list();
    for (index, control) in addresses.iter().enumerate() {
        let span = || spans.key("control").item(index).value_span();
        let same_kind =
            |other: &ControlAddress| std::mem::discriminant(other) == std::mem::discriminant(control);
        if *control == ControlAddress::Off && addresses.len() > 1 {
            diagnostics
                .push(ConfigDiagnostic::error(span(), "`off` stands alone").hint("write control = \"off\""));
        } else if addresses[..index].iter().any(same_kind) {
            let message = "a second address of its kind: one unix: and one tls:// are the most";
            diagnostics.push(ConfigDiagnostic::error(span(), message).hint("take it out"));
        }
    }
    auth::check(control_section, spans, diagnostics);
    let rules = control_section.access;
    let access_spans = spans.key("access");
    if let Some(file) = &rules.file
        && !(rules.roles.is_empty() && rules.grants.is_empty())
    {
        let message = format!("the rules are in {file}, and here as well");
        diagnostics.push(
            ConfigDiagnostic::error(access_spans.key_span("file"), message).hint("keep them in one place"),
        );
    }
    access::check_roles(&rules.roles, &rules.grants, access_spans, diagnostics);
}
