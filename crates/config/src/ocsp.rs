//! The parts of an authority's OCSP response (RFC 6960) that matter to a server that staples it: whether it
//! is a response, its status, and its end. Clients judge its signature.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use yasna::models::GeneralizedTime;
use yasna::{ASN1Result, BERReader, Tag, parse_der};

/// A response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OcspResponse {
    /// Whether the certificate is valid.
    pub(super) is_good: bool,
    /// The time until which it holds, to the second; `None` if it has none.
    pub(super) valid_until: Option<SystemTime>,
}

impl OcspResponse {
    /// Reads a response in DER form.
    ///
    /// # Errors
    /// Fails with the reason, for people.
    pub(super) fn read(der: &[u8]) -> Result<Self, String> {
        const NOT_OCSP: &str = "it is no OCSP response in DER form";
        let response = parse_der(der, |reader| {
            reader.read_sequence(|fields| {
                let status = fields.next().read_enum()?;
                let body = fields.read_optional(|body| {
                    body.read_tagged(Tag::context(0), |body| {
                        body.read_sequence(|fields| {
                            fields.next().read_oid()?;
                            fields.next().read_bytes()
                        })
                    })
                })?;
                Ok((status, body))
            })
        });
        match response {
            Ok((0, Some(body))) => {
                parse_der(&body, read_basic_response).ok().flatten().ok_or_else(|| NOT_OCSP.to_owned())
            }
            Ok((0, None)) | Err(_) => Err(NOT_OCSP.to_owned()),
            Ok((status, _)) => Err(format!("the authority gave no answer in it (status {status})")),
        }
    }
}

/// Reads the first answer of a basic response.
fn read_basic_response(reader: BERReader<'_, '_>) -> ASN1Result<Option<OcspResponse>> {
    reader.read_sequence(|fields| {
        let first_response = fields.next().read_sequence(|data| {
            data.read_optional(|version| {
                version.read_tagged(Tag::context(0), |version_reader| version_reader.read_u8())
            })?;
            // The responder and the time of the response.
            data.next().read_der()?;
            data.next().read_der()?;
            let responses = data.next().collect_sequence_of(read_single_response)?;
            data.read_optional(|optional| optional.read_der())?;
            Ok(responses.into_iter().next())
        })?;
        // Algorithm, signature, certificates.
        fields.next().read_der()?;
        fields.next().read_der()?;
        fields.read_optional(|optional| optional.read_der())?;
        Ok(first_response)
    })
}

fn read_single_response(reader: BERReader<'_, '_>) -> ASN1Result<OcspResponse> {
    reader.read_sequence(|fields| {
        // The id of the certificate.
        fields.next().read_der()?;
        let status = fields.next().read_der()?;
        fields.next().read_generalized_time()?;
        let next_update = fields.read_optional(|next_update| {
            next_update.read_tagged(Tag::context(0), |time| time.read_generalized_time())
        })?;
        fields.read_optional(|optional| optional.read_der())?;
        // `[0] IMPLICIT NULL`.
        Ok(OcspResponse {
            is_good: status.first() == Some(&0x80),
            valid_until: next_update.and_then(system_time),
        })
    })
}

fn system_time(time: GeneralizedTime) -> Option<SystemTime> {
    let seconds = u64::try_from(time.datetime().unix_timestamp()).ok()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[cfg(test)]
pub(super) mod tests {
    use yasna::models::ObjectIdentifier;
    use yasna::{DERWriterSeq, construct_der};

    use super::*;

    /// Returns an unsigned response: `status` is that of the response, `[0]` or another answer, and its end.
    pub(crate) fn response(status: i64, status_der: &[u8], next_update: Option<SystemTime>) -> Vec<u8> {
        let time = |instant: SystemTime| GeneralizedTime::from_datetime(instant.into());
        let basic = construct_der(|writer| {
            writer.write_sequence(|fields: &mut DERWriterSeq<'_>| {
                fields.next().write_sequence(|data| {
                    // The responder by the hash of a key.
                    data.next().write_tagged(Tag::context(2), |responder| responder.write_bytes(&[7; 20]));
                    data.next().write_generalized_time(&time(UNIX_EPOCH));
                    data.next().write_sequence_of(|responses_writer| {
                        responses_writer.next().write_sequence(|single_writer| {
                            single_writer.next().write_sequence(|_| {});
                            single_writer.next().write_der(status_der);
                            single_writer.next().write_generalized_time(&time(UNIX_EPOCH));
                            if let Some(next_update) = next_update {
                                single_writer.next().write_tagged(Tag::context(0), |time_writer| {
                                    time_writer.write_generalized_time(&time(next_update));
                                });
                            }
                        });
                    });
                });
                fields.next().write_sequence(|_| {});
                fields.next().write_bitvec_bytes(&[0; 8], 64);
            });
        });
        construct_der(|writer| {
            writer.write_sequence(|fields| {
                fields.next().write_enum(status);
                if status == 0 {
                    fields.next().write_tagged(Tag::context(0), |body| {
                        body.write_sequence(|fields| {
                            let kind = ObjectIdentifier::from_slice(&[1, 3, 6, 1, 5, 5, 7, 48, 1, 1]);
                            fields.next().write_oid(&kind);
                            fields.next().write_bytes(&basic);
                        });
                    });
                }
            });
        })
    }

    #[test]
    fn an_answer_is_read() {
        let next_update = UNIX_EPOCH + Duration::from_secs(2_000_000_000);
        let read_response =
            |status_der: &[u8], next_update| OcspResponse::read(&response(0, status_der, next_update));
        assert_eq!(
            read_response(&[0x80, 0], Some(next_update)),
            Ok(OcspResponse { is_good: true, valid_until: Some(next_update) })
        );
        assert_eq!(read_response(&[0x80, 0], None), Ok(OcspResponse { is_good: true, valid_until: None }));
        assert_eq!(read_response(&[0x82, 0], None), Ok(OcspResponse { is_good: false, valid_until: None }));
    }

    #[test]
    fn what_is_none_is_told() {
        assert!(OcspResponse::read(&response(6, &[0x80, 0], None)).unwrap_err().contains("status 6"));
        let valid_response = response(0, &[0x80, 0], None);
        for length in 0..valid_response.len() {
            assert!(
                OcspResponse::read(&valid_response[..length]).unwrap_err().contains("no OCSP response"),
                "{length}"
            );
        }
        assert!(OcspResponse::read(b"-----BEGIN OCSP RESPONSE-----").is_err());
    }
}
