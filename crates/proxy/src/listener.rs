//! A listener as the cores and the control thread know it: settings, counts, and whether it is open.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::ListenerSettings;
use crate::affinity::Homes;
use crate::bond::{Known, Tie, Ties};
use crate::core::{Core, FlowGuest, Guest};
use crate::group::Record;
use crate::pool::{Pool, View};
use crate::stats::Count;
use crate::{dns, udp, xds};

/// What cores count of a listener, and where it really listens.
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    /// One for each core.
    pub(crate) counts: Box<[DoorCount]>,
    /// What a process before this one counted; the control plane writes it.
    pub(crate) before: DoorCount,
    /// Which members its sessions are bound to.
    pub(crate) ties: Ties,
    /// If it answers for a domain: what the networks of its clients have had.
    pub(crate) answer_rates: OnceLock<dns::AnswerRates>,
}

impl Door {
    pub(crate) fn new(address: SocketAddr, cores: usize) -> Arc<Self> {
        let counts = (0..cores).map(|_| DoorCount::default()).collect();
        let (before, ties) = (DoorCount::default(), Ties::default());
        Arc::new(Self { address, counts, before, ties, answer_rates: OnceLock::new() })
    }

    /// All that is counted of it.
    pub(crate) fn all(&self) -> impl Iterator<Item = &DoorCount> {
        self.counts.iter().chain(std::iter::once(&self.before))
    }
}

/// One core's counts of a listener.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct DoorCount {
    pub(crate) open: Count,
    pub(crate) accepted: Count,
    pub(crate) refused: Count,
}

/// One core's side of a listener.
pub(crate) struct Listener {
    pub(crate) door: Arc<Door>,
    pub(crate) core: usize,
    known: RefCell<Known>,
    /// Whose the tags in its clients' cookies are.
    pub(crate) homes: RefCell<Homes>,
    settings: RefCell<Rc<ListenerSettings>>,
    pool: RefCell<Rc<Pool>>,
    /// Itself as it is for those who ask for a name that another group has (TLS), or for another group (xds), by group.
    branches: RefCell<BTreeMap<Arc<str>, Rc<Self>>>,
    closed: Cell<bool>,
    /// Do its sockets go on in another process?
    left: Cell<bool>,
    close: Notify,
    /// If it speaks xDS.
    pub(crate) xds: xds::Side,
    /// If it takes datagrams: of each of its sockets here.
    pub(crate) services: RefCell<Vec<Weak<udp::Service>>>,
}

impl Listener {
    /// `others`: of the groups that clients come to by the name that they ask for (TLS, xds).
    pub(crate) fn new(
        door: Arc<Door>,
        core: usize,
        settings: ListenerSettings,
        pool: Rc<Pool>,
        others: Vec<Rc<Pool>>,
    ) -> Rc<Self> {
        let listener = Self::one(door, core, settings, pool);
        listener.branch_out(others);
        listener
    }

    fn one(door: Arc<Door>, core: usize, settings: ListenerSettings, pool: Rc<Pool>) -> Rc<Self> {
        Rc::new(Self {
            door,
            core,
            known: RefCell::default(),
            homes: RefCell::default(),
            settings: RefCell::new(Rc::new(settings)),
            pool: RefCell::new(pool),
            branches: RefCell::default(),
            closed: Cell::new(false),
            left: Cell::new(false),
            close: Notify::new(),
            xds: xds::Side::default(),
            services: RefCell::default(),
        })
    }

    pub(crate) fn settings(&self) -> Rc<ListenerSettings> {
        Rc::clone(&self.settings.borrow())
    }

    pub(crate) fn pool(&self) -> Rc<Pool> {
        Rc::clone(&self.pool.borrow())
    }

    /// What is in force now in its group.
    pub(crate) fn view(&self) -> Rc<View> {
        self.pool.borrow().view()
    }

    /// Its sessions' side of a member.
    pub(crate) fn tie(&self, record: &Arc<Record>) -> Arc<Tie> {
        self.door.ties.tie(&mut self.known.borrow_mut(), record, self.door.counts.len())
    }

    /// From now on, with these settings; connections see it at their next request.
    pub(crate) fn retune(&self, settings: ListenerSettings, pool: Rc<Pool>, others: Vec<Rc<Pool>>) {
        *self.settings.borrow_mut() = Rc::new(settings);
        *self.pool.borrow_mut() = pool;
        self.branch_out(others);
        self.xds.ring();
    }

    /// For clients that asked for the name of another group.
    pub(crate) fn branch(&self, group: &str) -> Option<Rc<Self>> {
        self.branches.borrow().get(group).map(Rc::clone)
    }

    /// May clients ask for another group?
    pub(crate) fn branches_out(&self) -> bool {
        !self.branches.borrow().is_empty()
    }

    /// A group that clients may ask for here.
    pub(crate) fn pool_of(&self, group: &str) -> Option<Rc<Pool>> {
        let own = self.pool();
        if *own.group.name == *group { Some(own) } else { Some(self.branch(group)?.pool()) }
    }

    /// All of these.
    pub(crate) fn groups(&self) -> Vec<Arc<str>> {
        let own = Arc::clone(&self.pool().group.name);
        std::iter::once(own).chain(self.branches.borrow().keys().map(Arc::clone)).collect()
    }

    fn branch_out(&self, others: Vec<Rc<Pool>>) {
        let mut before = self.branches.take();
        let mut branches = BTreeMap::new();
        for pool in others {
            let name = Arc::clone(&pool.group.name);
            let settings = ListenerSettings { group: Arc::clone(&name), ..(*self.settings()).clone() };
            let branch = match before.remove(&name) {
                Some(branch) => {
                    branch.retune(settings, pool, Vec::new());
                    branch
                }
                None => Self::one(Arc::clone(&self.door), self.core, settings, pool),
            };
            branches.insert(name, branch);
        }
        // Whoever came by a name that is no longer anybody's ends between two requests.
        before.into_values().for_each(|gone| gone.close());
        *self.branches.borrow_mut() = branches;
    }

    /// Accepts nothing more.
    pub(crate) fn close(&self) {
        self.branches.borrow().values().for_each(|branch| branch.close());
        self.closed.set(true);
        self.close.notify_waiters();
        self.close.notify_one();
    }

    /// The same, and leaves who waits to be accepted to another process.
    pub(crate) fn leave(&self) {
        self.left.set(true);
        self.close();
    }

    pub(crate) fn left(&self) -> bool {
        self.left.get()
    }

    pub(crate) fn closed(&self) -> bool {
        self.closed.get()
    }

    /// Resolves when the listener is closed.
    pub(crate) async fn until_closed(&self) {
        if !self.closed.get() {
            self.close.notified().await;
        }
    }

    pub(crate) fn count(&self) -> &DoorCount {
        &self.door.counts[self.core]
    }
}

/// A client connection as its listener counts it, or a flow.
pub(crate) struct Visit<G = Guest> {
    listener: Rc<Listener>,
    _guest: G,
}

impl Visit {
    /// Lets a connection in, unless there are too many.
    pub(crate) fn enter(core: &Core, listener: &Rc<Listener>) -> Option<Self> {
        let Some(guest) = core.census.enter() else {
            listener.count().refused.add(1);
            return None;
        };
        Some(Self::begin(listener, guest))
    }
}

impl Visit<FlowGuest> {
    /// Lets a flow in. Of them each listener has a bound of its own: addresses that datagrams are sent from cost nothing to
    /// forge, and are not to keep connections out.
    pub(crate) fn flow(core: &Core, listener: &Rc<Listener>) -> Self {
        Self::begin(listener, core.census.enter_flow())
    }
}

impl<G> Visit<G> {
    fn begin(listener: &Rc<Listener>, guest: G) -> Self {
        listener.count().accepted.add(1);
        listener.count().open.add(1);
        Self { listener: Rc::clone(listener), _guest: guest }
    }
}

impl<G> Drop for Visit<G> {
    fn drop(&mut self) {
        self.listener.count().open.sub(1);
    }
}
