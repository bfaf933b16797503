//! The office of a charge if several balancers share a store. One of them decides; the others put its members
//! in force, watch, and take over when it is gone.
//!
//! Members that a program or a server starts (`exec`, `webhook`) can be stopped by any balancer: the next one
//! that decides goes on with them. Processes, units and containers of another machine stay in force for as
//! long as they can be used. No balancer here stops them, and they are replaced here once they cannot be
//! used.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::scale::crew::{Crew, Hand, Stage};
use plimsoll_brain::{EventKind, Time};
use plimsoll_cluster::discover::Listed;
use plimsoll_cluster::scaler::Instance;
use plimsoll_proxy::GroupLook;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::count::Count;
use super::{Charge, Done, GRACE};
use crate::config::Scaling;
use crate::running::owner::{Duty, LEASE, Roll};
use crate::running::scaled::Manned;

/// The time for another balancer to take over.
const TAKING: Duration = Duration::from_secs(2);

/// The time in which others may not know yet that a member is drained.
const HEARD: Duration = Duration::from_secs(2);

/// The balancer that decides, and the members that the others know.
#[derive(Debug, Default)]
pub(super) struct Office {
    /// Whether this balancer decides, as it does without a shared store.
    pub(super) mine: bool,
    /// The name of another balancer that decides.
    pub(super) other: Option<String>,
    /// Whether it does not decide any more, as the process ends.
    resigned: bool,
    /// Whether an attempt to decide is running.
    standing: bool,
    /// The time when the lease was renewed.
    held: Option<Instant>,
    /// The roll in the store, as this balancer wrote it or put it in force; `enrolling` while it is being
    /// written.
    roll: Option<Roll>,
    enrolling: bool,
    /// The members that a former deciding balancer has started, and that only it could stop.
    strangers: Vec<Manned>,
}

impl Office {
    /// Forgets the acts that were broken off.
    pub(super) fn go_on(&mut self) {
        (self.standing, self.enrolling) = (false, false);
    }
}

/// Returns a member as its group lists it.
fn listed(scaling: &Scaling, one: &Instance, leaving: bool) -> Listed {
    let (capacity, limit) = (scaling.rules.unit, scaling.limit);
    Listed { name: one.address.to_string().into(), address: one.address, capacity, limit, leaving }
}

impl Charge {
    /// Begins: at once if no other balancer could decide.
    pub(super) async fn begin(&mut self) {
        let group = &self.scaling.group;
        if !self.running.scales_together() {
            self.office.mine = true;
            return self.adopt().await;
        }
        if self.running.duty(group) == Duty::Mine {
            // A process before this one decided.
            return self.take_office().await;
        }
        self.rule(self.scaling.clone());
    }

    /// Looks which balancer decides, and follows.
    pub(super) async fn attend(&mut self, at: Instant) {
        if !self.running.scales_together() || self.office.resigned {
            return;
        }
        match self.running.duty(&self.scaling.group) {
            // During an upgrade it stays as it is.
            Duty::Other(_) | Duty::Nobody if self.halted => {}
            Duty::Mine => {
                self.office.other = None;
                if !self.office.mine {
                    self.take_office().await;
                    let why = "this balancer decides from now on how many members there are".into();
                    self.tell(EventKind::Changed, None, why, Vec::new());
                }
                if self.office.held.is_none_or(|held| at.duration_since(held) >= LEASE / 5) {
                    self.office.held = Some(at);
                    self.running.hold(&self.scaling.group);
                }
            }
            Duty::Other(name) => {
                if self.office.mine {
                    self.leave_office(&name);
                }
                self.office.other = Some(name);
                let roll = self.running.roll(&self.scaling.group);
                if roll.is_some() && roll != self.office.roll {
                    self.office.roll = roll;
                    self.untold = true;
                }
            }
            Duty::Nobody if !self.office.standing => {
                self.office.standing = true;
                let (running, group) = (Arc::clone(&self.running), Arc::clone(&self.scaling.group));
                self.tasks.spawn(async move {
                    let stood = spawn_blocking(move || running.stand(&group)).await;
                    Done::Stood(stood.unwrap_or_else(|why| Err(why.to_string())))
                });
            }
            Duty::Nobody => {}
        }
    }

    /// Takes the end of an attempt to decide. The next look shows its success.
    pub(super) fn stood(&mut self, outcome: &Result<(), String>) {
        self.office.standing = false;
        if let Err(why) = outcome {
            tracing::debug!("group {}: {why}", self.scaling.group);
        }
    }

    /// Takes the office: this balancer goes on with the present members.
    async fn take_office(&mut self) {
        let roll = self.running.roll(&self.scaling.group);
        let same = roll.filter(|roll| roll.provider == self.scaling.kind.name());
        // All stay in force, and nothing is written, until the owner of each is known.
        self.office.strangers = same.map(|roll| roll.members).unwrap_or_default();
        (self.office.mine, self.office.enrolling) = (true, true);
        self.adopt().await;
        for one in std::mem::take(&mut self.office.strangers) {
            let Manned { instance, stage } = &one;
            if self.crew.hands().iter().any(|hand| hand.id == instance.id) {
                continue;
            }
            if self.scaling.kind.anywhere() && self.crew.hand(instance.index).is_none() {
                let name: Arc<str> = instance.address.to_string().into();
                self.crew.take_over(instance.index, instance.id.clone(), Some(name), *stage, self.now());
                self.instances.insert(instance.index, instance.clone());
            } else {
                self.office.strangers.push(one);
            }
        }
        self.office.enrolling = false;
        self.untold = true;
        self.due = Instant::now();
    }

    /// Leaves the office: another balancer decides, which could not know that this one is there. The started
    /// members are that one's affair.
    fn leave_office(&mut self, name: &str) {
        self.crew = Crew::new(self.scaling.crew);
        self.instances.clear();
        self.office = Office::default();
        self.count = Count::default();
        let why = format!("{name} decides from now on how many members there are");
        self.tell(EventKind::Changed, None, why, Vec::new());
    }

    /// Resigns before the process ends: another balancer may decide at once.
    pub(super) async fn resign(&mut self) {
        if !(self.running.scales_together() && self.office.mine) {
            return;
        }
        self.office.resigned = true;
        let mut roll = self.own_roll();
        // The members end with this process: they get no new requests.
        let ends = !self.scaling.leave && !self.scaling.kind.anywhere();
        roll.members.iter_mut().filter(|_| ends).for_each(|one| one.stage = Stage::Draining);
        let (running, group) = (Arc::clone(&self.running), Arc::clone(&self.scaling.group));
        let resigned = spawn_blocking(move || {
            running.enroll(&group, &roll)?;
            running.resign(&group)
        });
        if let Ok(Err(why)) = resigned.await {
            tracing::debug!("group {}: {why}", self.scaling.group);
        }
    }

    /// Returns `true` if another balancer has the started members. A watching balancer takes them over at
    /// once, for which this waits for a moment.
    pub(super) async fn inherited_by_another(&mut self) -> bool {
        if !(self.running.scales_together() && self.scaling.kind.anywhere() && self.office.resigned) {
            return false;
        }
        let mut views = self.running.store().views();
        let end = Instant::now() + TAKING;
        loop {
            if let Duty::Other(_) = self.running.duty(&self.scaling.group) {
                return true;
            }
            if !matches!(timeout_at(end, views.changed()).await, Ok(Ok(()))) {
                return false;
            }
        }
    }

    /// Removes the roll: the members have been stopped, and no balancer should look for them.
    pub(super) async fn strike_off(&mut self) {
        if !(self.running.scales_together() && self.office.mine) {
            return;
        }
        let roll = Roll { provider: self.scaling.kind.name().into(), members: self.office.strangers.clone() };
        let (running, group) = (Arc::clone(&self.running), Arc::clone(&self.scaling.group));
        if let Ok(Err(why)) = spawn_blocking(move || running.strike_off(&group, &roll)).await {
            tracing::debug!("group {}: {why}", self.scaling.group);
        }
    }

    fn own_roll(&self) -> Roll {
        let manned = |hand: &Hand| {
            let there = matches!(hand.stage, Stage::Coming | Stage::Serving | Stage::Draining);
            let instance = self.instances.get(&hand.index).filter(|_| there)?.clone();
            Some(Manned { instance, stage: hand.stage })
        };
        let own = self.crew.hands().iter().filter_map(manned);
        let members = own.chain(self.office.strangers.iter().cloned()).collect();
        Roll { provider: self.scaling.kind.name().into(), members }
    }

    /// Publishes the members to the others.
    pub(super) fn enroll(&mut self) {
        let together = self.running.scales_together() && self.office.mine && self.scaling.source.is_some();
        if !together || self.office.enrolling || self.halted {
            return;
        }
        let roll = self.own_roll();
        if self.office.roll.as_ref() == Some(&roll) {
            return;
        }
        self.office.enrolling = true;
        let (running, group) = (Arc::clone(&self.running), Arc::clone(&self.scaling.group));
        self.tasks.spawn(async move {
            let written = roll.clone();
            let done = spawn_blocking(move || running.enroll(&group, &written)).await;
            Done::Enrolled(done.unwrap_or_else(|why| Err(why.to_string())).map(|()| roll))
        });
    }

    /// Takes the result of publishing; a failure is repeated at the next look.
    pub(super) fn enrolled(&mut self, outcome: Result<Roll, String>) {
        self.office.enrolling = false;
        match outcome {
            Ok(roll) if self.office.mine => self.office.roll = Some(roll),
            Ok(_) => {}
            Err(why) => tracing::debug!("group {}: {why}", self.scaling.group),
        }
    }

    /// Returns the members that were started, here or elsewhere, for the group.
    pub(super) fn listed(&self) -> Vec<Listed> {
        if !self.office.mine {
            let roll = self.office.roll.iter().flat_map(|roll| &roll.members);
            let leaving = |one: &Manned| matches!(one.stage, Stage::Draining | Stage::Stopping);
            return roll.map(|one| listed(&self.scaling, &one.instance, leaving(one))).collect();
        }
        let of = |name: &Arc<str>| self.instances.values().find(|one| *one.address.to_string() == **name);
        let own = self.crew.members().filter_map(of).map(|one| listed(&self.scaling, one, false));
        let mut all: Vec<Listed> = own.collect();
        for Manned { instance, stage } in &self.office.strangers {
            if all.iter().all(|known| known.address != instance.address) {
                all.push(listed(&self.scaling, instance, *stage == Stage::Draining));
            }
        }
        all
    }

    /// Gives up members that no balancer here could stop, once they cannot be used.
    pub(super) fn miss_strangers(&mut self, look: &GroupLook) {
        let before = self.office.strangers.len();
        self.office.strangers.retain(|one| {
            let name = one.instance.address.to_string();
            let member = look.status.members.iter().find(|member| member.name == name);
            member.is_none_or(|member| member.state.eligible() || member.since_seconds < GRACE.as_secs_f64())
        });
        self.untold |= self.office.strangers.len() < before;
    }

    /// Returns the drained members that may still serve other balancers, which may not know of the drain yet
    /// or do not report.
    pub(super) fn held(&self, now: Time) -> Vec<Arc<str>> {
        if !self.running.scales_together() {
            return Vec::new();
        }
        let says = self.running.hears_others();
        let held = |hand: &&Hand| hand.stage == Stage::Draining && (!says || now.since(hand.since) < HEARD);
        self.crew.hands().iter().filter(held).filter_map(|hand| hand.member.clone()).collect()
    }

    /// Returns `true` if another balancer may decide by now, which this one cannot find out.
    pub(super) fn cut_off(&self) -> bool {
        let together = self.running.scales_together() && self.office.mine;
        together && self.running.store_away().is_some_and(|away| away > LEASE)
    }
}
