//! The authority: a key and a bundle of certificates in a folder.
//!
//! ```text
//! ca.key       the private key that signs, 0600
//! ca.pem       the certificates to be trusted, the newest first
//! cross.pem    during a change of keys: the new one signed by the old one
//! ```
//!
//! A change of keys leaves no gap. The new authority's certificate goes into the bundle beside the old one,
//! so a host with the new bundle trusts certificates of both. Certificates that are issued from then on carry
//! the cross certificate: a host with the old bundle finds a way from them to the old authority.
//!
//! The certificate of the key in the bundle is found by the key itself, so that a change that was interrupted
//! at any point leaves an authority that works.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use time::OffsetDateTime;

use super::certificate::ParsedCertificate;
use super::pem::{encode_pem, write, write_private};

/// The time by which clocks of others may be behind.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// An authority that can issue.
pub(super) struct CertificateAuthority {
    folder: PathBuf,
    trust_domain: String,
    key: KeyPair,
    /// The certificates to be trusted.
    bundle: Vec<ParsedCertificate>,
    /// The certificate of the key.
    own_certificate: ParsedCertificate,
    /// The key's certificates by former authorities.
    cross_certificates: Vec<ParsedCertificate>,
}

/// A name by which a server is reached.
pub(super) enum SubjectName {
    Host(String),
    Address(IpAddr),
}

/// A certificate that was issued.
pub(super) struct IssuedCertificate {
    /// The certificate and those between it and the trusted ones, PEM.
    pub(super) chain: String,
    /// Its private key, PEM.
    pub(super) key: String,
    pub(super) expires_at: OffsetDateTime,
}

/// A new certificate of the authority itself.
#[derive(Debug)]
pub(super) struct RootCertificate {
    pub(super) expires_at: OffsetDateTime,
}

impl CertificateAuthority {
    /// Makes an authority in a folder that has none.
    ///
    /// # Errors
    /// Fails with the remedy if there is one, or the folder cannot be written.
    pub(super) fn create(
        folder: &Path,
        trust_domain: &str,
        now: OffsetDateTime,
        lifetime: Duration,
    ) -> Result<RootCertificate, String> {
        for name in ["ca.pem", "ca.key"] {
            if folder.join(name).exists() {
                let path = folder.join(name);
                return Err(format!("{} is there already: give another --dir", path.display()));
            }
        }
        let key = new_key()?;
        let params = root_params(trust_domain, &key, now, lifetime)?;
        let certificate = params.self_signed(&key).map_err(certificate_error)?;
        let write = || {
            use std::os::unix::fs::DirBuilderExt as _;
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            write_private(&folder.join("ca.key"), &encode_pem("PRIVATE KEY", key.serialized_der()))?;
            write(&folder.join("ca.pem"), &encode_pem("CERTIFICATE", certificate.der()))
        };
        write().map_err(|error| format!("cannot write {}: {error}", folder.display()))?;
        Ok(RootCertificate { expires_at: params.not_after })
    }

    /// Reads an authority.
    ///
    /// # Errors
    /// Fails with the missing or wrong part.
    pub(super) fn open(folder: &Path) -> Result<Self, String> {
        let (bundle_path, key_path) = (folder.join("ca.pem"), folder.join("ca.key"));
        let unreadable = |path: &Path, error: &dyn std::fmt::Display| {
            format!(
                "cannot read {}: {error}; make an authority with plimsoll cert init, or give --dir",
                path.display()
            )
        };
        let bundle = std::fs::read(&bundle_path).map_err(|error| unreadable(&bundle_path, &error))?;
        let bundle =
            ParsedCertificate::parse_all(&bundle).map_err(|error| unreadable(&bundle_path, &error))?;
        let key = PrivateKeyDer::from_pem_file(&key_path).map_err(|error| unreadable(&key_path, &error))?;
        let key = KeyPair::try_from(&key).map_err(|error| unreadable(&key_path, &error))?;
        let own_certificate =
            bundle.iter().find(|certificate| certificate.public_key == key.public_key_raw()).cloned();
        let own_certificate = own_certificate.ok_or_else(|| {
            format!("{} has no certificate of the key {}", bundle_path.display(), key_path.display())
        })?;
        let trust_domain =
            own_certificate.id.as_deref().and_then(|id| id.strip_prefix("spiffe://")).map(str::to_owned);
        let trust_domain = trust_domain.ok_or_else(|| {
            format!("{} is not of an authority that plimsoll cert init made", bundle_path.display())
        })?;
        let cross_certificates = match std::fs::read(folder.join("cross.pem")) {
            Ok(bytes) => ParsedCertificate::parse_all(&bytes)
                .map_err(|error| unreadable(&folder.join("cross.pem"), &error))?,
            Err(_) => Vec::new(),
        };
        let cross_certificates = cross_certificates
            .into_iter()
            .filter(|certificate| certificate.public_key == own_certificate.public_key)
            .collect();
        Ok(Self { folder: folder.to_owned(), trust_domain, key, bundle, own_certificate, cross_certificates })
    }

    /// Returns the trust domain of its ids.
    pub(super) fn trust_domain(&self) -> &str {
        &self.trust_domain
    }

    /// Issues a certificate for an id; with names, for a server, too.
    ///
    /// # Errors
    /// Fails if it would outlive the authority, or a name is malformed.
    pub(super) fn issue(
        &self,
        id: &str,
        names: &[SubjectName],
        now: OffsetDateTime,
        lifetime: Duration,
    ) -> Result<IssuedCertificate, String> {
        if now + lifetime > self.own_certificate.not_after {
            return Err(
                "it would last longer than the authority: give fewer --days, or plimsoll cert rotate".into(),
            );
        }
        let key = new_key()?;
        let mut params = base_params(id.rsplit('/').next().unwrap_or(id), now, lifetime);
        params.subject_alt_names.push(SanType::URI(id.try_into().map_err(certificate_error)?));
        for name in names {
            params.subject_alt_names.push(match name {
                SubjectName::Host(host) => {
                    SanType::DnsName(host.as_str().try_into().map_err(certificate_error)?)
                }
                SubjectName::Address(address) => SanType::IpAddress(*address),
            });
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if !names.is_empty() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.use_authority_key_identifier_extension = true;
        let issuer_params = self.issuer_params();
        let certificate = params
            .signed_by(&key, &Issuer::from_params(&issuer_params, &self.key))
            .map_err(certificate_error)?;
        let mut chain = encode_pem("CERTIFICATE", certificate.der());
        self.cross_certificates
            .iter()
            .for_each(|cross| chain.push_str(&encode_pem("CERTIFICATE", &cross.der)));
        Ok(IssuedCertificate {
            chain,
            key: encode_pem("PRIVATE KEY", key.serialized_der()),
            expires_at: params.not_after,
        })
    }

    /// Gives it a new key.
    ///
    /// # Errors
    /// Fails if the last change is not finished, or the folder cannot be written.
    pub(super) fn rotate(&self, now: OffsetDateTime, lifetime: Duration) -> Result<RootCertificate, String> {
        if !self.cross_certificates.is_empty() {
            return Err("the last change of keys is not finished: plimsoll cert rotate --finish".into());
        }
        let key = new_key()?;
        let params = root_params(&self.trust_domain, &key, now, lifetime)?;
        let certificate = params.self_signed(&key).map_err(certificate_error)?;
        let mut cross_params = params.clone();
        cross_params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        cross_params.not_after = cross_params.not_after.min(self.own_certificate.not_after);
        cross_params.use_authority_key_identifier_extension = true;
        let issuer_params = self.issuer_params();
        let cross = cross_params
            .signed_by(&key, &Issuer::from_params(&issuer_params, &self.key))
            .map_err(certificate_error)?;
        let mut bundle = encode_pem("CERTIFICATE", certificate.der());
        let unexpired = self.bundle.iter().filter(|former| former.state(now) != "expired");
        unexpired.for_each(|former| bundle.push_str(&encode_pem("CERTIFICATE", &former.der)));
        let write = || {
            write(&self.folder.join("ca.pem"), &bundle)?;
            write(&self.folder.join("cross.pem"), &encode_pem("CERTIFICATE", cross.der()))?;
            // The key is written last: until then the old key signs.
            write_private(&self.folder.join("ca.key"), &encode_pem("PRIVATE KEY", key.serialized_der()))
        };
        write().map_err(|error| format!("cannot write {}: {error}", self.folder.display()))?;
        Ok(RootCertificate { expires_at: params.not_after })
    }

    /// Ends a change of keys; returns the number of authorities that are no longer trusted.
    ///
    /// # Errors
    /// Fails if there is only one, or the folder cannot be written.
    pub(super) fn finish_rotation(&self) -> Result<usize, String> {
        let retired_count = self.bundle.len() - 1;
        if retired_count == 0 {
            return Err("there is no former authority: plimsoll cert rotate begins a change of keys".into());
        }
        let finish = || {
            write(&self.folder.join("ca.pem"), &encode_pem("CERTIFICATE", &self.own_certificate.der))?;
            match std::fs::remove_file(self.folder.join("cross.pem")) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        };
        finish().map_err(|error| format!("cannot write {}: {error}", self.folder.display()))?;
        Ok(retired_count)
    }

    /// Returns the parts of its own certificate that go into those that it issues.
    fn issuer_params(&self) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&self.own_certificate.subject);
        params.key_usages = ca_key_usages();
        params
    }
}

/// Makes an authority's own certificate. Its name has a part of its key, so that two of one domain have
/// different names.
fn root_params(
    trust_domain: &str,
    key: &KeyPair,
    now: OffsetDateTime,
    lifetime: Duration,
) -> Result<CertificateParams, String> {
    let mut params = base_params("", now, lifetime);
    let digits: String =
        params.key_identifier(key).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name = common_name(&format!("{trust_domain} authority {digits}"));
    params.subject_alt_names =
        vec![SanType::URI(format!("spiffe://{trust_domain}").try_into().map_err(certificate_error)?)];
    // One authority may be below: the cross certificate of a change of keys.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
    params.key_usages = ca_key_usages();
    Ok(params)
}

fn base_params(name: &str, now: OffsetDateTime, lifetime: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(name);
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + lifetime;
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished_name = DistinguishedName::new();
    distinguished_name.push(DnType::CommonName, name);
    distinguished_name
}

fn ca_key_usages() -> Vec<KeyUsagePurpose> {
    vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign]
}

fn new_key() -> Result<KeyPair, String> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(certificate_error)
}

fn certificate_error(error: rcgen::Error) -> String {
    format!("cannot make a certificate: {error}")
}

#[cfg(test)]
mod tests;
