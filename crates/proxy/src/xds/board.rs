//! A cache of a group's endpoints, shared by a core's clients of one listener: built once for all of them,
//! and updated while there is a user.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::{Hand, Time};
use plimsoll_wire::xds::Any;
use tokio::sync::{Notify, watch};

use super::resource;
use super::scales::{Scales, Share};
use crate::core::Core;
use crate::group::Published;
use crate::listener::Listener;
use crate::pool::Pool;

/// The interval of checking shares that change by themselves.
const LOOK: Duration = Duration::from_millis(250);
/// The minimum time between two updates.
const GAP: Duration = Duration::from_millis(50);

/// A listener's cache on one core, while there is a user.
#[derive(Default)]
pub(crate) struct Side(RefCell<Weak<Board>>);

impl Side {
    pub(super) fn board(&self) -> Rc<Board> {
        let board = self.0.borrow().upgrade();
        board.unwrap_or_else(|| {
            let board = Rc::new(Board::default());
            *self.0.borrow_mut() = Rc::downgrade(&board);
            board
        })
    }

    /// Wakes all clients' tasks, as the groups have changed.
    pub(crate) fn ring(&self) {
        if let Some(board) = self.0.borrow().upgrade() {
            board.bell.notify_waiters();
        }
    }
}

/// The groups that clients requested.
#[derive(Default)]
pub(super) struct Board {
    /// Notified when any of this changes. A task that checks first and then waits, with nothing in between,
    /// misses no change: all of this is on one thread.
    pub(super) bell: Notify,
    entries: RefCell<BTreeMap<Arc<str>, Weak<Entry>>>,
}

impl Board {
    /// Returns a group's entry, which a task updates until it is dropped.
    pub(super) fn entry(
        self: &Rc<Self>,
        core: &Rc<Core>,
        listener: &Rc<Listener>,
        name: &Arc<str>,
    ) -> Rc<Entry> {
        let mut entries = self.entries.borrow_mut();
        if let Some(entry) = entries.get(name).and_then(Weak::upgrade) {
            return entry;
        }
        entries.retain(|_, entry| entry.strong_count() > 0);
        let entry =
            Rc::new(Entry { name: Arc::clone(name), number: Cell::new(0), state: RefCell::default() });
        entries.insert(Arc::clone(name), Rc::downgrade(&entry));
        entry.look(core, listener.pool_of(name).as_ref());
        let (board, kept) = (Rc::downgrade(self), Rc::downgrade(&entry));
        tokio::task::spawn_local(attend(Rc::clone(core), Rc::clone(listener), board, kept));
        entry
    }
}

/// The members of one group.
pub(super) struct Entry {
    name: Arc<str>,
    number: Cell<u64>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    scales: Scales,
    /// The group's version at the last check.
    version: u64,
    /// Whether there is such a group.
    there: bool,
    /// The resource for clients with its number: encoded once for all of them.
    told: Option<(u64, Any)>,
}

impl Entry {
    /// Returns a number that changes with the resource; `None` while there is no such group.
    pub(super) fn number(&self) -> Option<u64> {
        self.state.borrow().there.then(|| self.number.get())
    }

    pub(super) fn resource(&self) -> Any {
        let State { told, scales, .. } = &mut *self.state.borrow_mut();
        let number = self.number.get();
        match told {
            Some((of, any)) if *of == number => any.clone(),
            _ => {
                let any = resource::endpoints(&self.name, scales.told());
                told.insert((number, any)).1.clone()
            }
        }
    }

    /// Checks the group; returns `true` if clients need an update.
    fn look(&self, core: &Core, pool: Option<&Rc<Pool>>) -> bool {
        match self.due(pool) {
            Due::Known(told) => told,
            Due::Shares(asked) => {
                let shares = asked.shares(core.chance(), core.tick());
                self.weigh(core.now(), &asked, shares)
            }
        }
    }

    /// Returns the result of a check, or the input for the shares.
    fn due(&self, pool: Option<&Rc<Pool>>) -> Due {
        let mut state = self.state.borrow_mut();
        let Some(pool) = pool else {
            return Due::Known(std::mem::take(&mut *state).there);
        };
        let version = pool.group.version();
        let view = pool.view();
        let moving = view.published.plan.shares_move();
        let came = !std::mem::replace(&mut state.there, true);
        if !came && !moving && state.version == version {
            return Due::Known(false);
        }
        state.version = version;
        let published = Arc::clone(&view.published);
        Due::Shares(Box::new(Asked { published, hand: pool.hand(), moving, came }))
    }

    /// Records shares; returns `true` if clients need an update.
    fn weigh(&self, now: Time, asked: &Asked, shares: Vec<f64>) -> bool {
        let fresh = asked.published.plan.members().iter().zip(shares);
        let fresh = fresh.map(|(member, share)| Share {
            member: member.id,
            name: Arc::clone(&member.name),
            address: member.address,
            share,
            stays: 1.0 - f64::from(member.shed.share),
        });
        let other = self.state.borrow_mut().scales.weigh(now, fresh.collect(), asked.moving) || asked.came;
        if other {
            self.number.set(self.number.get() + 1);
        }
        other
    }
}

/// The outcome of a check.
enum Due {
    /// Whether clients need an update is known.
    Known(bool),
    /// It depends on the shares.
    Shares(Box<Asked>),
}

/// The input from which shares are computed.
struct Asked {
    published: Arc<Published>,
    hand: Hand,
    /// Whether the shares change by themselves. Then they are simulated, which takes long.
    moving: bool,
    /// Whether the group is new.
    came: bool,
}

impl Asked {
    fn shares(&self, chance: u64, now: Time) -> Vec<f64> {
        self.published.plan.shares(&self.hand, chance, now)
    }

    /// Computes the shares, on another thread if it takes long, so that requests need not wait for it.
    async fn found(self: Box<Self>, core: &Core) -> Option<(Box<Self>, Vec<f64>)> {
        let (chance, now) = (core.chance(), core.tick());
        if self.moving {
            let asked = self;
            let found = move || {
                let shares = asked.shares(chance, now);
                (asked, shares)
            };
            return tokio::task::spawn_blocking(found).await.ok();
        }
        let shares = self.shares(chance, now);
        Some((self, shares))
    }
}

/// Checks a group when it has changed, and periodically, and notifies the clients' tasks.
async fn attend(core: Rc<Core>, listener: Rc<Listener>, board: Weak<Board>, entry: Weak<Entry>) {
    let mut followed: Option<(Rc<Pool>, watch::Receiver<()>)> = None;
    let mut rang = None;
    loop {
        let due = {
            let Some(entry) = entry.upgrade() else { return };
            let pool = listener.pool_of(&entry.name).filter(|_| !listener.closed());
            let same = match (&followed, &pool) {
                (Some((followed, _)), Some(pool)) => Rc::ptr_eq(followed, pool),
                (None, None) => true,
                _ => false,
            };
            if !same {
                followed = pool.clone().map(|pool| {
                    let changes = pool.group.changes();
                    (pool, changes)
                });
            }
            if let Some((_, changes)) = &mut followed {
                // Later changes are checked again.
                changes.borrow_and_update();
            }
            entry.due(pool.as_ref())
        };
        let told = match due {
            Due::Known(told) => told,
            Due::Shares(asked) => {
                let found = asked.found(&core).await;
                let Some(entry) = entry.upgrade() else { return };
                found.is_some_and(|(asked, shares)| entry.weigh(core.tick(), &asked, shares))
            }
        };
        if told {
            let Some(board) = board.upgrade() else { return };
            board.bell.notify_waiters();
            rang = Some(core.now());
        }
        match &mut followed {
            Some((_, changes)) => {
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() {
                        // The group was removed; the listener is about to get the order.
                        core.wheel.sleep(GAP).await;
                    },
                    () = core.wheel.sleep(LOOK) => {}
                }
            }
            None => core.wheel.sleep(LOOK).await,
        }
        if let Some(rang) = rang {
            let passed = core.tick().since(rang);
            if passed < GAP {
                core.wheel.sleep(GAP - passed).await;
            }
        }
    }
}
