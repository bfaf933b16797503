//! The addresses of a name (A, AAAA): each is a member at the configured port. The name is queried again when
//! its TTL expires, within bounds.
//!
//! Name servers rotate their responses; members are sorted by address, so the rotation changes nothing. If a
//! server returns a subset of the addresses each time, `stale_ttl` keeps the others.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::rr::{Name, RData, RecordType};

use super::resolver::{DnsReply, Resolver, ResolverSettings};
use super::{DiscoveredMember, MemberList, MemberSource, QueryFuture, QueryOutcome, SourceConfig};

/// The families of addresses to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFamily {
    /// All.
    Any,
    /// IPv4 addresses only.
    V4,
    /// IPv6 addresses only.
    V6,
}

/// The addresses of a name.
#[derive(Clone, Debug, PartialEq)]
pub struct DnsSettings {
    /// The name.
    pub host: String,
    /// The port of each member; not 0.
    pub port: u16,
    /// The addresses to use.
    pub family: AddressFamily,
    /// The name servers.
    pub resolver: ResolverSettings,
    /// The minimum time until the next query.
    pub min: Duration,
    /// The maximum time until the next query.
    pub max: Duration,
}

impl SourceConfig for DnsSettings {
    fn kind(&self) -> &'static str {
        "dns"
    }

    fn target(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    fn query_timeout(&self) -> Duration {
        self.resolver.timeout
    }

    fn retry_delay(&self, failures: u32) -> Duration {
        retry_backoff(self.min, self.max, failures)
    }

    fn open(&self) -> Box<dyn MemberSource> {
        Box::new(DnsSource { settings: Arc::new(self.clone()), known_addresses: KnownAddresses::default() })
    }
}

struct DnsSource {
    settings: Arc<DnsSettings>,
    /// The last known addresses.
    known_addresses: KnownAddresses,
}

impl MemberSource for DnsSource {
    fn query(&mut self) -> QueryFuture<'_> {
        Box::pin(async move {
            let settings = &self.settings;
            let name = parse_name(&settings.host)?;
            let resolver = Resolver::new(&settings.resolver, 1).await;
            let lookup =
                look_up_addresses(&resolver, &name, settings.family, &mut self.known_addresses).await?;
            let to_member = |ip| {
                let address = SocketAddr::new(ip, settings.port);
                DiscoveredMember {
                    name: address.to_string().into(),
                    address,
                    capacity: 1.0,
                    limit: None,
                    leaving: false,
                }
            };
            let valid_for = lookup.valid_for(settings.min, settings.max);
            let members = lookup.addresses.into_iter().map(to_member).collect();
            Ok(QueryOutcome {
                list: MemberList { members: Some(members), note: Some(lookup.note) },
                valid_for,
            })
        })
    }
}

/// The last known addresses of a name in each family: IPv4, IPv6.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownAddresses([Vec<IpAddr>; 2]);

/// The result of a query for addresses.
pub(super) struct AddressLookup {
    /// The addresses, sorted and unique.
    pub(super) addresses: Vec<IpAddr>,
    /// The TTL in seconds.
    pub(super) ttl: u32,
    /// The reason if there are no addresses.
    pub(super) note: &'static str,
    /// Whether one family could not be queried: the next query follows soon.
    is_partial: bool,
}

impl AddressLookup {
    /// Returns the time until the next query, within bounds.
    pub(super) fn valid_for(&self, min: Duration, max: Duration) -> Duration {
        if self.is_partial {
            retry_backoff(min, max, 4)
        } else {
            ttl_duration(self.ttl).clamp(min, max.max(min))
        }
    }
}

/// Queries both families at once. If one fails (servers that fail on AAAA: RFC 4074), the other one counts,
/// beside the failed family's addresses in `known`. No member is lost that way.
///
/// # Errors
/// Both families fail, or one fails and the other has no address.
pub(super) async fn look_up_addresses(
    resolver: &Resolver,
    name: &Name,
    family: AddressFamily,
    known_addresses: &mut KnownAddresses,
) -> Result<AddressLookup, String> {
    let ipv4 = async {
        if family == AddressFamily::V6 {
            Ok(None)
        } else {
            resolver.query(name, RecordType::A).await.map(Some)
        }
    };
    let ipv6 = async {
        if family == AddressFamily::V4 {
            Ok(None)
        } else {
            resolver.query(name, RecordType::AAAA).await.map(Some)
        }
    };
    let (ipv4, ipv6) = tokio::join!(ipv4, ipv6);
    merge_families([ipv4, ipv6], known_addresses)
}

pub(super) fn merge_families(
    results: [Result<Option<DnsReply>, String>; 2],
    known_addresses: &mut KnownAddresses,
) -> Result<AddressLookup, String> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    let (mut replies, mut last_error) = (Vec::new(), None);
    for (result, family_addresses) in results.into_iter().zip(&mut known_addresses.0) {
        match result {
            Ok(reply) => {
                *family_addresses =
                    reply.iter().flat_map(|reply| &reply.data).filter_map(record_address).collect();
                replies.extend(reply);
            }
            Err(error) => last_error = last_error.or(Some(error)),
        }
        addresses.extend(family_addresses.iter());
    }
    // A missing name concerns both families.
    let name_missing = replies.iter().any(|reply| reply.name_missing);
    match last_error {
        Some(error) if !name_missing && (replies.is_empty() || addresses.is_empty()) => Err(error),
        last_error => Ok(lookup_result(addresses, &replies, last_error.is_some() && !name_missing)),
    }
}

fn lookup_result(mut addresses: Vec<IpAddr>, replies: &[DnsReply], is_partial: bool) -> AddressLookup {
    addresses.sort_unstable();
    addresses.dedup();
    let note = match replies.iter().any(|reply| reply.name_missing) {
        true => "there is no such name (NXDOMAIN)",
        false => "the name has no address",
    };
    // Only families with addresses count: the negative TTL of an empty one may be long.
    let relevant_replies = replies.iter().filter(|reply| addresses.is_empty() || !reply.data.is_empty());
    let ttl = relevant_replies.map(|reply| reply.ttl).min().unwrap_or(0);
    AddressLookup { addresses, ttl, note, is_partial }
}

/// Returns the address in a record, unless it is unspecified or multicast (DNS filters return such
/// addresses).
pub(super) fn record_address(data: &RData) -> Option<IpAddr> {
    let ip: IpAddr = match data {
        RData::A(a) => a.0.into(),
        RData::AAAA(aaaa) => aaaa.0.into(),
        _ => return None,
    };
    (!ip.is_unspecified() && !ip.is_multicast()).then_some(ip)
}

/// Parses a name as fully qualified.
pub(super) fn parse_name(text: &str) -> Result<Name, String> {
    let mut name = Name::from_ascii(text).map_err(|error| format!("`{text}` is no name: {error}"))?;
    name.set_fqdn(true);
    Ok(name)
}

pub(super) fn ttl_duration(ttl: u32) -> Duration {
    Duration::from_secs(u64::from(ttl))
}

/// Returns the delay after failures: it doubles with each one, up to 30 s, so that a recovery is noticed.
pub(super) fn retry_backoff(min: Duration, max: Duration, failures: u32) -> Duration {
    const MAX_BACKOFF: Duration = Duration::from_secs(30);
    let doubled = min.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(max.min(MAX_BACKOFF)).max(min)
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::rdata::{A, AAAA};

    use super::*;

    fn reply(data: Vec<RData>, ttl: u32, name_missing: bool) -> Option<DnsReply> {
        Some(DnsReply { data, ttl, name_missing, additional: Vec::new() })
    }

    #[test]
    fn both_families_are_one_list() {
        let ipv4_records = vec![RData::A(A([10, 0, 0, 2].into())), RData::A(A([10, 0, 0, 1].into()))];
        let ipv6_records = vec![RData::AAAA(AAAA("fd00::1".parse().unwrap()))];
        let lookup = both(reply(ipv4_records.clone(), 9, false), reply(ipv6_records, 7, false));
        let shown: Vec<String> = lookup.addresses.iter().map(ToString::to_string).collect();
        assert_eq!((shown.join(" "), lookup.ttl), ("10.0.0.1 10.0.0.2 fd00::1".into(), 7));
        // The TTL of a missing AAAA does not apply to the A records.
        let partial = both(reply(ipv4_records, 9, false), reply(Vec::new(), 1, false));
        assert_eq!((partial.addresses.len(), partial.ttl), (2, 9));
        let empty = both(reply(Vec::new(), 30, true), reply(Vec::new(), 20, true));
        assert_eq!(
            (empty.addresses.len(), empty.ttl, empty.note),
            (0, 20, "there is no such name (NXDOMAIN)")
        );
        assert_eq!(both(reply(Vec::new(), 3, false), None).note, "the name has no address");
    }

    fn both(ipv4_reply: Option<DnsReply>, ipv6_reply: Option<DnsReply>) -> AddressLookup {
        merge_families([Ok(ipv4_reply), Ok(ipv6_reply)], &mut KnownAddresses::default()).unwrap()
    }

    #[test]
    fn a_family_that_fails_costs_no_member_of_the_other() {
        let a = |last_octet: u8| reply(vec![RData::A(A([10, 0, 0, last_octet].into()))], 60, false);
        let aaaa = || reply(vec![RData::AAAA(AAAA("fd00::1".parse().unwrap()))], 60, false);
        let failure = || Err("it failed (SERVFAIL)".to_owned());
        let shown = |lookup: &AddressLookup| -> Vec<String> {
            lookup.addresses.iter().map(ToString::to_string).collect()
        };
        let (min, max) = (Duration::from_secs(1), Duration::from_secs(300));
        // The first response counts, and the next query comes before the other family's TTL expires.
        let mut known_addresses = KnownAddresses::default();
        let lookup = merge_families([Ok(a(1)), failure()], &mut known_addresses).unwrap();
        assert_eq!(shown(&lookup), ["10.0.0.1"]);
        assert!(lookup.valid_for(min, max) < Duration::from_secs(60));
        // The failed family's addresses stay.
        merge_families([Ok(a(1)), Ok(aaaa())], &mut known_addresses).unwrap();
        let lookup = merge_families([Ok(a(2)), failure()], &mut known_addresses).unwrap();
        assert_eq!(shown(&lookup), ["10.0.0.2", "fd00::1"]);
        let lookup = merge_families([failure(), Ok(aaaa())], &mut known_addresses).unwrap();
        assert_eq!(shown(&lookup), ["10.0.0.2", "fd00::1"]);
        // The query fails if both families fail, or if one is empty and the other fails.
        assert!(merge_families([failure(), failure()], &mut known_addresses).is_err());
        assert!(
            merge_families([Ok(reply(Vec::new(), 5, false)), failure()], &mut KnownAddresses::default())
                .is_err()
        );
        // A missing name has no address of the other family either.
        assert!(
            merge_families([Ok(reply(Vec::new(), 5, true)), failure()], &mut KnownAddresses::default())
                .is_ok()
        );
    }

    #[test]
    fn addresses_that_are_nobodys_are_none() {
        for invalid_address in [[0, 0, 0, 0], [224, 0, 0, 1]] {
            assert_eq!(record_address(&RData::A(A(invalid_address.into()))), None);
        }
        assert_eq!(record_address(&RData::AAAA(AAAA("::".parse().unwrap()))), None);
        assert!(record_address(&RData::A(A([127, 0, 0, 1].into()))).is_some());
    }

    #[test]
    fn failures_are_asked_about_ever_later() {
        let (min, max) = (Duration::from_secs(1), Duration::from_secs(300));
        let delays: Vec<u64> = (1..=7).map(|failures| retry_backoff(min, max, failures).as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(retry_backoff(min, max, u32::MAX).as_secs(), 30);
        assert_eq!(retry_backoff(Duration::from_secs(60), max, 3).as_secs(), 60);
        assert_eq!(retry_backoff(min, Duration::from_secs(3), 9).as_secs(), 3);
    }
}
