//! What a lottery's daemon says of itself. Field names are what `-o json` prints, so they are a contract.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// A daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Version of this shape; raised when a field changes its meaning.
    pub schema: u32,
    /// Of the binary.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// When it started, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Is it ending?
    pub stopping: bool,
    /// Why the last reload was refused; none if it was not.
    pub reload_error: Option<String>,
    /// Its number.
    pub member: u16,
    /// Where it listens.
    pub address: SocketAddr,
    /// `joining`, `up`, `draining` or `leaving`.
    pub state: String,
    /// What the server beside it does.
    pub services: Vec<OwnService>,
    /// The other daemons, by their numbers.
    pub members: Vec<MemberSeen>,
    /// Requests that wait for another daemon to answer them.
    pub pending: u64,
    /// Messages to be sent, commits to be repeated, ids to be listed.
    pub queued: u64,
    /// Number of the key that it sends with.
    pub sealing_key: u32,
    /// Numbers of the keys that count, that one first.
    pub keys: Vec<u32>,
    /// Numbers of the keys for clients that count.
    #[serde(default)]
    pub client_keys: Vec<u32>,
    /// What it counted since it started.
    pub counts: Counts,
    /// Of the requests that it answered by lottery, the share that another answered as well.
    pub duplicate_share: f64,
    /// Share of the members heard of that know something else than it does: whose digest was not its own.
    pub digest_disagreement: f64,
    /// 39 of 40 commits came within this time after the request, seconds; none if that is not known.
    pub commit_delay_seconds: Option<f64>,
    /// How long each rank waits for the one before, seconds.
    pub step_seconds: f64,
    /// How late it was of late, seconds.
    pub lag_seconds: f64,
    /// Would clients do better to ask one daemon than all, as a rank waits long for the one before?
    #[serde(default)]
    pub prefer_referral: bool,
    /// Requests that it has room to remember: as many as the rate needs, up to a bound.
    #[serde(default)]
    pub remembers: u64,
    /// For how long a client may use an answer again, seconds.
    #[serde(default)]
    pub ttl_seconds: f64,
    /// How long a server takes to come to its whole share, seconds.
    #[serde(default)]
    pub slow_start_seconds: f64,
    /// Requests a second of one source above which they are not heard; 0 for any number.
    #[serde(default)]
    pub rate: u32,
}

fn yes() -> bool {
    true
}

/// One service of the server beside a daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnService {
    /// As configured.
    pub name: String,
    /// Its number in datagrams.
    pub id: u32,
    /// Where clients find the server.
    pub server: SocketAddr,
    /// What the server can do beside the others.
    pub capacity: u16,
    /// Does its check pass? Without one it always does.
    pub ready: bool,
    /// May clients be sent to it? Not if it was disabled.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// A share of what it can do, smoothed; none if nobody tells it.
    pub load: Option<f64>,
    /// Requests that it works on, if anybody tells.
    pub in_flight: u16,
    /// What it wants of the work, in the unit of `capacity`; 0 for nothing.
    pub weight: f64,
}

/// Another daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberSeen {
    /// Its number.
    pub member: u16,
    /// Where it is.
    pub address: SocketAddr,
    /// `joining`, `up`, `draining`, `leaving`; `unheard` if it was described and has not reported.
    pub state: String,
    /// Did its last reports not come?
    pub suspect: bool,
    /// Did its last report say that it knows something else?
    pub differs: bool,
    /// What it said of its server.
    pub services: Vec<Part>,
}

/// What another daemon said of one service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its number.
    pub service: u32,
    /// What the server can do.
    pub capacity: u16,
    /// What it wants of the work, in the same unit; 0 for nothing.
    pub weight: f64,
    /// A share of what it can do; none if nobody tells it.
    pub load: Option<f64>,
    /// Requests that it works on.
    pub in_flight: u16,
}

/// What a daemon counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Datagrams that came.
    pub received: u64,
    /// Datagrams that went.
    pub sent: u64,
    /// Answers by referral.
    pub referred: u64,
    /// Answers by lottery.
    pub won: u64,
    /// Those of them that were another's, who did not answer in time.
    pub stood_in: u64,
    /// Answers that there is nobody.
    pub turned_away: u64,
    /// Answers repeated for a repeated request.
    pub repeated: u64,
    /// Requests that it answered and another as well.
    pub duplicates: u64,
    /// Requests of sources that ask too much, and what is said of who is there by those who say too much.
    pub limited: u64,
    /// Requests that it had to forget before their time, as there were too many: repeated, they are drawn anew.
    #[serde(default)]
    pub forgotten: u64,
    /// What did not fit into a queue.
    pub dropped: u64,
    /// What was to be sent and could not be.
    pub unsent: u64,
    /// Datagrams whose tag was not made with their key.
    pub forged: u64,
    /// Datagrams of a key that does not count.
    pub unknown_key: u64,
    /// Datagrams that say nothing.
    pub malformed: u64,
    /// What came again.
    pub replayed: u64,
    /// Datagrams sealed with a key for clients, who may not say that.
    #[serde(default)]
    pub misused: u64,
    /// What is said of lives that are to begin long after now.
    #[serde(default)]
    pub implausible: u64,
}
