//! Asks name servers, as a stub resolver does (RFC 1034, section 5.3.1): one question over UDP from a port of its own with a number
//! of its own, again over TCP if the answer was cut, the next server if one is silent or fails. Aliases (CNAME) are followed. What
//! comes from anywhere else, or answers another question, is not looked at.
//!
//! The system's resolver is not used because it does not tell how long an answer is good for, nor whether there is no such name or
//! nobody could say. Names are taken as they are: neither `search` nor `/etc/hosts` counts. Signatures (DNSSEC) are the servers' to
//! check.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::lottery::seed;

/// Bytes of an answer over UDP: what passes every network unfragmented (the DNS flag day of 2020).
const LARGEST: u16 = 1232;

/// Each server is asked so often.
const ROUNDS: u32 = 2;

/// Aliases that are followed.
const ALIASES: usize = 8;

/// Servers that are asked, of those in resolv.conf (its own bound).
const SERVERS: usize = 3;

/// Where the system says who is to be asked.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Whom to ask about names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolverSettings {
    /// Servers in the order in which they are asked; those of `/etc/resolv.conf` if there is none.
    pub servers: Vec<SocketAddr>,
    /// For all questions that an answer takes.
    pub timeout: Duration,
}

/// Whom to ask, for how long.
#[derive(Clone, Debug)]
pub(super) struct Resolver {
    servers: Vec<SocketAddr>,
    /// For one question to one server.
    patience: Duration,
}

/// What is known of a name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reply {
    /// Of the type that was asked for.
    pub(super) data: Vec<RData>,
    /// What the server told besides.
    pub(super) beside: Vec<Record>,
    /// For how long that is true, seconds.
    pub(super) ttl: u32,
    /// Is there no such name at all?
    pub(super) no_name: bool,
}

impl Resolver {
    /// For an answer that takes so many questions, one after the other.
    pub(super) async fn new(settings: &ResolverSettings, questions: u32) -> Self {
        let servers = match settings.servers.as_slice() {
            [] => {
                let text = tokio::task::spawn_blocking(|| std::fs::read_to_string(RESOLV_CONF)).await;
                listed(&text.ok().and_then(Result::ok).unwrap_or_default())
            }
            servers => servers.to_vec(),
        };
        let tries = ROUNDS * u32::try_from(servers.len()).unwrap_or(u32::MAX).max(1) * questions.max(1);
        // A little less than what the whole may take, so that it is known who was silent.
        let patience = settings.timeout.mul_f64(0.9) / tries;
        Self { servers, patience }
    }

    /// Asks for records of a type.
    ///
    /// # Errors
    /// Nobody says: one line, of the server that was asked last.
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

    /// Asks one server, and again where it names another name and does not say what is there.
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

/// The servers in a resolv.conf; the one of this machine if there is none in it (resolv.conf(5)).
fn listed(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and_then(|_| words.next())?;
        Some(SocketAddr::from((address.parse::<IpAddr>().ok()?, 53)))
    };
    let servers: Vec<SocketAddr> = text.lines().filter_map(server).take(SERVERS).collect();
    if servers.is_empty() { vec![(Ipv4Addr::LOCALHOST, 53).into()] } else { servers }
}

/// One question.
struct Question {
    id: u16,
    name: Name,
    kind: RecordType,
}

/// What an answer says.
enum Read {
    Reply(Reply),
    /// It is an alias of a name of which nothing is said, for so many seconds.
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

    /// Is this an answer to it?
    fn answered(&self, message: &Message) -> bool {
        let [query] = message.queries.as_slice() else { return false };
        message.metadata.id == self.id
            && message.metadata.message_type == MessageType::Response
            && query.name().eq_ignore_root(&self.name)
            && query.query_type() == self.kind
            && query.query_class() == DNSClass::IN
    }

    /// What an answer says.
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

/// Asks over UDP, and over TCP if the answer was cut.
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
            // From somebody else, or late.
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
