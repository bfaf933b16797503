//! Be seen and be told: what a running balancer, lottery's daemon or Supervisor says of itself, and how an operator tells it what to
//! do.
//!
//! Four doors. The *listener* (TCP) only shows: it may face a network, and nothing that arrives there can
//! change anything. The *control socket* (unix, mode 0600) shows the same and acts as well; who may act is
//! decided by the file's permissions. *Control over TLS* does the same for those who prove who they are, by a client
//! certificate, a token or a ticket, and only what the [access rules](Access) give them. The *reports* door (TCP, only if asked
//! for) takes what members tell of their load, lends members to clients that ask, and shows nothing: it is for the network that
//! the members are in, where whoever can reach it can lie about their load, hold leases, and do no more. All are served by one thread with a runtime of its own,
//! so that no client of theirs, however many or slow, takes time from the data path.
//!
//! What can be asked for stands in one table, [`ROUTES`]: a path, the verb that roles have, what it takes and gives. The
//! [OpenAPI document](openapi::document) is made of it. Changes and refused attempts are written to the [audit log](Audit).
//!
//! An error is `{"error": "what, where, what to do"}` with a 4xx status. This crate knows nothing of the
//! data plane: whoever joins the two implements [`Subject`].
//!
//! A lottery's [`Daemon`] and a [`Supervisor`] of processes have the same doors but that for reports, guarded alike; who serves what is
//! in the same table.

mod access;
mod act;
mod audit;
mod bind;
mod dashboard;
mod events;
mod files;
mod host;
mod jwt;
mod lease;
mod lobby;
mod lottery;
mod member;
mod metrics;
#[cfg(test)]
#[path = "../../../fuzz/near.rs"]
mod near;
pub mod openapi;
mod otlp;
mod patience;
mod plane;
mod process;
mod remote;
mod reply;
mod report;
mod route;
mod rules;
mod sent;
mod serve;
mod show;
mod subject;
mod supervisor;
pub mod table;
mod ticket;
mod tls;
mod turn;
mod verb;
mod whole;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use plane::Behind;
use tokio::sync::{Notify, oneshot};

/// Laws of what is sent to the admin listener, for the fuzz targets: each panics if it does not hold.
#[cfg(fuzzing)]
#[expect(missing_docs, reason = "named like the targets")]
pub mod laws {
    pub fn jwt(input: &[u8]) {
        crate::jwt::law::check(input);
    }

    pub fn report(input: &[u8]) {
        crate::report::law::check(input);
    }
}

pub use access::{Access, BUILT_IN, Caller, Grant, Kind, Pattern, Permit, Role, spiffe_id, trust_domain};
pub use audit::{Audit, Deed};
pub use jwt::{Jwt, KeySet};
pub use lottery::{
    Counts, Daemon, DaemonStatus, KeyRing, KeyStep, MemberSeen, OwnService, Part, Secret, Whose,
};
pub use member::{REGISTER_SECONDS, Registered, Registration, Unregistered};
pub use otlp::{Collector, Exporter, endpoint};
pub use remote::Url;
pub use rules::Rules;
pub use subject::{
    Changed, Entry, LEASE_SECONDS, Lease, Lessee, NoLease, Reference, Refused, Report, Subject, Supposed,
    Supposition, Switch, UPGRADE_SECONDS, UpgradeWish, Upgraded, Wish,
};
pub use supervisor::{Act, Children, Denied, Household, LastExit, ProcessStatus, Says, Supervisor};
pub use tls::Tls;
pub use verb::{By, Gives, Nature, ROUTES, Reach, Route, Takes, Verb};

/// Connections that the door for reports takes at once; each is a file.
pub const REPORTERS: u32 = serve::REPORTERS;

/// Connections that control over TLS takes at once; each is a file.
pub const GUESTS: u32 = serve::GUESTS;

/// Where to be reached.
#[derive(Debug, Default)]
pub struct Config {
    /// Sockets that somebody else bound, by what they are for: `listen`, `control`, `reports`, `secured`. Used in place of
    /// binding where there is one.
    pub given: Vec<(&'static str, OwnedFd)>,
    /// Does somebody else keep the control socket that is given? Then its file stays when this ends.
    pub stays: bool,
    /// If there is one, nobody is served before it tells to.
    pub opening: Option<Arc<Notify>>,
    /// Read-only listener; none if `None`. Port 0 takes a free one.
    pub listen: Option<SocketAddr>,
    /// Names, in lower case, by which the read-only listener may be asked beside its addresses, `localhost` and the machine's name.
    pub names: Vec<Box<str>>,
    /// Control socket; none if `None`.
    pub control: Option<PathBuf>,
    /// Door for reports of members and leases of them, which also shows object references, and nothing else; none if `None`. Port 0 takes a free one.
    pub reports: Option<SocketAddr>,
    /// Does that door lend no members?
    pub reports_only: bool,
    /// Does that door register members?
    pub register: bool,
    /// Control over TLS; none if `None`.
    pub secured: Option<Secured>,
    /// Where changes and refused attempts are written; nowhere if `None`.
    pub audit: Option<Arc<Audit>>,
}

/// Control over TLS: where, who is let in, and what they may do.
#[derive(Clone, Debug)]
pub struct Secured {
    /// The address and the certificates.
    pub tls: Tls,
    /// Which tokens count; none if `None`.
    pub jwt: Option<Jwt>,
    /// The keytab by which Kerberos tickets count; none do if `None`.
    pub keytab: Option<PathBuf>,
    /// Who may do what.
    pub rules: Arc<Rules>,
}

/// Why the admin plane did not start: one line that says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The TCP address cannot be had.
    #[error("admin: cannot listen on {addr}: {why}; {hint}")]
    Listen {
        /// As configured.
        addr: SocketAddr,
        /// What the system said.
        why: io::Error,
        /// What to do.
        hint: String,
    },
    /// The unix socket cannot be had.
    #[error("admin: cannot make the control socket {}: {why}; {hint}", path.display())]
    Control {
        /// As configured.
        path: PathBuf,
        /// What is in the way.
        why: String,
        /// What to do.
        hint: &'static str,
    },
    /// What control over TLS needs is missing or wrong.
    #[error(
        "admin: control over TLS: {0}; mend [admin.tls], [admin.jwt] or [admin.kerberos], or take tls:// out of [admin] control"
    )]
    Secured(String),
    /// The system gave no thread or no event queue.
    #[error("admin: cannot start its thread: {0}; raise the limits on processes and open files")]
    Thread(io::Error),
}

/// A running admin plane. Dropping it ends it: answers under way are finished (within half a second),
/// event streams end after the last event, the control socket's file is removed.
#[derive(Debug)]
pub struct Admin {
    addresses: Addresses,
    copies: Vec<(&'static str, OwnedFd)>,
    left: Arc<AtomicBool>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Where the TCP doors are, as bound.
#[derive(Clone, Copy, Debug, Default)]
struct Addresses {
    listen: Option<SocketAddr>,
    reports: Option<SocketAddr>,
    secured: Option<SocketAddr>,
}

impl Admin {
    /// Address of the read-only listener, as bound.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.addresses.listen
    }

    /// Address of the door for reports, as bound.
    pub fn reports(&self) -> Option<SocketAddr> {
        self.addresses.reports
    }

    /// Address of control over TLS, as bound.
    pub fn secured(&self) -> Option<SocketAddr> {
        self.addresses.secured
    }

    /// Copies of the sockets of all doors, for another process: what it takes as [`Config::given`].
    ///
    /// # Errors
    /// There are no more files.
    pub fn sockets(&self) -> io::Result<Vec<(&'static str, OwnedFd)>> {
        self.copies.iter().map(|(name, copy)| Ok((*name, copy.try_clone()?))).collect()
    }

    /// Ends as when it is dropped, but leaves the control socket and its file to the process that took it over.
    pub fn leave(self) {
        self.left.store(true, Relaxed);
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the panic hook; there is nothing to add.
            let _ = thread.join();
        }
    }
}

/// Binds what `config` names and serves it on a thread of its own; returns once all doors are open.
pub fn start(config: Config, subject: Arc<dyn Subject>) -> Result<Admin, Error> {
    open(config, Behind::Balancer(subject))
}

/// The same in front of a lottery's daemon. There is no door for reports.
pub fn attend(config: Config, daemon: Arc<dyn Daemon>) -> Result<Admin, Error> {
    open(Config { reports: None, ..config }, Behind::Lottery(daemon))
}

/// The same in front of a Supervisor. There is no door for reports.
pub fn supervise(config: Config, supervisor: Arc<dyn Supervisor>) -> Result<Admin, Error> {
    open(Config { reports: None, ..config }, Behind::Supervisor(supervisor))
}

fn open(config: Config, behind: Behind) -> Result<Admin, Error> {
    let (stop, stopped) = oneshot::channel();
    let (ready, outcome) = mpsc::sync_channel(1);
    let left = Arc::<AtomicBool>::default();
    let leaves = Arc::clone(&left);
    let thread = std::thread::Builder::new()
        .name("admin".into())
        .spawn(move || {
            let runtime = match tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(4)
                .build()
            {
                Ok(runtime) => runtime,
                Err(error) => return drop(ready.send(Err(Error::Thread(error)))),
            };
            runtime.block_on(async {
                let opened = match serve::Doors::open(config, leaves).await {
                    Ok(doors) => doors.copies().map_err(Error::Thread).map(|copies| (doors, copies)),
                    Err(error) => Err(error),
                };
                let doors = match opened {
                    Ok((doors, copies)) => {
                        drop(ready.send(Ok((doors.addresses(), copies))));
                        doors
                    }
                    Err(error) => return drop(ready.send(Err(error))),
                };
                doors.serve(behind, stopped).await;
            });
            // A reload that hangs must not keep the process from ending.
            runtime.shutdown_background();
        })
        .map_err(Error::Thread)?;
    let lost = || Err(Error::Thread(io::Error::other("it ended before it began")));
    let (addresses, copies) = outcome.recv().unwrap_or_else(|_| lost())?;
    Ok(Admin { addresses, copies, left, stop: Some(stop), thread: Some(thread) })
}
