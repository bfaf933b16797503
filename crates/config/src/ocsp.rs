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
        const NONE: &str = "it is no OCSP response in DER form";
        let answer = parse_der(der, |reader| {
            reader.read_sequence(|parts| {
                let status = parts.next().read_enum()?;
                let body = parts.read_optional(|body| {
                    body.read_tagged(Tag::context(0), |body| {
                        body.read_sequence(|parts| {
                            parts.next().read_oid()?;
                            parts.next().read_bytes()
                        })
                    })
                })?;
                Ok((status, body))
            })
        });
        match answer {
            Ok((0, Some(body))) => parse_der(&body, basic).ok().flatten().ok_or_else(|| NONE.to_owned()),
            Ok((0, None)) | Err(_) => Err(NONE.to_owned()),
            Ok((status, _)) => Err(format!("the authority gave no answer in it (status {status})")),
        }
    }
}

/// Reads the first answer of a basic response.
fn basic(reader: BERReader<'_, '_>) -> ASN1Result<Option<OcspResponse>> {
    reader.read_sequence(|parts| {
        let found = parts.next().read_sequence(|data| {
            data.read_optional(|version| version.read_tagged(Tag::context(0), |it| it.read_u8()))?;
            // The responder and the time of the response.
            data.next().read_der()?;
            data.next().read_der()?;
            let answers = data.next().collect_sequence_of(single)?;
            data.read_optional(|part| part.read_der())?;
            Ok(answers.into_iter().next())
        })?;
        // Algorithm, signature, certificates.
        parts.next().read_der()?;
        parts.next().read_der()?;
        parts.read_optional(|part| part.read_der())?;
        Ok(found)
    })
}

fn single(reader: BERReader<'_, '_>) -> ASN1Result<OcspResponse> {
    reader.read_sequence(|parts| {
        // The id of the certificate.
        parts.next().read_der()?;
        let status = parts.next().read_der()?;
        parts.next().read_generalized_time()?;
        let until = parts
            .read_optional(|until| until.read_tagged(Tag::context(0), |time| time.read_generalized_time()))?;
        parts.read_optional(|part| part.read_der())?;
        // `[0] IMPLICIT NULL`.
        Ok(OcspResponse { is_good: status.first() == Some(&0x80), valid_until: until.and_then(system_time) })
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
    pub(crate) fn response(status: i64, answer: &[u8], until: Option<SystemTime>) -> Vec<u8> {
        let time = |at: SystemTime| GeneralizedTime::from_datetime(at.into());
        let basic = construct_der(|writer| {
            writer.write_sequence(|parts: &mut DERWriterSeq<'_>| {
                parts.next().write_sequence(|data| {
                    // The responder by the hash of a key.
                    data.next().write_tagged(Tag::context(2), |by| by.write_bytes(&[7; 20]));
                    data.next().write_generalized_time(&time(UNIX_EPOCH));
                    data.next().write_sequence_of(|answers| {
                        answers.next().write_sequence(|single| {
                            single.next().write_sequence(|_| {});
                            single.next().write_der(answer);
                            single.next().write_generalized_time(&time(UNIX_EPOCH));
                            if let Some(until) = until {
                                single.next().write_tagged(Tag::context(0), |at| {
                                    at.write_generalized_time(&time(until));
                                });
                            }
                        });
                    });
                });
                parts.next().write_sequence(|_| {});
                parts.next().write_bitvec_bytes(&[0; 8], 64);
            });
        });
        construct_der(|writer| {
            writer.write_sequence(|parts| {
                parts.next().write_enum(status);
                if status == 0 {
                    parts.next().write_tagged(Tag::context(0), |body| {
                        body.write_sequence(|parts| {
                            let kind = ObjectIdentifier::from_slice(&[1, 3, 6, 1, 5, 5, 7, 48, 1, 1]);
                            parts.next().write_oid(&kind);
                            parts.next().write_bytes(&basic);
                        });
                    });
                }
            });
        })
    }

    #[test]
    fn an_answer_is_read() {
        let until = UNIX_EPOCH + Duration::from_secs(2_000_000_000);
        let read = |answer: &[u8], until| OcspResponse::read(&response(0, answer, until));
        assert_eq!(
            read(&[0x80, 0], Some(until)),
            Ok(OcspResponse { is_good: true, valid_until: Some(until) })
        );
        assert_eq!(read(&[0x80, 0], None), Ok(OcspResponse { is_good: true, valid_until: None }));
        assert_eq!(read(&[0x82, 0], None), Ok(OcspResponse { is_good: false, valid_until: None }));
    }

    #[test]
    fn what_is_none_is_told() {
        assert!(OcspResponse::read(&response(6, &[0x80, 0], None)).unwrap_err().contains("status 6"));
        let whole = response(0, &[0x80, 0], None);
        for length in 0..whole.len() {
            assert!(
                OcspResponse::read(&whole[..length]).unwrap_err().contains("no OCSP response"),
                "{length}"
            );
        }
        assert!(OcspResponse::read(b"-----BEGIN OCSP RESPONSE-----").is_err());
    }
}
