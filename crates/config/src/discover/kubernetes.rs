//! `kubernetes` of `[[group.discover]]`: a service, and the server that is asked for its endpoints.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use plimsoll_cluster::discover::{
    AddressFamily, KUBERNETES_ENABLED, KubernetesApi, KubernetesSource, ServicePort,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::diagnostic::ConfigDiagnostic;
use crate::root::yes;
use crate::spans::SpanTree;
use crate::text::{TextValue, text};
use crate::{FilePath, FolderPath, MemberAddress};

/// A service of Kubernetes, and whom to ask for its endpoints: the API as the cluster tells it to each pod,
/// or as a kubeconfig has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KubernetesService {
    /// Its name.
    pub service: KubernetesName,

    /// Where it is. Default: what `namespace` in the folder `account` says, or the context of the kubeconfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<KubernetesName>,

    /// Which port of the endpoints: as it is called in the service, or its number at the endpoints (the
    /// `targetPort`, not what the service is asked at). Default: the only one there is.
    #[schemars(extend("examples" = ["http", 8080]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<EndpointPort>,

    /// Host and port of the API server. Default: what `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`
    /// say, which the cluster sets in each pod, or else `kubernetes.default.svc:443`.
    #[schemars(extend("examples" = ["10.0.0.1:6443"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<MemberAddress>,

    /// By TLS; without it, for `kubectl proxy`, no token is sent.
    #[serde(default = "yes")]
    pub tls: bool,

    /// Folder with `token`, `ca.crt` and `namespace`, as the cluster puts it into each pod. The token is read
    /// for each request.
    #[serde(default = "account")]
    pub account: FolderPath,

    /// A file for `kubectl` that says whom to ask, in place of `server`, `tls` and `account`.
    #[schemars(extend("examples" = ["/etc/plimsoll/kubeconfig"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<FilePath>,

    /// Which of its contexts. Default: its current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// A port of endpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum EndpointPort {
    /// As it is called in the service.
    Name(KubernetesName),
    /// As it is at the endpoints.
    Number(#[schemars(range(min = 1, max = 65_535))] u16),
}

/// A name in Kubernetes: of services, namespaces and ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesName(pub String);

text! {
    KubernetesName,
    format: "plimsoll-kubernetes-name",
    what: "a name of Kubernetes",
    example: "web",
    pattern: "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
}

impl FromStr for KubernetesName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if text.is_empty() {
            return Err("is empty".into());
        }
        if text.len() > 63 {
            return Err("is too long: names of Kubernetes have at most 63 characters".into());
        }
        if !text.bytes().all(is_allowed) || text.starts_with('-') || text.ends_with('-') {
            return Err("is no name of Kubernetes: small letters, digits, and `-` between them".into());
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for KubernetesName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl KubernetesService {
    /// Returns the source's settings.
    pub(super) fn source(&self, family: AddressFamily, timeout: Duration) -> KubernetesSource {
        let port = |port: &EndpointPort| match port {
            EndpointPort::Name(name) => ServicePort::Name(name.0.clone()),
            EndpointPort::Number(port_number) => ServicePort::Number(*port_number),
        };
        let api = match &self.kubeconfig {
            Some(path) => KubernetesApi::Kubeconfig { path: path.0.clone(), context: self.context.clone() },
            None => KubernetesApi::Account {
                server: self.server.as_ref().map(|server| (server.host.clone(), server.port)),
                tls: self.tls,
                folder: self.account.0.clone(),
            },
        };
        KubernetesSource {
            service: self.service.0.clone(),
            namespace: self.namespace.as_ref().map(|namespace| namespace.0.clone()),
            port: self.port.as_ref().map(port),
            family,
            api,
            timeout,
        }
    }

    /// Checks the table; `spot` is that of the source.
    pub(super) fn check(&self, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
        if !KUBERNETES_ENABLED {
            let message = "this plimsoll was built without Kubernetes";
            let hint = "take it out, or build with: cargo build --release -p plimsoll --features kubernetes";
            diagnostics.push(ConfigDiagnostic::error(spans.key_span("kubernetes"), message).hint(hint));
            return;
        }
        let kubernetes_spans = spans.key("kubernetes");
        if let Some(EndpointPort::Name(name)) = &self.port
            && name.0.bytes().all(|byte| byte.is_ascii_digit())
        {
            let message = format!("`port` is called \"{name}\", and names of ports have a letter");
            let hint = format!("write port = {name} for the number");
            diagnostics
                .push(ConfigDiagnostic::error(kubernetes_spans.key("port").value_span(), message).hint(hint));
        }
        if self.kubeconfig.is_some() {
            // The list of the other keys has their defaults in it, too.
            let other_keys = [
                ("server", self.server.is_some()),
                ("tls", !self.tls),
                ("account", self.account != account()),
            ];
            for (key, _) in other_keys.into_iter().filter(|(_, is_set)| *is_set) {
                let problem = ConfigDiagnostic::error(
                    kubernetes_spans.key_span(key),
                    format!("either `kubeconfig` or `{key}`, not both"),
                );
                diagnostics.push(
                    problem.with_related(kubernetes_spans.key_span("kubeconfig"), "it says whom to ask"),
                );
            }
        } else if kubernetes_spans.has_key("context") && !kubernetes_spans.is_broken("kubeconfig") {
            let problem = ConfigDiagnostic::error(
                kubernetes_spans.key_span("context"),
                "`context` is of a `kubeconfig`, and there is none",
            );
            diagnostics.push(problem.hint("add kubeconfig = \"/etc/plimsoll/kubeconfig\""));
        }
    }
}

fn account() -> FolderPath {
    FolderPath("/var/run/secrets/kubernetes.io/serviceaccount".into())
}
