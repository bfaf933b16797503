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

use super::draft::{DraftActivity, DraftCall, DraftEntry, DraftProcessor, DraftTask, ModelDraft, SourceName};
use super::limits;
use super::{InputError, ParameterScope, SourcePosition, routing};
use crate::model::{CallOrder, Multiplicity, RetryPolicy, Routing, RoutingPolicy, Scheduling};

/// Returns `true` if a text begins like TOML and no other format: with a table, or with `name = …`.
pub(super) fn is_balancer_format(source: &str) -> bool {
    let mut lines = source.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let Some(line) = lines.next() else { return false };
    let is_word = |name: &str| {
        let name = name.trim();
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    line.starts_with('[') || line.split_once('=').is_some_and(|(name, _)| is_word(name))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct BalancerFile {
    comment: Option<String>,
    balancer: Option<BalancerSection>,
    #[serde(default)]
    clients: Vec<ClientsSection>,
    #[serde(default)]
    group: Vec<GroupSection>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct BalancerSection {
    workers: Option<Spanned<f64>>,
    demand: Option<Spanned<TimeValue>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientsSection {
    name: Spanned<String>,
    group: Spanned<String>,
    number: Option<Spanned<f64>>,
    think: Option<Spanned<TimeValue>>,
    rate: Option<Spanned<f64>>,
    timeout: Option<Spanned<TimeValue>>,
    retries: Option<Spanned<f64>>,
    backoff: Option<Spanned<TimeValue>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupSection {
    name: Spanned<String>,
    policy: Option<Spanned<String>>,
    age: Option<Spanned<TimeValue>>,
    timeout: Option<Spanned<TimeValue>>,
    retries: Option<Spanned<f64>>,
    backoff: Option<Spanned<TimeValue>>,
    asks: Option<Spanned<f64>>,
    members: Option<Spanned<f64>>,
    #[serde(default)]
    member: Vec<MemberSection>,
    demand: Option<Spanned<TimeValue>>,
    variation: Option<Spanned<f64>>,
    cores: Option<Spanned<f64>>,
    threads: Option<Spanned<f64>>,
    queue: Option<Spanned<f64>>,
    speed: Option<Spanned<f64>>,
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberSection {
    name: Option<Spanned<String>>,
    weight: Option<Spanned<f64>>,
    demand: Option<Spanned<TimeValue>>,
    variation: Option<Spanned<f64>>,
    cores: Option<Spanned<f64>>,
    threads: Option<Spanned<f64>>,
    queue: Option<Spanned<f64>>,
    speed: Option<Spanned<f64>>,
    processor: Option<Spanned<String>>,
}

/// A time in seconds, written as a number, or as a string with a unit.
#[derive(Clone, Copy)]
struct TimeValue(f64);

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

impl<'de> Deserialize<'de> for TimeValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TimeVisitor;
        impl Visitor<'_> for TimeVisitor {
            type Value = TimeValue;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a time: a number of seconds, or a text such as \"250ms\"")
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<TimeValue, E> {
                if value >= 0.0 && value.is_finite() {
                    return Ok(TimeValue(value));
                }
                Err(E::invalid_value(de::Unexpected::Float(value), &self))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<TimeValue, E> {
                self.visit_f64(value as f64)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<TimeValue, E> {
                let seconds = UNITS.iter().find_map(|(unit, seconds, divisor)| {
                    let number: f64 = text.trim().strip_suffix(unit)?.trim().parse().ok()?;
                    Some(number * seconds / divisor)
                });
                match seconds {
                    Some(seconds) => self.visit_f64(seconds),
                    None => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(TimeVisitor)
    }
}

/// Parses a file.
pub(super) fn draft(source: &str) -> Result<ModelDraft, InputError> {
    let positions = PositionFinder(source);
    let file: BalancerFile = toml::from_str(source).map_err(|error| {
        let position = positions.position_at(error.span().map_or(0, |span| span.start));
        // The message may list alternatives on several lines.
        position.error(error.message().trim().replace('\n', "; "))
    })?;
    let mut builder = DraftBuilder { positions, draft: ModelDraft::default() };
    builder.file(&file)?;
    Ok(builder.draft)
}

struct PositionFinder<'s>(&'s str);

impl PositionFinder<'_> {
    fn position_at(&self, byte: usize) -> SourcePosition {
        let text_before = self.0.get(..byte).unwrap_or_default();
        let line = text_before.rsplit('\n').next().unwrap_or_default();
        SourcePosition { line: text_before.matches('\n').count() + 1, column: line.chars().count() + 1 }
    }

    fn position_of<T>(&self, value: &Spanned<T>) -> SourcePosition {
        self.position_at(value.span().start)
    }
}

struct DraftBuilder<'s> {
    positions: PositionFinder<'s>,
    draft: ModelDraft,
}

impl DraftBuilder<'_> {
    fn file(&mut self, file: &BalancerFile) -> Result<(), InputError> {
        let start = SourcePosition { line: 1, column: 1 };
        self.draft.comment = file.comment.clone().unwrap_or_default();
        if file.group.is_empty() {
            return Err(start.error("there is no group: `[[group]]` with a name and members"));
        }
        if file.clients.is_empty() {
            return Err(start.error(
                "nobody asks for anything: `[[clients]]` with a name, a group, and a number or a rate",
            ));
        }
        let balancer_section = file.balancer.as_ref();
        let workers = balancer_section.and_then(|section| section.workers.as_ref());
        // Without a table for the balancer, its own work is ignored.
        let workers = match (balancer_section, workers) {
            (None, _) => Multiplicity::Infinite,
            (_, workers) => self.count(workers, "workers")?.unwrap_or(Multiplicity::Finite(1)),
        };
        let demand = balancer_section
            .and_then(|section| section.demand.as_ref())
            .map_or(0.0, |demand| demand.get_ref().0);
        let scheduling = Scheduling::Fcfs;
        let name = |text: &str| SourceName { text: text.to_owned(), at: start };
        self.processor(name("balancer_cpu"), scheduling, workers, 1.0);
        let mut balancer = task(name("balancer"), name("balancer_cpu"), Multiplicity::Infinite);
        let mut chooser = task(name("chooser"), name("chooser_cpu"), Multiplicity::Infinite);
        let mut chosen_entries = Vec::new();
        for group in &file.group {
            let group_name = self.checked_name(&group.name)?;
            let targets = self.members(group, &group_name, &mut chosen_entries)?;
            let routing = self.routing(group)?;
            let retry_policy =
                self.retry_policy(group.timeout.as_ref(), group.retries.as_ref(), group.backoff.as_ref())?;
            let mut entry = work(group_name.clone(), demand, 1.0);
            balancer.entries.push(group_name.clone());
            let choice_name = choice(&group_name);
            let router = match (retry_policy, &group.asks) {
                (Some(_), Some(asks)) => {
                    return Err(self.positions.position_of(asks).error(
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
                    self.set_generated_name(&choice_name, format!("`{}`", group_name.text));
                    chooser.entries.push(choice_name.clone());
                    let mut choosing = work(choice_name.clone(), 0.0, 1.0);
                    choosing.forwards.extend(targets);
                    match asks {
                        Some(asks) => {
                            let asks = self.parse_positive(asks, "a number of asks")?;
                            choosing.phases[0].calls.push(DraftCall::new(group_name.clone(), asks, true));
                        }
                        None => {
                            let call =
                                DraftCall { retry_policy, ..DraftCall::new(choice_name.clone(), 1.0, true) };
                            entry.phases[0].calls.push(call);
                            entry.phases[0].order = CallOrder::Deterministic;
                        }
                    }
                    chosen_entries.push(choosing);
                    choice_name
                }
            };
            self.draft.routes.push((router, routing));
            self.draft.entries.push(entry);
        }
        self.draft.tasks.push(balancer);
        if !chooser.entries.is_empty() {
            self.processor(name("chooser_cpu"), scheduling, Multiplicity::Infinite, 1.0);
            self.draft.tasks.push(chooser);
        }
        self.draft.entries.extend(chosen_entries);
        file.clients.iter().try_for_each(|clients| self.clients(clients, &file.group))
    }

    fn clients(&mut self, section: &ClientsSection, groups: &[GroupSection]) -> Result<(), InputError> {
        let name = self.checked_name(&section.name)?;
        let group = section.group.get_ref();
        let Some(target_group) = groups.iter().find(|group_section| group_section.name.get_ref() == group)
        else {
            let known_groups: Vec<&str> = groups.iter().map(|group| group.name.get_ref().as_str()).collect();
            let position = self.positions.position_of(&section.group);
            return Err(position.error(format!("no group `{group}`; there are {}", known_groups.join(", "))));
        };
        let users = SourceName { text: format!("{}_users", name.text), at: name.at };
        self.processor(users.clone(), Scheduling::Fcfs, Multiplicity::Infinite, 1.0);
        let mut client_task = task(name.clone(), users, Multiplicity::Infinite);
        let mut entry = work(name.clone(), 0.0, 1.0);
        client_task.entries.push(name.clone());
        match (&section.number, &section.rate) {
            (Some(number), None) => {
                client_task.is_client = true;
                client_task.copies = self.count(Some(number), "clients")?.unwrap_or(Multiplicity::Finite(1));
                client_task.think = section.think.as_ref().map_or(0.0, |think| think.get_ref().0);
            }
            (None, Some(rate)) => {
                entry.arrivals = self.parse_positive(rate, "a rate")?;
                if let Some(think) = &section.think {
                    return Err(self
                        .positions
                        .position_of(think)
                        .error("who comes at a rate does not think: leave `think` out"));
                }
            }
            _ => {
                return Err(name.at.error(format!(
                    "`{}` has either a number (clients that think in between) or a rate (requests per \
                    second)",
                    name.text
                )));
            }
        }
        let retry_policy =
            self.retry_policy(section.timeout.as_ref(), section.retries.as_ref(), section.backoff.as_ref())?;
        let to = SourceName { text: group.clone(), at: self.positions.position_of(&section.group) };
        let to = if target_group.asks.is_some() { choice(&to) } else { to };
        entry.phases[0].calls.push(DraftCall { retry_policy, ..DraftCall::new(to, 1.0, true) });
        // Exactly one request per cycle.
        entry.phases[0].order = CallOrder::Deterministic;
        self.draft.tasks.push(client_task);
        self.draft.entries.push(entry);
        Ok(())
    }

    /// Adds the members with their processors; returns the targets of the balancer with their weights.
    fn members(
        &mut self,
        group: &GroupSection,
        name: &SourceName,
        entries: &mut Vec<DraftEntry>,
    ) -> Result<Vec<(SourceName, f64)>, InputError> {
        let equal_members;
        let members = match (&group.members, group.member.as_slice()) {
            (Some(count), []) => {
                let position = self.positions.position_of(count);
                let Some(Multiplicity::Finite(member_count @ ..=10_000)) =
                    self.count(Some(count), "members")?
                else {
                    return Err(position.error("at most 10000 members"));
                };
                equal_members = (0..member_count).map(|_| MemberSection::default()).collect::<Vec<_>>();
                equal_members.as_slice()
            }
            (None, [_, ..]) => group.member.as_slice(),
            _ => {
                return Err(name.at.error(format!(
                    "group `{}` has either `members`, how many alike, or a `[[group.member]]` for each",
                    name.text
                )));
            }
        };
        let weight = |member: &MemberSection| {
            member.weight.as_ref().map_or(Ok(1.0), |value| self.parse_positive(value, "a weight"))
        };
        let weights = members.iter().map(weight).collect::<Result<Vec<f64>, _>>()?;
        let total_weight: f64 = weights.iter().sum();
        let mut targets = Vec::new();
        for (number, (member, weight)) in members.iter().zip(weights).enumerate() {
            let member_name = match &member.name {
                Some(name) => self.checked_name(name)?,
                None => {
                    let generated_name =
                        SourceName { text: format!("{}_{}", name.text, number + 1), at: name.at };
                    self.set_generated_name(
                        &generated_name,
                        format!("member {} of `{}`", number + 1, name.text),
                    );
                    generated_name
                }
            };
            let demand = member.demand.as_ref().or(group.demand.as_ref());
            let demand = demand.ok_or_else(|| {
                member_name.at.error(format!(
                    "`{}` needs a demand: the work of one request, such as \"5ms\"",
                    member_name.text
                ))
            })?;
            let variation = member.variation.as_ref().or(group.variation.as_ref());
            let variation =
                variation.map_or(Ok(1.0), |value| self.parse_non_negative(value, "a variation"))?;
            let cores = member.cores.as_ref().or(group.cores.as_ref());
            let cores = self.count(cores, "cores")?.unwrap_or(Multiplicity::Finite(1));
            let threads = member.threads.as_ref().or(group.threads.as_ref());
            let threads = self.count(threads, "threads")?.unwrap_or(Multiplicity::Infinite);
            let speed = member.speed.as_ref().or(group.speed.as_ref());
            let speed = speed.map_or(Ok(1.0), |value| self.parse_positive(value, "a speed"))?;
            let processor_name = match &member.processor {
                Some(shared_member) => self.shared(member, shared_member)?,
                None => {
                    let own_processor =
                        SourceName { text: format!("{}_cpu", member_name.text), at: member_name.at };
                    self.processor(own_processor.clone(), Scheduling::ProcessorSharing, cores, speed);
                    own_processor
                }
            };
            let mut server = task(member_name.clone(), processor_name, threads);
            if let Some(queue) = member.queue.as_ref().or(group.queue.as_ref()) {
                let position = self.positions.position_of(queue);
                if threads == Multiplicity::Infinite {
                    return Err(position.error(format!(
                        "nothing waits for a thread of `{}`, which has as many as are needed: give it \
                        `threads`",
                        member_name.text
                    )));
                }
                server.queue_limit = Some((limits::to_queue_limit(*queue.get_ref(), position)?, position));
            }
            server.entries.push(member_name.clone());
            self.draft.tasks.push(server);
            entries.push(work(member_name.clone(), demand.get_ref().0, variation));
            targets.push((member_name, weight / total_weight));
        }
        Ok(targets)
    }

    /// Returns the processor of another member, which this one shares.
    fn shared(
        &self,
        member: &MemberSection,
        shared_member: &Spanned<String>,
    ) -> Result<SourceName, InputError> {
        let position = self.positions.position_of(shared_member);
        if let Some(conflicting) = member.cores.as_ref().or(member.speed.as_ref()) {
            return Err(self
                .positions
                .position_of(conflicting)
                .error("`cores` and `speed` are those of the member whose `processor` it is"));
        }
        let matching_task = self.draft.tasks.iter().find(|task| task.name.text == *shared_member.get_ref());
        let owner_task = matching_task.ok_or_else(|| {
            position.error(format!(
                "no member `{}` before this one, whose processor it could run on",
                shared_member.get_ref()
            ))
        })?;
        Ok(SourceName { text: owner_task.processor.text.clone(), at: position })
    }

    fn routing(&self, group: &GroupSection) -> Result<Routing, InputError> {
        let mut routing = match &group.policy {
            Some(policy) if policy.get_ref().contains('$') => {
                let message = format!(
                    "this form has no parameters: write a number here, and change it by its name (--set \
                    {}.age=2)",
                    group.name.get_ref()
                );
                return Err(self.positions.position_of(policy).error(message));
            }
            Some(policy) => routing::parse_routing(
                policy.get_ref(),
                self.positions.position_of(policy),
                &ParameterScope::default(),
            )?,
            None => Routing { policy: RoutingPolicy::Random, max_age: 0.0 },
        };
        if let Some(age) = &group.age {
            if !routing.policy.uses_loads() {
                let message =
                    format!("`{}` looks at no loads, which could have an age", routing.policy.name());
                return Err(self.positions.position_of(age).error(message));
            }
            routing.max_age = age.get_ref().0;
        }
        Ok(routing)
    }

    fn retry_policy(
        &self,
        timeout: Option<&Spanned<TimeValue>>,
        retries: Option<&Spanned<f64>>,
        backoff: Option<&Spanned<TimeValue>>,
    ) -> Result<Option<RetryPolicy>, InputError> {
        let mut retry_policy = None;
        let times = [("timeout", timeout), ("backoff", backoff)];
        let times = times.map(|(setting_name, setting)| {
            setting.map(|value| (setting_name, value.get_ref().0, self.positions.position_of(value)))
        });
        let retries =
            retries.map(|setting| ("retries", *setting.get_ref(), self.positions.position_of(setting)));
        for (setting_name, value, position) in times.into_iter().flatten().chain(retries) {
            limits::set_retry_setting(
                retry_policy.get_or_insert(RetryPolicy::UNLIMITED),
                setting_name,
                value,
                position,
            )?;
        }
        Ok(retry_policy)
    }

    /// Checks a name that all formats allow: two or more letters, digits and `_`.
    fn checked_name(&self, name: &Spanned<String>) -> Result<SourceName, InputError> {
        let (text, position) = (name.get_ref(), self.positions.position_of(name));
        let is_valid = text.chars().all(|c| c.is_alphanumeric() || c == '_') && text.chars().count() > 1;
        if is_valid && text.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            return Ok(SourceName { text: text.clone(), at: position });
        }
        Err(position.error(format!(
            "`{text}` is no name: two or more of letters, digits and `_`, the first no digit"
        )))
    }

    fn count(
        &self,
        optional: Option<&Spanned<f64>>,
        quantity: &str,
    ) -> Result<Option<Multiplicity>, InputError> {
        let Some(field) = optional else { return Ok(None) };
        let value = *field.get_ref();
        let multiplicity = super::text::to_multiplicity(value);
        let invalid_count = || {
            self.positions
                .position_of(field)
                .error(format!("there cannot be {value} {quantity}: a whole number from 1 on, or inf"))
        };
        multiplicity.map(Some).ok_or_else(invalid_count)
    }

    fn parse_positive(&self, field: &Spanned<f64>, quantity: &str) -> Result<f64, InputError> {
        let value = *field.get_ref();
        let is_positive = value > 0.0 && value.is_finite();
        if is_positive {
            Ok(value)
        } else {
            Err(self.positions.position_of(field).error(format!("{quantity} is above 0, not {value}")))
        }
    }

    fn parse_non_negative(&self, field: &Spanned<f64>, quantity: &str) -> Result<f64, InputError> {
        let value = *field.get_ref();
        let is_valid = value >= 0.0 && value.is_finite();
        if is_valid {
            Ok(value)
        } else {
            Err(self.positions.position_of(field).error(format!("{quantity} is 0 or more, not {value}")))
        }
    }

    /// Records a generated name with its description.
    fn set_generated_name(&mut self, name: &SourceName, description: String) {
        self.draft.generated_names.push((name.text.clone(), description));
    }

    fn processor(&mut self, name: SourceName, scheduling: Scheduling, copies: Multiplicity, speed: f64) {
        self.draft.processors.push(DraftProcessor { name, scheduling, copies, speed, replicas: 1 });
    }
}

fn task(name: SourceName, processor: SourceName, copies: Multiplicity) -> DraftTask {
    DraftTask { copies, ..DraftTask::new(name, processor) }
}

/// Returns the name of the entry that chooses a member of a group.
fn choice(group: &SourceName) -> SourceName {
    SourceName { text: format!("{}_choice", group.text), at: group.at }
}

/// Creates an entry with a first phase.
fn work(name: SourceName, demand: f64, variation: f64) -> DraftEntry {
    let mut entry = DraftEntry { name, ..DraftEntry::default() };
    entry.phases[0] = DraftActivity { demand, variation, ..DraftActivity::default() };
    entry
}
