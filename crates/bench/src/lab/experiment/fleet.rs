//! `[members]`, or several `[[members]]`: the servers under test, all alike or in groups.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{ByteSize, value};
use crate::member::{Antagonist, ServiceTime};

/// All servers, in groups of equal ones; never empty. They are numbered through the groups in order.
#[derive(Clone, Debug)]
pub struct MemberFleet(Vec<MemberGroup>);

/// Servers that are alike: `plimsoll member`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberGroup {
    /// The number, where `endpoints` is no factor.
    #[serde(default = "super::one")]
    pub count: usize,
    /// The time for which a worker holds a request.
    #[serde(default, deserialize_with = "value::service")]
    pub service: Option<ServiceTime>,
    /// The same for a dynamic page: a path with a query, `cgi-bin` or the name of a script.
    #[serde(default, deserialize_with = "value::service")]
    pub dynamic: Option<ServiceTime>,
    /// The requests served at a time by each.
    #[serde(default = "super::four")]
    pub workers: usize,
    /// The number of emulated processors, which all requests of a member share in place of the workers. The
    /// service time is work for one of them.
    #[serde(default)]
    pub cores: Option<f64>,
    /// Their speed; 1 by default.
    #[serde(default)]
    pub speed: Option<f64>,
    /// The antagonist that takes a part of their speed from time to time.
    #[serde(default, deserialize_with = "value::antagonist")]
    pub antagonist: Option<Antagonist>,
    /// Whether to go on with the work for clients that have gone.
    #[serde(default)]
    pub ignore_cancel: bool,
    /// Whether each answer carries a load report and requests above the concurrency limit are refused. All
    /// members do so if the balancer's level contains `+agents`.
    #[serde(default)]
    pub meter: bool,
    /// Whether each member has `plimsoll agent` as a side-car, which relays its requests and reports to the
    /// balancer (plimsoll only). Over iiop all members have one if the balancer's level contains `+agents`.
    #[serde(default)]
    pub side_car: bool,
    /// The maximum number of requests that wait at each, or share its cores; excess ones get 503.
    #[serde(default = "super::thousand")]
    pub queue: usize,
    /// Whether to burn the processor for the service time instead of waiting for a timer.
    #[serde(default)]
    pub burn: bool,
    /// The number of swaps of two integers of the request's body: real work instead of a service time.
    #[serde(default)]
    pub swaps: Option<u32>,
    /// The cost of a session, which is measured at a real server before the run, relative to the swaps that
    /// the service time stands for.
    #[serde(default)]
    pub session: Option<SessionCost>,
    /// The length of an answer.
    #[serde(default)]
    pub body: Option<ByteSize>,
}

/// The real work that an emulated service time stands for.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionCost {
    /// The integers in a request.
    pub integers: usize,
    /// The swaps of two of them.
    pub swaps: u32,
}

impl MemberGroup {
    /// Returns the mean requests per second of one server; `None` if only a measurement can tell.
    fn capacity(&self) -> Option<f64> {
        if self.dynamic.is_some() {
            // The load determines the share of those requests.
            return None;
        }
        let mean = self.service?.mean().as_secs_f64();
        let remaining_share = self.antagonist.map_or(1.0, |antagonist| antagonist.mean());
        let capacity = self.cores? * self.speed.unwrap_or(1.0) * remaining_share / mean;
        // An infinite mean is represented by the maximum duration.
        (capacity.is_finite() && capacity > 1e-9).then_some(capacity)
    }
}

impl MemberFleet {
    /// Returns the groups.
    pub fn groups(&self) -> &[MemberGroup] {
        &self.0
    }

    /// Returns the first group, the only one unless the groups differ.
    pub fn first(&self) -> &MemberGroup {
        &self.0[0]
    }

    /// Returns the number of servers, where `endpoints` is no factor.
    pub fn count(&self) -> usize {
        self.0.iter().map(|group| group.count).fold(0, usize::saturating_add)
    }

    /// Returns the group of server `number`, from 1 on; beyond the last server, the last group.
    pub fn group_of(&self, number: usize) -> &MemberGroup {
        let mut last_number = 0;
        for group in &self.0 {
            last_number += group.count;
            if number <= last_number {
                return group;
            }
        }
        &self.0[self.0.len() - 1]
    }

    /// Returns the requests per second of the first `members` servers together; `None` if only a measurement
    /// can tell.
    pub fn capacity(&self, members: usize) -> Option<f64> {
        (1..=members).map(|number| self.group_of(number).capacity()).sum()
    }

    /// Returns a description for reports.
    pub fn description(&self) -> String {
        let first = self.first();
        if let (Some(swaps), workers) = (first.swaps, first.workers) {
            return format!("real servers, {workers} worker threads each, {swaps} swaps of integers");
        }
        if first.cores.is_some() {
            let groups: Vec<String> = self.0.iter().map(describe_group).collect();
            return format!("emulated servers whose requests share their cores: {}", groups.join(", "));
        }
        let workers = first.workers;
        if first.burn {
            return format!("servers that burn the processor, {workers} workers each");
        }
        format!("emulated servers (a timer holds each of {workers} workers, no processor)")
    }
}

/// Describes a group: `8 of 2 cores`, `4 of 2 cores at speed 1.5`.
fn describe_group(group: &MemberGroup) -> String {
    let cores = group.cores.unwrap_or(1.0);
    let speed = group.speed.map_or_else(String::new, |speed| format!(" at speed {speed}"));
    format!("{} of {cores} {}{speed}", group.count, if cores == 1.0 { "core" } else { "cores" })
}

impl<'de> Deserialize<'de> for MemberFleet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrMore)
    }
}

/// A visitor in place of an untagged enum, which would lose the places of errors.
struct OneOrMore;

impl<'de> Visitor<'de> for OneOrMore {
    type Value = MemberFleet;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table [members], or several [[members]]")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<MemberFleet, A::Error> {
        MemberGroup::deserialize(MapAccessDeserializer::new(map)).map(|members| MemberFleet(vec![members]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<MemberFleet, A::Error> {
        let mut groups = Vec::new();
        while let Some(group) = list.next_element()? {
            groups.push(group);
        }
        if groups.is_empty() {
            Err(serde::de::Error::invalid_length(0, &self))
        } else {
            Ok(MemberFleet(groups))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::lab::experiment::Experiment;
    use crate::lab::fixture::TEXT;

    const GROUPS: &str = "
[[members]]
count = 2
cores = 4
service = \"const:10ms\"

[[members]]
cores = 8
speed = 1.5
service = \"lognormal:10ms:1.2\"
antagonist = \"on:1s,off:3s,low:0.4,high:0.6\"
ignore_cancel = true
";

    /// Parses the fixture with other members and without `endpoints`.
    fn parse_with(members: &str) -> Result<Experiment, Vec<(String, String)>> {
        let text = TEXT.replace("[members]\nservice = \"const:1ms\"\n", members);
        let text = text.replace("[[factor]]\nvary = \"endpoints\"\nfull = [0, 2]\nquick = [1]\n", "");
        let span_text = |error: &crate::lab::experiment::ExperimentError| text[error.span.clone()].to_owned();
        Experiment::parse(&text)
            .map_err(|errors| errors.iter().map(|error| (span_text(error), error.message.clone())).collect())
    }

    #[test]
    fn groups_have_numbers_and_a_capacity() {
        let experiment = parse_with(GROUPS).unwrap();
        let fleet = &experiment.members;
        assert_eq!(
            (fleet.count(), fleet.group_of(2).cores, fleet.group_of(3).cores),
            (3, Some(4.0), Some(8.0))
        );
        // Two of 400 requests/s and one of 1200, of which its antagonist takes an eighth.
        assert!((fleet.capacity(3).unwrap() - 1850.0).abs() < 1e-6);
        assert!((fleet.capacity(1).unwrap() - 400.0).abs() < 1e-6);
        let description = fleet.description();
        assert!(description.ends_with("2 of 4 cores, 1 of 8 cores at speed 1.5"), "{description}");
        assert_eq!(parse_with("[members]\nservice = \"const:1ms\"\n").unwrap().members.capacity(1), None);
        let unbounded = parse_with("[members]\ncores = 1\nservice = \"pareto:0.5:1ms\"\n").unwrap();
        assert_eq!(unbounded.members.capacity(1), None);
    }

    #[test]
    fn mistakes_in_groups_are_pointed_at() {
        let errors_after = |original: &str, replacement: &str| {
            parse_with(&GROUPS.replacen(original, replacement, 1)).unwrap_err()
        };
        assert_eq!(errors_after("speed", "sped")[0].0, "sped");
        assert!(errors_after("on:1s", "on:1")[0].1.contains("not a duration"));
        let cases = [
            ("cores = 8", "cores = 0", "cores"),
            ("speed = 1.5", "speed = -1", "speed"),
            ("cores = 8\n", "", "need `cores`"),
            ("cores = 8", "cores = 8\nburn = true", "`burn`"),
            ("count = 2", "count = 64", "members"),
            ("service = \"const:10ms\"\n", "", "either `service` or `swaps`"),
        ];
        for (original, replacement, expected_message) in cases {
            let errors = errors_after(original, replacement);
            assert!(
                errors.iter().any(|(_, message)| message.contains(expected_message)),
                "{replacement}: {errors:?}"
            );
        }
        let text = TEXT.replace("[members]\nservice = \"const:1ms\"\n", GROUPS);
        let errors = Experiment::parse(&text).unwrap_err();
        assert!(errors.iter().any(|error| error.message.contains("groups")), "{errors:?}");
        assert!(parse_with("members = []\n").is_err());
    }
}
