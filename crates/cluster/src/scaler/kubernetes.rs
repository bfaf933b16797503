//! Members that are the pods of a deployment (or of something else that has replicas): how many there are is set by its `scale`
//! subresource, with a merge patch (RFC 7396) of `spec.replicas`, which is read there, too. Which pod goes is the cluster's choice, and so is how it ends its
//! work; who is there a source of members says (a headless service by `dns`).
//!
//! The token of the service account is read anew each time, as the cluster renews it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use hyper::header::{ACCEPT, AUTHORIZATION};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};

use super::http::{Ask, Door, refusal};
use crate::account::Account;

/// Something that has replicas.
#[derive(Clone, PartialEq, Eq)]
pub struct KubernetesSettings {
    /// Host of the API server.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// By TLS? Without it for tests, and for `kubectl proxy`.
    pub tls: bool,
    /// `deployments`, `statefulsets` or `replicasets`.
    pub resource: String,
    /// Its name.
    pub name: String,
    /// Where it is; what is in the file `namespace` beside the token if `None`.
    pub namespace: Option<String>,
    /// Folder of `token`, `ca.crt` and `namespace`, as the cluster puts it into each pod.
    pub account: PathBuf,
    /// For one request as a whole.
    pub timeout: Duration,
}

impl fmt::Debug for KubernetesSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kubernetes({}/{} at {}:{})", self.resource, self.name, self.host, self.port)
    }
}

impl KubernetesSettings {
    /// Sets how many there are to be; how many the server says were asked for.
    ///
    /// # Errors
    /// One line: the server cannot be reached, or does not want it.
    pub async fn scale(&self, replicas: u32) -> Result<u32, String> {
        let patch = json!({"spec": {"replicas": replicas}});
        self.ask(Method::PATCH, Some(("application/merge-patch+json", patch))).await
    }

    /// How many there are to be, whoever said so.
    ///
    /// # Errors
    /// The same.
    pub async fn replicas(&self) -> Result<u32, String> {
        self.ask(Method::GET, None).await
    }

    async fn ask(&self, method: Method, body: Option<(&'static str, Value)>) -> Result<u32, String> {
        let account = Account(&self.account);
        let namespace = match &self.namespace {
            Some(namespace) => namespace.clone(),
            None => account.namespace()?,
        };
        let bearer = account.bearer()?;
        let (host, port) = (self.host.clone(), self.port);
        let door = match self.tls {
            false => Door::Tcp { host, port },
            true => Door::Tls { host, port, config: self.trust()? },
        };
        let path = format!("/apis/apps/v1/namespaces/{namespace}/{}/{}/scale", self.resource, self.name);
        let fields = &[(AUTHORIZATION, bearer), (ACCEPT, "application/json".into())];
        let (status, body) = door.ask(Ask { method, path: &path, body, fields }, self.timeout).await?;
        if !status.is_success() {
            return Err(refusal(status, &body));
        }
        let scale: Value =
            serde_json::from_slice(&body).map_err(|error| format!("its answer is no JSON: {error}"))?;
        // A number that is 0 may be left out; what has no `spec` is no scale.
        let spec = scale["spec"].as_object().ok_or("its answer has no `spec`")?;
        let asked = spec.get("replicas").and_then(Value::as_u64).unwrap_or(0);
        Ok(u32::try_from(asked).unwrap_or(u32::MAX))
    }

    /// The authority of the cluster, and no other.
    fn trust(&self) -> Result<Arc<ClientConfig>, String> {
        let mut roots = RootCertStore::empty();
        for authority in Account(&self.account).authorities()? {
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
