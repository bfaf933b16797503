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

use crate::lottery::random_seed;

/// The maximum length of a UDP response, in bytes: it passes every network unfragmented (the DNS flag day of
/// 2020).
const MAX_UDP_LENGTH: u16 = 1232;

/// The number of queries to each server.
const QUERIES_PER_SERVER: u32 = 2;

/// The maximum number of aliases to follow.
const MAX_ALIASES: usize = 8;

/// The maximum number of servers from resolv.conf (its own limit).
const MAX_SERVERS: usize = 3;

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
    query_timeout: Duration,
}

/// The records of a name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DnsReply {
    /// The records of the requested type.
    pub(super) data: Vec<RData>,
    /// The additional records of the response.
    pub(super) additional: Vec<Record>,
    /// The TTL in seconds.
    pub(super) ttl: u32,
    /// Whether the name does not exist.
    pub(super) name_missing: bool,
}

impl Resolver {
    /// Creates a resolver for a result that takes `questions` queries, one after the other.
    pub(super) async fn new(settings: &ResolverSettings, query_count: u32) -> Self {
        let servers = match settings.servers.as_slice() {
            [] => {
                let text = tokio::task::spawn_blocking(|| std::fs::read_to_string(RESOLV_CONF)).await;
                parse_nameservers(&text.ok().and_then(Result::ok).unwrap_or_default())
            }
            servers => servers.to_vec(),
        };
        let attempts =
            QUERIES_PER_SERVER * u32::try_from(servers.len()).unwrap_or(u32::MAX).max(1) * query_count.max(1);
        // A little less than the whole time limit, so that the error names the silent server.
        let query_timeout = settings.timeout.mul_f64(0.9) / attempts;
        Self { servers, query_timeout }
    }

    /// Queries the records of a type.
    ///
    /// # Errors
    /// All servers fail: one line about the server that was asked last.
    pub(super) async fn query(&self, name: &Name, record_type: RecordType) -> Result<DnsReply, String> {
        let mut last_error = "there is no name server to ask".to_owned();
        for _ in 0..QUERIES_PER_SERVER {
            for server in &self.servers {
                match self.query_server(*server, name, record_type).await {
                    Ok(reply) => return Ok(reply),
                    Err(error) => last_error = format!("{server} about {name} {record_type}: {error}"),
                }
            }
        }
        Err(last_error)
    }

    /// Queries one server, and again if it returns an alias without the records of its target.
    async fn query_server(
        &self,
        server: SocketAddr,
        name: &Name,
        record_type: RecordType,
    ) -> Result<DnsReply, String> {
        let (mut name, mut ttl) = (name.clone(), u32::MAX);
        for _ in 0..=MAX_ALIASES {
            let query = DnsQuery::new(name, record_type);
            let bytes = query.encode()?;
            let response = timeout(self.query_timeout, exchange(server, &query, &bytes)).await;
            let message =
                response.unwrap_or_else(|_| Err(format!("no answer in {:?}", self.query_timeout)))?;
            match query.parse(&message)? {
                ParsedReply::Reply(mut reply) => {
                    reply.ttl = reply.ttl.min(ttl);
                    return Ok(reply);
                }
                ParsedReply::Alias(alias, alias_ttl) => (name, ttl) = (alias, ttl.min(alias_ttl)),
            }
        }
        Err(format!("more than {MAX_ALIASES} aliases"))
    }
}

/// Parses the servers in a resolv.conf; that of this machine if there is none (resolv.conf(5)).
fn parse_nameservers(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and_then(|_| words.next())?;
        Some(SocketAddr::from((address.parse::<IpAddr>().ok()?, 53)))
    };
    let servers: Vec<SocketAddr> = text.lines().filter_map(server).take(MAX_SERVERS).collect();
    if servers.is_empty() { vec![(Ipv4Addr::LOCALHOST, 53).into()] } else { servers }
}

/// One query.
struct DnsQuery {
    id: u16,
    name: Name,
    kind: RecordType,
}

/// The contents of a response.
enum ParsedReply {
    Reply(DnsReply),
    /// An alias of a name without records in the response, with its TTL in seconds.
    Alias(Name, u32),
}

impl DnsQuery {
    fn new(name: Name, record_type: RecordType) -> Self {
        Self { id: random_seed() as u16, name, kind: record_type }
    }

    fn encode(&self) -> Result<Vec<u8>, String> {
        let mut message = Message::new(self.id, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(self.name.clone(), self.kind));
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_UDP_LENGTH).set_version(0);
        message.set_edns(edns);
        message.to_vec().map_err(|error| error.to_string())
    }

    /// Returns `true` if the message is a response to this query.
    fn is_answered_by(&self, message: &Message) -> bool {
        let [query] = message.queries.as_slice() else { return false };
        message.metadata.id == self.id
            && message.metadata.message_type == MessageType::Response
            && query.name().eq_ignore_root(&self.name)
            && query.query_type() == self.kind
            && query.query_class() == DNSClass::IN
    }

    /// Parses a response.
    fn parse(&self, message: &Message) -> Result<ParsedReply, String> {
        let name_missing = match message.metadata.response_code {
            ResponseCode::NoError => false,
            ResponseCode::NXDomain => true,
            ResponseCode::ServFail => return Err("it failed (SERVFAIL)".into()),
            ResponseCode::Refused => return Err("it refuses to say (REFUSED)".into()),
            response_code => return Err(format!("it says: {response_code}")),
        };
        let matching_records = |name: &Name, record_type: RecordType| {
            let name = name.clone();
            let is_match = move |record: &&Record| {
                record.record_type() == record_type
                    && record.dns_class == DNSClass::IN
                    && record.name.eq_ignore_root(&name)
            };
            message.answers.iter().filter(is_match)
        };
        let (mut name, mut ttl) = (self.name.clone(), u32::MAX);
        for _ in 0..=MAX_ALIASES {
            let records: Vec<&Record> = matching_records(&name, self.kind).collect();
            if !records.is_empty() {
                let ttl = records.iter().map(|record| record.ttl).fold(ttl, u32::min);
                let data = records.iter().map(|record| record.data.clone()).collect();
                return Ok(ParsedReply::Reply(DnsReply {
                    data,
                    additional: message.additionals.clone(),
                    ttl,
                    name_missing: false,
                }));
            }
            let alias = matching_records(&name, RecordType::CNAME).next();
            let Some((alias_ttl, RData::CNAME(canonical_name))) =
                alias.map(|record| (record.ttl, &record.data))
            else {
                break;
            };
            (name, ttl) = (canonical_name.0.clone(), ttl.min(alias_ttl));
        }
        if !name_missing && !name.eq_ignore_root(&self.name) {
            return Ok(ParsedReply::Alias(name, ttl));
        }
        // RFC 2308, section 5.
        let negative_ttls = message.authorities.iter().filter_map(|record| match &record.data {
            RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
            _ => None,
        });
        let ttl = negative_ttls.min().unwrap_or(0).min(ttl);
        Ok(ParsedReply::Reply(DnsReply { name_missing, ttl, ..DnsReply::default() }))
    }
}

/// Sends a query over UDP, and over TCP if the response is truncated.
async fn exchange(server: SocketAddr, query: &DnsQuery, bytes: &[u8]) -> Result<Message, String> {
    let io_error = |error: std::io::Error| error.to_string();
    let local_address: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(local_address).await.map_err(io_error)?;
    socket.connect(server).await.map_err(io_error)?;
    socket.send(bytes).await.map_err(io_error)?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let len = socket.recv(&mut buffer).await.map_err(io_error)?;
        match Message::from_vec(&buffer[..len]) {
            Ok(message) if query.is_answered_by(&message) => {
                if message.metadata.truncation {
                    return exchange_tcp(server, query, bytes).await;
                }
                return Ok(message);
            }
            // From another sender, or late.
            _ => {}
        }
    }
}

async fn exchange_tcp(server: SocketAddr, query: &DnsQuery, bytes: &[u8]) -> Result<Message, String> {
    let io_error = |error: std::io::Error| format!("over TCP: {error}");
    let mut stream = TcpStream::connect(server).await.map_err(io_error)?;
    let length = u16::try_from(bytes.len()).map_err(|_| "the question is too long".to_owned())?;
    stream.write_all(&[&length.to_be_bytes()[..], bytes].concat()).await.map_err(io_error)?;
    let length = stream.read_u16().await.map_err(io_error)?;
    let mut response = vec![0; usize::from(length)];
    stream.read_exact(&mut response).await.map_err(io_error)?;
    let message = Message::from_vec(&response).map_err(|error| format!("over TCP: {error}"))?;
    if query.is_answered_by(&message) {
        Ok(message)
    } else {
        Err("over TCP: it answers something else".into())
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) mod invariants;
#[cfg(test)]
mod tests;
