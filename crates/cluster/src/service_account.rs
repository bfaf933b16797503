//! The service account that Kubernetes mounts into each pod for access to the API: `token`, `ca.crt` and
//! `namespace` in a folder. All three are read for each use: tokens live for an hour or so and are renewed in
//! place, and authorities change, too.

use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// The folder of a service account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServiceAccount<'a>(pub(crate) &'a Path);

impl ServiceAccount<'_> {
    /// Returns the namespace of the pod.
    pub(crate) fn namespace(self) -> Result<String, String> {
        self.read("namespace")
    }

    /// Returns the credential as the value of the field `authorization`.
    pub(crate) fn bearer(self) -> Result<String, String> {
        Ok(format!("Bearer {}", self.read("token")?))
    }

    /// Returns the authorities of the cluster, and no others.
    pub(crate) fn authorities(self) -> Result<Vec<CertificateDer<'static>>, String> {
        let path = self.0.join("ca.crt");
        let read_error = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let certificates = CertificateDer::pem_file_iter(&path).map_err(|error| read_error(&error))?;
        let certificates: Vec<_> =
            certificates.collect::<Result<_, _>>().map_err(|error| read_error(&error))?;
        if certificates.is_empty() { Err(read_error(&"no certificate is in it")) } else { Ok(certificates) }
    }

    fn read(self, name: &str) -> Result<String, String> {
        let path = self.0.join(name);
        let text = std::fs::read_to_string(&path);
        text.map(|text| text.trim().to_owned())
            .map_err(|error| format!("cannot read {}: {error}", path.display()))
    }
}
