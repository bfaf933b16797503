use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;

use super::*;

const DAY: Duration = Duration::from_secs(86_400);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("plimsoll-cert-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}

fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

fn chain(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().unwrap()
}

/// Returns `true` if a host that trusts `bundle` accepts `certificates` from a client at that time.
fn is_accepted(bundle: &str, certificates: &str, time: OffsetDateTime) -> bool {
    let mut roots = RootCertStore::empty();
    chain(bundle).into_iter().for_each(|authority| roots.add(authority).unwrap());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let certificates = chain(certificates);
    let time = UnixTime::since_unix_epoch(Duration::from_secs(time.unix_timestamp() as u64));
    verifier.verify_client_cert(&certificates[0], &certificates[1..], time).is_ok()
}

fn ca(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("ca.pem")).unwrap()
}

fn issue(folder: &Path) -> IssuedCertificate {
    CertificateAuthority::open(folder)
        .unwrap()
        .issue("spiffe://example.org/ops/a", &[], now(), 30 * DAY)
        .unwrap()
}

#[test]
fn what_is_issued_says_what_was_asked_for_and_leads_to_the_authority() {
    let folder = folder("issue");
    CertificateAuthority::create(&folder, "example.org", now(), YEAR).unwrap();
    let authority = CertificateAuthority::open(&folder).unwrap();
    let names = [SubjectName::Host("lb.example.org".into()), SubjectName::Address([10, 0, 0, 1].into())];
    let issued = authority.issue("spiffe://example.org/lb/one", &names, now(), 30 * DAY).unwrap();
    let certificate = ParsedCertificate::parse_all(issued.chain.as_bytes()).unwrap().remove(0);
    assert_eq!(certificate.id.as_deref(), Some("spiffe://example.org/lb/one"));
    assert_eq!(certificate.names, ["lb.example.org", "10.0.0.1"]);
    assert!(
        !certificate.is_authority
            && certificate.subject == "one"
            && certificate.issuer.starts_with("example.org authority ")
    );
    assert_eq!(certificate.not_after.unix_timestamp(), issued.expires_at.unix_timestamp());
    assert_eq!(certificate.state(now()), "valid");
    assert_eq!(
        (certificate.state(now() + 31 * DAY), certificate.state(now() - DAY)),
        ("expired", "not yet valid")
    );
    assert!(is_accepted(&ca(&folder), &issued.chain, now()));
    assert!(!is_accepted(&ca(&folder), &issued.chain, now() + 31 * DAY));
    let root = ParsedCertificate::parse_all(ca(&folder).as_bytes()).unwrap().remove(0);
    assert!(root.is_authority && root.id.as_deref() == Some("spiffe://example.org"));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&folder.join("ca.key"))), (0o700, 0o600));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_change_of_keys_has_no_gap() {
    let folder = folder("rotate");
    CertificateAuthority::create(&folder, "example.org", now(), YEAR).unwrap();
    let (old_bundle, old_chain) = (ca(&folder), issue(&folder).chain);
    CertificateAuthority::open(&folder).unwrap().rotate(now(), 2 * YEAR).unwrap();
    let (transition_bundle, new_chain) = (ca(&folder), issue(&folder).chain);
    assert_eq!(
        (chain(&transition_bundle).len(), chain(&new_chain).len(), chain(&old_chain).len()),
        (2, 2, 1)
    );
    for bundle in [&old_bundle, &transition_bundle] {
        for certificates in [&old_chain, &new_chain] {
            assert!(is_accepted(bundle, certificates, now()), "whatever each side has already");
        }
    }
    assert!(
        CertificateAuthority::open(&folder).unwrap().rotate(now(), YEAR).unwrap_err().contains("--finish")
    );
    assert_eq!(CertificateAuthority::open(&folder).unwrap().finish_rotation(), Ok(1));
    let (new_bundle, last_chain) = (ca(&folder), issue(&folder).chain);
    assert_eq!((chain(&new_bundle).len(), chain(&last_chain).len()), (1, 1));
    assert!(is_accepted(&new_bundle, &new_chain, now()) && is_accepted(&new_bundle, &last_chain, now()));
    assert!(!is_accepted(&new_bundle, &old_chain, now()) && !is_accepted(&old_bundle, &last_chain, now()));
    assert!(CertificateAuthority::open(&folder).unwrap().finish_rotation().is_err());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_change_that_was_interrupted_leaves_an_authority_that_works() {
    let folder = folder("broken");
    CertificateAuthority::create(&folder, "example.org", now(), YEAR).unwrap();
    let (old_bundle, old_key) = (ca(&folder), std::fs::read(folder.join("ca.key")).unwrap());
    CertificateAuthority::open(&folder).unwrap().rotate(now(), YEAR).unwrap();
    // The change was interrupted before the key was written.
    std::fs::write(folder.join("ca.key"), old_key).unwrap();
    let issued = issue(&folder).chain;
    assert!(chain(&issued).len() == 1 && is_accepted(&old_bundle, &issued, now()));
    CertificateAuthority::open(&folder).unwrap().rotate(now(), YEAR).unwrap();
    assert!(is_accepted(&old_bundle, &issue(&folder).chain, now()));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_cannot_be_says_why() {
    let folder = folder("wrong");
    assert!(CertificateAuthority::open(&folder).err().unwrap().contains("plimsoll cert init"));
    CertificateAuthority::create(&folder, "example.org", now(), YEAR).unwrap();
    assert!(
        CertificateAuthority::create(&folder, "example.org", now(), YEAR)
            .err()
            .unwrap()
            .contains("there already")
    );
    let too_long =
        CertificateAuthority::open(&folder).unwrap().issue("spiffe://example.org/a", &[], now(), 2 * YEAR);
    assert!(too_long.err().unwrap().contains("longer than the authority"));
    std::fs::write(folder.join("ca.pem"), "nonsense").unwrap();
    assert!(CertificateAuthority::open(&folder).err().unwrap().contains("no certificate"));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn no_certificate_however_broken_is_more_than_an_error() {
    let folder = folder("noise");
    CertificateAuthority::create(&folder, "example.org", now(), YEAR).unwrap();
    let issued = issue(&folder).chain;
    let valid_der = ParsedCertificate::parse_all(issued.as_bytes()).unwrap().remove(0).der;
    let parses = |der: &[u8]| ParsedCertificate::parse_all(encode_pem("CERTIFICATE", der).as_bytes()).is_ok();
    assert!(parses(&valid_der));
    let mut refused = 0;
    for index in 0..valid_der.len() {
        refused += usize::from(!parses(&valid_der[..index]));
        for change in [0x00, 0x7f, 0x80, 0xff, valid_der[index] ^ 1, valid_der[index] ^ 0x20] {
            let mut broken = valid_der.clone();
            broken[index] = change;
            parses(&broken);
        }
    }
    assert_eq!(refused, valid_der.len(), "what is cut short is refused");
    std::fs::remove_dir_all(folder).unwrap();
}
