//! The answers to queries about a group, from bytes to bytes: no sockets, no clock, no random numbers.
//!
//! | name | type | content |
//! |---|---|---|
//! | `DOMAIN` | A, AAAA | one address: that of the member chosen for this query |
//! | `DOMAIN` | HTTPS (RFC 9460) | the port and the address of the chosen member |
//! | `DOMAIN`, `_http._tcp.DOMAIN` etc. | SRV | all members with their ports, the chosen one first |
//! | `10-0-0-1.DOMAIN` etc. (targets of SRV) | A or AAAA | the address in the name, if a member has it |
//!
//! Other names below the domain do not exist; names outside of it are not served.
//!
//! Missing data is reported as in RFC 2308, with the SOA whose `minimum` is the time to live. If there are
//! members but none is usable now, the response is a failure (SERVFAIL), so that clients ask again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_proto::rr::rdata::svcb::{IpHint, SvcParamKey, SvcParamValue};
use hickory_proto::rr::rdata::{A, AAAA, HTTPS, SOA, SRV, SVCB};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinEncodable as _, BinEncoder};

use super::cookie::{CookieOption, ServerCookie};

/// The members of a group.
pub(super) trait MemberSource {
    /// Returns the member chosen for this query among those with an address of the family, or of any family.
    fn choose(&mut self, family: Option<IpFamily>) -> MemberChoice;

    /// Returns all members in use.
    fn all(&self) -> Vec<SocketAddr>;
}

/// The client, as far as an answer depends on it.
pub(super) trait QueryClient {
    /// Returns the server cookie for the client, and whether the presented one is valid; `None` if this
    /// server issues no cookies.
    fn cookie(&self, client: &[u8; 8], presented: &[u8]) -> Option<(ServerCookie, bool)>;

    /// Counts an answer to a client whose address may be forged, and returns the permitted answer.
    fn take_permit(&mut self) -> AnswerPermit;
}

/// The permitted answer to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerPermit {
    /// The full answer.
    Full,
    /// A notice no longer than the query that there is an answer: a genuine client asks again with a cookie,
    /// or over TCP.
    Notice,
    /// No answer.
    None,
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IpFamily {
    V4,
    V6,
}

impl IpFamily {
    pub(super) fn of(address: SocketAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// The result of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberChoice {
    Member(SocketAddr),
    /// No member has such an address.
    NoneOfFamily,
    /// No member is usable now.
    NoneUsable,
}

/// A domain that stands for a group.
#[derive(Clone, Debug)]
pub(super) struct Zone {
    domain: Name,
    /// The time to live, in seconds.
    ttl: u32,
    /// The serial number of the current contents.
    serial: u32,
}

/// The maximum size of a query, in bytes: one name, and the additions of EDNS.
const MAX_QUERY: usize = 4096;
/// The maximum size of an answer over UDP, in bytes: if the query announces no size, and if it does. The
/// latter passes every network unfragmented (the DNS flag day of 2020).
const PLAIN_UDP_SIZE: u16 = 512;
const MAX_UDP_SIZE: u16 = 1232;

/// The maximum number of members in an answer to SRV.
const MAX_SERVERS: usize = 64;

/// The transport of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueryTransport {
    Udp,
    Tcp,
}

impl Zone {
    /// # Errors
    /// The domain is none.
    pub(super) fn new(domain: &str, ttl: u32, serial: u32) -> Result<Self, String> {
        let mut domain = Name::from_ascii(domain).map_err(|error| error.to_string())?;
        domain.set_fqdn(true);
        Ok(Self { domain: domain.to_lowercase(), ttl, serial })
    }

    /// Returns the answer to a query. Returns `None` for bytes that are no query and must not be answered,
    /// lest two servers answer one another.
    pub(super) fn answer(
        &self,
        bytes: &[u8],
        transport: QueryTransport,
        query_client: &mut dyn QueryClient,
        members: &mut dyn MemberSource,
    ) -> Option<Vec<u8>> {
        // A message has one query. One with thousands is not even parsed: that would take time from the
        // core's other tasks. Repeating the queries in the answer would send a forged sender more than was
        // received.
        if bytes.len() > MAX_QUERY || bytes.get(4..6).is_some_and(|count| count != [0, 1]) {
            return answer_unparsed(bytes, transport, query_client);
        }
        let Ok(request) = Message::from_vec(bytes) else {
            return answer_unparsed(bytes, transport, query_client);
        };
        if request.metadata.message_type == MessageType::Response {
            return None;
        }
        let mut reply = Message::response(request.metadata.id, request.metadata.op_code);
        reply.metadata.recursion_desired = request.metadata.recursion_desired;
        reply.metadata.checking_disabled = request.metadata.checking_disabled;
        reply.add_queries(request.queries.iter().cloned());
        let mut max_size = match transport {
            QueryTransport::Udp => PLAIN_UDP_SIZE,
            QueryTransport::Tcp => u16::MAX,
        };
        let mut code = None;
        let mut verified = transport == QueryTransport::Tcp;
        let mut server_cookie = None;
        if let Some(edns) = &request.edns {
            let mut response_edns = Edns::new();
            response_edns.set_max_payload(MAX_UDP_SIZE).set_version(0);
            // RFC 3225: copied from the query.
            response_edns.set_dnssec_ok(edns.flags().dnssec_ok);
            // Of several options the first counts (RFC 7873 section 5.2).
            if let Some(EdnsOption::Unknown(_, option)) = edns.option(EdnsCode::Cookie) {
                match CookieOption::parse(option) {
                    CookieOption::Cookie(client, presented) => {
                        if let Some((server, valid)) = query_client.cookie(client, presented) {
                            let cookie_option = [&client[..], &server].concat();
                            response_edns
                                .options_mut()
                                .insert(EdnsOption::Unknown(EdnsCode::Cookie.into(), cookie_option));
                            server_cookie = Some(server);
                            verified |= valid;
                        }
                    }
                    CookieOption::Malformed => code = Some(ResponseCode::FormErr),
                }
            }
            reply.set_edns(response_edns);
            if transport == QueryTransport::Udp {
                max_size = edns.max_payload().clamp(PLAIN_UDP_SIZE, MAX_UDP_SIZE);
            }
            if edns.version() > 0 {
                code = Some(ResponseCode::BADVERS);
            }
        }
        let permit = if verified { AnswerPermit::Full } else { query_client.take_permit() };
        match permit {
            AnswerPermit::Full => {}
            // A client that supports cookies asks again with the one that it gets.
            AnswerPermit::Notice if server_cookie.is_some() => code = Some(ResponseCode::BADCOOKIE),
            AnswerPermit::Notice => return reply.truncate().to_vec().ok(),
            AnswerPermit::None => return None,
        }
        let code = code.unwrap_or_else(|| match request.queries.as_slice() {
            _ if request.metadata.op_code != OpCode::Query => ResponseCode::NotImp,
            [query] => self.look_up(query, &mut reply, members),
            _ => ResponseCode::FormErr,
        });
        reply.metadata.response_code = code;
        encode(&reply, max_size)
    }

    fn look_up(&self, query: &Query, reply: &mut Message, members: &mut dyn MemberSource) -> ResponseCode {
        if let Some(error) = meta_type_error(query.query_type()) {
            return error;
        }
        let name = query.name().to_lowercase();
        if query.query_class() != DNSClass::IN || !self.domain.zone_of(&name) {
            return ResponseCode::Refused;
        }
        reply.metadata.authoritative = true;
        let code = match self.classify_name(&name) {
            NameKind::Domain => self.domain(query, reply, members),
            NameKind::Service if query.query_type() == RecordType::SRV => self.servers(query, reply, members),
            NameKind::Service => ResponseCode::NoError,
            NameKind::Member(ip) if members.all().iter().any(|member| member.ip() == ip) => {
                if [record_type(ip), RecordType::ANY].contains(&query.query_type()) {
                    reply.add_answer(self.record(query.name().clone(), address_data(ip)));
                }
                ResponseCode::NoError
            }
            NameKind::Member(_) | NameKind::Unknown => ResponseCode::NXDomain,
        };
        if reply.answers.is_empty() && matches!(code, ResponseCode::NoError | ResponseCode::NXDomain) {
            reply.add_authority(self.authority());
        }
        code
    }

    /// Answers a query about the domain itself.
    fn domain(&self, query: &Query, reply: &mut Message, members: &mut dyn MemberSource) -> ResponseCode {
        let family = match query.query_type() {
            RecordType::A => Some(IpFamily::V4),
            RecordType::AAAA => Some(IpFamily::V6),
            // One of the existing records is enough (RFC 8482).
            RecordType::ANY | RecordType::HTTPS => None,
            RecordType::SRV => return self.servers(query, reply, members),
            RecordType::SOA => {
                reply.add_answer(self.authority());
                return ResponseCode::NoError;
            }
            _ => return ResponseCode::NoError,
        };
        match members.choose(family) {
            MemberChoice::Member(member) if query.query_type() == RecordType::HTTPS => {
                let hint = match member.ip() {
                    IpAddr::V4(ip) => (SvcParamKey::Ipv4Hint, SvcParamValue::Ipv4Hint(IpHint(vec![A(ip)]))),
                    IpAddr::V6(ip) => {
                        (SvcParamKey::Ipv6Hint, SvcParamValue::Ipv6Hint(IpHint(vec![AAAA(ip)])))
                    }
                };
                // The keys, in order of their numbers.
                let port = (SvcParamKey::Port, SvcParamValue::Port(member.port()));
                let target = self.target(member.ip());
                let data = RData::HTTPS(HTTPS(SVCB::new(1, target.clone(), vec![port, hint])));
                reply.add_answer(self.record(query.name().clone(), data));
                reply.add_additional(self.record(target, address_data(member.ip())));
                ResponseCode::NoError
            }
            MemberChoice::Member(member) => {
                reply.add_answer(self.record(query.name().clone(), address_data(member.ip())));
                ResponseCode::NoError
            }
            MemberChoice::NoneOfFamily => ResponseCode::NoError,
            MemberChoice::NoneUsable => ResponseCode::ServFail,
        }
    }

    /// Answers with all members and their ports, the chosen one first.
    fn servers(&self, query: &Query, reply: &mut Message, members: &mut dyn MemberSource) -> ResponseCode {
        let first = match members.choose(None) {
            MemberChoice::Member(member) => member,
            MemberChoice::NoneOfFamily => return ResponseCode::NoError,
            MemberChoice::NoneUsable => return ResponseCode::ServFail,
        };
        let others = members.all().into_iter().filter(|other| *other != first).take(MAX_SERVERS - 1);
        for (position, member) in std::iter::once(first).chain(others).enumerate() {
            let target = self.target(member.ip());
            let priority = u16::from(position > 0);
            let data = RData::SRV(SRV::new(priority, 1, member.port(), target.clone()));
            reply.add_answer(self.record(query.name().clone(), data));
            let additional = self.record(target, address_data(member.ip()));
            if !reply.additionals.contains(&additional) {
                reply.add_additional(additional);
            }
        }
        ResponseCode::NoError
    }

    fn classify_name(&self, name: &Name) -> NameKind {
        // Not `num_labels`, which does not count a `*`.
        let label_count = name.iter().count().saturating_sub(self.domain.iter().count());
        let labels: Vec<&[u8]> = name.iter().take(label_count).collect();
        let is_service_label = |label: &[u8]| label.first() == Some(&b'_') && label.len() > 1;
        match labels.as_slice() {
            [] => NameKind::Domain,
            [service, transport] if is_service_label(service) && is_transport(transport) => NameKind::Service,
            // There are names below it.
            [transport] if is_transport(transport) => NameKind::Service,
            [label] => address(label).map_or(NameKind::Unknown, NameKind::Member),
            _ => NameKind::Unknown,
        }
    }

    /// Returns the name that stands for an address.
    fn target(&self, ip: IpAddr) -> Name {
        let label = match ip {
            IpAddr::V4(ip) => ip.to_string().replace('.', "-"),
            IpAddr::V6(ip) => ip.segments().map(|segment| format!("{segment:x}")).join("-"),
        };
        // The label has at most 39 bytes. The domain leaves room for it, which was checked when it was
        // parsed.
        self.domain.prepend_label(label).unwrap_or_else(|_| self.domain.clone())
    }

    fn authority(&self) -> Record {
        let hostmaster = self.domain.prepend_label("hostmaster").unwrap_or_else(|_| self.domain.clone());
        let ttl = i32::try_from(self.ttl).unwrap_or(i32::MAX);
        let soa = SOA::new(self.domain.clone(), hostmaster, self.serial, 60, 60, ttl.max(60), self.ttl);
        self.record(self.domain.clone(), RData::SOA(soa))
    }

    fn record(&self, name: Name, data: RData) -> Record {
        Record::from_rdata(name, self.ttl, data)
    }
}

/// The kinds of names in a zone.
enum NameKind {
    Domain,
    Service,
    Member(IpAddr),
    Unknown,
}

fn is_transport(label: &[u8]) -> bool {
    [b"_tcp", b"_udp"].contains(&&label.try_into().unwrap_or([0; 4]))
}

/// Returns the address that a label stands for.
fn address(label: &[u8]) -> Option<IpAddr> {
    let label = std::str::from_utf8(label).ok()?;
    let groups: Vec<&str> = label.split('-').collect();
    let ip: IpAddr = match groups.len() {
        4 => label.replace('-', ".").parse::<Ipv4Addr>().ok()?.into(),
        8 => label.replace('-', ":").parse::<Ipv6Addr>().ok()?.into(),
        _ => return None,
    };
    Some(ip)
}

/// Returns the error for a query whose type is not that of data. Transfers are refused to all. The other
/// numbers from 128 to 254, and OPT, cannot be queried (RFC 6895 section 3.1).
fn meta_type_error(kind: RecordType) -> Option<ResponseCode> {
    match u16::from(kind) {
        // IXFR and AXFR.
        251 | 252 => Some(ResponseCode::Refused),
        // MAILB and MAILA.
        253 | 254 => Some(ResponseCode::NotImp),
        // OPT; TKEY, TSIG and the unassigned types.
        41 | 128..=250 => Some(ResponseCode::FormErr),
        _ => None,
    }
}

fn record_type(ip: IpAddr) -> RecordType {
    if ip.is_ipv4() { RecordType::A } else { RecordType::AAAA }
}

fn address_data(ip: IpAddr) -> RData {
    match ip {
        IpAddr::V4(ip) => RData::A(A(ip)),
        IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
    }
}

/// Answers a message that cannot be parsed, if it has a message ID and is not itself an answer.
fn answer_unparsed(
    bytes: &[u8],
    transport: QueryTransport,
    query_client: &mut dyn QueryClient,
) -> Option<Vec<u8>> {
    let [a, b, flags, ..] = *bytes.get(..12)? else { return None };
    if flags & 0x80 == 0
        && transport == QueryTransport::Udp
        && query_client.take_permit() == AnswerPermit::None
    {
        return None;
    }
    let message = Message::error_msg(u16::from_be_bytes([a, b]), OpCode::Query, ResponseCode::FormErr);
    if flags & 0x80 == 0 { encode(&message, PLAIN_UDP_SIZE) } else { None }
}

/// Encodes a message in at most `most` bytes. Records that do not fit are left out and the answer is marked
/// as truncated: the client asks again over TCP.
fn encode(message: &Message, max_size: u16) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::from(PLAIN_UDP_SIZE));
    let fits = {
        let mut encoder = BinEncoder::new(&mut bytes);
        encoder.set_max_size(max_size);
        message.emit(&mut encoder).is_ok()
    };
    let truncated = bytes.get(2).is_some_and(|flags| flags & 0x02 != 0);
    if fits && !truncated {
        return Some(bytes);
    }
    if fits && !message.additionals.is_empty() {
        // The omitted records may all be optional ones.
        let mut without_additionals = message.clone();
        without_additionals.additionals.clear();
        return encode(&without_additionals, max_size);
    }
    // A truncated answer has the query and no partial data.
    message.truncate().to_vec().ok()
}

#[cfg(test)]
mod tests;
