//! The parts of a certificate (X.509, RFC 5280) that people ask for: its owner, names, lifetime and
//! authority. They are read for display, and to find an authority's own certificate; TLS judges the trust.

use std::net::IpAddr;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use time::OffsetDateTime;
use yasna::models::ObjectIdentifier;
use yasna::tags::TAG_UTCTIME;
use yasna::{ASN1Result, BERReader, Tag, parse_der};

/// A certificate.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ParsedCertificate {
    /// Its SPIFFE id: the only URI in it.
    pub(super) id: Option<String>,
    /// DNS names and addresses.
    pub(super) names: Vec<String>,
    /// The common name of its owner.
    pub(super) subject: String,
    /// The common name of its authority.
    pub(super) issuer: String,
    /// The serial number in hexadecimal digits.
    pub(super) serial: String,
    /// Whether it may sign others.
    pub(super) is_authority: bool,
    pub(super) not_before: OffsetDateTime,
    pub(super) not_after: OffsetDateTime,
    /// The public key, as encoded in it.
    pub(super) public_key: Vec<u8>,
    /// All of it.
    pub(super) der: Vec<u8>,
}

impl ParsedCertificate {
    /// Returns the certificates of a text in PEM form, in their order.
    ///
    /// # Errors
    /// Fails if there are none, or one cannot be read.
    pub(super) fn parse_all(pem: &[u8]) -> Result<Vec<Self>, String> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let certificates = certificates.map_err(|error| format!("is not PEM: {error}"))?;
        if certificates.is_empty() {
            return Err("no certificate in PEM form is in it".into());
        }
        let parse = |der: &CertificateDer<'_>| {
            Self::parse(der).map_err(|error| format!("a certificate cannot be read: {error:?}"))
        };
        certificates.iter().map(parse).collect()
    }

    fn parse(der: &[u8]) -> ASN1Result<Self> {
        let mut certificate = parse_der(der, |reader| {
            reader.read_sequence(|parts| {
                let certificate = parts.next().read_sequence(|fields| {
                    fields.read_optional(|version| {
                        version.read_tagged(Tag::context(0), |value| value.read_u8())
                    })?;
                    let (serial, _) = fields.next().read_bigint_bytes()?;
                    fields.next().read_der()?;
                    let issuer = common_name(fields.next())?;
                    let (not_before, not_after) = fields
                        .next()
                        .read_sequence(|times| Ok((read_time(times.next())?, read_time(times.next())?)))?;
                    let subject = common_name(fields.next())?;
                    let public_key = fields.next().read_sequence(|key_fields| {
                        key_fields.next().read_der()?;
                        Ok(key_fields.next().read_bitvec_bytes()?.0)
                    })?;
                    let extensions = fields.read_optional(|extensions| {
                        extensions.read_tagged(Tag::context(3), |list| list.collect_sequence_of(extension))
                    })?;
                    let serial = serial.iter().map(|byte| format!("{byte:02x}")).collect();
                    let (names, der) = (Vec::new(), Vec::new());
                    let (id, is_authority) = (None, false);
                    let mut certificate = Self {
                        id,
                        names,
                        subject,
                        issuer,
                        serial,
                        is_authority,
                        not_before,
                        not_after,
                        public_key,
                        der,
                    };
                    for (oid, value) in extensions.unwrap_or_default() {
                        match oid.components().as_slice() {
                            [2, 5, 29, 17] => certificate.read_alternative_names(&value)?,
                            [2, 5, 29, 19] => certificate.is_authority = is_signing_authority(&value)?,
                            _ => {}
                        }
                    }
                    Ok(certificate)
                })?;
                parts.next().read_der()?;
                parts.next().read_bitvec_bytes()?;
                Ok(certificate)
            })
        })?;
        certificate.der = der.to_vec();
        Ok(certificate)
    }

    /// Returns `valid`, `expired` or `not yet valid`.
    pub(super) fn state(&self, now: OffsetDateTime) -> &'static str {
        if now > self.not_after {
            "expired"
        } else if now < self.not_before {
            "not yet valid"
        } else {
            "valid"
        }
    }

    /// Reads the subject's alternative names.
    fn read_alternative_names(&mut self, value: &[u8]) -> ASN1Result<()> {
        let (dns, uri, address) = (Tag::context(2), Tag::context(6), Tag::context(7));
        parse_der(value, |reader| {
            reader.read_sequence_of(|name| {
                let tag = name.lookahead_tag()?;
                if tag == uri {
                    self.id = Some(name.read_tagged_implicit(tag, |text| text.read_ia5_string())?);
                } else if tag == dns {
                    self.names.push(name.read_tagged_implicit(tag, |text| text.read_ia5_string())?);
                } else if tag == address {
                    let bytes = name.read_tagged_implicit(tag, |bytes| bytes.read_bytes())?;
                    let ipv4 = <[u8; 4]>::try_from(bytes.as_slice()).map(IpAddr::from);
                    let ip = ipv4.or_else(|_| <[u8; 16]>::try_from(bytes.as_slice()).map(IpAddr::from));
                    self.names.extend(ip.ok().map(|address| address.to_string()));
                } else {
                    name.read_der()?;
                }
                Ok(())
            })
        })
    }
}

fn extension(reader: BERReader<'_, '_>) -> ASN1Result<(ObjectIdentifier, Vec<u8>)> {
    reader.read_sequence(|parts| {
        let oid = parts.next().read_oid()?;
        parts.read_default(false, |critical| critical.read_bool())?;
        Ok((oid, parts.next().read_bytes()?))
    })
}

/// Returns `true` if the basic constraints make it an authority.
fn is_signing_authority(value: &[u8]) -> ASN1Result<bool> {
    parse_der(value, |reader| {
        reader.read_sequence(|parts| {
            let is_authority = parts.read_default(false, |flag| flag.read_bool())?;
            parts.read_optional(|length| length.read_u8())?;
            Ok(is_authority)
        })
    })
}

fn read_time(reader: BERReader<'_, '_>) -> ASN1Result<OffsetDateTime> {
    if reader.lookahead_tag()? == TAG_UTCTIME {
        Ok(*reader.read_utctime()?.datetime())
    } else {
        Ok(*reader.read_generalized_time()?.datetime())
    }
}

/// Returns the common name in a distinguished name; empty if there is none, or it is in an odd alphabet.
fn common_name(reader: BERReader<'_, '_>) -> ASN1Result<String> {
    let mut name = String::new();
    reader.read_sequence_of(|set| {
        set.read_set_of(|pair| {
            pair.read_sequence(|parts| {
                let oid = parts.next().read_oid()?;
                let value = parts.next().read_tagged_der()?;
                if oid.components().as_slice() == [2, 5, 4, 3] {
                    name = String::from_utf8_lossy(value.value()).into_owned();
                }
                Ok(())
            })
        })
    })?;
    Ok(name)
}
