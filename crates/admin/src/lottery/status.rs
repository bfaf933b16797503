//! The status of a lottery daemon. `-o json` prints the field names, so they are a contract.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// A daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// The version of this format; incremented when a field changes its meaning.
    pub schema: u32,
    /// The version of the binary.
    pub version: String,
    /// The process ID.
    pub pid: u32,
    /// The start time, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Whether it is shutting down.
    pub stopping: bool,
    /// The reason why the last reload was rejected; `None` if it succeeded.
    pub reload_error: Option<String>,
    /// The daemon's number.
    pub member: u16,
    /// The address that it listens on.
    pub address: SocketAddr,
    /// `joining`, `up`, `draining` or `leaving`.
    pub state: String,
    /// The services of the server beside it.
    pub services: Vec<OwnService>,
    /// The other daemons, by their numbers.
    pub members: Vec<ObservedDaemon>,
    /// The requests that wait for another daemon's answer.
    pub pending: u64,
    /// The messages to send, commits to repeat, and IDs to report.
    pub queued: u64,
    /// The number of the key that it seals with.
    pub sealing_key: u32,
    /// The numbers of the valid keys, the sealing one first.
    pub keys: Vec<u32>,
    /// The numbers of the valid keys for clients.
    #[serde(default)]
    pub client_keys: Vec<u32>,
    /// The counters since its start.
    pub counts: DaemonCounters,
    /// The share of the requests answered by lottery that another daemon answered as well.
    pub duplicate_share: f64,
    /// The share of the reporting members with a different membership table, by its digest.
    pub digest_disagreement: f64,
    /// The time within which 39 of 40 commits arrived after the request, in seconds; `None` if unknown.
    pub commit_delay_seconds: Option<f64>,
    /// The time that each rank waits for the previous one, in seconds.
    pub step_seconds: f64,
    /// The recent delay of the daemon's own work, in seconds.
    pub lag_seconds: f64,
    /// Whether clients should ask one daemon instead of all, as a rank waits long for the previous one.
    #[serde(default)]
    pub prefer_referral: bool,
    /// The number of requests that it can remember: as many as the rate requires, up to a limit.
    #[serde(default)]
    pub remembers: u64,
    /// The time that clients may cache an answer, in seconds.
    #[serde(default)]
    pub ttl_seconds: f64,
    /// The time in which a server's share grows to its full value, in seconds.
    #[serde(default)]
    pub slow_start_seconds: f64,
    /// The maximum number of requests from one source per second; 0 for no limit.
    #[serde(default)]
    pub rate: u32,
}

fn yes() -> bool {
    true
}

/// One service of the server beside a daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnService {
    /// The name as configured.
    pub name: String,
    /// The number in datagrams.
    pub id: u32,
    /// The server's address for clients.
    pub server: SocketAddr,
    /// The capacity relative to the other servers.
    pub capacity: u16,
    /// Whether the health check passes; always true without a check.
    pub ready: bool,
    /// Whether clients may be sent to it; false if it was disabled.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// The load as a smoothed share of the capacity; `None` if it is not reported.
    pub load: Option<f64>,
    /// The requests in flight, if they are reported.
    pub in_flight: u16,
    /// The weight in the draw, in the unit of `capacity`; 0 for no clients.
    pub weight: f64,
}

/// Another daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservedDaemon {
    /// The daemon's number.
    pub member: u16,
    /// The daemon's address.
    pub address: SocketAddr,
    /// `joining`, `up`, `draining`, `leaving`; `unheard` if it is in the membership table but has not
    /// reported.
    pub state: String,
    /// Whether its last reports are missing.
    pub suspect: bool,
    /// Whether its last report had a different digest of the membership table.
    pub differs: bool,
    /// The services of its server in its reports.
    pub services: Vec<ObservedService>,
}

/// One service in another daemon's reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservedService {
    /// The service's number.
    pub service: u32,
    /// The server's capacity.
    pub capacity: u16,
    /// The weight in the draw, in the same unit; 0 for no clients.
    pub weight: f64,
    /// The load as a share of the capacity; `None` if it is not reported.
    pub load: Option<f64>,
    /// The requests in flight.
    pub in_flight: u16,
}

/// The counters of a daemon since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonCounters {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Answers by referral.
    pub referred: u64,
    /// Answers by lottery.
    pub won: u64,
    /// Answers by lottery for another daemon that did not answer in time.
    pub stood_in: u64,
    /// Answers that no server is available.
    pub turned_away: u64,
    /// Answers repeated for a repeated request.
    pub repeated: u64,
    /// Requests that another daemon answered as well.
    pub duplicates: u64,
    /// Requests of sources over the limit, and gossip over the limit.
    pub limited: u64,
    /// Requests forgotten early because there were too many: a repeated one is drawn again.
    #[serde(default)]
    pub forgotten: u64,
    /// Items that did not fit into a queue.
    pub dropped: u64,
    /// Datagrams that could not be sent.
    pub unsent: u64,
    /// Datagrams whose tag does not match the key.
    pub forged: u64,
    /// Datagrams with a key that is not valid.
    pub unknown_key: u64,
    /// Malformed datagrams.
    pub malformed: u64,
    /// Replayed datagrams.
    pub replayed: u64,
    /// Datagrams sealed with a key for clients, which does not permit their kind.
    #[serde(default)]
    pub misused: u64,
    /// Datagrams of incarnations far in the future.
    #[serde(default)]
    pub implausible: u64,
}
