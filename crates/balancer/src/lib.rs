//! The balancer as a process: starts the data plane from a configuration, keeps it in step with its sources,
//! operators and other balancers, hands over to a next process, and ends.
//!
//! | signal | effect |
//! |---|---|
//! | SIGHUP | reads the file again |
//! | SIGUSR2 | has a new process take over |
//! | SIGTERM, SIGINT | closes the listeners, and ends with the work in flight or at the `drain_deadline` |
//! | a second SIGTERM or SIGINT | ends the process at once |
//!
//! This crate parses no command line and writes nothing to standard output: a command calls [`run`].

mod admin_endpoints;
mod corba_adapter;
mod discovery;
mod error;
mod lottery_members;
mod runtime;
mod runtime_config;
mod scale;
mod serve;
#[cfg(test)]
#[path = "../../cli/src/control/test_data.rs"]
mod test_data;
mod trace_export;
mod upgrade;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_admin::{ActiveRules, AdminServer, AuditLog, SecuredConfig};
use plimsoll_cluster::corba::LoadManager;
use plimsoll_cluster::fleet::{self, BoundSocket};
use plimsoll_config::{
    self as config, AdminConfig, Config, ConfigFile, MachineDefaults, ReadError, limits, look_up, pluralize,
};
use plimsoll_proxy::{Engine, InheritedState};
use sd_notify::NotifyState;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::time::timeout;

pub use admin_endpoints::{audit_signal, control_config, open_audit_log, warn_if_unaudited};
use corba_adapter::LoadManagerAdapter;
pub use error::BalancerError;
use runtime::certificates::preload;
use runtime::discovery_state::DiscoveryState;
use runtime::name_resolution::{self, ResolvedNames};
pub use runtime::notify_systemd;
use runtime::operator_state::Reapply;
pub use runtime::shared_config::SHARED_CONFIG_KEY;
use runtime::shared_config::read_with_shared;
pub use runtime::what_if::model_routing;
use runtime::{BalancerRuntime, log_warnings};
use runtime_config::FileConfig;
use serve::{BalancerSignals, serve};
use upgrade::{CurrentProgram, HandoffSource, ProcessInheritance};
pub use upgrade::{HOLDER_VARIABLE, HolderRequest, SocketSet, serve_requests};

/// The longest time for the first checks of members before connections are accepted.
const FIRST_CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the balancer of a file until it is stopped or another process has taken over. `start_log` is called
/// once the file was read and before anything is logged.
///
/// # Errors
/// Fails if the file is wrong, if a step of the start fails, or if a second signal ends the process at once.
pub fn run(file: &Path, start_log: impl FnOnce()) -> Result<(), BalancerError> {
    // The program is opened before its file can be replaced.
    let program = CurrentProgram::current().map_err(|error| {
        BalancerError::failed(format_args!("it is not known which program this is: {error}"))
    })?;
    // The sockets come first: data that was read from the other end is not lost if the file is wrong.
    let mut inheritance = ProcessInheritance::for_process()?;
    let begun = start_balancer(file, start_log, &mut inheritance)
        .inspect_err(|failure| inheritance.report_failure(failure))?;
    let keeps_control = inheritance.sockets.keeps_control;
    let StartedBalancer {
        runtime,
        balancer,
        signals,
        admin,
        load_manager,
        fleet,
        audit,
        discovery_tasks,
        admin_start,
    } = begun;
    let mut successor =
        inheritance.take_over(&balancer, fleet.as_ref().is_some_and(|(.., is_inherited)| *is_inherited))?;
    if successor.is_first() {
        // A client that waits already, at a socket older than this process, would find no member.
        let first_checks = async { timeout(FIRST_CHECK_TIMEOUT, balancer.engine().until_checked()).await };
        // A member that does not answer is waited for no longer.
        let _ = runtime.block_on(first_checks);
    }
    balancer.engine().open().map_err(BalancerError::failed)?;
    if let Some((settings, socket, _)) = fleet {
        let (name, listen) = (settings.name.clone(), settings.listen);
        let address = balancer.join_fleet(settings, socket, successor.fleet.take());
        let address = address.map_err(|error| fleet_failure(listen, &error))?;
        tracing::info!("listening fleet {address}: this is {name}");
    }
    balancer.store().reopen();
    let mut sockets = admin.sockets().map_err(copy_failure)?;
    let load_manager_socket =
        load_manager.as_ref().map(LoadManager::socket).transpose().map_err(copy_failure)?;
    sockets.extend(load_manager_socket.map(|socket| ("load_manager", socket)));
    sockets.extend(balancer.fleet_socket().map_err(copy_failure)?.map(|socket| ("fleet", socket)));
    balancer.enable_upgrade(HandoffSource::new(program, sockets, keeps_control));
    // A client that is answered from here on may ask for everything.
    admin_start.notify_one();
    let status = format!("running {}", file.display());
    if successor.is_first() {
        notify_systemd(&[NotifyState::Ready, NotifyState::Status(&status)]);
    }
    successor.report_serving(&balancer, status);
    if let Err(error) = balancer.start_holding() {
        tracing::warn!("the Supervisor does not hold the sockets of this process: no thread: {error}");
    }
    let mut admin = Some(admin);
    let outcome =
        runtime.block_on(serve(&balancer, signals, load_manager, audit, discovery_tasks, &mut admin));
    // The admin plane ends last, so that the stop can be watched.
    drop(admin);
    outcome
}

/// All parts of the process before it accepts connections.
struct StartedBalancer {
    runtime: Runtime,
    balancer: Arc<BalancerRuntime>,
    signals: BalancerSignals,
    admin: AdminServer,
    load_manager: Option<LoadManager>,
    /// The settings of the fleet, this balancer's place, and whether the others know that place.
    fleet: Option<(fleet::FleetSettings, BoundSocket, bool)>,
    audit: Option<Arc<AuditLog>>,
    discovery_tasks: discovery::DiscoveryTasks,
    /// The signal that starts the admin plane.
    admin_start: Arc<Notify>,
}

fn fleet_failure(listen: SocketAddr, error: &io::Error) -> BalancerError {
    BalancerError::failed(format_args!("cannot act together with others at {listen}: {error}"))
}

fn copy_failure(error: io::Error) -> BalancerError {
    BalancerError::failed(format_args!("cannot copy a socket: {error}"))
}

/// Performs all steps that can fail.
fn start_balancer(
    path: &Path,
    start_log: impl FnOnce(),
    inheritance: &mut ProcessInheritance,
) -> Result<StartedBalancer, BalancerError> {
    let file = config::read(path)?;
    start_log();
    let store_view = std::mem::take(&mut inheritance.store_view);
    let folder = config::state_folder();
    let store = file.config.open_store(folder.as_deref(), |prefix| store_view.into_view(prefix));
    let (store, store_error) = store.map_err(BalancerError::failed)?;
    if let Some(store_error) = store_error {
        tracing::warn!("{store_error}");
    }
    let is_in_memory = store.kind() == "memory";
    // A process that still serves may renew registrations.
    store.close();
    let lost =
        |why| BalancerError::failed(format_args!("what was kept in memory cannot be taken over: {why}"));
    std::mem::take(&mut inheritance.store_content).put_into(&*store).map_err(lost)?;
    let with = read_with_shared(file, path, &*store);
    let (file, document) = with?;
    log_warnings(&file);
    let files = limits::raise();
    limits::check_files(&file.config, files, limits::THIS_PROCESS).map_err(BalancerError::failed)?;
    let machine = MachineDefaults::detect(&file.config, files);
    let names = ResolvedNames::default();
    let (settings, told) =
        name_resolution::settings(&names, &file, machine).map_err(BalancerError::Unresolved)?;
    let fleet = file.fleet(look_up).map_err(ReadError::Wrong)?;
    inheritance.assign(&file.admin(), &settings.listeners, fleet.as_ref().map(|fleet| fleet.listen))?;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| BalancerError::failed(format_args!("cannot start: {error}")))?;
    // The signals are taken before anything listens, so that none finds the process unprepared.
    let signals = {
        let _context = runtime.enter();
        BalancerSignals::new()
            .map_err(|error| BalancerError::failed(format_args!("cannot take signals: {error}")))?
    };
    let lotteries = file.lotteries(look_up).map_err(ReadError::Wrong)?;
    let rules = Arc::new(file.rules().map_err(BalancerError::Setup)?);
    let mut admin_config = admin_endpoints(&file, &rules)?;
    let audit = admin_config.audit.clone();
    let certificates = file.authorities().map_err(ReadError::Wrong)?;
    preload(&certificates);
    let file_config = FileConfig::new(&file, settings, lotteries, certificates);
    let discovery_state = DiscoveryState::new(&file_config);
    // Known members stay until the sources have a list themselves: a source that fails empties no group.
    discovery_state.restore_answers(std::mem::take(&mut inheritance.source_answers));
    let mut discovery_tasks = discovery::DiscoveryTasks::new();
    runtime.block_on(discovery_tasks.ask_all_once(
        &file_config.discoveries,
        &discovery_state,
        &store.snapshot(),
    ));
    let inherited_state = InheritedState {
        clock_start: inheritance.time_zero,
        sockets: std::mem::take(&mut inheritance.sockets.listeners),
    };
    let engine = Engine::prepare(discovery_state.settings(&file_config), inherited_state)
        .map_err(BalancerError::failed)?;
    let state_parts = (file_config, discovery_state, names);
    let running =
        BalancerRuntime::new(engine, state_parts, (store, document), path, machine, file.admin(), rules)
            .map_err(|error| {
                BalancerError::failed(format_args!(
                    "cannot start the threads of monitors and certificates: {error}"
                ))
            })?;
    told.into_iter().for_each(|event| running.engine().write_event(event));
    // Operators' changes are in force before any client is served.
    running.reapply_actions(Reapply::All);
    let admin_start = Arc::new(Notify::new());
    admin_config.keeps_control_file = inheritance.sockets.keeps_control;
    admin_config.inherited_sockets = std::mem::take(&mut inheritance.sockets.admin);
    admin_config.open_signal = Some(Arc::clone(&admin_start));
    let control = admin_config.control.clone();
    let admin =
        plimsoll_admin::start(admin_config, Arc::clone(&running) as _).map_err(BalancerError::failed)?;
    let adapter = LoadManagerAdapter(Arc::clone(&running), audit.clone());
    let load_manager = start_load_manager(&file, adapter, inheritance.sockets.load_manager.take())
        .map_err(BalancerError::failed)?;
    let fleet =
        fleet.map(|settings| open_fleet_socket(settings, inheritance.sockets.fleet.take())).transpose()?;
    running.write_references(&file.config);
    for line in listener_lines(&file.config, &running.engine().addresses()) {
        tracing::info!("{line}");
    }
    for line in temporary_key_notes(&file.config) {
        tracing::info!("{line}");
    }
    if is_in_memory {
        tracing::info!(
            "what operators do, and members that are registered, are forgotten with this process: there is \
             no [store], and no \
             STATE_DIRECTORY, which systemd sets where StateDirectory= says so"
        );
    }
    if let Some(address) = admin.addr() {
        tracing::info!("listening admin {address}: dashboard http://{address}/, status, metrics, events");
    }
    if let Some(path) = control {
        tracing::info!("listening control unix:{}: drain, reload, stop and what else acts", path.display());
    }
    if let Some(address) = admin.reports() {
        let leases = if file.config.admin.leases { "leases, " } else { "" };
        tracing::info!(
            "listening reports {address}: POST /v1/report, {leases}object references, nothing else"
        );
    }
    if let Some(address) = admin.secured() {
        tracing::info!("listening control tls://{address}: for those whom [admin.access] knows");
    }
    if let Some(load_manager) = &load_manager {
        tracing::info!("listening load manager {}: corbaloc::{0}/LoadManager", load_manager.address());
    }
    Ok(StartedBalancer {
        runtime,
        balancer: running,
        signals,
        admin,
        load_manager,
        fleet,
        audit,
        discovery_tasks,
        admin_start,
    })
}

/// Returns a place among other balancers: at the socket that they know, or at one of its own.
fn open_fleet_socket(
    settings: fleet::FleetSettings,
    inherited: Option<OwnedFd>,
) -> Result<(fleet::FleetSettings, BoundSocket, bool), BalancerError> {
    let is_inherited = inherited.is_some();
    let socket = inherited.map_or_else(|| BoundSocket::bind(settings.listen), BoundSocket::from_fd);
    let socket = socket.map_err(|error| fleet_failure(settings.listen, &error))?;
    Ok((settings, socket, is_inherited))
}

/// Returns the addresses of the admin plane. A default control socket does not keep the process from starting
/// if its folder belongs to root.
fn admin_endpoints(
    file: &ConfigFile,
    rules: &Arc<ActiveRules>,
) -> Result<plimsoll_admin::Config, BalancerError> {
    let AdminConfig {
        listen, names, mut control, reports, leases, register, control_is_set, tls, audit, ..
    } = file.admin();
    if let Some(path) = control.clone().filter(|_| !control_is_set) {
        config::create_folder(&path);
        if !config::is_usable(&path) {
            tracing::warn!(
                "no control socket: {} is not this user's to write; for drain, reload and stop set control \
                 in [admin]",
                path.parent().unwrap_or(&path).display()
            );
            control = None;
        }
    }
    let audit = open_audit_log(audit.as_deref(), "admin")?;
    warn_if_unaudited(tls.is_some(), audit.as_deref(), "admin");
    let secured = tls.map(|(tls, jwt, keytab)| SecuredConfig { tls, jwt, keytab, rules: Arc::clone(rules) });
    let reports_only = !leases;
    Ok(plimsoll_admin::Config {
        listen,
        names,
        control,
        reports,
        reports_only,
        register,
        secured,
        audit,
        ..Default::default()
    })
}

/// Starts the load manager, if the file has one, on an inherited socket if there is one.
fn start_load_manager(
    file: &ConfigFile,
    adapter: LoadManagerAdapter,
    inherited: Option<OwnedFd>,
) -> Result<Option<LoadManager>, String> {
    let Some((address, interval)) = file.admin().load_manager else { return Ok(None) };
    let adapter = Arc::new(adapter);
    let result = match inherited {
        Some(socket) => LoadManager::start_on(socket.into(), interval, adapter),
        None => LoadManager::start(address, interval, adapter),
    };
    let hint = "stop the process that has it, or set [admin] load_manager to another address";
    result.map(Some).map_err(|error| format!("cannot listen on {address}: {error}; {hint}"))
}

/// Returns one line for each listener whose cookies are signed by a key of this process.
fn temporary_key_notes(config: &Config) -> impl Iterator<Item = String> {
    let has_temporary_key = |listener: &&config::ListenerConfig| {
        listener.affinity.as_ref().is_some_and(|affinity| affinity.key_file.is_none())
    };
    config.listeners.iter().filter(has_temporary_key).map(|listener| {
        format!(
            "affinity of {}: a key was made for its cookies, which are good until this process ends and at \
             no other \
             balancer; name a key_file for more",
            listener.address
        )
    })
}

/// Returns one line per listener: `listening http 127.0.0.1:8080 -> web (2 members, least_connections)`
fn listener_lines(config: &Config, addresses: &[SocketAddr]) -> Vec<String> {
    let line = |(listener, address): (&config::ListenerConfig, &SocketAddr)| {
        let main_group = listener.main_group();
        let group = config.groups.iter().find(|group| Some(&group.name) == main_group);
        let target_text = group.map_or_else(String::new, |group| {
            if let Some(lottery) = &group.lottery {
                return format!(" (the lottery's {})", lottery.service);
            }
            let sources = match group.discover.len() {
                0 => String::new(),
                sources => format!(" and {} of more", pluralize(sources, "source")),
            };
            format!(" ({}{sources}, {})", pluralize(group.members.len(), "member"), group.strategy.name())
        });
        let routes = match listener.routes.len() {
            0 => String::new(),
            count => format!(", {}", pluralize(count, "route")),
        };
        let other_groups: String = listener.groups.iter().map(|group| format!(", {group}")).collect();
        format!(
            "listening {} {address} -> {}{target_text}{other_groups}{routes}",
            listener.protocol.name(),
            match listener.main_group_name() {
                "" => "no group",
                name => name,
            }
        )
    };
    // A listener of dns has two addresses, which are the same unless the port was left to the system.
    let socket_count = |listener: &config::ListenerConfig| {
        if listener.protocol == config::ListenerProtocol::Dns { 2 } else { 1 }
    };
    let per_socket =
        config.listeners.iter().flat_map(|listener| std::iter::repeat_n(listener, socket_count(listener)));
    per_socket.zip(addresses).map(line).collect()
}
