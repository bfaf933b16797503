//! A core's side of a listener's routes: the groups that they lead to.

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use crate::ListenerRoutes;
use crate::listener::Listener;

/// The step of a split's sequence: 2^32 divided by the golden ratio. Its multiples are spread evenly, so that
/// few requests are enough for the shares of a split.
const SPLIT_STEP: u32 = 2_654_435_769;

/// The routes of a listener on one core.
pub(crate) struct ResolvedRoutes {
    pub(crate) routes: Arc<ListenerRoutes>,
    /// The listener or its alternate for each of the routes' groups. An alternate ends when its group is
    /// removed.
    targets: Vec<Weak<Listener>>,
    /// The state of each route's split.
    split_states: Vec<Cell<u32>>,
}

impl ResolvedRoutes {
    /// Resolves the groups by `target`.
    pub(crate) fn new(routes: Arc<ListenerRoutes>, target: impl Fn(&Arc<str>) -> Weak<Listener>) -> Self {
        let targets = routes.groups().iter().map(target).collect();
        let split_states = vec![Cell::new(0); routes.routes().len()];
        Self { routes, targets, split_states }
    }

    /// Returns the listener of the group that serves the next request of a route; `None` if the route leads
    /// to no group, or its group was removed.
    pub(crate) fn next_target(&self, route: usize) -> Option<Rc<Listener>> {
        let split = self.routes.split(route)?;
        let state = self.split_states.get(route)?;
        state.set(state.get().wrapping_add(SPLIT_STEP));
        self.targets.get(split.choose(state.get())?)?.upgrade()
    }
}
