//! `plimsoll up`: run the balancer until it is told to stop.
//!
//! SIGHUP reads the file again. SIGTERM and SIGINT close the listeners, let work in flight end until the
//! `drain_deadline`, and end the process; a second one ends it at once.

mod discover;
mod follow;
pub(super) mod says;
mod spans;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_admin::{Audit, Rules, Secured, Subject as _};
use plimsoll_cluster::corba::LoadManager;
use plimsoll_proxy::Engine;
use rustix::fs::{Access, access};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use super::{Exit, Failure, Globals};
use crate::config::{self, AdminConfig, Config, File, Machine, count, look_up};
use crate::desk::Office;
use crate::doors::{audit as audit_log, note};
use crate::made::Base;
use crate::running::certificates::preload;
use crate::running::discovered::Discovered;
use crate::running::{Running, notify, warn};
use crate::{limits, log};

/// Run the balancer
///
/// SIGHUP reloads the file; SIGTERM and SIGINT let work in flight end and stop, a second one stops at once.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The configuration
    #[arg(short, long, value_name = "FILE", default_value = config::DEFAULT_FILE)]
    config: PathBuf,

    /// Form of the log on standard error
    #[arg(long, value_enum, default_value_t = log::Form::Text)]
    log: log::Form,
}

impl Args {
    /// Its configuration.
    pub(super) fn file(&self) -> PathBuf {
        self.config.clone()
    }
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    let file = config::read(&args.config).map_err(|error| Failure::rendered(Exit::Usage, error))?;
    log::start(args.log, globals);
    warn(&file);
    let files = limits::raise();
    limits::check_files(&file.config, files).map_err(Failure::failed)?;
    let machine = Machine::here(&file.config, files);
    let settings =
        file.settings(machine, look_up).map_err(|problems| Failure::rendered(Exit::Failed, problems))?;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format_args!("cannot start: {error}")))?;
    // Before anything listens, so that no signal finds the process unprepared.
    let signals = {
        let _context = runtime.enter();
        Signals::new().map_err(|error| Failure::failed(format_args!("cannot take signals: {error}")))?
    };
    let lotteries = file.lotteries(look_up).map_err(|problems| Failure::rendered(Exit::Usage, problems))?;
    let rules = Arc::new(file.rules().map_err(|why| Failure::new(Exit::Usage, why))?);
    let doors = doors(&file, &rules)?;
    let audit = doors.audit.clone();
    let certificates = file.authorities().map_err(|problems| Failure::rendered(Exit::Usage, problems))?;
    preload(&certificates);
    let base = Base::new(&file, settings, lotteries, certificates);
    let discovered = Discovered::new(&base);
    let mut followers = discover::Followers::new();
    runtime.block_on(followers.first(&base.discoveries, &discovered));
    let engine = Engine::start(discovered.settings(&base)).map_err(Failure::failed)?;
    let running = Running::new(engine, (base, discovered), &args.config, machine, file.admin(), rules)
        .map_err(|error| {
            Failure::failed(format_args!("cannot start the threads of monitors and certificates: {error}"))
        })?;
    let admin = plimsoll_admin::start(doors, Arc::clone(&running) as _).map_err(Failure::failed)?;
    let load_manager = load_manager(&file, &running).map_err(Failure::failed)?;
    running.write_references(&file.config);
    for line in listening(&file.config, &running.engine().addresses()) {
        tracing::info!("{line}");
    }
    for line in keyless(&file.config) {
        tracing::info!("{line}");
    }
    if let Some(address) = admin.addr() {
        tracing::info!("listening admin {address}: status, metrics, events");
    }
    if let Some(address) = admin.reports() {
        tracing::info!(
            "listening reports {address}: POST /v1/report, leases, object references, nothing else"
        );
    }
    if let Some(address) = admin.secured() {
        tracing::info!("listening control tls://{address}: for those whom [admin.access] knows");
    }
    if let Some(load_manager) = &load_manager {
        tracing::info!("listening load manager {}: corbaloc::{0}/LoadManager", load_manager.address());
    }
    let status = format!("running {}", args.config.display());
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
    let outcome = runtime.block_on(serve(&running, signals, load_manager, audit, followers));
    // Last, so that what stops can be watched.
    drop(admin);
    outcome
}

/// How long the last spans may take to be sent.
const LAST_SPANS: Duration = Duration::from_secs(2);

struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}

/// Waits for signals and for the end, and ends.
async fn serve(
    running: &Arc<Running>,
    mut signals: Signals,
    load_manager: Option<LoadManager>,
    audit: Option<Arc<Audit>>,
    sources: discover::Followers,
) -> Result<ExitCode, Failure> {
    let sources = tokio::spawn(sources.all(Arc::clone(running)));
    let ears = Arc::clone(running);
    let ears = tokio::spawn(async move { ears.listen().await });
    let followers = tokio::spawn(follow::all(Arc::clone(running)));
    let no_more = Arc::new(Notify::new());
    let exporter = tokio::spawn(spans::export(Arc::clone(running), Arc::clone(&no_more)));
    loop {
        tokio::select! {
            _ = signals.hangup.recv() => {
                let (running, audit) = (Arc::clone(running), audit.clone());
                // What came of it is an event, and so in the log.
                drop(tokio::task::spawn_blocking(move || {
                    let outcome = running.reload();
                    note(audit.as_deref(), "SIGHUP", "reload", outcome.as_ref().map(drop).map_err(String::as_str));
                }));
            }
            _ = signals.terminate.recv() => {
                note(audit.as_deref(), "SIGTERM", "stop", Ok(()));
                break;
            }
            _ = signals.interrupt.recv() => {
                note(audit.as_deref(), "SIGINT", "stop", Ok(()));
                break;
            }
            () = running.stopped() => break,
        }
    }
    ears.abort();
    followers.abort();
    sources.abort();
    notify(&[NotifyState::Stopping]);
    // Nobody makes a group of what is about to end.
    drop(load_manager);
    tokio::select! {
        cut = running.engine().stop() => {
            if cut > 0 {
                tracing::warn!("{} cut at the drain deadline", count(usize::try_from(cut).unwrap_or(usize::MAX), "connection"));
            }
            no_more.notify_one();
            if tokio::time::timeout(LAST_SPANS, exporter).await.is_err() {
                tracing::warn!("the last spans cannot be sent; they are dropped");
            }
            tracing::info!("stopped");
            Ok(ExitCode::SUCCESS)
        }
        _ = signals.terminate.recv() => Err(Failure::new(Exit::Interrupted, "stopped at once")),
        _ = signals.interrupt.recv() => Err(Failure::new(Exit::Interrupted, "stopped at once")),
    }
}

/// Where the admin plane is to be reached. A control socket that nobody asked for is no reason not to start
/// where its folder belongs to root.
fn doors(file: &File, rules: &Arc<Rules>) -> Result<plimsoll_admin::Config, Failure> {
    let AdminConfig { listen, mut control, reports, lend, written, tls, audit, .. } = file.admin();
    let folder = control.as_deref().and_then(Path::parent);
    if let Some(folder) = folder.filter(|folder| !written && access(*folder, Access::WRITE_OK).is_err()) {
        tracing::warn!(
            "no control socket: {} is not writable; for drain, reload and stop set control in [admin]",
            folder.display()
        );
        control = None;
    }
    let audit = audit_log(audit.as_deref(), "admin")?;
    let secured = tls.map(|(tls, jwt, keytab)| Secured { tls, jwt, keytab, rules: Arc::clone(rules) });
    Ok(plimsoll_admin::Config { listen, control, reports, reports_only: !lend, secured, audit })
}

/// The load manager, if there is to be one.
fn load_manager(file: &File, running: &Arc<Running>) -> Result<Option<LoadManager>, String> {
    let Some((address, interval)) = file.admin().load_manager else { return Ok(None) };
    let desk = Arc::new(Office(Arc::clone(running)));
    let started = LoadManager::start(address, interval, desk);
    let hint = "stop the process that has it, or set [admin] load_manager to another address";
    started.map(Some).map_err(|error| format!("cannot listen on {address}: {error}; {hint}"))
}

/// One line for each listener whose cookies are signed by a key of this process.
fn keyless(config: &Config) -> impl Iterator<Item = String> {
    let own = |listener: &&config::Listener| {
        listener.affinity.as_ref().is_some_and(|affinity| affinity.key_file.is_none())
    };
    config.listeners.iter().filter(own).map(|listener| {
        format!(
            "affinity of {}: a key was made for its cookies, which are good until this process ends and at no other \
             balancer; name a key_file for more",
            listener.address
        )
    })
}

/// One line per listener: `listening http 127.0.0.1:8080 -> web (2 members, least_connections)`
fn listening(config: &Config, addresses: &[SocketAddr]) -> Vec<String> {
    let line = |(listener, address): (&config::Listener, &SocketAddr)| {
        let group = config.groups.iter().find(|group| group.name == listener.group);
        let served = group.map_or_else(String::new, |group| {
            if let Some(drawn) = &group.lottery {
                return format!(" (the lottery's {})", drawn.service);
            }
            let sources = match group.discover.len() {
                0 => String::new(),
                sources => format!(" and {} of more", count(sources, "source")),
            };
            format!(" ({}{sources}, {})", count(group.members.len(), "member"), group.strategy.name())
        });
        let others: String = listener.groups.iter().map(|group| format!(", {group}")).collect();
        format!("listening {} {address} -> {}{served}{others}", listener.protocol.name(), listener.group)
    };
    // One of dns has two addresses, which are the same unless the port was left to the system.
    let sockets =
        |listener: &config::Listener| if listener.protocol == config::Protocol::Dns { 2 } else { 1 };
    let each = config.listeners.iter().flat_map(|listener| std::iter::repeat_n(listener, sockets(listener)));
    each.zip(addresses).map(line).collect()
}
