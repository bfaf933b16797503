//! The messages between daemons and clients. Crate `wire` encodes them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

/// A datagram, as a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LotteryMessage {
    /// A client's request for a member.
    Request(LotteryRequest),
    /// The answer to a request.
    Answer(LotteryAnswer),
    /// The requests that a member has answered.
    Commit(AnswerCommit),
    /// The state of a member.
    Report(NodeReport),
    /// A request for a part of the table.
    Fetch(TableFetch),
    /// A part of the table of members.
    Table(TablePart),
    /// A request for a part of a candidate set.
    CandidateQuery(CandidateQuery),
    /// A part of a candidate set.
    CandidateSet(CandidateSet),
}

/// The destination of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageTarget {
    /// One address.
    Address(SocketAddr),
    /// A sender with the client key of this number: the answer is sealed with the same.
    KeyedClient(SocketAddr, u32),
    /// Every daemon of the cluster: by multicast, or one after the other.
    AllNodes,
}

/// The mode of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerMode {
    /// The daemon that gets the request answers for the winner.
    Referral,
    /// The winner answers: every daemon got the request.
    Lottery,
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LotteryRequest {
    /// A random id, the same in every attempt.
    pub id: u64,
    /// The requested service.
    pub service: u32,
    /// The number of the attempt, from 0.
    pub attempt: u8,
    /// The mode of the answer.
    pub mode: AnswerMode,
    /// The generation of the table that the client knows; 0 for none.
    pub generation: u32,
    /// The client's clock, in any unit, which the answer returns.
    pub client_time: u32,
    /// The members that just failed.
    pub avoid: Vec<u16>,
    /// Data for the application.
    pub info: Vec<u8>,
    /// The bytes of the datagram that contained it: its answer may have no more. A client sends at least that
    /// many.
    pub max_answer_bytes: u16,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerStatus {
    /// There is a member.
    Ok,
    /// There are members, but none can be used now.
    Busy,
    /// No member offers the service.
    UnknownService,
    /// All members that offer the service are leaving.
    Draining,
}

/// A daemon's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LotteryAnswer {
    /// The id of the request.
    pub id: u64,
    /// The service of the request.
    pub service: u32,
    /// The outcome. If it is not `Ok`, `member` is the sender.
    pub status: AnswerStatus,
    /// The rank of `member` in the lottery, 0 for the winner.
    pub rank: u8,
    /// The milliseconds for which the client may use it again.
    pub ttl: u16,
    /// The member that is to serve it.
    pub member: u16,
    /// The endpoint of the service, not of the daemon. `None` if the status is not `Ok`.
    pub endpoint: Option<SocketAddr>,
    /// The `client_time` of the request.
    pub client_time: u32,
    /// The generation of the daemon's table.
    pub generation: u32,
    /// Data for the application.
    pub info: Arc<[u8]>,
    /// The next members in the lottery, at most [`MAX_FALLBACKS`]. A shell sends as many as fit.
    pub fallbacks: Vec<FallbackMember>,
    /// The maximum bytes of the answer, by the request.
    pub max_bytes: u16,
}

/// The maximum number of further endpoints in an answer.
pub const MAX_FALLBACKS: usize = 4;

/// A member to try if the answered one fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackMember {
    /// Its number.
    pub member: u16,
    /// Its endpoint.
    pub endpoint: SocketAddr,
}

/// The requests that a member has answered for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerCommit {
    /// The member that answered.
    pub member: u16,
    /// Its incarnation.
    pub incarnation: u32,
    /// The request ids, at most [`MAX_IDS`].
    pub ids: Vec<u64>,
}

/// The maximum number of request ids in a commit or a report.
pub const MAX_IDS: usize = 64;

/// The state of a member. The numbers are part of the digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It collects the members, and serves nothing yet.
    Joining = 0,
    /// It takes its share.
    Up = 1,
    /// It ends its work, and refers clients to others.
    Draining = 2,
    /// It is about to stop.
    Leaving = 3,
}

/// A member's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// The member.
    pub member: u16,
    /// Its incarnation: greater each time it starts or was considered dead.
    pub incarnation: u32,
    /// The number of the report, which grows within a life.
    pub seq: u32,
    /// Its state.
    pub state: NodeState,
    /// The digest of all weights and states that it knows: equal for equal information.
    pub digest: u64,
    /// The services, at most [`MAX_SERVICES`].
    pub services: Vec<ServiceState>,
    /// The requests that it answered recently, at most [`MAX_IDS`].
    pub ids: Vec<u64>,
    /// The last known reports of others, relayed where not all receive each other's reports. All together
    /// they take at most [`MAX_NODE_REPORT_BYTES`] bytes with its own services and requests.
    pub heard: Vec<RelayedReport>,
}

impl NodeReport {
    /// Returns the bytes left for relayed reports.
    pub fn relay_capacity(&self) -> usize {
        MAX_NODE_REPORT_BYTES.saturating_sub(12 * self.services.len() + 8 * self.ids.len())
    }
}

/// The maximum bytes of services, requests and relayed reports in a report with relayed ones: the part of
/// 1200 bytes that RFS/2 leaves (`docs/rfs2.md`, REPORT).
pub const MAX_NODE_REPORT_BYTES: usize = 1139;

/// A member's report, relayed by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayedReport {
    /// The member.
    pub member: u16,
    /// The incarnation in its [`NodeReport`].
    pub incarnation: u32,
    /// The number of its report.
    pub seq: u32,
    /// The state in its report.
    pub state: NodeState,
    /// The services in its report.
    pub services: Vec<ServiceState>,
}

impl RelayedReport {
    /// Returns its bytes in a report, as RFS/2 writes it.
    pub fn encoded_size(&self) -> usize {
        12 + 12 * self.services.len()
    }
}

/// The value of an unknown load.
pub const UNKNOWN_LOAD: u16 = u16::MAX;

/// The maximum number of services of a member.
pub const MAX_SERVICES: usize = 64;

/// The state of a member in one service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceState {
    /// The service.
    pub service: u32,
    /// The capacity beside the others, in any unit.
    pub capacity: u16,
    /// The weight: 2^((weight - 128) / 16) in the same unit (see [`weight_codec`](super::weight_codec)); 0
    /// for none.
    pub weight: u16,
    /// The smoothed load in thousandths of its capacity; [`UNKNOWN_LOAD`] without a report.
    pub load: u16,
    /// The requests in flight.
    pub in_flight: u16,
}

/// A request for a part of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFetch {
    /// An id, different for each part.
    pub id: u64,
    /// The generation of the known table; 0 for none. There is no answer if it is the daemon's own.
    pub generation: u32,
    /// The index of the part, from 0. There is no answer without such a part.
    pub part: u16,
}

/// A part of the table of members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablePart {
    /// The id of the fetch.
    pub id: u64,
    /// The generation, the same in all parts, and on every daemon with the same information.
    pub generation: u32,
    /// The index of the part, from 0.
    pub part: u16,
    /// The number of parts.
    pub parts: u16,
    /// The members that fit: together at most [`MAX_TABLE_PART_BYTES`] bytes.
    pub members: Vec<NodeDescription>,
}

/// The maximum bytes of members in a part of the table: the part of a datagram that RFS/2 leaves
/// (`docs/rfs2.md`, TABLE).
pub const MAX_TABLE_PART_BYTES: usize = 1155;

/// The description of a member, and its services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDescription {
    /// Its number, unique in the cluster.
    pub member: u16,
    /// Its incarnation.
    pub incarnation: u32,
    /// The address of its daemon.
    pub address: SocketAddr,
    /// Its services, at most [`MAX_SERVICES`].
    pub offers: Vec<ServiceOffer>,
}

impl NodeDescription {
    /// Returns its bytes in a table, as RFS/2 writes it. A member with more than [`MAX_TABLE_PART_BYTES`]
    /// cannot be described.
    pub fn encoded_size(&self) -> usize {
        let encoded_len = |address: &SocketAddr| if address.is_ipv4() { 7 } else { 19 };
        let offer_size = |offer: &ServiceOffer| {
            let same_ip = offer.endpoint.ip() == self.address.ip();
            8 + if same_ip { 3 } else { encoded_len(&offer.endpoint) } + offer.info.len()
        };
        7 + encoded_len(&self.address) + self.offers.iter().map(offer_size).sum::<usize>()
    }
}

/// A service of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceOffer {
    /// The service.
    pub service: u32,
    /// The capacity of the member beside the others, in any unit.
    pub capacity: u16,
    /// Its endpoint.
    pub endpoint: SocketAddr,
    /// Data for clients' applications, sent with each answer.
    pub info: Arc<[u8]>,
}

/// A request for a part of the candidate set of a service, from balancers, which follow the lottery and take
/// no part in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CandidateQuery {
    /// An id, different for each part.
    pub id: u64,
    /// The service.
    pub service: u32,
    /// The index of the part, from 0. There is no answer without such a part.
    pub part: u16,
}

/// A part of the candidate set of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateSet {
    /// The id of the query.
    pub id: u64,
    /// The service of the query.
    pub service: u32,
    /// The index of the part, from 0.
    pub part: u16,
    /// The number of parts; at least one.
    pub parts: u16,
    /// The members that fit: together at most [`MAX_CANDIDATE_BYTES`] bytes.
    pub candidates: Vec<CandidateEntry>,
}

/// The maximum bytes of members in a part of a candidate set: the part of a datagram that RFS/2 leaves
/// (`docs/rfs2.md`, DRUM).
pub const MAX_CANDIDATE_BYTES: usize = 1155;

/// A member in the candidate set, with its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CandidateEntry {
    /// Its number.
    pub member: u16,
    /// The capacity beside the others, in any unit.
    pub capacity: u16,
    /// The weight: see [`ServiceState::weight`]; 0 for a member without recent reports.
    pub weight: u16,
    /// The address of its daemon.
    pub address: SocketAddr,
    /// Its endpoint.
    pub endpoint: SocketAddr,
}

impl CandidateEntry {
    /// Returns its bytes in a candidate set, as RFS/2 writes it.
    pub fn encoded_size(&self) -> usize {
        let encoded_len = |address: &SocketAddr| if address.is_ipv4() { 7 } else { 19 };
        let same_ip = self.endpoint.ip() == self.address.ip();
        6 + encoded_len(&self.address) + if same_ip { 3 } else { encoded_len(&self.endpoint) }
    }
}
