//! The admin plane: shows the state of a running balancer, lottery daemon or Supervisor, and takes operators'
//! commands.
//!
//! There are four endpoints. One thread with a runtime of its own serves them, so that clients, in any number
//! and at any speed, take no time from the data path:
//!
//! * The *listener* (TCP) is read-only: it may face a network, and no request to it can change anything.
//! * The *control socket* (unix, mode 0600) shows the same and takes commands; the file's permissions decide
//!   who may connect.
//! * *Control over TLS* does the same for callers that authenticate with a client certificate, a token or a
//!   ticket, within the [access rules](AccessRules).
//! * The *reports* endpoint (TCP, only if configured) records members' load reports and grants leases of
//!   members to clients. It shows nothing, and is for the members' network. Any host that can reach it can
//!   send false loads or hold leases, but no more.
//!
//! All operations are in one table, [`ROUTES`]: path, permission, request and response. The [OpenAPI
//! document](openapi::document) is generated from it. Changes and rejected attempts are written to the [audit
//! log](AuditLog).
//!
//! An error is `{"error": "what, where, what to do"}` with a 4xx status. This crate does not depend on the
//! data plane, which implements [`BalancerBackend`].
//!
//! A lottery [`DaemonBackend`] and a [`SupervisorBackend`] of processes have the same endpoints except that
//! for reports, with the same access control. The same table lists which of them serves each operation.

mod access;
mod active_rules;
mod api;
mod audit;
mod balancer;
mod commands;
mod connection_slots;
mod dashboard;
mod endpoint;
mod events;
mod host;
mod integers;
mod json_body;
mod jwt;
mod kerberos;
mod lease;
mod listen;
mod lottery;
mod member;
pub mod member_table;
mod metrics;
#[cfg(test)]
#[path = "../../../fuzz/near.rs"]
mod near;
pub mod openapi;
mod operation_lock;
mod otlp;
mod process;
mod queries;
mod refresh;
mod reload;
mod reply;
mod report;
mod route;
mod serve;
mod supervisor;
mod tls;
mod write_timeout;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use endpoint::AdminBackend;
use tokio::sync::{Notify, oneshot};

/// The laws of requests to the admin plane, for the fuzz targets: each panics if its law is broken.
#[cfg(fuzzing)]
#[expect(missing_docs, reason = "named like the targets")]
pub mod laws {
    pub fn jwt(input: &[u8]) {
        crate::jwt::invariants::check(input);
    }

    pub fn report(input: &[u8]) {
        crate::report::invariants::check(input);
    }
}

pub use access::{
    AccessRules, BUILT_IN, Caller, CallerPattern, CredentialKind, Grant, GrantedScope, Role, spiffe_id,
    trust_domain,
};
pub use active_rules::ActiveRules;
pub use api::{
    ApiRoute, Operation, OperationClass, OperationScope, ProcessKind, ROUTES, RequestKind, ResponseKind,
};
pub use audit::{AuditLog, AuditedRequest};
pub use balancer::{
    BalancerBackend, ChangeFuture, CompletedUpgrade, EventEntry, LEASE_SECONDS, Lease, LeaseError,
    LeaseHolder, LeaseRequest, LoadReport, ObjectReference, ReportRejection, SwitchTarget, UPGRADE_SECONDS,
    UpgradeRequest, WhatIfInput, WhatIfResult,
};
pub use jwt::{JwtSettings, KeySet};
pub use lottery::{
    DaemonBackend, DaemonCounters, DaemonStatus, KeyHolder, KeyRing, KeySecret, KeyStep, ObservedDaemon,
    ObservedService, OwnService,
};
pub use member::{REGISTER_SECONDS, RegisteredMember, Registration, RegistrationError};
pub use otlp::{OtlpCollector, SpanExporter, traces_url};
pub use refresh::Url;
pub use supervisor::{
    LastExit, ProcessActionError, ProcessCommand, ProcessStatus, SelfStatus, ShutdownMode, SupervisorBackend,
    SupervisorStatus,
};
pub use tls::TlsSettings;

/// The maximum number of connections to the reports endpoint; each needs a file descriptor.
pub const MAX_REPORT_CONNECTIONS: u32 = serve::MAX_REPORT_CONNECTIONS;

/// The maximum number of connections to control over TLS; each needs a file descriptor.
pub const MAX_SECURED_CONNECTIONS: u32 = serve::MAX_SECURED_CONNECTIONS;

/// The endpoints.
#[derive(Debug, Default)]
pub struct Config {
    /// Sockets that another process bound, by purpose: `listen`, `control`, `reports`, `secured`. They
    /// replace binding new ones.
    pub inherited_sockets: Vec<(&'static str, OwnedFd)>,
    /// Whether another process owns the given control socket. Then its file stays when this process ends.
    pub keeps_control_file: bool,
    /// If it is set, requests are served only after its notification.
    pub open_signal: Option<Arc<Notify>>,
    /// The address of the read-only listener; `None` for no listener. Port 0 selects a free one.
    pub listen: Option<SocketAddr>,
    /// The host names, in lower case, that the read-only listener accepts besides its addresses, `localhost`
    /// and the machine's name.
    pub names: Vec<Box<str>>,
    /// The path of the control socket; `None` for no socket.
    pub control: Option<PathBuf>,
    /// The address of the endpoint for members' reports and leases, which also shows object references, and
    /// nothing else. `None` disables it; port 0 selects a free one.
    pub reports: Option<SocketAddr>,
    /// Whether that endpoint grants no leases.
    pub reports_only: bool,
    /// Whether that endpoint registers members.
    pub register: bool,
    /// Control over TLS; `None` to disable it.
    pub secured: Option<SecuredConfig>,
    /// The log of changes and rejected attempts; `None` for no log.
    pub audit: Option<Arc<AuditLog>>,
}

/// Control over TLS: its address, the accepted credentials, and the access rules.
#[derive(Clone, Debug)]
pub struct SecuredConfig {
    /// The address and the certificates.
    pub tls: TlsSettings,
    /// The accepted tokens; `None` to accept none.
    pub jwt: Option<JwtSettings>,
    /// The keytab for Kerberos tickets; `None` to accept none.
    pub keytab: Option<PathBuf>,
    /// The access rules.
    pub rules: Arc<ActiveRules>,
}

/// The reason why the admin plane did not start: one line with the problem, its place and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The TCP address cannot be bound.
    #[error("admin: cannot listen on {addr}: {why}; {hint}")]
    Listen {
        /// The address as configured.
        addr: SocketAddr,
        /// The system's error.
        why: io::Error,
        /// The remedy.
        hint: String,
    },
    /// The unix socket cannot be created.
    #[error("admin: cannot make the control socket {}: {why}; {hint}", path.display())]
    Control {
        /// The path as configured.
        path: PathBuf,
        /// The problem.
        why: String,
        /// The remedy.
        hint: &'static str,
    },
    /// A requirement of control over TLS is missing or wrong.
    #[error(
        "admin: control over TLS: {0}; mend [admin.tls], [admin.jwt] or [admin.kerberos], or take tls:// out \
         of [admin] control"
    )]
    Secured(String),
    /// The system provides no thread or no event queue.
    #[error("admin: cannot start its thread: {0}; raise the limits on processes and open files")]
    Thread(io::Error),
}

/// A running admin plane, which ends when it is dropped. Responses in progress are completed within half a
/// second, event streams end after the last event, and the control socket's file is removed.
#[derive(Debug)]
pub struct AdminServer {
    addresses: BoundAddresses,
    copies: Vec<(&'static str, OwnedFd)>,
    is_handed_over: Arc<AtomicBool>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The bound addresses of the TCP endpoints.
#[derive(Clone, Copy, Debug, Default)]
struct BoundAddresses {
    listen: Option<SocketAddr>,
    reports: Option<SocketAddr>,
    secured: Option<SocketAddr>,
}

impl AdminServer {
    /// Returns the bound address of the read-only listener.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.addresses.listen
    }

    /// Returns the bound address of the reports endpoint.
    pub fn reports(&self) -> Option<SocketAddr> {
        self.addresses.reports
    }

    /// Returns the bound address of control over TLS.
    pub fn secured(&self) -> Option<SocketAddr> {
        self.addresses.secured
    }

    /// Returns copies of the sockets of all endpoints, for another process' [`Config::inherited_sockets`].
    ///
    /// # Errors
    /// The system provides no more file descriptors.
    pub fn sockets(&self) -> io::Result<Vec<(&'static str, OwnedFd)>> {
        self.copies.iter().map(|(name, copy)| Ok((*name, copy.try_clone()?))).collect()
    }

    /// Ends as on drop, but leaves the control socket and its file to the process that has taken it over.
    pub fn hand_over(self) {
        self.is_handed_over.store(true, Relaxed);
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// Binds the configured endpoints and serves them on a thread of its own. Returns once all of them are open.
pub fn start(config: Config, balancer: Arc<dyn BalancerBackend>) -> Result<AdminServer, StartError> {
    open(config, AdminBackend::Balancer(balancer))
}

/// Starts the admin plane of a lottery daemon, which has no reports endpoint.
pub fn start_daemon(config: Config, daemon: Arc<dyn DaemonBackend>) -> Result<AdminServer, StartError> {
    open(Config { reports: None, ..config }, AdminBackend::Lottery(daemon))
}

/// Starts the admin plane of a Supervisor, which has no reports endpoint.
pub fn start_supervisor(
    config: Config,
    supervisor: Arc<dyn SupervisorBackend>,
) -> Result<AdminServer, StartError> {
    open(Config { reports: None, ..config }, AdminBackend::Supervisor(supervisor))
}

fn open(config: Config, backend: AdminBackend) -> Result<AdminServer, StartError> {
    let (stop, stopped) = oneshot::channel();
    let (ready, start_result) = mpsc::sync_channel(1);
    let is_handed_over = Arc::<AtomicBool>::default();
    let handed_over_flag = Arc::clone(&is_handed_over);
    let thread = std::thread::Builder::new()
        .name("admin".into())
        .spawn(move || {
            let runtime = match tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(4)
                .build()
            {
                Ok(runtime) => runtime,
                Err(error) => return drop(ready.send(Err(StartError::Thread(error)))),
            };
            runtime.block_on(async {
                let result = match serve::BoundEndpoints::open(config, handed_over_flag).await {
                    Ok(endpoints) => {
                        endpoints.copies().map_err(StartError::Thread).map(|copies| (endpoints, copies))
                    }
                    Err(error) => Err(error),
                };
                let endpoints = match result {
                    Ok((endpoints, copies)) => {
                        drop(ready.send(Ok((endpoints.addresses(), copies))));
                        endpoints
                    }
                    Err(error) => return drop(ready.send(Err(error))),
                };
                endpoints.serve(backend, stopped).await;
            });
            // A reload that hangs must not keep the process from ending.
            runtime.shutdown_background();
        })
        .map_err(StartError::Thread)?;
    let start_lost = || Err(StartError::Thread(io::Error::other("it ended before it began")));
    let (addresses, copies) = start_result.recv().unwrap_or_else(|_| start_lost())?;
    Ok(AdminServer { addresses, copies, is_handed_over, stop: Some(stop), thread: Some(thread) })
}
