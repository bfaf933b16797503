//! A listener, as the cores and the control thread share it: its settings, its counters, and whether it is
//! open.

pub(crate) mod proxy_header;
pub(crate) mod relay;
pub(crate) mod routes;
pub(crate) mod session_binding;
pub(crate) mod tls_handshake;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::ListenerSettings;
use crate::listener::routes::ResolvedRoutes;
use crate::listener::session_binding::{BindingCache, ListenerBindings, MemberBindings};
use crate::protocol::dns;
use crate::protocol::udp;
use crate::protocol::xds;
use crate::runtime::resource_limits::{ConnectionPermit, FlowPermit};
use crate::upstream::affinity_cache::AffinityCache;
use crate::upstream::group::MemberRecord;
use crate::upstream::pool::{GroupPool, PlanView};
use crate::upstream::stats::Counter;
use crate::upstream::thread_context::ThreadContext;

/// The counters of a listener, and its bound address.
pub(crate) struct ListenerShared {
    pub(crate) address: SocketAddr,
    /// The counters of each core.
    pub(crate) counts: Box<[ListenerCounters]>,
    /// The counters of the previous process; the control plane writes them.
    pub(crate) predecessor: ListenerCounters,
    /// The members that its sessions are bound to.
    pub(crate) bindings: ListenerBindings,
    /// For a listener that serves a domain: the answers to each client network.
    pub(crate) answer_rates: OnceLock<dns::AnswerRates>,
}

impl ListenerShared {
    pub(crate) fn new(address: SocketAddr, cores: usize) -> Arc<Self> {
        let counts = (0..cores).map(|_| ListenerCounters::default()).collect();
        let (predecessor, bindings) = (ListenerCounters::default(), ListenerBindings::default());
        Arc::new(Self { address, counts, predecessor, bindings, answer_rates: OnceLock::new() })
    }

    /// Returns all counters, with those of the previous process.
    pub(crate) fn all_counters(&self) -> impl Iterator<Item = &ListenerCounters> {
        self.counts.iter().chain(std::iter::once(&self.predecessor))
    }
}

/// One core's counters of a listener.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct ListenerCounters {
    pub(crate) open: Counter,
    pub(crate) accepted: Counter,
    pub(crate) refused: Counter,
}

/// One core's side of a listener.
pub(crate) struct Listener {
    pub(crate) shared: Arc<ListenerShared>,
    pub(crate) core: usize,
    binding_cache: RefCell<BindingCache>,
    /// The members of the tags in its clients' cookies.
    pub(crate) affinity: RefCell<AffinityCache>,
    settings: RefCell<Rc<ListenerSettings>>,
    pool: RefCell<Rc<GroupPool>>,
    /// Alternates of this listener for clients that request a name of another group (TLS), or another group
    /// (xDS), by group.
    alternates: RefCell<BTreeMap<Arc<str>, Rc<Self>>>,
    /// Whether clients get here by a name that they request.
    is_alternate: bool,
    /// The routes, with the alternates that they lead to.
    routes: RefCell<Option<Rc<ResolvedRoutes>>>,
    closed: Cell<bool>,
    /// Whether its sockets continue in another process.
    handed_off: Cell<bool>,
    close_signal: Notify,
    /// The state for a listener that speaks xDS.
    pub(crate) xds: xds::CacheHandle,
    /// For a listener that takes datagrams: the service of each of its sockets on this core.
    pub(crate) services: RefCell<Vec<Weak<udp::UdpService>>>,
}

impl Listener {
    /// Creates a core's side. `others` are the pools of groups that clients select by the name that they
    /// request (TLS, xDS).
    pub(crate) fn new(
        shared: Arc<ListenerShared>,
        core: usize,
        settings: ListenerSettings,
        pool: Rc<GroupPool>,
        alternate_pools: Vec<Rc<GroupPool>>,
    ) -> Rc<Self> {
        let listener = Self::without_alternates(shared, core, settings, pool, false);
        listener.set_alternates(alternate_pools);
        listener.resolve_routes();
        listener
    }

    fn without_alternates(
        shared: Arc<ListenerShared>,
        core: usize,
        settings: ListenerSettings,
        pool: Rc<GroupPool>,
        is_alternate: bool,
    ) -> Rc<Self> {
        Rc::new(Self {
            shared,
            core,
            binding_cache: RefCell::default(),
            affinity: RefCell::default(),
            settings: RefCell::new(Rc::new(settings)),
            pool: RefCell::new(pool),
            alternates: RefCell::default(),
            is_alternate,
            routes: RefCell::default(),
            closed: Cell::new(false),
            handed_off: Cell::new(false),
            close_signal: Notify::new(),
            xds: xds::CacheHandle::default(),
            services: RefCell::default(),
        })
    }

    pub(crate) fn settings(&self) -> Rc<ListenerSettings> {
        Rc::clone(&self.settings.borrow())
    }

    pub(crate) fn pool(&self) -> Rc<GroupPool> {
        Rc::clone(&self.pool.borrow())
    }

    /// Returns the current state of its group.
    pub(crate) fn view(&self) -> Rc<PlanView> {
        self.pool.borrow().view()
    }

    /// Returns its sessions' bindings to a member.
    pub(crate) fn bindings_of(&self, record: &Arc<MemberRecord>) -> Arc<MemberBindings> {
        self.shared.bindings.for_member(
            &mut self.binding_cache.borrow_mut(),
            record,
            self.shared.counts.len(),
        )
    }

    /// Applies these settings; connections use them from their next request.
    pub(crate) fn update(
        self: &Rc<Self>,
        settings: ListenerSettings,
        pool: Rc<GroupPool>,
        alternate_pools: Vec<Rc<GroupPool>>,
    ) {
        *self.settings.borrow_mut() = Rc::new(settings);
        *self.pool.borrow_mut() = pool;
        self.set_alternates(alternate_pools);
        self.resolve_routes();
        self.xds.notify_clients();
    }

    /// Returns `true` if it has routes.
    #[inline]
    pub(crate) fn has_routes(&self) -> bool {
        self.routes.borrow().is_some()
    }

    /// Returns `true` if requests that no route takes go to its group.
    pub(crate) fn has_default_group(&self, routes: &ResolvedRoutes) -> bool {
        self.is_alternate || routes.routes.has_default_group()
    }

    /// Returns the routes; `None` if all requests go to its group.
    pub(crate) fn routes(&self) -> Option<Rc<ResolvedRoutes>> {
        self.routes.borrow().clone()
    }

    /// Resolves the groups of its routes to alternates, and gives the routes to those, too: a client that
    /// requested a name (TLS) begins at an alternate.
    fn resolve_routes(self: &Rc<Self>) {
        let resolved = self.settings().routes.as_ref().map(|routes| {
            let own_group = self.pool().group.name.clone();
            let target = |group: &Arc<str>| match *group == own_group {
                true => Rc::downgrade(self),
                false => self.alternate(group).map_or_else(Weak::new, |alternate| Rc::downgrade(&alternate)),
            };
            Rc::new(ResolvedRoutes::new(Arc::clone(routes), target))
        });
        self.alternates.borrow().values().for_each(|alternate| {
            *alternate.routes.borrow_mut() = resolved.clone();
        });
        *self.routes.borrow_mut() = resolved;
    }

    /// Returns the alternate for clients that requested the name of another group.
    pub(crate) fn alternate(&self, group: &str) -> Option<Rc<Self>> {
        self.alternates.borrow().get(group).map(Rc::clone)
    }

    /// Returns `true` if clients may request another group.
    pub(crate) fn has_alternates(&self) -> bool {
        !self.alternates.borrow().is_empty()
    }

    /// Returns the pool of a group that clients may request here.
    pub(crate) fn pool_of(&self, group: &str) -> Option<Rc<GroupPool>> {
        let pool = self.pool();
        if *pool.group.name == *group { Some(pool) } else { Some(self.alternate(group)?.pool()) }
    }

    /// Returns all groups that clients may request here.
    pub(crate) fn groups(&self) -> Vec<Arc<str>> {
        let group = Arc::clone(&self.pool().group.name);
        std::iter::once(group).chain(self.alternates.borrow().keys().map(Arc::clone)).collect()
    }

    fn set_alternates(&self, alternate_pools: Vec<Rc<GroupPool>>) {
        let mut previous = self.alternates.take();
        let mut alternates = BTreeMap::new();
        for pool in alternate_pools {
            let name = Arc::clone(&pool.group.name);
            let settings = self.settings().for_alternate(&name);
            let alternate = match previous.remove(&name) {
                Some(alternate) => {
                    *alternate.settings.borrow_mut() = Rc::new(settings);
                    *alternate.pool.borrow_mut() = pool;
                    alternate.xds.notify_clients();
                    alternate
                }
                None => Self::without_alternates(Arc::clone(&self.shared), self.core, settings, pool, true),
            };
            alternates.insert(name, alternate);
        }
        // Connections by a name that was removed end between two requests.
        previous.into_values().for_each(|removed| removed.close());
        *self.alternates.borrow_mut() = alternates;
    }

    /// Closes the listener: it accepts nothing more.
    pub(crate) fn close(&self) {
        self.alternates.borrow().values().for_each(|alternate| alternate.close());
        self.closed.set(true);
        self.close_signal.notify_waiters();
        self.close_signal.notify_one();
    }

    /// Closes the listener, and leaves the waiting clients to another process.
    pub(crate) fn hand_off(&self) {
        self.handed_off.set(true);
        self.close();
    }

    pub(crate) fn is_handed_off(&self) -> bool {
        self.handed_off.get()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Completes when the listener is closed.
    pub(crate) async fn until_closed(&self) {
        if !self.closed.get() {
            self.close_signal.notified().await;
        }
    }

    pub(crate) fn counters(&self) -> &ListenerCounters {
        &self.shared.counts[self.core]
    }
}

/// The listener's guard of a client connection, or of a flow.
pub(crate) struct ConnectionGuard<G = ConnectionPermit> {
    listener: Rc<Listener>,
    _permit: G,
}

impl ConnectionGuard {
    /// Admits a connection; `None` if there are too many.
    pub(crate) fn enter(core: &ThreadContext, listener: &Rc<Listener>) -> Option<Self> {
        let Some(permit) = core.limits.admit() else {
            listener.counters().refused.add(1);
            return None;
        };
        Some(Self::begin(listener, permit))
    }
}

impl ConnectionGuard<FlowPermit> {
    /// Admits a flow. Each listener has a limit of its own for flows. The source addresses of datagrams are
    /// easy to forge, and must not keep connections out.
    pub(crate) fn enter_flow(core: &ThreadContext, listener: &Rc<Listener>) -> Self {
        Self::begin(listener, core.limits.admit_flow())
    }
}

impl<G> ConnectionGuard<G> {
    fn begin(listener: &Rc<Listener>, permit: G) -> Self {
        listener.counters().accepted.add(1);
        listener.counters().open.add(1);
        Self { listener: Rc::clone(listener), _permit: permit }
    }
}

impl<G> Drop for ConnectionGuard<G> {
    fn drop(&mut self) {
        self.listener.counters().open.sub(1);
    }
}
