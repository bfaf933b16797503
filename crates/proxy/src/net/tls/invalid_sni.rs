//! Support for clients whose server name is no DNS name: `host:port`, `a..b`, `[::1]`, UTF-8.
//!
//! RFC 6066 section 3 does not require a server to end such a handshake, and other servers serve these
//! clients. rustls ends it, without a setting for that. So rustls gets the ClientHello a second time, with an
//! unused number for the name's extension, as if the client had sent no name. Both sides hash the messages
//! for their Finished messages. The hash functions here restore the number in the transcript, so that it
//! equals the client's. The rest of the handshake is unchanged.
//!
//! Two kinds of such clients are still rejected:
//!
//! - Clients that get a HelloRetryRequest, because they sent no key share for a supported group.
//! - Clients that present a certificate in TLS 1.2, as they sign the bytes themselves.

use std::cell::Cell;
use std::sync::{Arc, LazyLock};

use rustls::crypto::hash::{Context, Hash, HashAlgorithm, Output};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{
    CipherSuiteCommon, Error, PeerMisbehaved, ServerConfig, ServerConnection, SupportedCipherSuite,
    Tls12CipherSuite, Tls13CipherSuite,
};

/// The number of the server name extension (RFC 6066).
const SERVER_NAME: [u8; 2] = [0, 0];
/// The replacement, a number for private use.
const PRIVATE_EXTENSION: [u8; 2] = [0xff, 0x5a];

/// Returns `true` if a handshake failed because the name is no DNS name.
pub(super) fn is_invalid_name_error(error: &Error) -> bool {
    *error == Error::PeerMisbehaved(PeerMisbehaved::ServerNameMustContainOneHostName)
}

/// Starts a new session with the records of a ClientHello, without its name. `came` are all bytes of it.
/// Returns `None` on failure.
pub(super) fn without_name(mut received: Vec<u8>, config: Arc<ServerConfig>) -> Option<ServerConnection> {
    let name_offset = hide(&mut received)?;
    let mut session = ServerConnection::new(config).ok()?;
    HIDDEN.set(Some((name_offset, SERVER_NAME)));
    let mut bytes = &received[..];
    let mut processed = Ok(());
    while processed.is_ok() && !bytes.is_empty() {
        processed = match session.read_tls(&mut bytes) {
            Ok(1..) => session.process_new_packets().map(|_| ()).map_err(|_| ()),
            Ok(0) | Err(_) => Err(()),
        };
    }
    HIDDEN.set(None);
    processed.is_ok().then_some(session)
}

/// Replaces the number of the name's extension, and returns its offset in the handshake message.
fn hide(records: &mut [u8]) -> Option<usize> {
    const HANDSHAKE: u8 = 22;
    const CLIENT_HELLO: u8 = 1;
    // The offsets of the message's bytes in the records.
    let (mut offsets, mut position) = (Vec::new(), 0);
    while let Some([HANDSHAKE, _, _, high, low]) = records.get(position..position + 5) {
        let start = position + 5;
        position = start + usize::from(u16::from_be_bytes([*high, *low]));
        offsets.extend(start..position.min(records.len()));
    }
    let message: Vec<u8> = offsets.iter().map(|offset| records[*offset]).collect();
    let u16_at =
        |offset: usize| Some(usize::from(u16::from_be_bytes(*message.get(offset..)?.first_chunk()?)));
    if message.first() != Some(&CLIENT_HELLO) {
        return None;
    }
    // Type and length of the message, version, random; then the session ID, the cipher suites and the
    // compression methods.
    let mut cursor = 4 + 2 + 32;
    cursor += 1 + usize::from(*message.get(cursor)?);
    cursor += 2 + u16_at(cursor)?;
    cursor += 1 + usize::from(*message.get(cursor)?);
    cursor += 2;
    while u16_at(cursor)? != 0 {
        cursor += 4 + u16_at(cursor + 2)?;
    }
    for (byte, offset) in PRIVATE_EXTENSION.iter().zip(offsets.get(cursor..cursor + 2)?) {
        *records.get_mut(*offset)? = *byte;
    }
    Some(cursor)
}

thread_local! {
    /// The offset of two replaced bytes in the message that is being processed, and their original values.
    static HIDDEN: Cell<Option<(usize, [u8; 2])>> = const { Cell::new(None) };
}

/// Returns the provider of handshakes with clients.
pub(super) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
        let mut provider = aws_lc_rs::default_provider();
        for suite in &mut provider.cipher_suites {
            *suite = with_transcript(*suite);
        }
        Arc::new(provider)
    });
    Arc::clone(&PROVIDER)
}

/// Returns the suite with a transcript hash of this module. rustls requires a static lifetime.
fn with_transcript(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    let common = |common: &CipherSuiteCommon| CipherSuiteCommon {
        suite: common.suite,
        hash_provider: Box::leak(Box::new(RestoringHash(common.hash_provider))),
        confidentiality_limit: common.confidentiality_limit,
    };
    match suite {
        SupportedCipherSuite::Tls12(suite) => {
            SupportedCipherSuite::Tls12(Box::leak(Box::new(Tls12CipherSuite {
                common: common(&suite.common),
                prf_provider: suite.prf_provider,
                kx: suite.kx,
                sign: suite.sign,
                aead_alg: suite.aead_alg,
            })))
        }
        SupportedCipherSuite::Tls13(suite) => {
            SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                common: common(&suite.common),
                hkdf_provider: suite.hkdf_provider,
                aead_alg: suite.aead_alg,
                quic: suite.quic,
            })))
        }
    }
}

/// A hash function that restores the number.
struct RestoringHash(&'static dyn Hash);

impl Hash for RestoringHash {
    fn start(&self) -> Box<dyn Context> {
        let inner = self.0.start();
        match HIDDEN.get() {
            None => inner,
            Some((hidden_at, original)) => {
                Box::new(RestoringContext { inner, hidden_at, original, position: 0 })
            }
        }
    }

    fn hash(&self, data: &[u8]) -> Output {
        self.0.hash(data)
    }

    fn output_len(&self) -> usize {
        self.0.output_len()
    }

    fn algorithm(&self) -> HashAlgorithm {
        self.0.algorithm()
    }

    fn fips(&self) -> bool {
        self.0.fips()
    }
}

struct RestoringContext {
    inner: Box<dyn Context>,
    /// The offset of the replaced bytes, and their original values.
    hidden_at: usize,
    original: [u8; 2],
    /// The number of hashed bytes.
    position: usize,
}

impl Context for RestoringContext {
    fn fork_finish(&self) -> Output {
        self.inner.fork_finish()
    }

    fn fork(&self) -> Box<dyn Context> {
        Box::new(Self { inner: self.inner.fork(), ..*self })
    }

    fn finish(self: Box<Self>) -> Output {
        self.inner.finish()
    }

    fn update(&mut self, data: &[u8]) {
        let mut data = data.to_vec();
        for (offset, byte) in self.original.iter().enumerate() {
            if let Some(index) = (self.hidden_at + offset).checked_sub(self.position)
                && let Some(hidden) = data.get_mut(index)
            {
                *hidden = *byte;
            }
        }
        self.position += data.len();
        self.inner.update(&data);
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    #[test]
    fn transcripts_are_those_of_the_client_however_they_are_cut() {
        let hash = RestoringHash(
            aws_lc_rs::default_provider().cipher_suites[0].tls13().expect("1.3").common.hash_provider,
        );
        let original = [7, 7, 7, 0, 0, 7, 7];
        let received = [7, 7, 7, 0xff, 0x5a, 7, 7];
        let expected = hash.hash(&original);
        for split_at in 0..=received.len() {
            HIDDEN.set(Some((3, SERVER_NAME)));
            let mut hash_context = hash.start();
            HIDDEN.set(None);
            hash_context.update(&received[..split_at]);
            let mut forked_context = hash_context.fork();
            forked_context.update(&received[split_at..]);
            assert_eq!(forked_context.fork_finish().as_ref(), expected.as_ref(), "{split_at}");
            assert_eq!(forked_context.finish().as_ref(), expected.as_ref(), "{split_at}");
        }
        let mut unhidden = hash.start();
        unhidden.update(&received);
        assert_eq!(unhidden.finish().as_ref(), hash.hash(&received).as_ref());
    }

    /// Performs a handshake of this version with a client that requests `localhost`, two bytes of which are
    /// replaced in transit. The transcript has the client's bytes. Returns the name that the server gets.
    fn handshake_with_name(
        version: &'static rustls::SupportedProtocolVersion,
        name_start: [u8; 2],
    ) -> Result<Option<String>, Error> {
        let names = vec!["localhost".to_owned()];
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(names).expect("a certificate");
        let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
        let config = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[version])?;
        let chain = vec![cert.der().clone()];
        let config = Arc::new(config.with_no_client_auth().with_single_cert(chain, key)?);
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone())?;
        let client = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[version])?;
        let client = Arc::new(client.with_root_certificates(roots).with_no_client_auth());
        let mut client = ClientConnection::new(client, "localhost".try_into().expect("a name"))?;

        let mut hello = Vec::new();
        client.write_tls(&mut hello).expect("memory");
        let name_offset = hello.windows(9).position(|window| window == b"localhost").expect("its name");
        hello[name_offset..name_offset + 2].copy_from_slice(&name_start);
        let mut server = ServerConnection::new(Arc::clone(&config))?;
        server.read_tls(&mut &hello[..]).expect("memory");
        if let Err(error) = server.process_new_packets() {
            assert!(is_invalid_name_error(&error), "{error}");
            server = without_name(hello, config).ok_or(error)?;
        }
        // The record's head precedes the message.
        HIDDEN.set(Some((name_offset - 5, name_start)));
        for _ in 0..4 {
            let mut bytes = Vec::new();
            server.write_tls(&mut bytes).expect("memory");
            client.read_tls(&mut &bytes[..]).expect("memory");
            client.process_new_packets()?;
            HIDDEN.set(None);
            bytes.clear();
            client.write_tls(&mut bytes).expect("memory");
            server.read_tls(&mut &bytes[..]).expect("memory");
            server.process_new_packets()?;
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        Ok(server.server_name().map(str::to_owned))
    }

    #[test]
    fn a_name_that_is_none_counts_as_no_name() {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            assert_eq!(handshake_with_name(version, *b"lo"), Ok(Some("localhost".to_owned())));
            for invalid in [*b"l:", *b"..", *b"-:", *b"[:", [0xc3, 0xa9]] {
                assert_eq!(handshake_with_name(version, invalid), Ok(None), "{}", invalid.escape_ascii());
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_may_come(mut bytes: Vec<u8>, lengths in 0u16..80) {
            let _ = hide(&mut bytes);
            let [high, low] = lengths.to_be_bytes();
            let mut hello = [&[22, 3, 1, high, low, 1, 0, 0, low, 3, 3][..], &bytes].concat();
            let _ = hide(&mut hello);
        }
    }
}
