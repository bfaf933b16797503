//! A `CosLoadBalancing::LoadManager`: monitors, alerts and applications for the interface of TAO's load
//! balancing service work with this balancer unchanged.
//!
//! One CORBA object with the key [`OBJECT_KEY`] is served over IIOP on an address of its own. There is no
//! ORB, only the object's operations (`call` parses them, `answer` writes their results). A *location* is the
//! target of load reports and alerts. It names a member in each group that has one there, so a monitor's
//! report about a host counts for all its members.
//!
//! One task per load monitor polls it (`monitors`), and one task per load alert calls it (`alert`). Every
//! call has a time limit and a connection of its own, so a dead or hanging one delays no other. A failed call
//! to a load alert is repeated until it succeeds or is no longer wanted.
//!
//! An implementation of [`LoadManagerBackend`] provides the groups and the locations under alert. All state
//! is kept in memory.

mod alert;
mod answer;
mod call;
mod invoke;
mod location;
mod monitors;
mod properties;
mod servant;
mod serve;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_wire::giop::Ior;
use tokio::sync::oneshot;

pub use location::Location;

use servant::Servant;

/// The object's key: clients reach it as `corbaloc::HOST:PORT/LoadManager`.
pub const OBJECT_KEY: &[u8] = b"LoadManager";

/// The balancer that owns the groups. Its methods are called on threads that may block, and should take
/// milliseconds.
pub trait LoadManagerBackend: Send + Sync + 'static {
    /// Records loads, by name, of the members at a location, in every group. There may be no members there.
    fn record_loads(&self, location: &str, values: &[(String, f64)]);

    /// Returns the locations of members that should shed their clients.
    fn alerted_locations(&self) -> BTreeSet<String>;

    /// Returns all groups.
    fn groups(&self) -> Vec<ObjectGroup>;

    /// Creates a group without members, for objects of a type.
    ///
    /// # Errors
    /// The group cannot be created, or its strategy is not available.
    fn create_group(&self, type_id: &str, strategy: Option<&StrategyInfo>)
    -> Result<ObjectGroup, GroupError>;

    /// Deletes a group that [`LoadManagerBackend::create_group`] created.
    ///
    /// # Errors
    /// There is no such group, or it was created otherwise.
    fn delete_group(&self, id: u64) -> Result<(), GroupError>;

    /// Adds a member to a group, until the process ends.
    ///
    /// # Errors
    /// There is no such group, or it has a member at the location, or the object cannot be reached.
    fn add_member(&self, id: u64, location: &Location, object: &Ior) -> Result<(), GroupError>;

    /// Removes a member from a group, until the process ends.
    ///
    /// # Errors
    /// There is no such group, or it has no member at the location.
    fn remove_member(&self, id: u64, location: &str) -> Result<(), GroupError>;

    /// Announces a change and returns a number for it. If there is an audit log, the change is recorded there
    /// before this returns.
    ///
    /// # Errors
    /// The change cannot be recorded; then it must not be made.
    fn begin_change(&self, request: &ChangeRequest) -> Result<u64, String>;

    /// Records the outcome of a change, or the reason why it was not made.
    fn end_change(&self, number: u64, request: &ChangeRequest, outcome: Result<(), &str>);
}

/// A change that a client requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeRequest {
    /// The client's address.
    pub from: SocketAddr,
    /// The operation's name in the interface.
    pub operation: &'static str,
    /// The target: a group by its object's key, a location, a type; those that apply, in this order.
    pub target: Option<String>,
}

/// A group as clients of the load manager see it.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectGroup {
    /// The group's number: not 0, and constant while the process runs.
    pub id: u64,
    /// The reference for the group's clients; `None` if no listener serves it.
    pub reference: Option<Ior>,
    /// The members, in order.
    pub members: Vec<GroupMember>,
}

/// A member of an [`ObjectGroup`].
#[derive(Clone, Debug, PartialEq)]
pub struct GroupMember {
    /// The member's location, unique within the group.
    pub location: Location,
    /// The member's object.
    pub object: Ior,
}

/// A strategy that an application requests.
#[derive(Clone, Debug, PartialEq)]
pub struct StrategyInfo {
    /// The name, as `LeastLoaded`.
    pub name: String,
    /// The settings, by the last part of their names, as `CriticalThreshold`.
    pub settings: Vec<(String, f64)>,
}

/// The reason why an operation was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupError {
    /// There is no such group.
    NoGroup,
    /// The group has no member there.
    NoMember,
    /// The group already has a member there.
    MemberExists,
    /// There is no such strategy, or not with these settings: one sentence for the log.
    Strategy(String),
    /// The operation is impossible: one sentence for the log.
    Impossible(String),
}

/// The object's server, which runs until it is dropped.
pub struct LoadManager {
    address: SocketAddr,
    listener: TcpListener,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LoadManager {
    /// Serves the object on an address, port 0 for a free one. Each load monitor is polled once per
    /// `interval`.
    ///
    /// # Errors
    /// The address cannot be bound, or the system provides no thread.
    pub fn start(
        address: SocketAddr,
        interval: Duration,
        backend: Arc<dyn LoadManagerBackend>,
    ) -> io::Result<Self> {
        Self::start_on(TcpListener::bind(address)?, interval, backend)
    }

    /// Serves the object on a socket that already listens.
    ///
    /// # Errors
    /// The system provides no thread, or no more file descriptors.
    pub fn start_on(
        listener: TcpListener,
        interval: Duration,
        backend: Arc<dyn LoadManagerBackend>,
    ) -> io::Result<Self> {
        let copy = listener.try_clone()?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(64).build()?;
        let (stop, stopped) = oneshot::channel();
        let servant = Servant::new(backend, interval, runtime.handle().clone());
        let listener = {
            let _context = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let thread = std::thread::Builder::new().name("load-manager".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve::serve(&listener, &servant) => {}
                    () = servant.follow_alerts() => {}
                    _ = stopped => {}
                }
            });
            // A call that hangs must not keep the process from ending.
            runtime.shutdown_background();
        })?;
        Ok(Self { address, listener: copy, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns a copy of the socket, for another process.
    ///
    /// # Errors
    /// The system provides no more file descriptors.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        Ok(self.listener.try_clone()?.into())
    }

    /// Returns the address of the object.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for LoadManager {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}
