//! What the admin plane shows and acts on, as it sees it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::Pin;

use plimsoll_brain::status::{GroupExplanation, GroupStatus, Recent, Status};
use plimsoll_brain::{Event, EventKind, Shed};
use serde::{Deserialize, Serialize};

use crate::{Registered, Registration, Unregistered};

/// Resolves when something has happened.
pub type Changed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The running balancer behind the admin plane.
///
/// Reads are called on the admin thread and should take milliseconds; acts are called one at a time, on a
/// thread where they may block. The text of an `Err` is shown to the operator as it is.
pub trait Subject: Send + Sync + 'static {
    /// All that is known now.
    fn status(&self) -> Status;

    /// Does it let its work end, to end itself? Asked for often, so it should cost little.
    fn stopping(&self) -> bool {
        self.status().stopping
    }

    /// What is known of one group; `None` if there is no such group.
    fn group(&self, name: &str) -> Option<GroupStatus> {
        self.status().groups.into_iter().find(|group| group.name == name)
    }

    /// Latency of a group's requests as a classic Prometheus histogram: (upper bound in seconds,
    /// requests that took at most so long), bounds ascending. Empty for a group that is not known.
    fn buckets(&self, group: &str) -> Vec<(f64, u64)>;

    /// The kept entries of the event log with `seq` above `since`, oldest first.
    fn events(&self, since: u64) -> Vec<Entry>;

    /// Resolves when an entry is added after this call (not after its first poll); may also resolve for
    /// no reason.
    fn changed(&self) -> Changed;

    /// Lets the work of a member end. Without a `group`, the member's name must be found in one group only.
    fn drain(&self, group: Option<&str>, member: &str) -> Result<(), String>;

    /// Takes a drained member back.
    fn undrain(&self, group: Option<&str>, member: &str) -> Result<(), String>;

    /// Takes something out of use, or puts it back; one line for each thing that changed, none if it was so already.
    fn switch(&self, what: &Switch, on: bool) -> Result<Vec<String>, String>;

    /// Reads the configuration again and puts it in force; one line for each difference. On an error the
    /// configuration before stays.
    fn reload(&self) -> Result<Vec<String>, String>;

    /// Has another process take over; returns when it has, or with the reason why not: then this one goes on as before.
    fn upgrade(&self, wish: &UpgradeWish) -> Result<Upgraded, String>;

    /// Begins to stop; returns at once.
    fn stop(&self);

    /// A group explained; `None` if there is no such group.
    fn explain(&self, group: &str) -> Option<GroupExplanation>;

    /// The last ten minutes of a group; `None` if there is no such group, or nobody keeps them.
    fn recent(&self, _group: &str) -> Option<Recent> {
        None
    }

    /// What a model says of a group under another load, or of another size. May take a tenth of a second; called where it may block.
    ///
    /// # Errors
    /// There is no such group, or no model can be made of it.
    fn suppose(&self, _ask: &Supposed) -> Result<Supposition, String> {
        Err("there is no model here".into())
    }

    /// The object reference by which CORBA clients reach a group; `None` if there is no such group, or they do not.
    fn reference(&self, group: &str) -> Option<Reference>;

    /// Changes a setting of a group while it runs, until the next reload: `key` is `strategy`, `value` is written
    /// as in the configuration. What changed, one line each.
    fn set(&self, group: &str, key: &str, value: &str) -> Result<Vec<String>, String>;

    /// Takes numbers that were told of a member: which part of its sessions is to go, if it is under alert. Called
    /// on the admin thread, unlike the other acts.
    fn report(&self, report: Report) -> Result<Option<Shed>, Refused>;

    /// Lends a member to a client. Called on the admin thread, as the two below.
    fn bind(&self, group: &str, wish: &Wish) -> Result<Lease, NoLease>;

    /// Prolongs a lease, which may be of another member then.
    fn renew(&self, group: &str, lease: &str, wish: &Wish) -> Result<Lease, NoLease>;

    /// Ends a lease.
    fn release(&self, group: &str, lease: &str) -> Result<(), NoLease>;

    /// Who has leases of a group, those first that have most; `None` if there is no such group.
    fn leases(&self, group: &str) -> Option<Vec<Lessee>>;

    /// Ends the leases of a group: of one of its members, of clients at one address, or all; how many.
    fn end_leases(&self, group: &str, member: Option<&str>, from: Option<IpAddr>) -> Result<usize, String>;

    /// A member of a group says once more what is known of it: its lease is renewed. `None` if that is not what is known. Called on the
    /// admin thread.
    fn renewed(
        &self,
        group: &str,
        member: &str,
        asked: &Registration,
    ) -> Option<Result<Registered, Unregistered>>;

    /// Takes a member into a group, or takes other settings of it.
    fn register(&self, group: &str, member: &str, asked: &Registration) -> Result<Registered, Unregistered>;

    /// Takes a registered member away.
    fn deregister(&self, group: &str, member: &str) -> Result<(), Unregistered>;
}

/// What is supposed of a group: so many members that are alike, so much work.
#[derive(Clone, Debug, PartialEq)]
pub struct Supposed {
    /// Its name.
    pub group: String,
    /// Requests that come a second, at random; above 0.
    pub rate: f64,
    /// Members; 1 to 256.
    pub members: u32,
    /// Work of a request at a member, seconds; above 0.
    pub demand: f64,
    /// Requests that a member can work on at once at full speed; 1 to 1024.
    pub cores: u32,
}

/// What a model says of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Supposition {
    /// Mean time of a request, seconds; none where more comes than can be served.
    pub response: Option<f64>,
    /// Part of a member that is busy.
    pub utilization: f64,
    /// Part of the balancer that is busy.
    pub balancer: f64,
    /// Requests a second above which they pile up.
    pub saturation: f64,
    /// What holds back first: `the members` or `the balancer`.
    pub bottleneck: String,
    /// Name of the policy that the model has in place of the strategy.
    pub policy: String,
    /// Rates, and the mean time of a request at each, seconds; ascending.
    pub curve: Vec<(f64, f64)>,
}

/// What an operator can take out of use and put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Switch {
    /// A member: out of use it gets nothing new, at once and without anybody being told, and keeps what it has.
    Member {
        /// Its group; may be left out if only one has it.
        group: Option<String>,
        /// As configured.
        name: String,
    },
    /// A listener, by its address, after the protocol and a colon if it takes that: out of use it accepts nothing.
    Listener(String),
    /// The balancing of a group: out of use its members take equal turns, whatever their loads.
    Balancing(String),
}

/// How another process is to take over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpgradeWish {
    /// The program to run, an absolute path; the one that runs now, as it is on disk, if `None`.
    pub binary: Option<String>,
    /// How long it may take to be ready, seconds; between [`UPGRADE_SECONDS`].
    pub timeout_seconds: Option<f64>,
}

/// The shortest and the longest time that another process may be given to be ready, seconds.
pub const UPGRADE_SECONDS: std::ops::RangeInclusive<f64> = 1.0..=600.0;

/// Another process has taken over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgraded {
    /// Its number.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Client connections that end with the process before it.
    pub connections: u64,
}

/// The object reference of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    /// Whose.
    pub group: String,
    /// The object's type; may be empty.
    pub type_id: String,
    /// As `IOR:…`.
    pub ior: String,
    /// As `corbaloc:…`.
    pub corbaloc: String,
}

/// Numbers told of a member.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Its group; `None` for all that have it.
    pub group: Option<String>,
    /// As configured (`host:port`), or its address.
    pub member: String,
    /// By name; any text, any number: whoever takes them looks at them.
    pub values: Vec<(String, f64)>,
    /// How old they were when they were sent, seconds.
    pub age_seconds: Option<f64>,
}

/// Why a report was not taken: one line for whoever sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such group or member (404).
    Unknown(String),
    /// It cannot be used as it is (422).
    Wrong(String),
    /// There are too many (429).
    TooFast(String),
}

/// What a client asks for that wants a member, or to keep it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// Who it is: for strategies that read a key, and so that it gets the member again that it has a lease of.
    pub key: Option<String>,
    /// For how long, seconds; finite, between [`LEASE_SECONDS`].
    pub lease_seconds: Option<f64>,
    /// Members that it does not want, by name.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Where it asks from; `None` over a unix socket.
    #[serde(skip)]
    pub from: Option<IpAddr>,
}

/// The shortest and the longest lease, seconds.
pub const LEASE_SECONDS: std::ops::RangeInclusive<f64> = 1.0..=3600.0;

/// A member, lent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// As configured: `host:port`.
    pub member: String,
    /// Where it is: an IP address and a port.
    pub address: String,
    /// The lease's number, which nobody can guess.
    pub lease: String,
    /// For how long from now, seconds.
    pub lease_seconds: f64,
    /// Is it another member than before, or at another address?
    pub moved: bool,
    /// Why this one, for people.
    pub why: String,
}

/// Leases of one member that clients at one address have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lessee {
    /// As configured; `None` for what a long list leaves out.
    pub member: Option<String>,
    /// Where they were asked from; `None` over a unix socket, and for what a long list leaves out.
    pub from: Option<IpAddr>,
    /// How many.
    pub leases: usize,
    /// Until the last of them ends, if none is renewed; seconds.
    pub left_seconds: f64,
}

/// Why there is no lease: one line for whoever asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoLease {
    /// There is no such group or lease (404).
    Unknown(String),
    /// There is no member that could be used (503).
    Nobody(String),
    /// All have as much to do as they can, or there are too many leases (429).
    Refused(String),
}

/// One entry of the event log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Counts entries from 1 since the start of the process, without holes.
    pub seq: u64,
    /// Wall-clock time, milliseconds since 1970.
    pub unix_ms: u64,
    /// What happened.
    pub kind: EventKind,
    /// The group concerned; empty for the whole process.
    pub group: String,
    /// The member concerned.
    pub member: Option<String>,
    /// One sentence for a person.
    pub why: String,
    /// The numbers it was decided on, by name; finite.
    pub inputs: BTreeMap<String, f64>,
}

impl Entry {
    /// Stamps an event of the brain with its place in the log.
    pub fn new(seq: u64, unix_ms: u64, event: &Event) -> Self {
        Self {
            seq,
            unix_ms,
            kind: event.kind,
            group: event.group.to_string(),
            member: event.member.as_deref().map(str::to_owned),
            why: event.why.clone(),
            // JSON has no word for infinity.
            inputs: event.inputs.iter().filter(|(_, value)| value.is_finite()).cloned().collect(),
        }
    }
}
