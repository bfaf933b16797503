//! A stub resolver (RFC 1034, section 5.3.1). It sends a query over UDP from a port of its own with a random
//! ID, again over TCP if the response is truncated. If a server is silent or fails, it asks the next one. It
//! follows aliases (CNAME). Responses from other addresses, or to other questions, are ignored.
//!
//! The system's resolver is not used: it reports neither the TTL nor the difference between a missing name
//! and a failure. Names are taken literally: neither `search` nor `/etc/hosts` applies. Validating DNSSEC is
//! left to the servers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::lottery::seed;

/// The maximum length of a UDP response, in bytes: it passes every network unfragmented (the DNS flag day of
/// 2020).
const LARGEST: u16 = 1232;

/// The number of queries to each server.
const ROUNDS: u32 = 2;

/// The maximum number of aliases to follow.
const ALIASES: usize = 8;

/// The maximum number of servers from resolv.conf (its own limit).
const SERVERS: usize = 3;

/// The system's list of name servers.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The settings of the resolver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolverSettings {
    /// The servers in the order of queries; those of `/etc/resolv.conf` if empty.
    pub servers: Vec<SocketAddr>,
    /// The time limit for all queries of one result.
    pub timeout: Duration,
}

/// The servers and the time limit.
#[derive(Clone, Debug)]
pub(super) struct Resolver {
    servers: Vec<SocketAddr>,
    /// The time limit of one query to one server.
    patience: Duration,
}

/// The records of a name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reply {
    /// The records of the requested type.
    pub(super) data: Vec<RData>,
    /// The additional records of the response.
    pub(super) beside: Vec<Record>,
    /// The TTL in seconds.
    pub(super) ttl: u32,
    /// Whether the name does not exist.
    pub(super) no_name: bool,
}

impl Resolver {
    /// Creates a resolver for a result that takes `questions` queries, one after the other.
    pub(super) async fn new(settings: &ResolverSettings, questions: u32) -> Self {
        let servers = match settings.servers.as_slice() {
            [] => {
                let text = tokio::task::spawn_blocking(|| std::fs::read_to_string(RESOLV_CONF)).await;
                listed(&text.ok().and_then(Result::ok).unwrap_or_default())
            }
            servers => servers.to_vec(),
        };
        let tries = ROUNDS * u32::try_from(servers.len()).unwrap_or(u32::MAX).max(1) * questions.max(1);
        // A little less than the whole time limit, so that the error names the silent server.
        let patience = settings.timeout.mul_f64(0.9) / tries;
        Self { servers, patience }
    }

    /// Queries the records of a type.
    ///
    /// # Errors
    /// All servers fail: one line about the server that was asked last.
    pub(super) async fn ask(&self, name: &Name, kind: RecordType) -> Result<Reply, String> {
        let mut why = "there is no name server to ask".to_owned();
        for _ in 0..ROUNDS {
            for server in &self.servers {
                match self.ask_one(*server, name, kind).await {
                    Ok(reply) => return Ok(reply),
                    Err(trouble) => why = format!("{server} about {name} {kind}: {trouble}"),
                }
            }
        }
        Err(why)
    }

    /// Queries one server, and again if it returns an alias without the records of its target.
    async fn ask_one(&self, server: SocketAddr, name: &Name, kind: RecordType) -> Result<Reply, String> {
        let (mut name, mut ttl) = (name.clone(), u32::MAX);
        for _ in 0..=ALIASES {
            let question = Question::new(name, kind);
            let bytes = question.bytes()?;
            let asked = timeout(self.patience, exchange(server, &question, &bytes)).await;
            let message = asked.unwrap_or_else(|_| Err(format!("no answer in {:?}", self.patience)))?;
            match question.read(&message)? {
                Read::Reply(mut reply) => {
                    reply.ttl = reply.ttl.min(ttl);
                    return Ok(reply);
                }
                Read::Elsewhere(other, until) => (name, ttl) = (other, ttl.min(until)),
            }
        }
        Err(format!("more than {ALIASES} aliases"))
    }
}

/// Parses the servers in a resolv.conf; that of this machine if there is none (resolv.conf(5)).
fn listed(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and_then(|_| words.next())?;
        Some(SocketAddr::from((address.parse::<IpAddr>().ok()?, 53)))
    };
    let servers: Vec<SocketAddr> = text.lines().filter_map(server).take(SERVERS).collect();
    if servers.is_empty() { vec![(Ipv4Addr::LOCALHOST, 53).into()] } else { servers }
}

/// One query.
struct Question {
    id: u16,
    name: Name,
    kind: RecordType,
}

/// The contents of a response.
enum Read {
    Reply(Reply),
    /// An alias of a name without records in the response, with its TTL in seconds.
    Elsewhere(Name, u32),
}

impl Question {
    fn new(name: Name, kind: RecordType) -> Self {
        Self { id: seed() as u16, name, kind }
    }

    fn bytes(&self) -> Result<Vec<u8>, String> {
        let mut message = Message::new(self.id, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(self.name.clone(), self.kind));
        let mut edns = Edns::new();
        edns.set_max_payload(LARGEST).set_version(0);
        message.set_edns(edns);
        message.to_vec().map_err(|error| error.to_string())
    }

    /// Returns `true` if the message is a response to this query.
    fn answered(&self, message: &Message) -> bool {
        let [query] = message.queries.as_slice() else { return false };
        message.metadata.id == self.id
            && message.metadata.message_type == MessageType::Response
            && query.name().eq_ignore_root(&self.name)
            && query.query_type() == self.kind
            && query.query_class() == DNSClass::IN
    }

    /// Parses a response.
    fn read(&self, message: &Message) -> Result<Read, String> {
        let no_name = match message.metadata.response_code {
            ResponseCode::NoError => false,
            ResponseCode::NXDomain => true,
            ResponseCode::ServFail => return Err("it failed (SERVFAIL)".into()),
            ResponseCode::Refused => return Err("it refuses to say (REFUSED)".into()),
            other => return Err(format!("it says: {other}")),
        };
        let of = |name: &Name, kind: RecordType| {
            let name = name.clone();
            let fits = move |record: &&Record| {
                record.record_type() == kind
                    && record.dns_class == DNSClass::IN
                    && record.name.eq_ignore_root(&name)
            };
            message.answers.iter().filter(fits)
        };
        let (mut name, mut ttl) = (self.name.clone(), u32::MAX);
        for _ in 0..=ALIASES {
            let found: Vec<&Record> = of(&name, self.kind).collect();
            if !found.is_empty() {
                let ttl = found.iter().map(|record| record.ttl).fold(ttl, u32::min);
                let data = found.iter().map(|record| record.data.clone()).collect();
                return Ok(Read::Reply(Reply {
                    data,
                    beside: message.additionals.clone(),
                    ttl,
                    no_name: false,
                }));
            }
            let alias = of(&name, RecordType::CNAME).next();
            let Some((until, RData::CNAME(other))) = alias.map(|record| (record.ttl, &record.data)) else {
                break;
            };
            (name, ttl) = (other.0.clone(), ttl.min(until));
        }
        if !no_name && !name.eq_ignore_root(&self.name) {
            return Ok(Read::Elsewhere(name, ttl));
        }
        // RFC 2308, section 5.
        let nothing = message.authorities.iter().filter_map(|record| match &record.data {
            RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
            _ => None,
        });
        let ttl = nothing.min().unwrap_or(0).min(ttl);
        Ok(Read::Reply(Reply { no_name, ttl, ..Reply::default() }))
    }
}

/// Sends a query over UDP, and over TCP if the response is truncated.
async fn exchange(server: SocketAddr, question: &Question, bytes: &[u8]) -> Result<Message, String> {
    let wrong = |error: std::io::Error| error.to_string();
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await.map_err(wrong)?;
    socket.connect(server).await.map_err(wrong)?;
    socket.send(bytes).await.map_err(wrong)?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let len = socket.recv(&mut buffer).await.map_err(wrong)?;
        match Message::from_vec(&buffer[..len]) {
            Ok(message) if question.answered(&message) => {
                if message.metadata.truncation {
                    return exchange_long(server, question, bytes).await;
                }
                return Ok(message);
            }
            // From another sender, or late.
            _ => {}
        }
    }
}

async fn exchange_long(server: SocketAddr, question: &Question, bytes: &[u8]) -> Result<Message, String> {
    let wrong = |error: std::io::Error| format!("over TCP: {error}");
    let mut stream = TcpStream::connect(server).await.map_err(wrong)?;
    let length = u16::try_from(bytes.len()).map_err(|_| "the question is too long".to_owned())?;
    stream.write_all(&[&length.to_be_bytes()[..], bytes].concat()).await.map_err(wrong)?;
    let length = stream.read_u16().await.map_err(wrong)?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await.map_err(wrong)?;
    let message = Message::from_vec(&answer).map_err(|error| format!("over TCP: {error}"))?;
    if question.answered(&message) { Ok(message) } else { Err("over TCP: it answers something else".into()) }
}

#[cfg(any(test, fuzzing))]
pub(crate) mod law;
#[cfg(test)]
mod tests;
