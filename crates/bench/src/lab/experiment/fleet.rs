//! `[members]`, or several `[[members]]`: the servers under test, all alike or in groups.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Bytes, value};
use crate::member::{Antagonist, Service};

/// All servers, in groups of equal ones; never empty. Their numbers go through the groups in order.
#[derive(Clone, Debug)]
pub struct Fleet(Vec<Members>);

/// Servers that are alike: `plimsoll member`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Members {
    /// How many, where `endpoints` is no factor.
    #[serde(default = "super::one")]
    pub count: usize,
    /// How long a worker holds a request.
    #[serde(default, deserialize_with = "value::service")]
    pub service: Option<Service>,
    /// How long it holds one for what a script makes: a path with a query, `cgi-bin` or the name of a script.
    #[serde(default, deserialize_with = "value::service")]
    pub dynamic: Option<Service>,
    /// Requests served at a time by each.
    #[serde(default = "super::four")]
    pub workers: usize,
    /// Emulated processors, which all requests of a member share; they take the place of the workers, and the service
    /// time is work for one of them.
    #[serde(default)]
    pub cores: Option<f64>,
    /// How fast these are; 1 if nothing is said.
    #[serde(default)]
    pub speed: Option<f64>,
    /// Takes a part of their speed now and then.
    #[serde(default, deserialize_with = "value::antagonist")]
    pub antagonist: Option<Antagonist>,
    /// Go on with the work for clients that have gone.
    #[serde(default)]
    pub ignore_cancel: bool,
    /// Say with each answer how loaded they are, and refuse what they have no room for; so do all where the balancer's
    /// level says `+agents`.
    #[serde(default)]
    pub meter: bool,
    /// Each has `plimsoll agent` beside it as a side-car, through which its requests go and which reports to the balancer
    /// (plimsoll only); so have all over iiop where the balancer's level says `+agents`.
    #[serde(default)]
    pub side_car: bool,
    /// Requests that may wait at each, or share its cores; more get 503.
    #[serde(default = "super::thousand")]
    pub queue: usize,
    /// Burn the processor for the service time instead of waiting for a timer.
    #[serde(default)]
    pub burn: bool,
    /// Real work instead of a service time: swaps of two integers of the request's body.
    #[serde(default)]
    pub swaps: Option<u32>,
    /// Charge for a session what it costs a real server, measured before the run, relative to the swaps that
    /// the service time stands for.
    #[serde(default)]
    pub session: Option<Session>,
    /// Length of an answer.
    #[serde(default)]
    pub body: Option<Bytes>,
}

/// The real work that an emulated service time stands for.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// Integers in a request.
    pub integers: usize,
    /// Swaps of two of them.
    pub swaps: u32,
}

impl Members {
    /// Requests per second that one of them can serve, on average; `None` if that is not known without measuring.
    fn capacity(&self) -> Option<f64> {
        if self.dynamic.is_some() {
            // What part of the requests that is, the load decides.
            return None;
        }
        let mean = self.service?.mean().as_secs_f64();
        let left = self.antagonist.map_or(1.0, |antagonist| antagonist.mean());
        let capacity = self.cores? * self.speed.unwrap_or(1.0) * left / mean;
        // A mean without bound comes as the longest time there is.
        (capacity.is_finite() && capacity > 1e-9).then_some(capacity)
    }
}

impl Fleet {
    /// The groups.
    pub fn groups(&self) -> &[Members] {
        &self.0
    }

    /// The first group, which is all there is unless the groups differ.
    pub fn first(&self) -> &Members {
        &self.0[0]
    }

    /// How many servers there are, where `endpoints` is no factor.
    pub fn count(&self) -> usize {
        self.0.iter().map(|group| group.count).fold(0, usize::saturating_add)
    }

    /// What server number `number` is like, from 1 on; beyond the last, as the last.
    pub fn of(&self, number: usize) -> &Members {
        let mut before = 0;
        for group in &self.0 {
            before += group.count;
            if number <= before {
                return group;
            }
        }
        &self.0[self.0.len() - 1]
    }

    /// Requests per second that the first so many servers can serve together; `None` if that is not known without
    /// measuring.
    pub fn capacity(&self, members: usize) -> Option<f64> {
        (1..=members).map(|number| self.of(number).capacity()).sum()
    }

    /// What they are, for reports.
    pub fn about(&self) -> String {
        let first = self.first();
        if let (Some(swaps), workers) = (first.swaps, first.workers) {
            return format!("real servers, {workers} worker threads each, {swaps} swaps of integers");
        }
        if first.cores.is_some() {
            let groups: Vec<String> = self.0.iter().map(shape).collect();
            return format!("emulated servers whose requests share their cores: {}", groups.join(", "));
        }
        let workers = first.workers;
        if first.burn {
            return format!("servers that burn the processor, {workers} workers each");
        }
        format!("emulated servers (a timer holds each of {workers} workers, no processor)")
    }
}

/// `8 of 2 cores`, `4 of 2 cores at speed 1.5`.
fn shape(group: &Members) -> String {
    let cores = group.cores.unwrap_or(1.0);
    let speed = group.speed.map_or_else(String::new, |speed| format!(" at speed {speed}"));
    format!("{} of {cores} {}{speed}", group.count, if cores == 1.0 { "core" } else { "cores" })
}

impl<'de> Deserialize<'de> for Fleet {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(OneOrMore)
    }
}

/// Not an untagged enum, which would lose the places of mistakes.
struct OneOrMore;

impl<'de> Visitor<'de> for OneOrMore {
    type Value = Fleet;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table [members], or several [[members]]")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Fleet, A::Error> {
        Members::deserialize(MapAccessDeserializer::new(map)).map(|members| Fleet(vec![members]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Fleet, A::Error> {
        let mut groups = Vec::new();
        while let Some(group) = list.next_element()? {
            groups.push(group);
        }
        if groups.is_empty() { Err(serde::de::Error::invalid_length(0, &self)) } else { Ok(Fleet(groups)) }
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

    /// The fixture with other members and without `endpoints`.
    fn with(members: &str) -> Result<Experiment, Vec<(String, String)>> {
        let text = TEXT.replace("[members]\nservice = \"const:1ms\"\n", members);
        let text = text.replace("[[factor]]\nvary = \"endpoints\"\nfull = [0, 2]\nquick = [1]\n", "");
        let place = |wrong: &crate::lab::experiment::Wrong| text[wrong.at.clone()].to_owned();
        Experiment::parse(&text)
            .map_err(|wrong| wrong.iter().map(|wrong| (place(wrong), wrong.message.clone())).collect())
    }

    #[test]
    fn groups_have_numbers_and_a_capacity() {
        let experiment = with(GROUPS).unwrap();
        let fleet = &experiment.members;
        assert_eq!((fleet.count(), fleet.of(2).cores, fleet.of(3).cores), (3, Some(4.0), Some(8.0)));
        // Two of 400 requests/s and one of 1200, of which its neighbour takes an eighth.
        assert!((fleet.capacity(3).unwrap() - 1850.0).abs() < 1e-6);
        assert!((fleet.capacity(1).unwrap() - 400.0).abs() < 1e-6);
        let about = fleet.about();
        assert!(about.ends_with("2 of 4 cores, 1 of 8 cores at speed 1.5"), "{about}");
        assert_eq!(with("[members]\nservice = \"const:1ms\"\n").unwrap().members.capacity(1), None);
        let endless = with("[members]\ncores = 1\nservice = \"pareto:0.5:1ms\"\n").unwrap();
        assert_eq!(endless.members.capacity(1), None);
    }

    #[test]
    fn mistakes_in_groups_are_pointed_at() {
        let said = |from: &str, to: &str| with(&GROUPS.replacen(from, to, 1)).unwrap_err();
        assert_eq!(said("speed", "sped")[0].0, "sped");
        assert!(said("on:1s", "on:1")[0].1.contains("not a duration"));
        let cases = [
            ("cores = 8", "cores = 0", "cores"),
            ("speed = 1.5", "speed = -1", "speed"),
            ("cores = 8\n", "", "need `cores`"),
            ("cores = 8", "cores = 8\nburn = true", "`burn`"),
            ("count = 2", "count = 64", "members"),
            ("service = \"const:10ms\"\n", "", "either `service` or `swaps`"),
        ];
        for (from, to, why) in cases {
            let wrong = said(from, to);
            assert!(wrong.iter().any(|(_, message)| message.contains(why)), "{to}: {wrong:?}");
        }
        let endpoints = TEXT.replace("[members]\nservice = \"const:1ms\"\n", GROUPS);
        let wrong = Experiment::parse(&endpoints).unwrap_err();
        assert!(wrong.iter().any(|wrong| wrong.message.contains("groups")), "{wrong:?}");
        assert!(with("members = []\n").is_err());
    }
}
