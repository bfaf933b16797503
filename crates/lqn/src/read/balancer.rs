//! A short TOML format for load balancing: clients, the balancer, groups and their members.
//!
//! It is converted to a layered queueing network. Clients become a reference task, or requests from outside.
//! The balancer becomes a task with unlimited threads and an entry for each group, which forwards by the
//! group's policy. A member becomes a task on a processor of its own with processor sharing.
//!
//! If a group has a timeout or retries, the balancer calls a task that only chooses the member, so that each
//! attempt chooses anew. If a group has `asks` (handle-driven balancing), its clients call that task
//! themselves. Then only the given number of requests go to the balancer, which forwards none.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use toml::Spanned;

use super::draft::{Activity, Call, Draft, Entry, Name, Processor, Task};
use super::limits;
use super::{At, Scope, Trouble, route};
use crate::model::{Copies, Order, Patience, Policy, Routing, Scheduling};

/// Returns `true` if a text begins like TOML and no other format: with a table, or with `name = …`.
pub(super) fn is_it(source: &str) -> bool {
    let mut lines = source.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let Some(line) = lines.next() else { return false };
    let word = |name: &str| {
        let name = name.trim();
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    line.starts_with('[') || line.split_once('=').is_some_and(|(name, _)| word(name))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    comment: Option<String>,
    balancer: Option<Balancer>,
    #[serde(default)]
    clients: Vec<Clients>,
    #[serde(default)]
    group: Vec<Group>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Balancer {
    workers: Option<Spanned<f64>>,
    demand: Option<Spanned<Time>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Clients {
    name: Spanned<String>,
    group: Spanned<String>,
    number: Option<Spanned<f64>>,
    think: Option<Spanned<Time>>,
    rate: Option<Spanned<f64>>,
    timeout: Option<Spanned<Time>>,
    retries: Option<Spanned<f64>>,
    backoff: Option<Spanned<Time>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: Spanned<String>,
    policy: Option<Spanned<String>>,
    age: Option<Spanned<Time>>,
    timeout: Option<Spanned<Time>>,
    retries: Option<Spanned<f64>>,
    backoff: Option<Spanned<Time>>,
    asks: Option<Spanned<f64>>,
    members: Option<Spanned<f64>>,
    #[serde(default)]
    member: Vec<Member>,
    demand: Option<Spanned<Time>>,
    variation: Option<Spanned<f64>>,
    cores: Option<Spanned<f64>>,
    threads: Option<Spanned<f64>>,
    queue: Option<Spanned<f64>>,
    speed: Option<Spanned<f64>>,
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Member {
    name: Option<Spanned<String>>,
    weight: Option<Spanned<f64>>,
    demand: Option<Spanned<Time>>,
    variation: Option<Spanned<f64>>,
    cores: Option<Spanned<f64>>,
    threads: Option<Spanned<f64>>,
    queue: Option<Spanned<f64>>,
    speed: Option<Spanned<f64>>,
    processor: Option<Spanned<String>>,
}

/// A time in seconds, written as a number, or as a string with a unit.
#[derive(Clone, Copy)]
struct Time(f64);

/// The units, as fractions of seconds: division by a million is exact where a millionth is not. A unit comes
/// before those that are its suffix.
const UNITS: [(&str, f64, f64); 7] = [
    ("ns", 1.0, 1e9),
    ("us", 1.0, 1e6),
    ("µs", 1.0, 1e6),
    ("ms", 1.0, 1e3),
    ("s", 1.0, 1.0),
    ("m", 60.0, 1.0),
    ("h", 3600.0, 1.0),
];

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Own;
        impl Visitor<'_> for Own {
            type Value = Time;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a time: a number of seconds, or a text such as \"250ms\"")
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Time, E> {
                if value >= 0.0 && value.is_finite() {
                    return Ok(Time(value));
                }
                Err(E::invalid_value(de::Unexpected::Float(value), &self))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Time, E> {
                self.visit_f64(value as f64)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
                let found = UNITS.iter().find_map(|(unit, seconds, over)| {
                    let number: f64 = text.trim().strip_suffix(unit)?.trim().parse().ok()?;
                    Some(number * seconds / over)
                });
                match found {
                    Some(seconds) => self.visit_f64(seconds),
                    None => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        from.deserialize_any(Own)
    }
}

/// Parses a file.
pub(super) fn draft(source: &str) -> Result<Draft, Trouble> {
    let places = Places(source);
    let file: File = toml::from_str(source).map_err(|error| {
        let at = places.at(error.span().map_or(0, |span| span.start));
        // The message may list alternatives on several lines.
        at.says(error.message().trim().replace('\n', "; "))
    })?;
    let mut maker = Maker { places, draft: Draft::default() };
    maker.file(&file)?;
    Ok(maker.draft)
}

struct Places<'s>(&'s str);

impl Places<'_> {
    fn at(&self, byte: usize) -> At {
        let before = self.0.get(..byte).unwrap_or_default();
        let line = before.rsplit('\n').next().unwrap_or_default();
        At { line: before.matches('\n').count() + 1, column: line.chars().count() + 1 }
    }

    fn of<T>(&self, own: &Spanned<T>) -> At {
        self.at(own.span().start)
    }
}

struct Maker<'s> {
    places: Places<'s>,
    draft: Draft,
}

impl Maker<'_> {
    fn file(&mut self, file: &File) -> Result<(), Trouble> {
        let start = At { line: 1, column: 1 };
        self.draft.comment = file.comment.clone().unwrap_or_default();
        if file.group.is_empty() {
            return Err(start.says("there is no group: `[[group]]` with a name and members"));
        }
        if file.clients.is_empty() {
            return Err(start.says(
                "nobody asks for anything: `[[clients]]` with a name, a group, and a number or a rate",
            ));
        }
        let own = file.balancer.as_ref();
        let workers = own.and_then(|own| own.workers.as_ref());
        // Without a table for the balancer, its own work is ignored.
        let workers = match (own, workers) {
            (None, _) => Copies::Infinite,
            (_, workers) => self.count(workers, "workers")?.unwrap_or(Copies::Some(1)),
        };
        let demand = own.and_then(|own| own.demand.as_ref()).map_or(0.0, |own| own.get_ref().0);
        let scheduling = Scheduling::Fcfs;
        let name = |text: &str| Name { text: text.to_owned(), at: start };
        self.processor(name("balancer_cpu"), scheduling, workers, 1.0);
        let mut balancer = task(name("balancer"), name("balancer_cpu"), Copies::Infinite);
        let mut chooser = task(name("chooser"), name("chooser_cpu"), Copies::Infinite);
        let mut rest = Vec::new();
        for group in &file.group {
            let group_name = self.word(&group.name)?;
            let targets = self.members(group, &group_name, &mut rest)?;
            let routing = self.routing(group)?;
            let patience =
                self.patience(group.timeout.as_ref(), group.retries.as_ref(), group.backoff.as_ref())?;
            let mut entry = work(group_name.clone(), demand, 1.0);
            balancer.entries.push(group_name.clone());
            let chosen = choice(&group_name);
            let router = match (patience, &group.asks) {
                (Some(_), Some(asks)) => {
                    return Err(self.places.of(asks).says(
                        "a balancer that only says whom to ask waits for no member: `timeout`, `retries` and \
                         `backoff` are those of the \
                         clients",
                    ));
                }
                (None, None) => {
                    entry.forwards.extend(targets);
                    group_name.clone()
                }
                (_, asks) => {
                    self.made(&chosen, format!("`{}`", group_name.text));
                    chooser.entries.push(chosen.clone());
                    let mut choosing = work(chosen.clone(), 0.0, 1.0);
                    choosing.forwards.extend(targets);
                    match asks {
                        Some(asks) => {
                            let asks = self.above(asks, "a number of asks")?;
                            choosing.phases[0].calls.push(Call::new(group_name.clone(), asks, true));
                        }
                        None => {
                            let call = Call { patience, ..Call::new(chosen.clone(), 1.0, true) };
                            entry.phases[0].calls.push(call);
                            entry.phases[0].order = Order::Deterministic;
                        }
                    }
                    rest.push(choosing);
                    chosen
                }
            };
            self.draft.routes.push((router, routing));
            self.draft.entries.push(entry);
        }
        self.draft.tasks.push(balancer);
        if !chooser.entries.is_empty() {
            self.processor(name("chooser_cpu"), scheduling, Copies::Infinite, 1.0);
            self.draft.tasks.push(chooser);
        }
        self.draft.entries.extend(rest);
        file.clients.iter().try_for_each(|clients| self.clients(clients, &file.group))
    }

    fn clients(&mut self, own: &Clients, groups: &[Group]) -> Result<(), Trouble> {
        let name = self.word(&own.name)?;
        let group = own.group.get_ref();
        let Some(asked) = groups.iter().find(|other| other.name.get_ref() == group) else {
            let known: Vec<&str> = groups.iter().map(|group| group.name.get_ref().as_str()).collect();
            let at = self.places.of(&own.group);
            return Err(at.says(format!("no group `{group}`; there are {}", known.join(", "))));
        };
        let users = Name { text: format!("{}_users", name.text), at: name.at };
        self.processor(users.clone(), Scheduling::Fcfs, Copies::Infinite, 1.0);
        let mut who = task(name.clone(), users, Copies::Infinite);
        let mut entry = work(name.clone(), 0.0, 1.0);
        who.entries.push(name.clone());
        match (&own.number, &own.rate) {
            (Some(number), None) => {
                who.client = true;
                who.copies = self.count(Some(number), "clients")?.unwrap_or(Copies::Some(1));
                who.think = own.think.as_ref().map_or(0.0, |think| think.get_ref().0);
            }
            (None, Some(rate)) => {
                entry.arrivals = self.above(rate, "a rate")?;
                if let Some(think) = &own.think {
                    return Err(self
                        .places
                        .of(think)
                        .says("who comes at a rate does not think: leave `think` out"));
                }
            }
            _ => {
                return Err(name.at.says(format!(
                    "`{}` has either a number (clients that think in between) or a rate (requests per \
                    second)",
                    name.text
                )));
            }
        }
        let patience = self.patience(own.timeout.as_ref(), own.retries.as_ref(), own.backoff.as_ref())?;
        let to = Name { text: group.clone(), at: self.places.of(&own.group) };
        let to = if asked.asks.is_some() { choice(&to) } else { to };
        entry.phases[0].calls.push(Call { patience, ..Call::new(to, 1.0, true) });
        // Exactly one request per cycle.
        entry.phases[0].order = Order::Deterministic;
        self.draft.tasks.push(who);
        self.draft.entries.push(entry);
        Ok(())
    }

    /// Adds the members with their processors; returns the targets of the balancer with their weights.
    fn members(
        &mut self,
        group: &Group,
        name: &Name,
        entries: &mut Vec<Entry>,
    ) -> Result<Vec<(Name, f64)>, Trouble> {
        let equal;
        let members = match (&group.members, group.member.as_slice()) {
            (Some(count), []) => {
                let at = self.places.of(count);
                let Some(Copies::Some(many @ ..=10_000)) = self.count(Some(count), "members")? else {
                    return Err(at.says("at most 10000 members"));
                };
                equal = (0..many).map(|_| Member::default()).collect::<Vec<_>>();
                equal.as_slice()
            }
            (None, [_, ..]) => group.member.as_slice(),
            _ => {
                return Err(name.at.says(format!(
                    "group `{}` has either `members`, how many alike, or a `[[group.member]]` for each",
                    name.text
                )));
            }
        };
        let weight = |own: &Member| own.weight.as_ref().map_or(Ok(1.0), |own| self.above(own, "a weight"));
        let weights = members.iter().map(weight).collect::<Result<Vec<f64>, _>>()?;
        let all: f64 = weights.iter().sum();
        let mut targets = Vec::new();
        for (number, (own, weight)) in members.iter().zip(weights).enumerate() {
            let one = match &own.name {
                Some(name) => self.word(name)?,
                None => {
                    let one = Name { text: format!("{}_{}", name.text, number + 1), at: name.at };
                    self.made(&one, format!("member {} of `{}`", number + 1, name.text));
                    one
                }
            };
            let demand = own.demand.as_ref().or(group.demand.as_ref());
            let demand = demand.ok_or_else(|| {
                one.at
                    .says(format!("`{}` needs a demand: the work of one request, such as \"5ms\"", one.text))
            })?;
            let variation = own.variation.as_ref().or(group.variation.as_ref());
            let variation = variation.map_or(Ok(1.0), |own| self.zero_or_more(own, "a variation"))?;
            let cores = own.cores.as_ref().or(group.cores.as_ref());
            let cores = self.count(cores, "cores")?.unwrap_or(Copies::Some(1));
            let threads = own.threads.as_ref().or(group.threads.as_ref());
            let threads = self.count(threads, "threads")?.unwrap_or(Copies::Infinite);
            let speed = own.speed.as_ref().or(group.speed.as_ref());
            let speed = speed.map_or(Ok(1.0), |own| self.above(own, "a speed"))?;
            let cpu = match &own.processor {
                Some(other) => self.shared(own, other)?,
                None => {
                    let cpu = Name { text: format!("{}_cpu", one.text), at: one.at };
                    self.processor(cpu.clone(), Scheduling::Sharing, cores, speed);
                    cpu
                }
            };
            let mut server = task(one.clone(), cpu, threads);
            if let Some(queue) = own.queue.as_ref().or(group.queue.as_ref()) {
                let at = self.places.of(queue);
                if threads == Copies::Infinite {
                    return Err(at.says(format!(
                        "nothing waits for a thread of `{}`, which has as many as are needed: give it \
                        `threads`",
                        one.text
                    )));
                }
                server.queue_limit = Some((limits::queue(*queue.get_ref(), at)?, at));
            }
            server.entries.push(one.clone());
            self.draft.tasks.push(server);
            entries.push(work(one.clone(), demand.get_ref().0, variation));
            targets.push((one, weight / all));
        }
        Ok(targets)
    }

    /// Returns the processor of another member, which this one shares.
    fn shared(&self, own: &Member, other: &Spanned<String>) -> Result<Name, Trouble> {
        let at = self.places.of(other);
        if let Some(twice) = own.cores.as_ref().or(own.speed.as_ref()) {
            return Err(self
                .places
                .of(twice)
                .says("`cores` and `speed` are those of the member whose `processor` it is"));
        }
        let known = self.draft.tasks.iter().find(|task| task.name.text == *other.get_ref());
        let known = known.ok_or_else(|| {
            at.says(format!(
                "no member `{}` before this one, whose processor it could run on",
                other.get_ref()
            ))
        })?;
        Ok(Name { text: known.processor.text.clone(), at })
    }

    fn routing(&self, group: &Group) -> Result<Routing, Trouble> {
        let mut routing = match &group.policy {
            Some(policy) if policy.get_ref().contains('$') => {
                let what = format!(
                    "this form has no parameters: write a number here, and change it by its name (--set \
                    {}.age=2)",
                    group.name.get_ref()
                );
                return Err(self.places.of(policy).says(what));
            }
            Some(policy) => route::routing(policy.get_ref(), self.places.of(policy), &Scope::default())?,
            None => Routing { policy: Policy::Random, age: 0.0 },
        };
        if let Some(age) = &group.age {
            if !routing.policy.looks_at_loads() {
                let what = format!("`{}` looks at no loads, which could have an age", routing.policy.name());
                return Err(self.places.of(age).says(what));
            }
            routing.age = age.get_ref().0;
        }
        Ok(routing)
    }

    fn patience(
        &self,
        timeout: Option<&Spanned<Time>>,
        retries: Option<&Spanned<f64>>,
        backoff: Option<&Spanned<Time>>,
    ) -> Result<Option<Patience>, Trouble> {
        let mut patience = None;
        let times = [("timeout", timeout), ("backoff", backoff)];
        let times = times.map(|(word, own)| own.map(|own| (word, own.get_ref().0, self.places.of(own))));
        let retries = retries.map(|own| ("retries", *own.get_ref(), self.places.of(own)));
        for (word, value, at) in times.into_iter().flatten().chain(retries) {
            limits::set(patience.get_or_insert(Patience::ENDLESS), word, value, at)?;
        }
        Ok(patience)
    }

    /// Checks a name that all formats allow: two or more letters, digits and `_`.
    fn word(&self, own: &Spanned<String>) -> Result<Name, Trouble> {
        let (text, at) = (own.get_ref(), self.places.of(own));
        let letters = text.chars().all(|c| c.is_alphanumeric() || c == '_') && text.chars().count() > 1;
        if letters && text.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            return Ok(Name { text: text.clone(), at });
        }
        Err(at
            .says(format!("`{text}` is no name: two or more of letters, digits and `_`, the first no digit")))
    }

    fn count(&self, own: Option<&Spanned<f64>>, what: &str) -> Result<Option<Copies>, Trouble> {
        let Some(own) = own else { return Ok(None) };
        let value = *own.get_ref();
        let found = super::text::copies(value);
        let wrong = || {
            self.places
                .of(own)
                .says(format!("there cannot be {value} {what}: a whole number from 1 on, or inf"))
        };
        found.map(Some).ok_or_else(wrong)
    }

    fn above(&self, own: &Spanned<f64>, what: &str) -> Result<f64, Trouble> {
        let value = *own.get_ref();
        let good = value > 0.0 && value.is_finite();
        if good {
            Ok(value)
        } else {
            Err(self.places.of(own).says(format!("{what} is above 0, not {value}")))
        }
    }

    fn zero_or_more(&self, own: &Spanned<f64>, what: &str) -> Result<f64, Trouble> {
        let value = *own.get_ref();
        let good = value >= 0.0 && value.is_finite();
        if good {
            Ok(value)
        } else {
            Err(self.places.of(own).says(format!("{what} is 0 or more, not {value}")))
        }
    }

    /// Records a generated name with its description.
    fn made(&mut self, name: &Name, called: String) {
        self.draft.made.push((name.text.clone(), called));
    }

    fn processor(&mut self, name: Name, scheduling: Scheduling, copies: Copies, speed: f64) {
        self.draft.processors.push(Processor { name, scheduling, copies, speed, replicas: 1 });
    }
}

fn task(name: Name, processor: Name, copies: Copies) -> Task {
    Task { copies, ..Task::new(name, processor) }
}

/// Returns the name of the entry that chooses a member of a group.
fn choice(group: &Name) -> Name {
    Name { text: format!("{}_choice", group.text), at: group.at }
}

/// Creates an entry with a first phase.
fn work(name: Name, demand: f64, variation: f64) -> Entry {
    let mut entry = Entry { name, ..Entry::default() };
    entry.phases[0] = Activity { demand, variation, ..Activity::default() };
    entry
}
