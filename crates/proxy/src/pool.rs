//! A group as one core sees it: the plan at hand, and idle connections to each member.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use plimsoll_brain::{Ask, Choice, Hand, MemberId, Pace, RetryBudget, Time};

use crate::group::{Group, Published, Record, Stripe, Tally};
use crate::http2::Wires;
use crate::iiop;
use crate::link::Link;
use crate::stream::Stream as _;
use crate::trip::Trip;

/// The version before the first: a core that never had to do with a group has nothing for its members.
const UNSEEN: u64 = 0;

/// One core's side of a group.
pub(crate) struct Pool {
    pub(crate) group: Arc<Group>,
    core: usize,
    seen: Cell<u64>,
    view: RefCell<Rc<View>>,
    upstreams: RefCell<BTreeMap<MemberId, Rc<Upstream>>>,
    turn: Cell<u64>,
    budget: RefCell<RetryBudget>,
    hand: Rc<RefCell<Hand>>,
    /// If its members speak GIOP.
    pub(crate) iiop: iiop::Side,
}

/// What was published last, with this core's upstreams beside the plan's members.
pub(crate) struct View {
    pub(crate) published: Arc<Published>,
    upstreams: Vec<Rc<Upstream>>,
    /// Is a member under alert, so that its sessions are to go elsewhere?
    pub(crate) alert: bool,
    /// The same of members that are drained, for those who are bound to one.
    pub(crate) kept: Option<Rc<Self>>,
    /// The same without the members; `None` in such a one itself.
    rules: Option<Rc<Self>>,
}

/// One core's connections to one member.
pub(crate) struct Upstream {
    pub(crate) record: Arc<Record>,
    stripe: Arc<Stripe>,
    pub(crate) address: Cell<SocketAddr>,
    /// What this core keeps of the whole group.
    pub(crate) hand: Rc<RefCell<Hand>>,
    /// The last one in is the first one out, so that those not needed grow old and are closed.
    idle: RefCell<Vec<Idle>>,
    /// If it speaks HTTP/2.
    pub(crate) wires: Wires,
}

struct Idle {
    stream: Link,
    since: Time,
}

/// What a member is wanted for.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// As much as a client likes, for as long as it likes.
    Session,
    Request {
        /// If a member fails it after it may have done something, is that its end?
        once: bool,
        /// If a member refuses it, can it be sent to another?
        again: bool,
        /// Do those that its client sends after it go to the same member?
        binds: bool,
    },
}

impl Work {
    /// The same of a request that binds its client.
    pub(crate) fn binding(self) -> Self {
        match self {
            Self::Request { once, again, .. } => Self::Request { once, again, binds: true },
            Self::Session => Self::Session,
        }
    }
}

/// What came of asking for a member.
pub(crate) enum Admission {
    /// Counted in with a member.
    Trip(Trip),
    /// Every member is at its limit.
    Full,
    /// Every member works on as many requests as it can.
    Shed,
    /// There is none that could be used.
    Nobody,
}

impl Pool {
    pub(crate) fn new(group: Arc<Group>, core: usize) -> Rc<Self> {
        let published = group.published();
        Rc::new(Self {
            core,
            seen: Cell::new(UNSEEN),
            view: RefCell::new(View::bare(&published)),
            upstreams: RefCell::default(),
            // Cores begin at different members, so that they do not all follow the same one.
            turn: Cell::new(core as u64),
            hand: Rc::new(RefCell::new(Hand::new(seat(core, group.tallies.len())))),
            budget: RefCell::new(budget(&published, group.tallies.len())),
            iiop: iiop::Side::default(),
            group,
        })
    }

    /// What is in force now.
    #[inline]
    pub(crate) fn view(&self) -> Rc<View> {
        if self.group.version() != self.seen.get() {
            self.renew();
        }
        Rc::clone(&self.view.borrow())
    }

    /// Takes over what has come into force since.
    #[cold]
    fn renew(&self) {
        self.seen.set(self.group.version());
        self.take_over(self.group.published());
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.group.tallies[self.core]
    }

    /// Chooses a member and counts the request in.
    pub(crate) fn admit(
        &self,
        key: u64,
        chance: u64,
        now: Time,
        tried: &[MemberId],
        work: Work,
    ) -> Admission {
        self.admit_by(self.view(), key, chance, now, tried, work)
    }

    /// Chooses a member whatever limits say, for one that waits where none was served for a while; counts the request in.
    #[cold]
    pub(crate) fn insist(
        &self,
        key: u64,
        chance: u64,
        now: Time,
        tried: &[MemberId],
        work: Work,
    ) -> Admission {
        self.choose(self.view(), Ask { key, chance, now, insist: true, ..Ask::default() }, tried, work)
    }

    /// Whom it would choose: a member that is told to a client, and counted by nobody.
    pub(crate) fn peek(
        &self,
        key: u64,
        chance: u64,
        now: Time,
        tried: &[MemberId],
    ) -> Option<(MemberId, SocketAddr)> {
        let view = self.view();
        let plan = &view.published.plan;
        let turn = self.turn.replace(self.turn.get().wrapping_add(1));
        match plan.choose(
            &mut self.hand.borrow_mut(),
            &Ask { turn, chance, key, now, session: true, ..Ask::default() },
            tried,
        ) {
            Choice::Member(index) => plan.members().get(index).map(|member| (member.id, member.address)),
            Choice::Full | Choice::Shed | Choice::Nobody => None,
        }
    }

    /// How long a request is likely to take at best; zero where that is not known.
    pub(crate) fn quickest(&self, now: Time) -> Duration {
        self.view().published.plan.quickest(now)
    }

    /// When one that finds no room does well to come again: after what requests take lately, in whole seconds, as `Retry-After` has it.
    #[cold]
    pub(crate) fn again_in(&self) -> u64 {
        whole_seconds(self.pace().sojourn)
    }

    /// What this core keeps between choices, as it is now.
    pub(crate) fn hand(&self) -> Hand {
        self.hand.borrow().clone()
    }

    /// The next choice is a session's: those have turns over all cores.
    pub(crate) fn session(&self) {
        self.turn.set(self.group.turn());
    }

    /// The same by a view at hand.
    pub(crate) fn admit_by(
        &self,
        view: Rc<View>,
        key: u64,
        chance: u64,
        now: Time,
        tried: &[MemberId],
        work: Work,
    ) -> Admission {
        self.choose(view, Ask { key, chance, now, ..Ask::default() }, tried, work)
    }

    #[inline]
    fn choose(&self, view: Rc<View>, ask: Ask, tried: &[MemberId], work: Work) -> Admission {
        let plan = &view.published.plan;
        let (once, session, again, binds) = match work {
            Work::Session => (false, true, false, true),
            Work::Request { once, again, binds } => (once, false, again, binds),
        };
        // At its first try only: each member that refuses it takes some of its time. Nor is it for a session that looks elsewhere, which
        // has its own member among those tried, and had better stay.
        let venture = again && tried.is_empty() && self.group.room.calm();
        let (ask, now) = (Ask { once, session, binds, venture, ..ask }, ask.now);
        loop {
            let turn = self.turn.replace(self.turn.get().wrapping_add(1));
            let choice = plan.choose(&mut self.hand.borrow_mut(), &Ask { turn, ..ask }, tried);
            match choice {
                Choice::Member(index) => {
                    let member = &plan.members()[index];
                    // Another core may have taken the last place in the meantime.
                    let level = member.vitals.begin_at(now);
                    if level > member.allowed() {
                        member.vitals.end();
                        continue;
                    }
                    let upstream = Rc::clone(&view.upstreams[index]);
                    let group = Arc::clone(&self.group);
                    self.tally().begun.add(1);
                    return Admission::Trip(Trip::begin(group, view, upstream, index, level, now));
                }
                Choice::Full => return Admission::Full,
                Choice::Shed => return Admission::Shed,
                Choice::Nobody => return Admission::Nobody,
            }
        }
    }

    /// Counts the request in with the member at a place in the plan, if that has room.
    pub(crate) fn admit_to(&self, view: &Rc<View>, index: usize, now: Time) -> Option<Trip> {
        let member = view.published.plan.members().get(index).filter(|member| !member.full())?;
        let level = member.vitals.begin_at(now);
        if level > member.allowed() {
            member.vitals.end();
            return None;
        }
        let upstream = Rc::clone(&view.upstreams[index]);
        self.tally().begun.add(1);
        Some(Trip::begin(Arc::clone(&self.group), Rc::clone(view), upstream, index, level, now))
    }

    /// May a member keep the work it has: is it in use, or drained?
    pub(crate) fn keeps(&self, member: MemberId) -> bool {
        let published = &self.view().published;
        self.upstreams.borrow().contains_key(&member) || published.draining.contains(&member)
    }

    /// Returns how quickly places come free.
    pub(crate) fn pace(&self) -> Pace {
        self.view().published.plan.pace(&self.hand.borrow())
    }

    /// Do requests wait for a member below its limit?
    pub(crate) fn contended(&self) -> bool {
        self.group.room.queued() > 0
    }

    /// Counts a request towards the retry budget.
    pub(crate) fn deposit(&self, now: Time) {
        self.budget.borrow_mut().deposit(now);
    }

    /// Does the retry budget allow another try?
    pub(crate) fn withdraw(&self, now: Time) -> bool {
        let allowed = self.budget.borrow_mut().withdraw(now);
        let tally = self.tally();
        if allowed {
            tally.retries.add(1)
        } else {
            tally.retries_denied.add(1)
        }
        allowed
    }

    /// Closes idle connections that are too old, that the member closed, or that lead to a member no longer used.
    pub(crate) fn sweep(&self, now: Time) {
        if self.seen.get() == UNSEEN {
            return;
        }
        let view = self.view();
        let oldest = now - view.published.settings.pool_idle;
        for upstream in self.upstreams.borrow().values() {
            upstream.retain(|idle| idle.since >= oldest && idle.stream.quiet());
            upstream.wires.sweep(oldest);
        }
    }

    /// Closes idle connections, so that others have their descriptors.
    #[cold]
    pub(crate) fn close_idle(&self) {
        for upstream in self.upstreams.borrow().values() {
            upstream.retain(|_| false);
            upstream.wires.sweep(Time(u64::MAX));
        }
    }

    /// Closes all idle connections.
    pub(crate) fn close(&self) {
        self.upstreams.borrow().values().for_each(|upstream| upstream.clear());
        self.iiop.close();
    }

    fn take_over(&self, published: Arc<Published>) {
        // Connections are trusted by what was in force when they were made.
        let before = |settings: &crate::GroupSettings| (settings.tls.clone(), settings.http2);
        let retrusted = before(&self.view.borrow().published.settings) != before(&published.settings);
        let mut upstreams = self.upstreams.borrow_mut();
        let mut of = |published: &Published| -> Vec<Rc<Upstream>> {
            let members = published.plan.members().iter().zip(&published.records);
            let upstream = members.map(|(member, record)| {
                let upstream = upstreams.entry(member.id).or_insert_with(|| {
                    Rc::new(Upstream {
                        record: Arc::clone(record),
                        stripe: Arc::clone(record.stripe(self.core)),
                        address: Cell::new(member.address),
                        hand: Rc::clone(&self.hand),
                        idle: RefCell::default(),
                        wires: Wires::default(),
                    })
                });
                if upstream.address.replace(member.address) != member.address || retrusted {
                    upstream.clear();
                }
                Rc::clone(upstream)
            });
            upstream.collect()
        };
        let members = of(&published);
        let drained = published.kept.as_ref().map(|kept| (Arc::clone(kept), of(kept)));
        let drained_too = drained.iter().flat_map(|(_, drained)| drained);
        let used: BTreeSet<MemberId> =
            members.iter().chain(drained_too).map(|upstream| upstream.record.id).collect();
        upstreams.retain(|id, upstream| {
            let used = used.contains(id);
            if !used {
                upstream.clear();
            }
            used
        });
        let before = Arc::clone(&self.view.borrow().published.settings);
        if before.retry != published.settings.retry {
            *self.budget.borrow_mut() = budget(&published, self.group.tallies.len());
        }
        let rules = self.view.borrow().rules();
        let same = Arc::ptr_eq(&rules.published.settings, &published.settings);
        let rules = Some(if same { rules } else { View::bare(&published) });
        let alert = published.plan.members().iter().any(|member| member.shed.share > 0.0);
        let kept = drained.map(|(published, upstreams)| {
            Rc::new(View { published, upstreams, alert: false, kept: None, rules: rules.clone() })
        });
        *self.view.borrow_mut() = Rc::new(View { published, upstreams: members, alert, kept, rules });
    }
}

impl View {
    /// The rules in force, without the members.
    pub(crate) fn rules(self: &Rc<Self>) -> Rc<Self> {
        Rc::clone(self.rules.as_ref().unwrap_or(self))
    }

    fn bare(published: &Published) -> Rc<Self> {
        let settings = Arc::clone(&published.settings);
        let plan = published.plan.bare();
        let published = Arc::new(Published {
            plan,
            records: Vec::new(),
            others: Vec::new(),
            draining: Vec::new(),
            kept: None,
            settings,
        });
        Rc::new(Self { published, upstreams: Vec::new(), alert: false, kept: None, rules: None })
    }

    /// Where a member is that is drained, among those that sessions may still come to which are bound to one.
    pub(crate) fn kept_at(&self, record: &Arc<Record>) -> Option<(&Rc<Self>, usize)> {
        let kept = self.kept.as_ref()?;
        let place = kept.published.records.iter().position(|own| Arc::ptr_eq(own, record))?;
        Some((kept, place))
    }
}

/// Where a core begins: the cores of a process evenly spread, from a place that is this process's own.
fn seat(core: usize, cores: usize) -> u64 {
    own_seed().wrapping_add(u64::MAX / cores.max(1) as u64 * core as u64)
}

/// Rounded up; at least one, and a minute at the most, as what took so long lately says nothing of what will be then.
fn whole_seconds(time: Duration) -> u64 {
    (time.as_secs() + u64::from(time.subsec_nanos() > 0)).clamp(1, 60)
}

/// A number that no other process has.
pub(crate) fn own_seed() -> u64 {
    static OWN: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());
    *OWN
}

/// Each core holds its part of the retries that need no share.
fn budget(published: &Published, cores: usize) -> RetryBudget {
    let retry = &published.settings.retry;
    RetryBudget::new(retry.budget, retry.min_per_second / cores as f64)
}

impl Upstream {
    pub(crate) fn stripe(&self) -> &Stripe {
        &self.stripe
    }

    /// A connection that was quiet so far, the one used last first. Never one on which something came that
    /// nobody asked for: it would be taken for the answer to the next request.
    pub(crate) fn check_out(&self) -> Option<Link> {
        let mut idle = self.idle.borrow_mut();
        while let Some(mut candidate) = idle.pop() {
            self.stripe().idle.sub(1);
            if candidate.stream.quiet() {
                return Some(candidate.stream);
            }
        }
        None
    }

    /// Keeps a connection for reuse, unless there are `most` already.
    #[inline(always)]
    pub(crate) fn check_in(&self, stream: Link, now: Time, most: usize) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < most {
            idle.push(Idle { stream, since: now });
            self.stripe().idle.add(1);
        }
    }

    /// Keeps none for what comes.
    fn clear(&self) {
        self.retain(|_| false);
        self.wires.clear();
    }

    fn retain(&self, keep: impl FnMut(&mut Idle) -> bool) {
        let mut idle = self.idle.borrow_mut();
        let before = idle.len();
        idle.retain_mut(keep);
        self.stripe().idle.sub((before - idle.len()) as u64);
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_brain::meter::Reading;

    use super::*;

    #[test]
    fn seconds_are_whole_ones_rounded_up() {
        let of = |millis| whole_seconds(Duration::from_millis(millis));
        assert_eq!([0, 3, 1_000, 1_001, 2_500, 100_000].map(of), [1, 1, 1, 2, 3, 60]);
    }

    #[test]
    fn who_was_full_a_while_ago_is_asked_by_a_request_that_can_be_sent_again_while_nobody_waits() {
        crate::fixture::run(async |core| {
            let (pool, _heard) = crate::fixture::ruled(&core, None, "adaptive");
            let view = pool.view();
            let plan = &view.published.plan;
            // More than the few that may always be there.
            let held = [(); 3].map(|()| pool.admit_to(&view, 0, Time(1)).expect("it has no limit"));
            let said = Reading {
                in_flight: 9,
                knee: 4.0,
                work: 0.1,
                mean_in_flight: 9.0,
                sojourn: 0.1,
                slot: false,
                open: false,
            };
            plan.hear(&mut pool.hand.borrow_mut(), 0, &said, Time(1));
            let asked = |work, tried: &[MemberId]| pool.admit(0, 0, Time(300_000_000), tried, work);
            let request = |again| Work::Request { once: true, again, binds: false };
            let refused = |admission| matches!(admission, Admission::Shed);
            assert!(refused(asked(Work::Session, &[])), "a session stays");
            assert!(refused(asked(request(false), &[])), "it would be lost");
            assert!(refused(asked(request(true), &[MemberId(7)])), "one has refused it");
            let waits = pool.group.room.queue(1);
            assert!(waits.is_some() && refused(asked(request(true), &[])), "somebody is before it");
            drop(waits);
            let Admission::Trip(trip) = asked(request(true), &[]) else { panic!("it may have room by now") };
            assert!(refused(asked(request(true), &[])), "one at a time");
            trip.abandoned();
            held.into_iter().for_each(Trip::abandoned);
        });
    }
}
