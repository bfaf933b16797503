//! What daemons and clients say to one another. Their bytes are crate `wire`'s affair.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

/// One datagram, as a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A client wants a member.
    Request(Request),
    /// It gets one.
    Answer(Answer),
    /// Requests that a member has answered.
    Commit(Commit),
    /// How a member does.
    Report(Report),
    /// Tell me of the members.
    Fetch(Fetch),
    /// Of the members, a part.
    Table(Table),
    /// Tell me who is drawn.
    Look(Look),
    /// Who is drawn, a part.
    Drum(Drum),
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// To one address.
    Address(SocketAddr),
    /// To one who asked with a key for clients, of this number: sealed with the same.
    Asker(SocketAddr, u32),
    /// To every daemon of the cluster: by multicast, or to one after the other.
    Everyone,
}

/// How a request wants to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By the daemon that gets it, for whoever wins.
    Referral,
    /// By the winner: every daemon got it.
    Lottery,
}

/// From a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Random; the same in every attempt.
    pub id: u64,
    /// What is wanted.
    pub service: u32,
    /// 0, and one more each time it is sent.
    pub attempt: u8,
    /// Who is to answer.
    pub mode: Mode,
    /// Of the table that the client knows; 0 for none.
    pub generation: u32,
    /// The client's clock, in any unit: comes back with the answer.
    pub client_time: u32,
    /// Members that failed it a moment ago.
    pub avoid: Vec<u16>,
    /// For the application.
    pub info: Vec<u8>,
    /// Bytes of the datagram that it came in: its answer may have no more. What a client sends has as many at the least.
    pub room: u16,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// There is a member.
    Ok,
    /// There are members, but none can be used now.
    Busy,
    /// Nobody offers the service.
    UnknownService,
    /// All who offer the service are going.
    Draining,
}

/// From a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Of the request.
    pub id: u64,
    /// Of the request.
    pub service: u32,
    /// If it is not `Ok`, `member` is who says so.
    pub status: Status,
    /// The rank of `member` in the lottery, 0 for the winner.
    pub rank: u8,
    /// For so many milliseconds the client may use it again.
    pub ttl: u16,
    /// Who is to serve it.
    pub member: u16,
    /// Where: of the service, not of the daemon. `None` if it is not `Ok`.
    pub endpoint: Option<SocketAddr>,
    /// Of the request.
    pub client_time: u32,
    /// Of the daemon's table.
    pub generation: u32,
    /// For the application.
    pub info: Arc<[u8]>,
    /// Who comes next in the lottery, at most [`FURTHER`]. A shell sends as many as fit.
    pub further: Vec<Further>,
    /// Of the request: bytes that it may have.
    pub room: u16,
}

/// Most further endpoints in an answer.
pub const FURTHER: usize = 4;

/// A member to try if the one answered does not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Further {
    /// Its number.
    pub member: u16,
    /// Where it serves.
    pub endpoint: SocketAddr,
}

/// Requests that a member has answered for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Who answered.
    pub member: u16,
    /// Which life of it.
    pub incarnation: u32,
    /// Request ids, at most [`IDS`].
    pub ids: Vec<u64>,
}

/// Most request ids in a commit or a report.
pub const IDS: usize = 64;

/// What a member is about. The numbers are part of the digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It gathers who is there, and takes nothing yet.
    Joining = 0,
    /// It takes its share.
    Up = 1,
    /// It ends what it has, and refers clients to others.
    Draining = 2,
    /// It is about to stop.
    Leaving = 3,
}

/// How a member does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Who says so.
    pub member: u16,
    /// Which life of it: greater each time it starts or was thought dead.
    pub incarnation: u32,
    /// Greater with each report of a life.
    pub seq: u32,
    /// What it is about.
    pub state: Standing,
    /// Of all that it knows of weights and states: equal where the same is known.
    pub digest: u64,
    /// At most [`SERVICES`].
    pub services: Vec<Share>,
    /// Requests that it answered lately, at most [`IDS`].
    pub ids: Vec<u64>,
    /// What others said of themselves last, as far as it heard: where not all hear each other's reports. All together at most
    /// [`REPORT`] bytes with its own services and requests.
    pub heard: Vec<Hearsay>,
}

impl Report {
    /// Bytes left for what it heard of others.
    pub fn room(&self) -> usize {
        REPORT.saturating_sub(12 * self.services.len() + 8 * self.ids.len())
    }
}

/// Most bytes of services, requests and hearsay in a report that has hearsay: what RFS/2 leaves of 1200 bytes (`docs/rfs2.md`, REPORT).
pub const REPORT: usize = 1139;

/// What a member said of itself, passed on by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hearsay {
    /// Who said so.
    pub member: u16,
    /// As in its [`Report`].
    pub incarnation: u32,
    /// As in its report.
    pub seq: u32,
    /// As in its report.
    pub state: Standing,
    /// As in its report.
    pub services: Vec<Share>,
}

impl Hearsay {
    /// Bytes that it takes in a report, as RFS/2 writes it.
    pub fn bytes(&self) -> usize {
        12 + 12 * self.services.len()
    }
}

/// A load that is not known.
pub const UNKNOWN: u16 = u16::MAX;

/// Most services of a member.
pub const SERVICES: usize = 64;

/// How a member does in one service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Which.
    pub service: u32,
    /// What it can do beside the others, in any unit.
    pub capacity: u16,
    /// What it wants of it: 2^((weight - 128) / 16) in the same unit (see [`code`](super::code)); 0 for nothing.
    pub weight: u16,
    /// In thousandths of what it can do, smoothed; [`UNKNOWN`] if nobody tells it.
    pub load: u16,
    /// Requests that it works on.
    pub in_flight: u16,
}

/// Asks for a part of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Another for each part.
    pub id: u64,
    /// Of the table known; 0 for none. Nothing comes if it is the daemon's own.
    pub generation: u32,
    /// Which is wanted, from 0. Nothing comes if there is no such part.
    pub part: u16,
}

/// Who is there: one part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Of the fetch.
    pub id: u64,
    /// The same in all parts, and on every daemon that knows the same of all members.
    pub generation: u32,
    /// From 0.
    pub part: u16,
    /// How many there are.
    pub parts: u16,
    /// As many as fit: together at most [`PART`] bytes.
    pub members: Vec<Listed>,
}

/// Most bytes of members in a part of the table: what RFS/2 leaves of a datagram (`docs/rfs2.md`, TABLE).
pub const PART: usize = 1155;

/// Who a member is, and what it offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its number, alone in the cluster.
    pub member: u16,
    /// Which life of it.
    pub incarnation: u32,
    /// Of its daemon.
    pub address: SocketAddr,
    /// At most [`SERVICES`].
    pub offers: Vec<Offer>,
}

impl Listed {
    /// Bytes that it takes in a table, as RFS/2 writes it. One with more than [`PART`] cannot be told of.
    pub fn bytes(&self) -> usize {
        let short = |address: &SocketAddr| if address.is_ipv4() { 7 } else { 19 };
        let offer = |offer: &Offer| {
            let near = offer.endpoint.ip() == self.address.ip();
            8 + if near { 3 } else { short(&offer.endpoint) } + offer.info.len()
        };
        7 + short(&self.address) + self.offers.iter().map(offer).sum::<usize>()
    }
}

/// A service of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Which.
    pub service: u32,
    /// What the member can do beside the others, in any unit.
    pub capacity: u16,
    /// Where it serves.
    pub endpoint: SocketAddr,
    /// For clients' applications, goes with each answer.
    pub info: Arc<[u8]>,
}

/// Asks for a part of those who are drawn for a service: for balancers, which follow the lottery and take no part in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Another for each part.
    pub id: u64,
    /// Of which service.
    pub service: u32,
    /// Which is wanted, from 0. Nothing comes if there is no such part.
    pub part: u16,
}

/// Who is drawn for a service: one part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drum {
    /// Of the look.
    pub id: u64,
    /// Of the look.
    pub service: u32,
    /// From 0.
    pub part: u16,
    /// How many there are; at least one.
    pub parts: u16,
    /// As many as fit: together at most [`DRUM`] bytes.
    pub places: Vec<Place>,
}

/// Most bytes of places in a part of a drum: what RFS/2 leaves of a datagram (`docs/rfs2.md`, DRUM).
pub const DRUM: usize = 1155;

/// Who is drawn, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number.
    pub member: u16,
    /// What it can do beside the others, in any unit.
    pub capacity: u16,
    /// What it wants of it: see [`Share::weight`]; 0 for one of which nothing was heard of late.
    pub weight: u16,
    /// Of its daemon.
    pub address: SocketAddr,
    /// Where it serves.
    pub endpoint: SocketAddr,
}

impl Place {
    /// Bytes that it takes in a drum, as RFS/2 writes it.
    pub fn bytes(&self) -> usize {
        let short = |address: &SocketAddr| if address.is_ipv4() { 7 } else { 19 };
        let near = self.endpoint.ip() == self.address.ip();
        6 + short(&self.address) + if near { 3 } else { short(&self.endpoint) }
    }
}
