//! A listener, as the cores and the control thread share it: its settings, its counters, and whether it is
//! open.

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

/// The counters of a listener, and its bound address.
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    /// The counters of each core.
    pub(crate) counts: Box<[DoorCount]>,
    /// The counters of the previous process; the control plane writes them.
    pub(crate) before: DoorCount,
    /// The members that its sessions are bound to.
    pub(crate) ties: Ties,
    /// For a listener that serves a domain: the answers to each client network.
    pub(crate) answer_rates: OnceLock<dns::AnswerRates>,
}

impl Door {
    pub(crate) fn new(address: SocketAddr, cores: usize) -> Arc<Self> {
        let counts = (0..cores).map(|_| DoorCount::default()).collect();
        let (before, ties) = (DoorCount::default(), Ties::default());
        Arc::new(Self { address, counts, before, ties, answer_rates: OnceLock::new() })
    }

    /// Returns all counters, with those of the previous process.
    pub(crate) fn all(&self) -> impl Iterator<Item = &DoorCount> {
        self.counts.iter().chain(std::iter::once(&self.before))
    }
}

/// One core's counters of a listener.
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
    /// The members of the tags in its clients' cookies.
    pub(crate) homes: RefCell<Homes>,
    settings: RefCell<Rc<ListenerSettings>>,
    pool: RefCell<Rc<Pool>>,
    /// Alternates of this listener for clients that request a name of another group (TLS), or another group
    /// (xDS), by group.
    branches: RefCell<BTreeMap<Arc<str>, Rc<Self>>>,
    closed: Cell<bool>,
    /// Whether its sockets continue in another process.
    left: Cell<bool>,
    close: Notify,
    /// The state for a listener that speaks xDS.
    pub(crate) xds: xds::Side,
    /// For a listener that takes datagrams: the service of each of its sockets on this core.
    pub(crate) services: RefCell<Vec<Weak<udp::Service>>>,
}

impl Listener {
    /// Creates a core's side. `others` are the pools of groups that clients select by the name that they
    /// request (TLS, xDS).
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

    /// Returns the current state of its group.
    pub(crate) fn view(&self) -> Rc<View> {
        self.pool.borrow().view()
    }

    /// Returns its sessions' tie to a member.
    pub(crate) fn tie(&self, record: &Arc<Record>) -> Arc<Tie> {
        self.door.ties.tie(&mut self.known.borrow_mut(), record, self.door.counts.len())
    }

    /// Applies these settings; connections use them from their next request.
    pub(crate) fn retune(&self, settings: ListenerSettings, pool: Rc<Pool>, others: Vec<Rc<Pool>>) {
        *self.settings.borrow_mut() = Rc::new(settings);
        *self.pool.borrow_mut() = pool;
        self.branch_out(others);
        self.xds.ring();
    }

    /// Returns the alternate for clients that requested the name of another group.
    pub(crate) fn branch(&self, group: &str) -> Option<Rc<Self>> {
        self.branches.borrow().get(group).map(Rc::clone)
    }

    /// Returns `true` if clients may request another group.
    pub(crate) fn branches_out(&self) -> bool {
        !self.branches.borrow().is_empty()
    }

    /// Returns the pool of a group that clients may request here.
    pub(crate) fn pool_of(&self, group: &str) -> Option<Rc<Pool>> {
        let own = self.pool();
        if *own.group.name == *group { Some(own) } else { Some(self.branch(group)?.pool()) }
    }

    /// Returns all groups that clients may request here.
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
        // Connections by a name that was removed end between two requests.
        before.into_values().for_each(|gone| gone.close());
        *self.branches.borrow_mut() = branches;
    }

    /// Closes the listener: it accepts nothing more.
    pub(crate) fn close(&self) {
        self.branches.borrow().values().for_each(|branch| branch.close());
        self.closed.set(true);
        self.close.notify_waiters();
        self.close.notify_one();
    }

    /// Closes the listener, and leaves the waiting clients to another process.
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

    /// Completes when the listener is closed.
    pub(crate) async fn until_closed(&self) {
        if !self.closed.get() {
            self.close.notified().await;
        }
    }

    pub(crate) fn count(&self) -> &DoorCount {
        &self.door.counts[self.core]
    }
}

/// The listener's guard of a client connection, or of a flow.
pub(crate) struct Visit<G = Guest> {
    listener: Rc<Listener>,
    _guest: G,
}

impl Visit {
    /// Admits a connection; `None` if there are too many.
    pub(crate) fn enter(core: &Core, listener: &Rc<Listener>) -> Option<Self> {
        let Some(guest) = core.census.enter() else {
            listener.count().refused.add(1);
            return None;
        };
        Some(Self::begin(listener, guest))
    }
}

impl Visit<FlowGuest> {
    /// Admits a flow. Each listener has a limit of its own for flows. The source addresses of datagrams are
    /// easy to forge, and must not keep connections out.
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
