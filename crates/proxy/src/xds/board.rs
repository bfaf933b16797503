//! What a core's clients of one listener are told of groups' members: made once for all of them, kept up to date for as long as
//! anybody wants to know.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_wire::xds::Any;
use tokio::sync::{Notify, watch};

use super::resource;
use super::scales::{Scales, Share};
use crate::core::Core;
use crate::listener::Listener;
use crate::pool::Pool;

/// How often shares are looked at that move by themselves.
const LOOK: Duration = Duration::from_millis(250);
/// Between two changes that clients are told of.
const GAP: Duration = Duration::from_millis(50);

/// A listener's board on one core, for as long as anybody looks at it.
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

    /// There are other groups than before: everybody is to look again.
    pub(crate) fn ring(&self) {
        if let Some(board) = self.0.borrow().upgrade() {
            board.bell.notify_waiters();
        }
    }
}

/// What there is of groups that somebody asked for.
#[derive(Default)]
pub(super) struct Board {
    /// Rings when anything of it changes. Who looks first and waits then, with nothing in between, misses nothing: all of this is
    /// on one thread.
    pub(super) bell: Notify,
    entries: RefCell<BTreeMap<Arc<str>, Weak<Entry>>>,
}

impl Board {
    /// A group's members. Somebody keeps it up to date until it is dropped.
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
    /// The group's version that was looked at last.
    version: u64,
    /// Is there such a group?
    there: bool,
}

impl Entry {
    /// Changes with what it is; `None` while there is no such group.
    pub(super) fn number(&self) -> Option<u64> {
        self.state.borrow().there.then(|| self.number.get())
    }

    pub(super) fn resource(&self) -> Any {
        resource::endpoints(&self.name, self.state.borrow().scales.told())
    }

    /// Looks at the group; true if clients are to be told.
    fn look(&self, core: &Core, pool: Option<&Rc<Pool>>) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(pool) = pool else {
            return std::mem::take(&mut *state).there;
        };
        let version = pool.group.version();
        let view = pool.view();
        let plan = &view.published.plan;
        let moving = plan.shares_move();
        let came = !std::mem::replace(&mut state.there, true);
        if !came && !moving && std::mem::replace(&mut state.version, version) == version {
            return false;
        }
        state.version = version;
        let now = core.tick();
        let fresh = plan.members().iter().zip(pool.shares(core.chance(), now));
        let fresh = fresh.map(|(member, share)| Share {
            member: member.id,
            name: Arc::clone(&member.name),
            address: member.address,
            share,
            stays: 1.0 - f64::from(member.shed.share),
        });
        let other = state.scales.weigh(now, fresh.collect(), moving) || came;
        if other {
            self.number.set(self.number.get() + 1);
        }
        other
    }
}

/// Looks at a group when it has changed, and now and then, and rings the bell.
async fn attend(core: Rc<Core>, listener: Rc<Listener>, board: Weak<Board>, entry: Weak<Entry>) {
    let mut followed: Option<(Rc<Pool>, watch::Receiver<()>)> = None;
    let mut rang = None;
    loop {
        {
            let (Some(board), Some(entry)) = (board.upgrade(), entry.upgrade()) else { return };
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
                // What comes after this is looked at again.
                changes.borrow_and_update();
            }
            if entry.look(&core, pool.as_ref()) {
                board.bell.notify_waiters();
                rang = Some(core.now());
            }
        }
        match &mut followed {
            Some((_, changes)) => {
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() {
                        // The group is gone; the listener is about to be told.
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
