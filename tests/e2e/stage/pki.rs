//! Authorities and certificates, as files in a folder.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use super::Folder;

/// An authority of a test.
pub(crate) struct Authority {
    key: KeyPair,
    params: CertificateParams,
}

impl Authority {
    /// Makes an authority; writes its certificate as `NAME.pem`, and its key as `NAME.key`.
    pub(crate) fn new(folder: &Folder, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        folder.write(&format!("{name}.pem"), pem("CERTIFICATE", params.self_signed(&key).unwrap().der()));
        folder.write(&format!("{name}.key"), pem("PRIVATE KEY", &key.serialize_der()));
        Self { key, params }
    }

    /// Writes a certificate for these names (of hosts, or addresses), as `FILE.pem` and `FILE.key`.
    pub(crate) fn issue(&self, folder: &Folder, file: &str, names: &[&str]) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, file);
        let issuer = Issuer::from_params(&self.params, &self.key);
        folder.write(
            &format!("{file}.pem"),
            pem("CERTIFICATE", params.signed_by(&key, &issuer).unwrap().der()),
        );
        folder.write(&format!("{file}.key"), pem("PRIVATE KEY", &key.serialize_der()));
    }
}

/// Returns the lines that openssl reads.
fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let lines: Vec<&str> = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
