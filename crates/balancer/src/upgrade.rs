//! The succession of processes: the protocol by which one takes over from another, and its order.
//!
//! The process before (`predecessor`) starts the next one (`successor`) with its own command line. The two
//! talk over a pair of unix sockets, of which the next one has its end as its standard input: no other
//! descriptor has to survive the start. The messages, in this order:
//!
//! 1. the predecessor: the *estate*, with which the successor gets ready: all sockets, their purposes, the
//!    clock, keys;
//! 2. the successor: *ready* once nothing can fail any more, or *failed* with the reason;
//! 3. the predecessor: the *legacy*, the knowledge and the counts of this moment;
//! 4. the successor: *taken*; the predecessor: its *past* among other balancers, which get nothing from here
//!    on. That takes the shortest of times, however much there was to take;
//! 5. the successor: *serving*. Now it is in charge;
//! 6. the predecessor: its counts until its last connection has ended, once a second, and then the end of the
//!    stream.
//!
//! A failure before 5 leaves the predecessor as it was: nothing was taken from it. A successor whose
//! predecessor dies before 5 goes on alone, as it has the sockets. Messages are JSON, and each side ignores
//! unknown parts.
//!
//! Sockets may also come from a service manager (`socket_activation`), or from the Supervisor, which holds
//! copies of them (`socket_holder`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use plimsoll_brain::Time;
use plimsoll_cluster::fleet::FleetHandoff;
use plimsoll_cluster::store::{Store, StoreChange, StoreEntry, StoreError};
use plimsoll_config::AdminConfig;
use plimsoll_proxy::{FlowDescription, HandoffState, ListenerSockets};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use socket2::SockRef;

use crate::runtime::discovery_state::SourceAnswers;
use crate::runtime::scaler_state::GroupInstances;

mod channel;
mod etcd_revisions;
mod predecessor;
mod socket_activation;
mod socket_holder;
mod successor;
#[cfg(test)]
mod tests;

pub(crate) use etcd_revisions::SharedStoreView;
pub(crate) use predecessor::{
    CurrentProgram, HandoffParticipant, HandoffSource, READY_TIMEOUT, UpgradeResult,
};
pub(crate) use socket_holder::SocketHolder;
pub use socket_holder::{HOLDER_VARIABLE, HolderRequest, serve_requests};
pub(crate) use successor::ProcessInheritance;

/// The variable in the successor's environment with the process id of the predecessor.
const PREDECESSOR_VARIABLE: &str = "PLIMSOLL_UPGRADE_FROM";

/// Sockets that another process bound.
#[derive(Debug, Default)]
pub(crate) struct InheritedSockets {
    /// The sockets of listeners.
    pub listeners: Vec<ListenerSockets>,
    /// The sockets of the admin plane, by [`plimsoll_admin::Config::inherited_sockets`].
    pub admin: Vec<(&'static str, OwnedFd)>,
    /// The socket of the load manager.
    pub load_manager: Option<OwnedFd>,
    /// The socket by which other balancers reach this one.
    pub fleet: Option<OwnedFd>,
    /// Whether the service manager keeps the control socket.
    pub keeps_control: bool,
}

impl InheritedSockets {
    /// Closes those with other addresses than the configuration has now. `fleet` is the address for other
    /// balancers.
    pub(crate) fn retain_matching(&mut self, admin: &AdminConfig, fleet: Option<SocketAddr>) {
        let secured_address = admin.tls.as_ref().map(|(tls, ..)| tls.address);
        self.admin.retain(|(admin_name, socket)| match *admin_name {
            "listen" => is_bound_to(socket, admin.listen),
            "reports" => is_bound_to(socket, admin.reports),
            "secured" => is_bound_to(socket, secured_address),
            // The user of the socket checks its path.
            _ => true,
        });
        let manager = admin.load_manager.as_ref().map(|(address, _)| *address);
        self.load_manager = self.load_manager.take().filter(|socket| is_bound_to(socket, manager));
        self.fleet = self.fleet.take().filter(|socket| is_bound_to(socket, fleet));
    }
}

/// Returns `true` if a socket was bound for an address. Port 0 is any.
fn is_bound_to(socket: &OwnedFd, address: Option<SocketAddr>) -> bool {
    let local_address =
        SockRef::from(socket).local_addr().ok().and_then(|local_address| local_address.as_socket());
    local_address.zip(address).is_some_and(|(local_address, address)| {
        local_address.ip() == address.ip() && (address.port() == 0 || local_address.port() == address.port())
    })
}

/// A message.
#[derive(Serialize, Deserialize)]
struct HandoffMessage {
    /// One of [`ESTATE`], [`READY`], [`FAILED`], [`LEGACY`], [`TAKEN`], [`PAST`], [`SERVING`], [`COUNTS`];
    /// with the Supervisor one of [`TAKE`], [`HOLD`], [`HELD`].
    is: String,
    #[serde(default)]
    body: Value,
}

const ESTATE: &str = "estate";
const READY: &str = "ready";
const FAILED: &str = "failed";
const LEGACY: &str = "legacy";
const TAKEN: &str = "taken";
const PAST: &str = "past";
const SERVING: &str = "serving";
const COUNTS: &str = "counts";
/// The request of a starting balancer for the sockets that are held for it.
const TAKE: &str = "take";
/// The request of a balancer to hold copies of all its listening sockets, in place of those before.
const HOLD: &str = "hold";
/// The Supervisor's answer to both.
const HELD: &str = "held";

impl HandoffMessage {
    fn new(message_type: &str, body: &impl Serialize) -> io::Result<Self> {
        Ok(Self { is: message_type.to_owned(), body: serde_json::to_value(body)? })
    }

    /// Returns its content, or the default if it cannot be parsed.
    fn body<T: DeserializeOwned + Default>(self) -> T {
        serde_json::from_value(self.body).unwrap_or_default()
    }
}

/// The parts with which a successor gets ready.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct SuccessorSetup {
    /// The version of the program.
    version: String,
    /// The zero of its time.
    begin: u64,
    /// The sockets, in the order in which they come.
    sockets: Vec<SocketDescription>,
    /// Whether the service manager keeps the control socket.
    stays: bool,
    /// The keys of TLS sessions.
    ticket_keys: Value,
    /// The key of cookies, if the configuration names none.
    cookie_key: Option<[u8; 32]>,
    /// The content of a store that ends with the predecessor.
    kept: StoreContent,
    /// The predecessor's last view of a store that others share.
    #[serde(deserialize_with = "if_known")]
    seen: SharedStoreView,
    /// The last lists of the sources of members.
    #[serde(deserialize_with = "if_known")]
    found: Vec<SourceAnswers>,
}

/// Parses one part: an unknown form of it does not affect the others.
fn if_known<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).unwrap_or_default())
}

/// The content of a store in memory: operators' changes, and registered members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoreContent(Vec<(String, String, Option<f64>)>);

impl StoreContent {
    /// Returns all of a store that ends with its process; nothing of one that does not.
    pub(crate) fn of(store: &dyn Store) -> Self {
        if store.kind() != MEMORY {
            return Self::default();
        }
        let entry = |(key, entry): (&String, &StoreEntry)| {
            let ttl = u64::try_from(entry.lease).ok().filter(|lease| *lease > 0);
            (key.clone(), entry.value.to_string(), ttl.map(|ttl| Duration::from_millis(ttl).as_secs_f64()))
        };
        Self(store.snapshot().entries.iter().map(entry).collect())
    }

    /// Puts missing entries into a store, unless others share it: they did not get them.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub(crate) fn put_into(&self, store: &dyn Store) -> Result<(), StoreError> {
        let snapshot = store.snapshot();
        if self.0.is_empty() || store.kind() == SHARED {
            return Ok(());
        }
        let missing_entries = self.0.iter().filter(|(key, ..)| !snapshot.entries.contains_key(key));
        let change = missing_entries.fold(StoreChange::default(), |change, (key, value, ttl)| {
            let ttl = ttl.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            change.and_put(key.clone(), value.clone(), ttl)
        });
        store.commit(&change)
    }
}

/// The kinds of stores: one that ends with its process, and one that several balancers share.
const MEMORY: &str = "memory";
const SHARED: &str = "etcd";

/// The listening sockets of a balancer, with their purposes.
#[derive(Debug, Default)]
pub struct SocketSet {
    descriptions: Vec<SocketDescription>,
    /// The sockets, in the same order.
    sockets: Vec<OwnedFd>,
}

impl SocketSet {
    /// Returns the number of sockets.
    pub fn count(&self) -> usize {
        self.sockets.len()
    }

    /// Copies all of them.
    ///
    /// # Errors
    /// Fails if there are no more files.
    pub fn try_clone(&self) -> io::Result<Self> {
        let sockets = self.sockets.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        Ok(Self { descriptions: self.descriptions.clone(), sockets })
    }

    fn borrowed(&self) -> Vec<BorrowedFd<'_>> {
        self.sockets.iter().map(|socket| socket.as_fd()).collect()
    }

    fn push_listener(&mut self, listener_sockets: ListenerSockets) {
        self.descriptions.push(SocketDescription {
            is: "listener".into(),
            count: listener_sockets.sockets.len(),
            address: Some(listener_sockets.address),
            bound: Some(listener_sockets.bound),
            datagrams: listener_sockets.datagrams,
            disabled: listener_sockets.disabled,
        });
        self.sockets.extend(listener_sockets.sockets);
    }

    fn push(&mut self, name: &str, socket: OwnedFd) {
        let (address, bound_address, datagrams, disabled) = (None, None, false, false);
        self.descriptions.push(SocketDescription {
            is: name.to_owned(),
            count: 1,
            address,
            bound: bound_address,
            datagrams,
            disabled,
        });
        self.sockets.push(socket);
    }
}

/// The description of sockets that come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SocketDescription {
    /// The purpose: `listener`, `load_manager`, `fleet` or that of an address of the admin plane.
    is: String,
    /// The number of sockets.
    count: usize,
    /// The address of a listener as configured.
    #[serde(default)]
    address: Option<SocketAddr>,
    /// The same as bound.
    #[serde(default)]
    bound: Option<SocketAddr>,
    #[serde(default)]
    datagrams: bool,
    #[serde(default)]
    disabled: bool,
}

/// The message that the successor can begin at once.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct ReadyMessage {
    version: String,
    /// Whether it is the same one among other balancers.
    fleet: bool,
    /// Whether it takes its past among other balancers after all else.
    later: bool,
}

/// The message that the successor cannot begin.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct FailedMessage {
    why: String,
}

/// The knowledge and the counts.
#[derive(Default, Serialize)]
pub(crate) struct FinalHandoff {
    /// The handoff state of the data plane.
    pub engine: HandoffState,
    /// Members that were started.
    pub crews: Vec<GroupInstances>,
    /// Its past among other balancers, if that does not come later.
    pub fleet: Option<FleetHandoff>,
    /// Whether the past comes later.
    pub later: bool,
    /// The reported values of members.
    pub facts: Vec<ReportedValue>,
    /// The time, by the clock of the data plane, at which those had their age.
    pub facts_at: Option<Time>,
    /// Flows of datagrams, in the order in which their sockets come.
    pub flows: Vec<FlowDescription>,
}

impl FinalHandoff {
    /// Reads each part by itself: an unknown form of one does not affect the others.
    fn read(mut body: Value) -> Self {
        let mut take_field = |name: &str| body.get_mut(name).map(Value::take).unwrap_or_default();
        Self {
            engine: serde_json::from_value(take_field("engine")).unwrap_or_default(),
            crews: serde_json::from_value(take_field("crews")).unwrap_or_default(),
            fleet: serde_json::from_value(take_field("fleet")).unwrap_or_default(),
            later: take_field("later").as_bool().unwrap_or(false),
            facts: serde_json::from_value(take_field("facts")).unwrap_or_default(),
            facts_at: serde_json::from_value(take_field("facts_at")).unwrap_or_default(),
            flows: serde_json::from_value(take_field("flows")).unwrap_or_default(),
        }
    }
}

/// A number that was reported of a member.
#[derive(Serialize, Deserialize)]
pub(crate) struct ReportedValue {
    pub group: String,
    pub member: String,
    pub name: String,
    pub value: f64,
    pub age_seconds: f64,
}
