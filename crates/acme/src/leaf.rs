//! Parses the fields of an X.509 certificate (RFC 5280) that its renewal depends on: names, validity and ARI
//! identifier. Verification of the certificate is left to TLS.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use instant_acme::CertificateIdentifier;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, Der};
use yasna::models::ObjectIdentifier;
use yasna::tags::TAG_UTCTIME;
use yasna::{ASN1Result, BERReader, Tag, parse_der};

use crate::schedule::ValidityPeriod;

/// A server certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafCertificate {
    /// The DNS names that it is valid for, in lower case.
    pub names: Vec<String>,
    /// The start of its validity, in whole seconds.
    pub from: SystemTime,
    /// The end of its validity, in whole seconds.
    pub until: SystemTime,
    /// The content octets of its serial number.
    serial: Vec<u8>,
    /// The key identifier of its issuer.
    authority: Option<Vec<u8>>,
}

impl LeafCertificate {
    /// Parses a certificate in DER form; `None` if it is malformed.
    pub fn from_der(der: &[u8]) -> Option<Self> {
        Self::read(der).ok()
    }

    /// Parses the first certificate in a PEM text.
    pub fn first_in_pem(pem: &[u8]) -> Option<Self> {
        Self::from_der(&CertificateDer::from_pem_slice(pem).ok()?)
    }

    /// Returns the seconds until the certificate expires; negative if it has expired.
    pub fn seconds_left(&self, now: SystemTime) -> f64 {
        match self.until.duration_since(now) {
            Ok(remaining) => remaining.as_secs_f64(),
            Err(overdue) => -overdue.duration().as_secs_f64(),
        }
    }

    /// Returns `true` if less than a quarter of its lifetime and less than two weeks are left.
    pub fn expires_soon(&self, now: SystemTime) -> bool {
        let quarter = self.validity().length().as_secs_f64() / 4.0;
        self.seconds_left(now) < quarter.min(14.0 * 86_400.0)
    }

    pub(crate) fn validity(&self) -> ValidityPeriod {
        ValidityPeriod { from: self.from, until: self.until }
    }

    /// Returns `true` if the certificate is valid for all of `names`.
    pub(crate) fn covers(&self, names: &[String]) -> bool {
        names.iter().all(|name| self.names.iter().any(|own_name| own_name.eq_ignore_ascii_case(name)))
    }

    /// Returns the certificate's ARI identifier (RFC 9773, section 4.1).
    pub(crate) fn identifier(&self) -> Option<CertificateIdentifier<'static>> {
        let authority = self.authority.as_ref()?;
        Some(
            CertificateIdentifier::new(Der::from_slice(authority), Der::from_slice(&self.serial))
                .into_owned(),
        )
    }

    fn read(der: &[u8]) -> ASN1Result<Self> {
        parse_der(der, |reader| {
            reader.read_sequence(|certificate_fields| {
                let leaf = certificate_fields.next().read_sequence(|fields| {
                    fields.read_optional(|version| {
                        version.read_tagged(Tag::context(0), |tagged| tagged.read_u8())
                    })?;
                    let serial = der_content(fields.next().read_der()?);
                    // The signature algorithm and the issuer.
                    fields.next().read_der()?;
                    fields.next().read_der()?;
                    let (from, until) = fields.next().read_sequence(|validity_fields| {
                        Ok((read_time(validity_fields.next())?, read_time(validity_fields.next())?))
                    })?;
                    // The subject and the public key.
                    fields.next().read_der()?;
                    fields.next().read_der()?;
                    let extensions = fields.read_optional(|extensions| {
                        extensions
                            .read_tagged(Tag::context(3), |list| list.collect_sequence_of(read_extension))
                    })?;
                    let mut leaf = Self { names: Vec::new(), from, until, serial, authority: None };
                    for (oid, value) in extensions.unwrap_or_default() {
                        match oid.components().as_slice() {
                            [2, 5, 29, 17] => leaf.names = parse_names(&value)?,
                            [2, 5, 29, 35] => leaf.authority = parse_authority(&value)?,
                            _ => {}
                        }
                    }
                    Ok(leaf)
                })?;
                certificate_fields.next().read_der()?;
                certificate_fields.next().read_der()?;
                Ok(leaf)
            })
        })
    }
}

/// Returns the content of a DER value with a one-byte length. Serial numbers have at most 20 bytes (RFC 5280,
/// section 4.1.2.2).
fn der_content(der: Vec<u8>) -> Vec<u8> {
    der.get(2..).map(<[u8]>::to_vec).unwrap_or_default()
}

fn read_time(reader: BERReader<'_, '_>) -> ASN1Result<SystemTime> {
    let unix_seconds = if reader.lookahead_tag()? == TAG_UTCTIME {
        reader.read_utctime()?.datetime().unix_timestamp()
    } else {
        reader.read_generalized_time()?.datetime().unix_timestamp()
    };
    // Times before 1970 are treated as 1970.
    Ok(UNIX_EPOCH + Duration::from_secs(u64::try_from(unix_seconds).unwrap_or(0)))
}

fn read_extension(reader: BERReader<'_, '_>) -> ASN1Result<(ObjectIdentifier, Vec<u8>)> {
    reader.read_sequence(|fields| {
        let oid = fields.next().read_oid()?;
        fields.read_default(false, |critical| critical.read_bool())?;
        Ok((oid, fields.next().read_bytes()?))
    })
}

/// Returns the DNS names of the subject alternative name extension, in lower case.
fn parse_names(value: &[u8]) -> ASN1Result<Vec<String>> {
    let mut names = Vec::new();
    parse_der(value, |reader| {
        reader.read_sequence_of(|name| {
            let tag = name.lookahead_tag()?;
            if tag == Tag::context(2) {
                let text = name.read_tagged_implicit(tag, |text| text.read_ia5_string())?;
                names.push(text.to_ascii_lowercase());
            } else {
                name.read_der()?;
            }
            Ok(())
        })
    })?;
    Ok(names)
}

/// Returns the key identifier of the authority key identifier extension.
fn parse_authority(value: &[u8]) -> ASN1Result<Option<Vec<u8>>> {
    parse_der(value, |reader| {
        reader.read_sequence(|fields| {
            let key = fields.read_optional(|key| {
                key.read_tagged_implicit(Tag::context(0), |tagged| tagged.read_bytes())
            })?;
            while fields.read_optional(|field| field.read_der())?.is_some() {}
            Ok(key)
        })
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SerialNumber, date_time_ymd};

    use super::*;

    /// Creates a certificate that an authority signed, in PEM form, preceded by its private key.
    pub(crate) fn pem(names: &[&str], from: (i32, u8, u8), until: (i32, u8, u8)) -> String {
        let issuer_key = KeyPair::generate().unwrap();
        let mut issuer_params = CertificateParams::default();
        issuer_params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let mut params =
            CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        params.not_before = date_time_ymd(from.0, from.1, from.2);
        params.not_after = date_time_ymd(until.0, until.1, until.2);
        params.serial_number = Some(SerialNumber::from(vec![0x87, 0x65, 0x43, 0x21]));
        params.use_authority_key_identifier_extension = true;
        let issuer = Issuer::from_params(&issuer_params, &issuer_key);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        key.serialize_pem() + &certificate.pem()
    }

    #[test]
    fn a_certificate_is_read() {
        let leaf = LeafCertificate::first_in_pem(
            pem(&["A.example", "b.example"], (2026, 1, 1), (2026, 4, 1)).as_bytes(),
        )
        .unwrap();
        assert_eq!(leaf.names, ["a.example", "b.example"]);
        assert_eq!(leaf.validity().length(), Duration::from_secs(90 * 86_400));
        assert!(leaf.covers(&["B.example".into()]));
        assert!(!leaf.covers(&["b.example".into(), "c.example".into()]));
        // The serial number has the leading zero that keeps it positive, as in RFC 9773, section 4.1.
        let identifier = leaf.identifier().unwrap().to_string();
        assert!(identifier.ends_with(".AIdlQyE"), "{identifier}");
        let time_at = |days: u64| leaf.from + Duration::from_secs(days * 86_400);
        assert!(
            !leaf.expires_soon(time_at(75))
                && leaf.expires_soon(time_at(77))
                && leaf.expires_soon(time_at(100))
        );
        assert_eq!(leaf.seconds_left(time_at(91)), -86_400.0);
    }

    #[test]
    fn what_is_none_is_none() {
        assert_eq!(LeafCertificate::from_der(b""), None);
        assert_eq!(LeafCertificate::from_der(&[0x30, 0x80, 0x30]), None);
        let der = CertificateDer::from_pem_slice(pem(&["a"], (2026, 1, 1), (2027, 1, 1)).as_bytes()).unwrap();
        for length in 0..der.len() {
            assert_eq!(LeafCertificate::from_der(&der[..length]), None, "{length}");
        }
    }
}
