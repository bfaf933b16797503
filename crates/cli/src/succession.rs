//! One process takes over from another: how they talk, and who does what when.
//!
//! The process before (`elder`) starts the next one (`heir`) with its own command line, and talks with it over a pair of unix
//! sockets, of which the next one has its end as its standard input: no other descriptor has to survive the start. What is
//! said, in this order:
//!
//! 1. the elder: the *estate*, what is needed to get ready: all sockets, what they are for, the clock, keys;
//! 2. the heir: *ready* once nothing can fail any more, or *failed* and why;
//! 3. the elder: the *legacy*, what is known and counted at this moment;
//! 4. the heir: *taken*; the elder: its *past* among other balancers, which hear nothing from here on. Thus for the shortest of times,
//!    however much there was to take;
//! 5. the heir: *serving*. Now it is the one;
//! 6. the elder: what it counts until its last connection has ended, once a second, and then the end of the stream.
//!
//! Whatever goes wrong before 5 leaves the elder as it was: nothing of what it has was taken from it. An heir whose elder dies
//! before 5 goes on alone, as it has the sockets. Messages are JSON, and what one side does not know of them it leaves out.
//!
//! Sockets may also come from a service manager (`activated`), or from the Supervisor, which holds copies of them (`holder`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use plimsoll_brain::Time;
use plimsoll_cluster::fleet::Past;
use plimsoll_cluster::store::{Change, Entry, Refused, Store};
use plimsoll_proxy::{Bound, FlowAbout, Legacy};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use socket2::SockRef;

use crate::config::AdminConfig;
use crate::running::discovered::Found;
use crate::running::scaled::Crewed;

mod activated;
mod channel;
mod elder;
mod heir;
mod holder;
mod seen;
#[cfg(test)]
mod tests;

pub(crate) use elder::{Elder, House, PATIENCE, Program, Took};
pub(crate) use heir::Heir;
pub(crate) use holder::{HOLDER, Holder, Wish, answer};
pub(crate) use seen::Seen;

/// In the heir's environment: the process number of the elder.
const ELDER: &str = "PLIMSOLL_UPGRADE_FROM";

/// Sockets that somebody else bound.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    /// Of listeners.
    pub(crate) listeners: Vec<Bound>,
    /// Of the admin plane, by [`plimsoll_admin::Config::given`].
    pub(crate) doors: Vec<(&'static str, OwnedFd)>,
    /// Of the load manager.
    pub(crate) load_manager: Option<OwnedFd>,
    /// By which other balancers reach this one.
    pub(crate) fleet: Option<OwnedFd>,
    /// Does the service manager keep the control socket?
    pub(crate) stays: bool,
}

impl Sockets {
    /// Closes those that are of other addresses than the configuration has now. `fleet`: where other balancers reach this one.
    pub(crate) fn fit(&mut self, admin: &AdminConfig, fleet: Option<SocketAddr>) {
        let secured = admin.tls.as_ref().map(|(tls, ..)| tls.address);
        self.doors.retain(|(door, socket)| match *door {
            "listen" => is_at(socket, admin.listen),
            "reports" => is_at(socket, admin.reports),
            "secured" => is_at(socket, secured),
            // Whoever takes it looks at its path.
            _ => true,
        });
        let manager = admin.load_manager.as_ref().map(|(address, _)| *address);
        self.load_manager = self.load_manager.take().filter(|socket| is_at(socket, manager));
        self.fleet = self.fleet.take().filter(|socket| is_at(socket, fleet));
    }
}

/// Is a socket what was bound for an address? Port 0 is any.
fn is_at(socket: &OwnedFd, wanted: Option<SocketAddr>) -> bool {
    let local = SockRef::from(socket).local_addr().ok().and_then(|local| local.as_socket());
    local.zip(wanted).is_some_and(|(local, wanted)| {
        local.ip() == wanted.ip() && (wanted.port() == 0 || local.port() == wanted.port())
    })
}

/// What is said.
#[derive(Serialize, Deserialize)]
struct Message {
    /// One of [`ESTATE`], [`READY`], [`FAILED`], [`LEGACY`], [`TAKEN`], [`PAST`], [`SERVING`], [`COUNTS`]; with the Supervisor
    /// one of [`TAKE`], [`HOLD`], [`HELD`].
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
/// A balancer that starts asks for the sockets that are held for it.
const TAKE: &str = "take";
/// A balancer sends copies of all its listening sockets, to be held in place of those before.
const HOLD: &str = "hold";
/// The Supervisor's answer to both.
const HELD: &str = "held";

impl Message {
    fn new(is: &str, body: &impl Serialize) -> io::Result<Self> {
        Ok(Self { is: is.to_owned(), body: serde_json::to_value(body)? })
    }

    /// What it holds, as far as it is understood.
    fn body<T: DeserializeOwned + Default>(self) -> T {
        serde_json::from_value(self.body).unwrap_or_default()
    }
}

/// What is needed to get ready.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Estate {
    /// Of the program.
    version: String,
    /// What its time is counted from.
    begin: u64,
    /// In the order in which they come.
    sockets: Vec<Passed>,
    /// Does the service manager keep the control socket?
    stays: bool,
    /// Of sessions of TLS.
    ticket_keys: Value,
    /// Of cookies, where the configuration names none.
    cookie_key: Option<[u8; 32]>,
    /// What a store has that ends with the elder.
    kept: Kept,
    /// What the elder saw last of a store that others have, too.
    #[serde(deserialize_with = "if_known")]
    seen: Seen,
    /// What the sources of members said last.
    #[serde(deserialize_with = "if_known")]
    found: Vec<Found>,
}

/// What is not understood of one part does not concern the others.
fn if_known<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(from: D) -> Result<T, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(from)?).unwrap_or_default())
}

/// What a store in memory has: what operators did, and members that were registered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept(Vec<(String, String, Option<f64>)>);

impl Kept {
    /// All of a store that ends with its process; nothing of one that does not.
    pub(crate) fn of(store: &dyn Store) -> Self {
        if store.kind() != MEMORY {
            return Self::default();
        }
        let entry = |(key, entry): (&String, &Entry)| {
            let ttl = u64::try_from(entry.lease).ok().filter(|lease| *lease > 0);
            (key.clone(), entry.value.to_string(), ttl.map(|ttl| Duration::from_millis(ttl).as_secs_f64()))
        };
        Self(store.view().entries.iter().map(entry).collect())
    }

    /// Puts into a store what it does not have. Not into one that others have, too: they were not told of it.
    ///
    /// # Errors
    /// It is not to be written.
    pub(crate) fn put_into(&self, store: &dyn Store) -> Result<(), Refused> {
        let seen = store.view();
        if self.0.is_empty() || store.kind() == SHARED {
            return Ok(());
        }
        let absent = self.0.iter().filter(|(key, ..)| !seen.entries.contains_key(key));
        let change = absent.fold(Change::default(), |change, (key, value, ttl)| {
            let ttl = ttl.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            change.and_put(key.clone(), value.clone(), ttl)
        });
        store.commit(&change)
    }
}

/// Kinds of stores: one that ends with its process, and one that several balancers have.
const MEMORY: &str = "memory";
const SHARED: &str = "etcd";

/// Listening sockets of a balancer, with what each is for.
#[derive(Debug, Default)]
pub(crate) struct SocketSet {
    passed: Vec<Passed>,
    /// In the same order.
    sockets: Vec<OwnedFd>,
}

impl SocketSet {
    /// How many sockets there are.
    pub(crate) fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Copies all of them.
    ///
    /// # Errors
    /// There are no more files.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        let sockets = self.sockets.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        Ok(Self { passed: self.passed.clone(), sockets })
    }

    fn borrowed(&self) -> Vec<BorrowedFd<'_>> {
        self.sockets.iter().map(|socket| socket.as_fd()).collect()
    }

    fn push_listener(&mut self, bound: Bound) {
        self.passed.push(Passed {
            is: "listener".into(),
            count: bound.sockets.len(),
            address: Some(bound.address),
            bound: Some(bound.bound),
            datagrams: bound.datagrams,
            disabled: bound.disabled,
        });
        self.sockets.extend(bound.sockets);
    }

    fn push(&mut self, name: &str, socket: OwnedFd) {
        let (address, bound, datagrams, disabled) = (None, None, false, false);
        self.passed.push(Passed { is: name.to_owned(), count: 1, address, bound, datagrams, disabled });
        self.sockets.push(socket);
    }
}

/// Sockets that come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Passed {
    /// `listener`, `load_manager`, `fleet` or a door of the admin plane.
    is: String,
    /// How many.
    count: usize,
    /// Of a listener: as configured.
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

/// The heir could begin at once.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Ready {
    version: String,
    /// Among other balancers it is the same one.
    fleet: bool,
    /// It takes what makes it that one after all else.
    later: bool,
}

/// It cannot.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Failed {
    why: String,
}

/// What is known and counted.
#[derive(Default, Serialize)]
pub(crate) struct Left {
    /// Of the data plane.
    pub(crate) engine: Legacy,
    /// Members that were started.
    pub(crate) crews: Vec<Crewed>,
    /// What makes it the same balancer among others, if that does not come later.
    pub(crate) fleet: Option<Past>,
    /// Does it?
    pub(crate) later: bool,
    /// What was told of members.
    pub(crate) facts: Vec<Fact>,
    /// When, by the clock of the data plane, that was as old as it says.
    pub(crate) facts_at: Option<Time>,
    /// Flows of datagrams, in the order in which their sockets come.
    pub(crate) flows: Vec<FlowAbout>,
}

impl Left {
    /// Each part for itself: what is not understood of one does not concern the others.
    fn read(mut body: Value) -> Self {
        let mut part = |name: &str| body.get_mut(name).map(Value::take).unwrap_or_default();
        Self {
            engine: serde_json::from_value(part("engine")).unwrap_or_default(),
            crews: serde_json::from_value(part("crews")).unwrap_or_default(),
            fleet: serde_json::from_value(part("fleet")).unwrap_or_default(),
            later: part("later").as_bool().unwrap_or(false),
            facts: serde_json::from_value(part("facts")).unwrap_or_default(),
            facts_at: serde_json::from_value(part("facts_at")).unwrap_or_default(),
            flows: serde_json::from_value(part("flows")).unwrap_or_default(),
        }
    }
}

/// A number that was told of a member.
#[derive(Serialize, Deserialize)]
pub(crate) struct Fact {
    pub(crate) group: String,
    pub(crate) member: String,
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) age_seconds: f64,
}
