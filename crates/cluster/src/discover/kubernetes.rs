//! The endpoints of a Kubernetes service, by its EndpointSlices (`discovery.k8s.io/v1`): those with the label
//! `kubernetes.io/service-name`. They are listed once and watched from then on, as controllers do
//! (<https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes>). Changes
//! arrive at once. A watch that ends resumes after the last seen version, which bookmarks keep fresh. If the
//! server has discarded that version (410 Gone), the slices are listed again.
//!
//! `api` makes the requests, `slice_watcher` keeps the state, and `slices` computes the members as a pure
//! function. kube-rs provides the client and the parser for kubeconfigs. All of it requires the feature
//! `kubernetes`.

#[cfg(feature = "kubernetes")]
mod api;
#[cfg(all(feature = "kubernetes", any(test, fuzzing)))]
pub(crate) mod invariants;
#[cfg(feature = "kubernetes")]
mod slice_watcher;
#[cfg(feature = "kubernetes")]
mod slices;
#[cfg(feature = "kubernetes")]
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::{AddressFamily, MemberSource, SourceConfig};
use crate::scrape::random_unit;

/// Whether the feature `kubernetes` is enabled. Without it a source of this kind fails at each query.
pub const KUBERNETES_ENABLED: bool = cfg!(feature = "kubernetes");

/// The maximum age of a watch. The server ends it then and it is renewed, which detects dead connections.
const WATCH_WINDOW: Duration = Duration::from_secs(60);
/// A watch without any event for the window and this time is dead.
const WATCH_SLACK: Duration = Duration::from_secs(15);
/// The maximum delay after failures.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// The endpoints of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesSource {
    /// The service's name.
    pub service: String,
    /// The namespace; that of the pod or of the context if `None`.
    pub namespace: Option<String>,
    /// The port of the endpoints; the only one if `None`.
    pub port: Option<ServicePort>,
    /// The addresses to use. With [`AddressFamily::Any`] a pod with both families counts once, by its IPv4
    /// address.
    pub family: AddressFamily,
    /// The API server.
    pub api: KubernetesApi,
    /// The time limit of a response, and for the beginning of a watch.
    pub timeout: Duration,
}

/// A port of endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServicePort {
    /// The port's name in the service.
    Name(String),
    /// The port's number at the endpoints; not 0.
    Number(u16),
}

/// The API server and the credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubernetesApi {
    /// The service account of the pod.
    Account {
        /// The host, a name or an address without brackets, and the port. `None` selects those in the pod's
        /// environment, or else `kubernetes.default.svc`.
        server: Option<(String, u16)>,
        /// Whether to use TLS. Plaintext is for tests and for `kubectl proxy`; then no token is sent.
        tls: bool,
        /// The folder of `token`, `ca.crt` and `namespace`.
        folder: PathBuf,
    },
    /// A file for `kubectl`.
    Kubeconfig {
        /// The path.
        path: PathBuf,
        /// The context; the current one if `None`.
        context: Option<String>,
    },
}

impl fmt::Display for ServicePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Number(number) => number.fmt(f),
        }
    }
}

impl SourceConfig for KubernetesSource {
    fn kind(&self) -> &'static str {
        "kubernetes"
    }

    fn target(&self) -> String {
        let namespace = self.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let port = self.port.as_ref().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{namespace}{}{port}", self.service)
    }

    fn query_timeout(&self) -> Duration {
        // The time to read a kubeconfig (which may run a program), to list a page or two, and to begin and
        // await a watch.
        self.timeout.saturating_mul(4) + WATCH_WINDOW + WATCH_SLACK
    }

    fn retry_delay(&self, failures: u32) -> Duration {
        let max_delay = (Duration::from_millis(250) * 2_u32.saturating_pow(failures.clamp(1, 8) - 1))
            .min(MAX_RETRY_DELAY);
        // Balancers that lost the same server must not return in step.
        max_delay.mul_f64(0.5 + 0.5 * random_unit())
    }

    #[cfg(feature = "kubernetes")]
    fn open(&self) -> Box<dyn MemberSource> {
        Box::new(slice_watcher::SliceWatcher::new(self.clone(), WATCH_WINDOW, WATCH_WINDOW + WATCH_SLACK))
    }

    #[cfg(not(feature = "kubernetes"))]
    fn open(&self) -> Box<dyn MemberSource> {
        Box::new(DisabledSource)
    }
}

/// The source without the feature; the configuration checks reject it earlier.
#[cfg(not(feature = "kubernetes"))]
struct DisabledSource;

#[cfg(not(feature = "kubernetes"))]
impl MemberSource for DisabledSource {
    fn query(&mut self) -> super::QueryFuture<'_> {
        Box::pin(async { Err("this plimsoll was built without Kubernetes".into()) })
    }
}
