//! The endpoints of a service of Kubernetes, by its EndpointSlices (`discovery.k8s.io/v1`): those with the label
//! `kubernetes.io/service-name`. They are listed once and watched from then on, as any controller does
//! (<https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes>): a change is known at once, and
//! a watch that ends goes on behind the last version that was seen, for which bookmarks keep that version fresh. What the server has
//! forgotten meanwhile (410 Gone) is listed anew.
//!
//! `api` asks, `watched` goes by what is answered, `slices` is what the slices come to, a pure function. The client, and how a kubeconfig
//! is read, are kube-rs'; all of it is there only with the feature `kubernetes`.

#[cfg(feature = "kubernetes")]
mod api;
#[cfg(all(feature = "kubernetes", any(test, fuzzing)))]
pub(crate) mod law;
#[cfg(feature = "kubernetes")]
mod slices;
#[cfg(feature = "kubernetes")]
#[cfg(test)]
mod tests;
#[cfg(feature = "kubernetes")]
mod watched;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::{Family, Source, Way};
use crate::pull::chance;

/// Was it built with the feature `kubernetes`? Without it a source of this kind fails whenever it is asked.
pub const KUBERNETES: bool = cfg!(feature = "kubernetes");

/// The server ends a watch that is as old as this, and it is begun again: what is dead is noticed by that.
const WINDOW: Duration = Duration::from_secs(60);
/// A watch of which nothing was heard for the window and so long is dead.
const SLACK: Duration = Duration::from_secs(15);
/// The longest wait before it is asked again after failures.
const LONGEST: Duration = Duration::from_secs(10);

/// The endpoints of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesSource {
    /// Its name.
    pub service: String,
    /// Where it is; that of the pod or of the context if `None`.
    pub namespace: Option<String>,
    /// Which port of the endpoints; the only one there is if `None`.
    pub port: Option<ServicePort>,
    /// Which addresses count. With [`Family::Any`] a pod that has both counts once, by its IPv4 address.
    pub family: Family,
    /// Whom to ask.
    pub api: KubernetesApi,
    /// For one answer, and to begin a watch.
    pub timeout: Duration,
}

/// A port of endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServicePort {
    /// As it is called in the service.
    Name(String),
    /// As it is at the endpoints. Not 0.
    Number(u16),
}

/// The API server, and who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubernetesApi {
    /// As the cluster tells it to each pod.
    Account {
        /// Host, a name or an address without brackets, and port; what the pod's environment says, or else `kubernetes.default.svc`, if
        /// `None`.
        server: Option<(String, u16)>,
        /// By TLS? Without it for tests, and for `kubectl proxy`: no token is needed then.
        tls: bool,
        /// Folder of `token`, `ca.crt` and `namespace`.
        folder: PathBuf,
    },
    /// As a file for `kubectl` has it.
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Which of its contexts; the current one if `None`.
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

impl Way for KubernetesSource {
    fn kind(&self) -> &'static str {
        "kubernetes"
    }

    fn what(&self) -> String {
        let namespace = self.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let port = self.port.as_ref().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{namespace}{}{port}", self.service)
    }

    fn patience(&self) -> Duration {
        // To read a kubeconfig (which may run a program), a page or two, to begin a watch, and to hear of it.
        self.timeout.saturating_mul(4) + WINDOW + SLACK
    }

    fn again(&self, failures: u32) -> Duration {
        let most = (Duration::from_millis(250) * 2_u32.saturating_pow(failures.clamp(1, 8) - 1)).min(LONGEST);
        // Balancers that all lost the same server do not come back in step.
        most.mul_f64(0.5 + 0.5 * chance())
    }

    #[cfg(feature = "kubernetes")]
    fn open(&self) -> Box<dyn Source> {
        Box::new(watched::Watched::new(self.clone(), WINDOW, WINDOW + SLACK))
    }

    #[cfg(not(feature = "kubernetes"))]
    fn open(&self) -> Box<dyn Source> {
        Box::new(Absent)
    }
}

/// What is not built in: a checked configuration does not come so far.
#[cfg(not(feature = "kubernetes"))]
struct Absent;

#[cfg(not(feature = "kubernetes"))]
impl Source for Absent {
    fn ask(&mut self) -> super::Asking<'_> {
        Box::pin(async { Err("this plimsoll was built without Kubernetes".into()) })
    }
}
