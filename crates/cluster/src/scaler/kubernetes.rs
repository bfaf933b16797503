//! Members that are the pods of a deployment, or of another resource with replicas. The `scale` subresource
//! sets their number, with a merge patch (RFC 7396) of `spec.replicas`, and returns it. The cluster chooses
//! which pod ends, and how it finishes its work. A source of members lists the pods (a headless service by
//! `dns`).
//!
//! The token of the service account is read for each request, as the cluster renews it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use hyper::header::{ACCEPT, AUTHORIZATION};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};

use super::http::{HttpRequest, ServerEndpoint, error_message};
use crate::service_account::ServiceAccount;

/// A resource with replicas.
#[derive(Clone, PartialEq, Eq)]
pub struct KubernetesSettings {
    /// The host of the API server.
    pub host: String,
    /// The port of the API server.
    pub port: u16,
    /// Whether to use TLS. Plaintext is for tests and for `kubectl proxy`.
    pub tls: bool,
    /// `deployments`, `statefulsets` or `replicasets`.
    pub resource: String,
    /// The resource's name.
    pub name: String,
    /// The namespace; that in the file `namespace` beside the token if `None`.
    pub namespace: Option<String>,
    /// The folder of `token`, `ca.crt` and `namespace`, as the cluster mounts it into each pod.
    pub account: PathBuf,
    /// The time limit of one request as a whole.
    pub timeout: Duration,
}

impl fmt::Debug for KubernetesSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kubernetes({}/{} at {}:{})", self.resource, self.name, self.host, self.port)
    }
}

impl KubernetesSettings {
    /// Sets the number of replicas. Returns the number that the server confirms.
    ///
    /// # Errors
    /// One line: the server cannot be reached, or rejects the request.
    pub async fn set_replicas(&self, replicas: u32) -> Result<u32, String> {
        let patch = json!({"spec": {"replicas": replicas}});
        self.request(Method::PATCH, Some(("application/merge-patch+json", patch))).await
    }

    /// Returns the requested number of replicas.
    ///
    /// # Errors
    /// The same as those of [`set_replicas`](Self::set_replicas).
    pub async fn replicas(&self) -> Result<u32, String> {
        self.request(Method::GET, None).await
    }

    async fn request(&self, method: Method, body: Option<(&'static str, Value)>) -> Result<u32, String> {
        let account = ServiceAccount(&self.account);
        let namespace = match &self.namespace {
            Some(namespace) => namespace.clone(),
            None => account.namespace()?,
        };
        let bearer = account.bearer()?;
        let (host, port) = (self.host.clone(), self.port);
        let endpoint = match self.tls {
            false => ServerEndpoint::Tcp { host, port },
            true => ServerEndpoint::Tls { host, port, config: self.tls_config()? },
        };
        let path = format!("/apis/apps/v1/namespaces/{namespace}/{}/{}/scale", self.resource, self.name);
        let headers = &[(AUTHORIZATION, bearer), (ACCEPT, "application/json".into())];
        let (status, body) = endpoint
            .request(HttpRequest { method, path: &path, body, fields: headers }, self.timeout)
            .await?;
        if !status.is_success() {
            return Err(error_message(status, &body));
        }
        let scale: Value =
            serde_json::from_slice(&body).map_err(|error| format!("its answer is no JSON: {error}"))?;
        // A 0 may be omitted; a response without `spec` is not a scale.
        let spec = scale["spec"].as_object().ok_or("its answer has no `spec`")?;
        let replicas = spec.get("replicas").and_then(Value::as_u64).unwrap_or(0);
        Ok(u32::try_from(replicas).unwrap_or(u32::MAX))
    }

    /// Builds a TLS configuration that trusts the cluster's authority only.
    fn tls_config(&self) -> Result<Arc<ClientConfig>, String> {
        let mut roots = RootCertStore::empty();
        for authority in ServiceAccount(&self.account).authorities()? {
            roots
                .add(authority)
                .map_err(|error| format!("{}: {error}", self.account.join("ca.crt").display()))?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|error| error.to_string())?;
        Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
    }
}
