//! Providers that start and stop members: processes of this machine, systemd units, an external program, a
//! webhook, containers of Docker, a Kubernetes deployment.
//!
//! A kind of provider is a file with its settings and an [`InstanceProvider`], and a line in
//! [`ProviderKind::open`]. A provider performs each operation once and reports the outcome.
//! `plimsoll_brain::scale` decides when to call it, how often, for which member, and how to handle failures.
//! Providers keep no queue: each call is one bounded attempt.

mod docker;
mod exec;
mod http;
mod kubernetes;
mod ports;
mod process;
mod systemd;
mod webhook;

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[cfg(feature = "kubernetes")]
pub(crate) use http::error_message;

pub use docker::DockerSettings;
pub use exec::ExecSettings;
pub use kubernetes::KubernetesSettings;
pub use ports::AddressRange;
pub use process::ProcessSettings;
pub use systemd::SystemdSettings;
pub use webhook::WebhookSettings;

/// The kinds of providers.
#[derive(Clone, Debug, PartialEq)]
pub enum ProviderKind {
    /// Processes of this machine.
    Process(ProcessSettings),
    /// systemd units on this machine.
    Systemd(SystemdSettings),
    /// A program that runs for each operation.
    Exec(ExecSettings),
    /// A webhook.
    Webhook(WebhookSettings),
    /// Containers.
    Docker(DockerSettings),
    /// A deployment, scaled by its number of replicas.
    Kubernetes(KubernetesSettings),
    /// No provider: the scaler only recommends.
    Advice,
}

impl ProviderKind {
    /// Returns the name in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Process(_) => "process",
            Self::Systemd(_) => "systemd",
            Self::Exec(_) => "exec",
            Self::Webhook(_) => "webhook",
            Self::Docker(_) => "docker",
            Self::Kubernetes(_) => "kubernetes",
            Self::Advice => "advice",
        }
    }

    /// Returns `true` if any balancer can stop a member, whichever balancer started it.
    pub fn is_machine_independent(&self) -> bool {
        matches!(self, Self::Exec(_) | Self::Webhook(_) | Self::Kubernetes(_))
    }

    /// Returns the configured maximum time of starting and stopping a member together.
    pub fn max_duration(&self) -> Duration {
        match self {
            Self::Process(process) => process.stop_timeout,
            Self::Systemd(systemd) => 2 * systemd.timeout,
            Self::Exec(exec) => 2 * exec.timeout,
            Self::Webhook(webhook) => 2 * webhook.timeout,
            Self::Docker(docker) => 4 * (docker.timeout + docker.stop_timeout),
            Self::Kubernetes(_) | Self::Advice => Duration::ZERO,
        }
    }

    /// Opens the provider; messages about the group's members contain its name.
    pub fn open(&self, group: &str) -> ProviderHandle {
        match self {
            Self::Process(process) => {
                ProviderHandle::PerInstance(Arc::new(process::ProcessProvider::open(process, group)))
            }
            Self::Systemd(systemd) => ProviderHandle::PerInstance(Arc::new(systemd.clone())),
            Self::Exec(exec) => ProviderHandle::PerInstance(Arc::new(exec.clone())),
            Self::Webhook(webhook) => ProviderHandle::PerInstance(Arc::new(webhook.clone())),
            Self::Docker(docker) => {
                ProviderHandle::PerInstance(Arc::new(docker::DockerContainers::open(docker, group)))
            }
            Self::Kubernetes(kubernetes) => ProviderHandle::ReplicaCount(Arc::new(kubernetes.clone())),
            Self::Advice => ProviderHandle::None,
        }
    }
}

/// The operations of a provider.
pub enum ProviderHandle {
    /// Starts and stops each member.
    PerInstance(Arc<dyn InstanceProvider>),
    /// Sets the number of members.
    ReplicaCount(Arc<KubernetesSettings>),
    /// No operations.
    None,
}

impl fmt::Debug for ProviderHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PerInstance(_) => "Each",
            Self::ReplicaCount(_) => "Count",
            Self::None => "None",
        })
    }
}

/// Starts and stops members, one by one.
pub trait InstanceProvider: Send + Sync {
    /// Starts a member. Its health checks decide later whether it serves.
    fn start(&self, spec: InstanceSpec) -> ProviderFuture<'_, Instance>;

    /// Stops a member, and returns when it is gone. A member that is already gone counts as stopped.
    fn stop(&self, request: StopRequest) -> ProviderFuture<'_, ()>;

    /// Returns the running members, with those that a previous process started; `None` if they cannot be
    /// listed.
    fn running_instances(&self) -> ProviderFuture<'_, Option<Vec<Instance>>>;

    /// Adopts a member that another process started. Providers that list all members by themselves need not
    /// do anything.
    fn adopt(&self, _instance: &Instance) {}

    /// Notes that a started member has ended by itself.
    fn record_exit(&self, _instance: &Instance) {}

    /// Releases all started members to another process: none ends with this one.
    fn release_all(&self) {}

    /// Returns the minimum interval between two calls of [`running_instances`](Self::running_instances).
    fn min_query_interval(&self) -> Duration {
        Duration::from_secs(5)
    }

    /// Returns the reason why a member ended, if it is known.
    fn exit_reason(&self, _id: &str) -> Option<String> {
        None
    }
}

/// An operation in progress.
pub type ProviderFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// A member to start.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceSpec {
    /// The group.
    pub group: Arc<str>,
    /// The member's number: the smallest that no running member has.
    pub index: u32,
    /// The reason, for people.
    pub why: Arc<str>,
}

/// A member to stop, already drained.
#[derive(Clone, Debug, PartialEq)]
pub struct StopRequest {
    /// The group.
    pub group: Arc<str>,
    /// The member.
    pub instance: Instance,
    /// The reason, for people.
    pub why: Arc<str>,
}

/// A started member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// The member's number.
    pub index: u32,
    /// The provider's identifier.
    pub id: String,
    /// The member's address.
    pub address: SocketAddr,
}

/// Returns the request to a program or a webhook to start a member.
fn start_request(spec: &InstanceSpec) -> Value {
    json!({"action": "start", "group": &*spec.group, "index": spec.index, "why": &*spec.why})
}

/// Returns the request to a program or a webhook to stop a member.
fn stop_request(request: &StopRequest) -> Value {
    let StopRequest { group, instance, why } = request;
    json!({
        "action": "stop", "group": &**group, "index": instance.index, "id": instance.id,
        "address": instance.address.to_string(), "why": &**why,
    })
}

/// Parses the response to a start: `{"address": "10.0.0.3:80", "id": "…"}`; the `id` defaults to the address.
fn parse_started(index: u32, body: &[u8]) -> Result<Instance, String> {
    let invalid =
        |problem: &str| format!("the answer {problem}: it is {{\"address\": \"IP:PORT\", \"id\": \"…\"}}");
    let response: Value =
        serde_json::from_slice(body).map_err(|error| invalid(&format!("is no JSON ({error})")))?;
    let address = response["address"].as_str().ok_or_else(|| invalid("has no `address`"))?;
    let address: SocketAddr =
        address.parse().map_err(|_| invalid("has an `address` that is no IP address with a port"))?;
    let id = match &response["id"] {
        Value::Null => address.to_string(),
        Value::String(id) if id.len() <= MAX_ID_LENGTH => id.clone(),
        _ => return Err(invalid("has an `id` that is no text, or a long one")),
    };
    Ok(Instance { index, id, address })
}

/// The maximum length of a provider's identifier, in bytes.
const MAX_ID_LENGTH: usize = 256;

/// The maximum length of a provider's response, in bytes.
const MAX_RESPONSE_LENGTH: usize = 1 << 20;

#[cfg(test)]
mod tests;
