//! A cache of a group's endpoints, shared by a core's clients of one listener: built once for all of them,
//! and updated while there is a user.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::{PickerState, Time};
use plimsoll_wire::xds::ProtobufAny;
use tokio::sync::{Notify, watch};

use super::resource;
use super::weights::{MemberShare, MemberWeights};
use crate::listener::Listener;
use crate::upstream::group::PublishedPlan;
use crate::upstream::pool::GroupPool;
use crate::upstream::thread_context::ThreadContext;

/// The interval of checking shares that change by themselves.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The minimum time between two updates.
const MIN_NOTIFY_INTERVAL: Duration = Duration::from_millis(50);

/// A listener's cache on one core, while there is a user.
#[derive(Default)]
pub(crate) struct CacheHandle(RefCell<Weak<EndpointCache>>);

impl CacheHandle {
    pub(super) fn cache(&self) -> Rc<EndpointCache> {
        let cache = self.0.borrow().upgrade();
        cache.unwrap_or_else(|| {
            let cache = Rc::new(EndpointCache::default());
            *self.0.borrow_mut() = Rc::downgrade(&cache);
            cache
        })
    }

    /// Wakes all clients' tasks, as the groups have changed.
    pub(crate) fn notify_clients(&self) {
        if let Some(cache) = self.0.borrow().upgrade() {
            cache.changed.notify_waiters();
        }
    }
}

/// The groups that clients requested.
#[derive(Default)]
pub(super) struct EndpointCache {
    /// Notified when any of this changes. A task that checks first and then waits, with nothing in between,
    /// misses no change: all of this is on one thread.
    pub(super) changed: Notify,
    entries: RefCell<BTreeMap<Arc<str>, Weak<GroupEndpoints>>>,
}

impl EndpointCache {
    /// Returns a group's entry, which a task updates until it is dropped.
    pub(super) fn group_endpoints(
        self: &Rc<Self>,
        core: &Rc<ThreadContext>,
        listener: &Rc<Listener>,
        name: &Arc<str>,
    ) -> Rc<GroupEndpoints> {
        let mut entries = self.entries.borrow_mut();
        if let Some(entry) = entries.get(name).and_then(Weak::upgrade) {
            return entry;
        }
        entries.retain(|_, entry| entry.strong_count() > 0);
        let entry = Rc::new(GroupEndpoints {
            name: Arc::clone(name),
            resource_version: Cell::new(0),
            state: RefCell::default(),
        });
        entries.insert(Arc::clone(name), Rc::downgrade(&entry));
        entry.refresh(core, listener.pool_of(name).as_ref());
        let (weak_cache, weak_entry) = (Rc::downgrade(self), Rc::downgrade(&entry));
        tokio::task::spawn_local(watch_group(Rc::clone(core), Rc::clone(listener), weak_cache, weak_entry));
        entry
    }
}

/// The members of one group.
pub(super) struct GroupEndpoints {
    name: Arc<str>,
    resource_version: Cell<u64>,
    state: RefCell<EndpointState>,
}

#[derive(Default)]
struct EndpointState {
    weights: MemberWeights,
    /// The group's version at the last check.
    version: u64,
    /// Whether there is such a group.
    exists: bool,
    /// The resource for clients with its number: encoded once for all of them.
    encoded: Option<(u64, ProtobufAny)>,
}

impl GroupEndpoints {
    /// Returns a number that changes with the resource; `None` while there is no such group.
    pub(super) fn resource_version(&self) -> Option<u64> {
        self.state.borrow().exists.then(|| self.resource_version.get())
    }

    pub(super) fn resource(&self) -> ProtobufAny {
        let EndpointState { encoded, weights, .. } = &mut *self.state.borrow_mut();
        let version = self.resource_version.get();
        match encoded {
            Some((encoded_version, any)) if *encoded_version == version => any.clone(),
            _ => {
                let any = resource::endpoints(&self.name, weights.members());
                encoded.insert((version, any)).1.clone()
            }
        }
    }

    /// Checks the group; returns `true` if clients need an update.
    fn refresh(&self, core: &ThreadContext, pool: Option<&Rc<GroupPool>>) -> bool {
        match self.check(pool) {
            CheckOutcome::Decided(changed) => changed,
            CheckOutcome::NeedsShares(input) => {
                let shares = input.shares(core.random_bits(), core.tick());
                self.apply_shares(core.now(), &input, shares)
            }
        }
    }

    /// Returns the result of a check, or the input for the shares.
    fn check(&self, pool: Option<&Rc<GroupPool>>) -> CheckOutcome {
        let mut state = self.state.borrow_mut();
        let Some(pool) = pool else {
            return CheckOutcome::Decided(std::mem::take(&mut *state).exists);
        };
        let version = pool.group.version();
        let view = pool.view();
        let self_moving = view.published.plan.shares_vary_with_load();
        let is_new = !std::mem::replace(&mut state.exists, true);
        if !is_new && !self_moving && state.version == version {
            return CheckOutcome::Decided(false);
        }
        state.version = version;
        let published = Arc::clone(&view.published);
        CheckOutcome::NeedsShares(Box::new(ShareInput {
            published,
            picker_state: pool.picker(),
            self_moving,
            is_new,
        }))
    }

    /// Records shares; returns `true` if clients need an update.
    fn apply_shares(&self, now: Time, input: &ShareInput, shares: Vec<f64>) -> bool {
        let member_shares = input.published.plan.members().iter().zip(shares);
        let member_shares = member_shares.map(|(member, share)| MemberShare {
            member: member.id,
            name: Arc::clone(&member.name),
            address: member.address,
            share,
            staying_share: 1.0 - f64::from(member.shed.share),
        });
        let changed = self.state.borrow_mut().weights.update(now, member_shares.collect(), input.self_moving)
            || input.is_new;
        if changed {
            self.resource_version.set(self.resource_version.get() + 1);
        }
        changed
    }
}

/// The outcome of a check.
enum CheckOutcome {
    /// Whether clients need an update is known.
    Decided(bool),
    /// It depends on the shares.
    NeedsShares(Box<ShareInput>),
}

/// The input from which shares are computed.
struct ShareInput {
    published: Arc<PublishedPlan>,
    picker_state: PickerState,
    /// Whether the shares change by themselves. Then they are simulated, which takes long.
    self_moving: bool,
    /// Whether the group is new.
    is_new: bool,
}

impl ShareInput {
    fn shares(&self, chance: u64, now: Time) -> Vec<f64> {
        self.published.plan.shares(&self.picker_state, chance, now)
    }

    /// Computes the shares, on another thread if it takes long, so that requests need not wait for it.
    async fn compute_shares(self: Box<Self>, core: &ThreadContext) -> Option<(Box<Self>, Vec<f64>)> {
        let (chance, now) = (core.random_bits(), core.tick());
        if self.self_moving {
            let input = self;
            let compute = move || {
                let shares = input.shares(chance, now);
                (input, shares)
            };
            return tokio::task::spawn_blocking(compute).await.ok();
        }
        let shares = self.shares(chance, now);
        Some((self, shares))
    }
}

/// Checks a group when it has changed, and periodically, and notifies the clients' tasks.
async fn watch_group(
    core: Rc<ThreadContext>,
    listener: Rc<Listener>,
    cache: Weak<EndpointCache>,
    entry: Weak<GroupEndpoints>,
) {
    let mut followed: Option<(Rc<GroupPool>, watch::Receiver<()>)> = None;
    let mut last_notified = None;
    loop {
        let outcome = {
            let Some(entry) = entry.upgrade() else { return };
            let pool = listener.pool_of(&entry.name).filter(|_| !listener.is_closed());
            let unchanged = match (&followed, &pool) {
                (Some((followed, _)), Some(pool)) => Rc::ptr_eq(followed, pool),
                (None, None) => true,
                _ => false,
            };
            if !unchanged {
                followed = pool.clone().map(|pool| {
                    let changes = pool.group.changes();
                    (pool, changes)
                });
            }
            if let Some((_, changes)) = &mut followed {
                // Later changes are checked again.
                changes.borrow_and_update();
            }
            entry.check(pool.as_ref())
        };
        let changed = match outcome {
            CheckOutcome::Decided(changed) => changed,
            CheckOutcome::NeedsShares(input) => {
                let computed = input.compute_shares(&core).await;
                let Some(entry) = entry.upgrade() else { return };
                computed.is_some_and(|(input, shares)| entry.apply_shares(core.tick(), &input, shares))
            }
        };
        if changed {
            let Some(cache) = cache.upgrade() else { return };
            cache.changed.notify_waiters();
            last_notified = Some(core.now());
        }
        match &mut followed {
            Some((_, changes)) => {
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() {
                        // The group was removed; the listener is about to get the order.
                        core.wheel.sleep(MIN_NOTIFY_INTERVAL).await;
                    },
                    () = core.wheel.sleep(CHECK_INTERVAL) => {}
                }
            }
            None => core.wheel.sleep(CHECK_INTERVAL).await,
        }
        if let Some(last_notified) = last_notified {
            let elapsed = core.tick().since(last_notified);
            if elapsed < MIN_NOTIFY_INTERVAL {
                core.wheel.sleep(MIN_NOTIFY_INTERVAL - elapsed).await;
            }
        }
    }
}
