//! Be seen and be told: what a running balancer says of itself, and how an operator tells it what to do.
//!
//! Three doors. The *listener* (TCP) only shows: it may face a network, and nothing that arrives there can
//! change anything. The *control socket* (unix, mode 0600) shows the same and acts as well; who may act is
//! decided by the file's permissions. The *reports* door (TCP, only if asked for) takes what members tell of their
//! load and shows nothing: it is for the network that the members are in, where whoever can reach it can lie about
//! their load and do no more. All are served by one thread with a runtime of its own, so that no client of theirs,
//! however many or slow, takes time from the data path.
//!
//! ```text
//! GET  /                 what is here
//! GET  /healthz          200 "ok"; 503 "stopping" while the process lets its work end
//! GET  /status           the read model, JSON: plimsoll_brain::status::Status
//! GET  /metrics          Prometheus text format 0.0.4
//! GET  /events           server-sent events; ?since=SEQ or Last-Event-ID resumes, ?follow=0 gives a JSON array
//! GET  /v1/groups/NAME/explain   what is known of each member and made of it: GroupExplanation
//! POST /v1/report        member=10.0.0.1:80&name=cpu&value=0.4, or JSON            reports door and control
//! POST /v1/set           {"group": "web", "key": "strategy", "value": "random"}                control only
//! POST /v1/drain         {"group": "web", "member": "10.0.0.1:80"}; group may be left out      control only
//! POST /v1/undrain       the same                                                              control only
//! POST /v1/disable       {"listener": "0.0.0.0:80"}, {"member": …, "group": …} or {"balancing": "web"}  control only
//! POST /v1/enable        the same                                                              control only
//! POST /v1/reload        {"changes": ["+ group web: member …"]}                                control only
//! POST /v1/stop          202 {"stopping": true}                                                control only
//! ```
//!
//! An error is `{"error": "what, where, what to do"}` with a 4xx status. This crate knows nothing of the
//! data plane: whoever joins the two implements [`Subject`].
//!
//! A [`Supervisor`] of processes has the first two doors as well; what can be asked of it is in [`ROUTES`].

mod bind;
mod events;
mod metrics;
mod patience;
mod process;
mod report;
mod route;
mod serve;
mod subject;
mod supervisor;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use serve::Behind;
use tokio::sync::oneshot;

pub use subject::{Changed, Entry, Reference, Refused, Report, Subject, Switch};
pub use supervisor::{
    Act, Children, Denied, Household, LastExit, ProcessStatus, ROUTES, Route, Says, Supervisor, Verb,
};

/// Connections that the door for reports takes at once; each is a file.
pub const REPORTERS: u32 = serve::REPORTERS;

/// Where to be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Read-only listener; none if `None`. Port 0 takes a free one.
    pub listen: Option<SocketAddr>,
    /// Control socket; none if `None`.
    pub control: Option<PathBuf>,
    /// Door for reports of members, which also shows object references, and nothing else; none if `None`. Port 0 takes a free one.
    pub reports: Option<SocketAddr>,
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
    /// The system gave no thread or no event queue.
    #[error("admin: cannot start its thread: {0}; raise the limits on processes and open files")]
    Thread(io::Error),
}

/// A running admin plane. Dropping it ends it: answers under way are finished (within half a second),
/// event streams end after the last event, the control socket's file is removed.
#[derive(Debug)]
pub struct Admin {
    addr: Option<SocketAddr>,
    reports: Option<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// Address of the read-only listener, as bound.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.addr
    }

    /// Address of the door for reports, as bound.
    pub fn reports(&self) -> Option<SocketAddr> {
        self.reports
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

/// The same in front of a Supervisor: its control socket, and a listener that shows its processes. There are no reports.
pub fn supervise(config: Config, supervisor: Arc<dyn Supervisor>) -> Result<Admin, Error> {
    open(Config { reports: None, ..config }, Behind::Supervisor(supervisor))
}

fn open(config: Config, behind: Behind) -> Result<Admin, Error> {
    let (stop, stopped) = oneshot::channel();
    let (ready, outcome) = mpsc::sync_channel(1);
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
                let doors = match serve::Doors::open(&config).await {
                    Ok(doors) => doors,
                    Err(error) => return drop(ready.send(Err(error))),
                };
                drop(ready.send(Ok((doors.addr(), doors.reports()))));
                doors.serve(behind, stopped).await;
            });
            // A reload that hangs must not keep the process from ending.
            runtime.shutdown_background();
        })
        .map_err(Error::Thread)?;
    let lost = || Err(Error::Thread(io::Error::other("it ended before it began")));
    let (addr, reports) = outcome.recv().unwrap_or_else(|_| lost())?;
    Ok(Admin { addr, reports, stop: Some(stop), thread: Some(thread) })
}
