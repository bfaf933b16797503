//! The addresses of a name (A, AAAA): each is a member, at the port that the configuration names. It is asked again when the answer
//! is no longer good by its own account, within bounds.
//!
//! Servers turn the order of their answers; members are in the order of their addresses, so that nothing changes by that. Where a
//! server tells a part of the addresses each time, `hold` is for those that it leaves out.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::rr::{Name, RData, RecordType};

use super::resolver::{Reply, Resolver, ResolverSettings};
use super::{Answer, Asking, Listed, Source, Told, Way};

/// Which addresses count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// All.
    Any,
    /// Those of IPv4.
    V4,
    /// Those of IPv6.
    V6,
}

/// The addresses of a name.
#[derive(Clone, Debug, PartialEq)]
pub struct DnsSettings {
    /// The name.
    pub host: String,
    /// Of each member. Not 0.
    pub port: u16,
    /// Which addresses count.
    pub family: Family,
    /// Whom to ask.
    pub resolver: ResolverSettings,
    /// An answer is good for at least that.
    pub min: Duration,
    /// And at most that.
    pub max: Duration,
}

impl Way for DnsSettings {
    fn kind(&self) -> &'static str {
        "dns"
    }

    fn what(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    fn patience(&self) -> Duration {
        self.resolver.timeout
    }

    fn again(&self, failures: u32) -> Duration {
        back_off(self.min, self.max, failures)
    }

    fn open(&self) -> Box<dyn Source> {
        Box::new(Named(Arc::new(self.clone())))
    }
}

struct Named(Arc<DnsSettings>);

impl Source for Named {
    fn ask(&mut self) -> Asking<'_> {
        Box::pin(async move {
            let settings = &self.0;
            let name = name(&settings.host)?;
            let resolver = Resolver::new(&settings.resolver, 1).await;
            let found = addresses(&resolver, &name, settings.family).await?;
            let listed = |ip| {
                let address = SocketAddr::new(ip, settings.port);
                Listed {
                    name: address.to_string().into(),
                    address,
                    capacity: 1.0,
                    limit: None,
                    leaving: false,
                }
            };
            let members = found.addresses.into_iter().map(listed).collect();
            Ok(Answer {
                told: Told { members: Some(members), note: Some(found.note) },
                good_for: seconds(found.ttl).clamp(settings.min, settings.max.max(settings.min)),
            })
        })
    }
}

/// What addresses a name has.
pub(super) struct Found {
    /// In order, each once.
    pub(super) addresses: Vec<IpAddr>,
    /// Seconds.
    pub(super) ttl: u32,
    /// Why there is none, if there is none.
    pub(super) note: &'static str,
}

/// Asks for both families at once. One that cannot be had makes the whole one that cannot be: its members would be lost.
pub(super) async fn addresses(resolver: &Resolver, name: &Name, family: Family) -> Result<Found, String> {
    let four = async {
        if family == Family::V6 { Ok(None) } else { resolver.ask(name, RecordType::A).await.map(Some) }
    };
    let six = async {
        if family == Family::V4 { Ok(None) } else { resolver.ask(name, RecordType::AAAA).await.map(Some) }
    };
    let (four, six) = tokio::join!(four, six);
    Ok(found(&[four?, six?]))
}

fn found(replies: &[Option<Reply>; 2]) -> Found {
    let mut addresses: Vec<IpAddr> =
        replies.iter().flatten().flat_map(|reply| &reply.data).filter_map(ip).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let note = match replies.iter().flatten().any(|reply| reply.no_name) {
        true => "there is no such name (NXDOMAIN)",
        false => "the name has no address",
    };
    // Of what is there: an answer that there is nothing of one family says how long that is true, which may be long.
    let told = replies.iter().flatten().filter(|reply| addresses.is_empty() || !reply.data.is_empty());
    let ttl = told.map(|reply| reply.ttl).min().unwrap_or(0);
    Found { addresses, ttl, note }
}

/// The address in a record, unless it stands for none (as filters of names have it).
pub(super) fn ip(data: &RData) -> Option<IpAddr> {
    let ip: IpAddr = match data {
        RData::A(a) => a.0.into(),
        RData::AAAA(aaaa) => aaaa.0.into(),
        _ => return None,
    };
    (!ip.is_unspecified() && !ip.is_multicast()).then_some(ip)
}

/// A name as it is asked for.
pub(super) fn name(text: &str) -> Result<Name, String> {
    let mut name = Name::from_ascii(text).map_err(|error| format!("`{text}` is no name: {error}"))?;
    name.set_fqdn(true);
    Ok(name)
}

pub(super) fn seconds(ttl: u32) -> Duration {
    Duration::from_secs(u64::from(ttl))
}

/// Twice as long after each failure, but not so long that nobody notices that it is over.
pub(super) fn back_off(min: Duration, max: Duration, failures: u32) -> Duration {
    const LONGEST: Duration = Duration::from_secs(30);
    let doubled = min.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(max.min(LONGEST)).max(min)
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::rdata::{A, AAAA};

    use super::*;

    fn reply(data: Vec<RData>, ttl: u32, no_name: bool) -> Option<Reply> {
        Some(Reply { data, ttl, no_name, beside: Vec::new() })
    }

    #[test]
    fn both_families_are_one_list() {
        let four = vec![RData::A(A([10, 0, 0, 2].into())), RData::A(A([10, 0, 0, 1].into()))];
        let six = vec![RData::AAAA(AAAA("fd00::1".parse().unwrap()))];
        let all = found(&[reply(four.clone(), 9, false), reply(six, 7, false)]);
        let shown: Vec<String> = all.addresses.iter().map(ToString::to_string).collect();
        assert_eq!((shown.join(" "), all.ttl), ("10.0.0.1 10.0.0.2 fd00::1".into(), 7));
        // That there is no AAAA does not say how long the A are good.
        let some = found(&[reply(four, 9, false), reply(Vec::new(), 1, false)]);
        assert_eq!((some.addresses.len(), some.ttl), (2, 9));
        let none = found(&[reply(Vec::new(), 30, true), reply(Vec::new(), 20, true)]);
        assert_eq!((none.addresses.len(), none.ttl, none.note), (0, 20, "there is no such name (NXDOMAIN)"));
        assert_eq!(found(&[reply(Vec::new(), 3, false), None]).note, "the name has no address");
    }

    #[test]
    fn addresses_that_are_nobodys_are_none() {
        for bad in [[0, 0, 0, 0], [224, 0, 0, 1]] {
            assert_eq!(ip(&RData::A(A(bad.into()))), None);
        }
        assert_eq!(ip(&RData::AAAA(AAAA("::".parse().unwrap()))), None);
        assert!(ip(&RData::A(A([127, 0, 0, 1].into()))).is_some());
    }

    #[test]
    fn failures_are_asked_about_ever_later() {
        let (min, max) = (Duration::from_secs(1), Duration::from_secs(300));
        let waits: Vec<u64> = (1..=7).map(|failures| back_off(min, max, failures).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(back_off(min, max, u32::MAX).as_secs(), 30);
        assert_eq!(back_off(Duration::from_secs(60), max, 3).as_secs(), 60);
        assert_eq!(back_off(min, Duration::from_secs(3), 9).as_secs(), 3);
    }
}
