//! A `CosLoadBalancing::LoadManager`: monitors, alerts and applications that were written against the interface of
//! TAO's load balancing service work with this balancer as they are.
//!
//! One CORBA object, with the key [`KEY`], is served on an address of its own over IIOP: no ORB, only its operations
//! (`call` reads them, `answer` writes what comes of them). A *location* is what loads are told of and alerts are
//! given to. It names a member in each group that has one there, so that what a monitor says of a host counts for all
//! that runs on it.
//!
//! Load monitors are asked by a task each (`pull`), load alerts are called by a task each (`alert`), every call with
//! a time limit and a connection of its own: one that is dead or hangs delays no other. A call to a load alert that
//! failed is made again until it succeeds or is not wanted any more.
//!
//! What the groups are, and who is under alert, is asked of whoever implements [`Desk`]. All of it is kept in memory.

mod alert;
mod answer;
mod call;
mod invoke;
mod location;
mod properties;
mod pull;
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

/// The object's key: it is reached as `corbaloc::HOST:PORT/LoadManager`.
pub const KEY: &[u8] = b"LoadManager";

/// The balancer whose groups these are. Called on threads that may wait; should take milliseconds.
pub trait Desk: Send + Sync + 'static {
    /// Takes loads, by name, of the members at a location, in every group. None may be there.
    fn report(&self, location: &str, values: &[(String, f64)]);

    /// The locations of members that are to send their clients away.
    fn alerted(&self) -> BTreeSet<String>;

    /// All groups.
    fn groups(&self) -> Vec<ObjectGroup>;

    /// Makes a group without members, for objects of a type.
    ///
    /// # Errors
    /// It cannot be made, or its strategy cannot be had.
    fn create(&self, type_id: &str, strategy: Option<&StrategyInfo>) -> Result<ObjectGroup, Refusal>;

    /// Takes a group away that [`Desk::create`] made.
    ///
    /// # Errors
    /// There is no such group, or it was made otherwise.
    fn delete(&self, id: u64) -> Result<(), Refusal>;

    /// Adds a member to a group, until the process ends.
    ///
    /// # Errors
    /// There is no such group, or it has a member at the location, or the object cannot be reached.
    fn add(&self, id: u64, location: &Location, object: &Ior) -> Result<(), Refusal>;

    /// Takes a member out of a group, until the process ends.
    ///
    /// # Errors
    /// There is no such group, or it has no member at the location.
    fn remove(&self, id: u64, location: &str) -> Result<(), Refusal>;

    /// Somebody is about to change something; a number for it. Where changes are written down that is done by then.
    ///
    /// # Errors
    /// It cannot be written down: nothing may be changed.
    fn begin(&self, deed: &Deed) -> Result<u64, String>;

    /// What came of that, or why nothing did.
    fn end(&self, number: u64, deed: &Deed, outcome: Result<(), &str>);
}

/// A change that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deed {
    /// From where.
    pub from: SocketAddr,
    /// The operation, as the interface calls it.
    pub operation: &'static str,
    /// On what: a group by its object's key, a location, a type; what there is of these, in this order.
    pub target: Option<String>,
}

/// A group as clients of the load manager know it.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectGroup {
    /// Its number, not 0, the same as long as the process runs.
    pub id: u64,
    /// What its clients ask for; `None` if no listener serves it.
    pub reference: Option<Ior>,
    /// In order.
    pub members: Vec<GroupMember>,
}

/// A member of an [`ObjectGroup`].
#[derive(Clone, Debug, PartialEq)]
pub struct GroupMember {
    /// Where it is; no other member of the group is there.
    pub location: Location,
    /// Its object.
    pub object: Ior,
}

/// A strategy as an application asks for it.
#[derive(Clone, Debug, PartialEq)]
pub struct StrategyInfo {
    /// As `LeastLoaded`.
    pub name: String,
    /// Its settings, by the last part of their names, as `CriticalThreshold`.
    pub settings: Vec<(String, f64)>,
}

/// Why the desk does not do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such group.
    NoGroup,
    /// The group has no member there.
    NoMember,
    /// The group has a member there.
    MemberThere,
    /// There is no such strategy, or not with these settings: one sentence for the log.
    Strategy(String),
    /// It cannot be done: one sentence for the log.
    Impossible(String),
}

/// The object is served until this is dropped.
pub struct LoadManager {
    address: SocketAddr,
    copy: TcpListener,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LoadManager {
    /// Serves the object on an address, port 0 for a free one; each load monitor is asked once per `interval`.
    ///
    /// # Errors
    /// The address cannot be had, or the system gives no thread.
    pub fn start(address: SocketAddr, interval: Duration, desk: Arc<dyn Desk>) -> io::Result<Self> {
        Self::start_on(TcpListener::bind(address)?, interval, desk)
    }

    /// The same on a socket that listens already.
    ///
    /// # Errors
    /// The system gives no thread, or no more files.
    pub fn start_on(listener: TcpListener, interval: Duration, desk: Arc<dyn Desk>) -> io::Result<Self> {
        let copy = listener.try_clone()?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(64).build()?;
        let (stop, stopped) = oneshot::channel();
        let servant = Servant::new(desk, interval, runtime.handle().clone());
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
        Ok(Self { address, copy, stop: Some(stop), thread: Some(thread) })
    }

    /// A copy of its socket, for another process.
    ///
    /// # Errors
    /// There are no more files.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        Ok(self.copy.try_clone()?.into())
    }

    /// Where it is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for LoadManager {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the panic hook; there is nothing to add.
            let _ = thread.join();
        }
    }
}
