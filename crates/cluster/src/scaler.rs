//! Who starts and stops members: processes of this machine, units of systemd, a program or a server that is told, containers of Docker,
//! a deployment of Kubernetes.
//!
//! A kind of provider is a file of its own with its settings and a [`Provider`], and a line in [`Kind::open`]. A provider does what it
//! is asked to, once, and says what came of it; when, how often and whom is decided elsewhere (`plimsoll_brain::scale`), and so is what
//! becomes of failures. None keeps a queue: each call is one attempt, with an end.

mod docker;
mod exec;
mod http;
mod kubernetes;
mod place;
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
pub(crate) use http::refusal;

pub use docker::DockerSettings;
pub use exec::ExecSettings;
pub use kubernetes::KubernetesSettings;
pub use place::Place;
pub use process::ProcessSettings;
pub use systemd::SystemdSettings;
pub use webhook::WebhookSettings;

/// The kinds of providers.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Processes of this machine.
    Process(ProcessSettings),
    /// Units of systemd on this machine.
    Systemd(SystemdSettings),
    /// A program that is run for each.
    Exec(ExecSettings),
    /// A server that is told.
    Webhook(WebhookSettings),
    /// Containers.
    Docker(DockerSettings),
    /// A deployment, whose replicas are counted.
    Kubernetes(KubernetesSettings),
    /// Nobody: it is only said what would be right.
    Advice,
}

impl Kind {
    /// As it is called in the configuration.
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

    /// Can any balancer have a member stopped, whichever had it started?
    pub fn anywhere(&self) -> bool {
        matches!(self, Self::Exec(_) | Self::Webhook(_) | Self::Kubernetes(_))
    }

    /// How long a member may take from being started to being stopped, as it is set.
    pub fn longest(&self) -> Duration {
        match self {
            Self::Process(process) => process.patience,
            Self::Systemd(systemd) => 2 * systemd.timeout,
            Self::Exec(exec) => 2 * exec.timeout,
            Self::Webhook(webhook) => 2 * webhook.timeout,
            Self::Docker(docker) => 4 * (docker.timeout + docker.patience),
            Self::Kubernetes(_) | Self::Advice => Duration::ZERO,
        }
    }

    /// Ready to be asked; what is said of a group's members is marked with its name.
    pub fn open(&self, group: &str) -> Hands {
        match self {
            Self::Process(process) => Hands::Each(Arc::new(process::Processes::open(process, group))),
            Self::Systemd(systemd) => Hands::Each(Arc::new(systemd.clone())),
            Self::Exec(exec) => Hands::Each(Arc::new(exec.clone())),
            Self::Webhook(webhook) => Hands::Each(Arc::new(webhook.clone())),
            Self::Docker(docker) => Hands::Each(Arc::new(docker::Containers::open(docker, group))),
            Self::Kubernetes(kubernetes) => Hands::Count(Arc::new(kubernetes.clone())),
            Self::Advice => Hands::None,
        }
    }
}

/// What can be asked of a provider.
pub enum Hands {
    /// To start and stop each member.
    Each(Arc<dyn Provider>),
    /// To have so many.
    Count(Arc<KubernetesSettings>),
    /// Nothing.
    None,
}

impl fmt::Debug for Hands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Each(_) => "Each",
            Self::Count(_) => "Count",
            Self::None => "None",
        })
    }
}

/// Starts and stops members, one by one.
pub trait Provider: Send + Sync {
    /// Starts one. That it was started does not say that it serves: its health checks do.
    fn start(&self, wish: Wish) -> Doing<'_, Instance>;

    /// Stops one, and returns when it is gone. One that is gone already was stopped.
    fn stop(&self, one: Stop) -> Doing<'_, ()>;

    /// Those that are there, those that were started by a process before this one included; `None` where that cannot be known.
    fn present(&self) -> Doing<'_, Option<Vec<Instance>>>;

    /// One that another process started, which goes on here. For whoever finds all of them again by itself that is nothing new.
    fn adopt(&self, _one: &Instance) {}

    /// One that was started is not there any more, and has ended by itself.
    fn gone(&self, _one: &Instance) {}

    /// Another process goes on with all that were started: none is to end with this one.
    fn let_go(&self) {}

    /// How often it may be asked who is there.
    fn looks_apart(&self) -> Duration {
        Duration::from_secs(5)
    }

    /// Why one that is not there any more has ended, if that is known.
    fn last_words(&self, _id: &str) -> Option<String> {
        None
    }
}

/// What is being done.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// A member that is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// Whose.
    pub group: Arc<str>,
    /// Its number, which no other that is there has; the smallest that is free.
    pub index: u32,
    /// Why, for people.
    pub why: Arc<str>,
}

/// A member that is to go. It was drained.
#[derive(Clone, Debug, PartialEq)]
pub struct Stop {
    /// Whose.
    pub group: Arc<str>,
    /// Which.
    pub one: Instance,
    /// Why, for people.
    pub why: Arc<str>,
}

/// A member that was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// Its number.
    pub index: u32,
    /// By which its provider knows it.
    pub id: String,
    /// Where it serves.
    pub address: SocketAddr,
}

/// What a program, or a server, is told of a member that is wanted.
fn start_order(wish: &Wish) -> Value {
    json!({"action": "start", "group": &*wish.group, "index": wish.index, "why": &*wish.why})
}

/// What it is told of one that is to go.
fn stop_order(stop: &Stop) -> Value {
    let Stop { group, one, why } = stop;
    json!({"action": "stop", "group": &**group, "index": one.index, "id": one.id, "address": one.address.to_string(), "why": &**why})
}

/// Reads what it answers when a member was started: `{"address": "10.0.0.3:80", "id": "…"}`; without an `id` the address is it.
fn read_started(index: u32, answer: &[u8]) -> Result<Instance, String> {
    let wrong = |why: &str| format!("the answer {why}: it is {{\"address\": \"IP:PORT\", \"id\": \"…\"}}");
    let answer: Value =
        serde_json::from_slice(answer).map_err(|error| wrong(&format!("is no JSON ({error})")))?;
    let address = answer["address"].as_str().ok_or_else(|| wrong("has no `address`"))?;
    let address: SocketAddr =
        address.parse().map_err(|_| wrong("has an `address` that is no IP address with a port"))?;
    let id = match &answer["id"] {
        Value::Null => address.to_string(),
        Value::String(id) if id.len() <= LONGEST_ID => id.clone(),
        _ => return Err(wrong("has an `id` that is no text, or a long one")),
    };
    Ok(Instance { index, id, address })
}

/// Longest name by which a provider knows a member, bytes.
const LONGEST_ID: usize = 256;

/// Longest answer of a provider, bytes.
const LONGEST_ANSWER: usize = 1 << 20;

#[cfg(test)]
mod tests;
