//! `plimsoll lottery`: the daemon beside a server in a cluster without a balancer.

mod admin_adapter;
mod commands;
mod inline_config;
mod key_file;
mod key_ring;
mod key_rotation;
mod load_feed;
mod peer_lookup;
mod reload;
pub(super) mod self_status;
mod sensors;
mod settings;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use plimsoll_admin::ActiveRules;
use plimsoll_agent::Agent;
use plimsoll_balancer::notify_systemd;
use plimsoll_balancer::{audit_signal, control_config};
use plimsoll_cluster::lottery::{DaemonSettings, LotteryDaemon};
use plimsoll_config::{self as config, LotteryFile, ReadError, Severity, pluralize};
use sd_notify::NotifyState;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{CliError, CliExitCode, GlobalArgs};
use crate::log;

use admin_adapter::{DaemonAdmin, HostAction, handle_requests};
use inline_config::InlineConfigArgs;
pub(super) use key_file::is_exposed;
use load_feed::{DaemonEnd, run_feed};
use sensors::ServiceSensors;

/// Run a lottery daemon beside a server: daemons refer clients to servers without a balancer
///
/// Daemons exchange the states of their servers and draw which one serves a request; a client asks any of
/// them (`plimsoll pick`). SIGHUP reloads the file and the keys. SIGTERM and SIGINT notify the other daemons
/// of the departure, and end the daemon. The commands below act on running daemons, one or several at once.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<LotteryCommand>,

    /// Configuration file, instead of the options below
    #[arg(short, long, value_name = "FILE", conflicts_with = "flags")]
    config: Option<PathBuf>,

    #[command(flatten)]
    flags: InlineConfigArgs,

    /// Create the key file with a new key if it is missing: for the first daemon of a cluster. Without peers
    /// and multicast it is created in any case
    #[arg(long)]
    new_keys: bool,

    /// Validate the configuration without starting; exit code 2 on any error
    #[arg(long)]
    check: bool,

    /// Format of the log on standard error
    #[arg(long, value_enum, default_value_t = log::LogFormat::Text)]
    log: log::LogFormat,
}

/// The commands for running daemons.
#[derive(Debug, Subcommand)]
enum LotteryCommand {
    Status(status::Args),
    Drain(commands::LotteryDrainArgs),
    Undrain(commands::LotteryUndrainArgs),
    Disable(commands::LotteryDisableArgs),
    Enable(commands::LotteryEnableArgs),
    Set(commands::LotterySetArgs),
    Reload(commands::LotteryReloadArgs),
    Stop(commands::LotteryStopArgs),
    Keys(key_rotation::Args),
}

impl Args {
    /// Returns its configuration, if that is a file.
    pub(super) fn config_file(&self) -> Option<PathBuf> {
        self.config.clone()
    }
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    match &args.what {
        None if args.check => return args.check(globals),
        None => {}
        Some(LotteryCommand::Status(args)) => return status::run(args, globals),
        Some(LotteryCommand::Drain(args)) => return commands::drain(args, globals),
        Some(LotteryCommand::Undrain(args)) => return commands::undrain(args, globals),
        Some(LotteryCommand::Disable(args)) => return commands::disable(args, globals),
        Some(LotteryCommand::Enable(args)) => return commands::enable(args, globals),
        Some(LotteryCommand::Set(args)) => return commands::set(args, globals),
        Some(LotteryCommand::Reload(args)) => return commands::reload(args, globals),
        Some(LotteryCommand::Stop(args)) => return commands::stop(args, globals),
        Some(LotteryCommand::Keys(args)) => return key_rotation::run(args, globals),
    }
    let file = args.read_config()?;
    log::start(args.log, globals);
    if file.warnings.count(Severity::Warning) > 0 {
        file.warnings.lines().iter().for_each(|line| tracing::warn!("{line}"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build()
        .map_err(|error| CliError::failed(format_args!("cannot start: {error}")))?;
    let result = runtime.block_on(run_until_stopped(args, file));
    runtime.shutdown_background();
    result
}

/// Serves until it is stopped.
async fn run_until_stopped(args: &Args, mut file: LotteryFile) -> Result<ExitCode, CliError> {
    // The signals are taken before anything listens, so that none finds the process unprepared.
    let signals = [SignalKind::hangup(), SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    let [Ok(mut hangup), Ok(mut term), Ok(mut int)] = signals else {
        return Err(CliError::failed("cannot take signals"));
    };
    let is_alone = file.lottery.peers.is_empty() && file.lottery.multicast.is_none();
    let keys = key_file::open_or_create(&file.keys(), is_alone || args.new_keys)?;
    let settings = file
        .settings(keys, config::look_up)
        .map_err(|problems| CliError::rendered(CliExitCode::Failed, problems))?;
    let table = &file.lottery.admin;
    let (config, rules) = control_config(table.control_section(), table.audit.as_ref())?;
    let audit = config.audit.clone();
    let has_control = config.control.is_some() || config.secured.is_some();
    let agent_config = plimsoll_agent::AgentConfig {
        listen: file.lottery.status.0,
        ..plimsoll_agent::AgentConfig::default()
    };
    let agent = Agent::open(agent_config).await.map_err(CliError::failed)?;
    if let Some(address) = agent.addr() {
        tracing::info!("listening status {address}: /load, /metrics, /v1/report");
    }
    let mut active_settings = settings.clone();
    let mut lottery = LotteryDaemon::start(settings).map_err(|error| {
        let listen = active_settings.listen;
        CliError::failed(format_args!(
            "cannot listen on {listen}: {error}; stop what listens there, or choose an address of this \
             machine"
        ))
    })?;
    for service in &active_settings.services {
        tracing::info!("service {} ({:#010x}): server {}", service.name, service.id, service.server);
    }
    let reporter = agent.reporter();
    let mut sensors = ServiceSensors::start(&file).await.map_err(CliError::failed)?;
    let (daemon_admin, mut requests) = DaemonAdmin::new(reporter.clone());
    let admin = match has_control {
        true => Some(plimsoll_admin::start_daemon(config, daemon_admin.clone()).map_err(|error| {
            CliError::failed(error.to_string().replace("plimsoll stop", "plimsoll lottery stop"))
        })?),
        false => None,
    };
    if let Some(path) = table.control_section().unix() {
        tracing::info!("listening control unix:{}", path.display());
    }
    if let Some(address) = admin.as_ref().and_then(plimsoll_admin::AdminServer::secured) {
        tracing::info!("listening control tls://{address}: for those whom [admin.access] knows");
    }
    // The line comes last: a reader that waits for it finds all of the above.
    tracing::info!(
        "listening lottery {}: member {}, {}, {}",
        lottery.address(),
        file.lottery.member,
        pluralize(active_settings.services.len(), "service"),
        pluralize(active_settings.peers.len(), "peer")
    );
    notify_systemd(&[NotifyState::Ready]);
    let (mut end_reason, mut reload_error) = (None, None);
    agent
        .run(async {
            loop {
                let peers = active_settings.peers.clone();
                tokio::select! {
                    end = run_feed(&file, &lottery, &reporter, &sensors) => end_reason = Some(end),
                    () = lottery.check() => {}
                    signal = wait_for_stop(&mut term, &mut int) => {
                        audit_signal(audit.as_deref(), signal, "stop", Ok(()));
                    }
                    asked = handle_requests(
                        &lottery, &mut requests, &file, &mut active_settings, reload_error.as_deref(),
                    ) => {
                        if let HostAction::Reload(reply) = asked {
                            let mut all = ReloadContext {
                                file: &mut file,
                                active_settings: &mut active_settings,
                                lottery: &mut lottery,
                                sensors: &mut sensors,
                            };
                            let outcome = all.reload(args, &rules).await;
                            reload_error = outcome.as_ref().err().cloned();
                            // The client may have gone.
                            drop(reply.send(outcome));
                            continue;
                        }
                    }
                    peers = peer_lookup::changed_addresses(&file, peers) => {
                        active_settings.peers = peers;
                        lottery.apply_settings(active_settings.clone()).await;
                        continue;
                    }
                    _ = hangup.recv() => {
                        let mut all = ReloadContext {
                            file: &mut file,
                            active_settings: &mut active_settings,
                            lottery: &mut lottery,
                            sensors: &mut sensors,
                        };
                        let outcome = all.reload(args, &rules).await;
                        let audit_result = outcome.as_ref().map(drop).map_err(String::as_str);
                        audit_signal(audit.as_deref(), "SIGHUP", "reload", audit_result);
                        reload_error = outcome.err();
                        continue;
                    }
                }
                break;
            }
            daemon_admin.mark_stopping();
            notify_systemd(&[NotifyState::Stopping]);
        })
        .await;
    // Questions from here on are answered with the end of the daemon.
    drop(requests);
    match end_reason {
        // The failure makes a watching Supervisor start another process.
        Some(DaemonEnd::ThreadEnded) => {
            return Err(CliError::failed(
                "the daemon's thread has ended, which it never should: please report it",
            ));
        }
        Some(DaemonEnd::DuplicateMember(address)) => {
            lottery.leave().await;
            let member = file.lottery.member;
            return Err(CliError::new(
                CliExitCode::Usage,
                format_args!(
                    "member {member} is another daemon, at {address}: give this one a number of its own"
                ),
            ));
        }
        None => {}
    }
    tracing::info!("leaving");
    let outcome = tokio::select! {
        () = lottery.leave() => Ok(ExitCode::SUCCESS),
        _ = wait_for_stop(&mut term, &mut int) => {
            Err(CliError::new(CliExitCode::Interrupted, "stopped at once"))
        }
    };
    // The admin plane ends last, so that the stop can be watched.
    drop(admin);
    outcome
}

/// The state that a reload may change.
struct ReloadContext<'a> {
    file: &'a mut LotteryFile,
    active_settings: &'a mut DaemonSettings,
    lottery: &'a mut LotteryDaemon,
    sensors: &'a mut ServiceSensors,
}

impl ReloadContext<'_> {
    /// Reads the file and the keys again; returns one line for each difference.
    async fn reload(&mut self, args: &Args, rules: &ActiveRules) -> Result<Vec<String>, String> {
        let outcome = self.read_files(args, rules).await;
        if let Err(error) = &outcome {
            tracing::error!("not reloaded, all stays as it was: {error}");
        }
        outcome
    }

    async fn read_files(&mut self, args: &Args, rules: &ActiveRules) -> Result<Vec<String>, String> {
        let (new_file, mut settings, changes) = reload::read_settings(args, self.file, self.active_settings)?;
        // The incarnation is the start of the process.
        settings.incarnation = self.active_settings.incarnation;
        let new_rules = new_file.lottery.admin.control_section().rules()?;
        let sensors = ServiceSensors::start(&new_file).await?;
        reload::log_changes(&changes);
        rules.replace(new_rules);
        self.lottery.reconfigure(settings.clone()).await;
        (*self.file, *self.active_settings, *self.sensors) = (new_file, settings, sensors);
        Ok(changes)
    }
}

/// Waits for a signal to stop; returns its name.
async fn wait_for_stop(term: &mut Signal, int: &mut Signal) -> &'static str {
    tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = int.recv() => "SIGINT",
    }
}

impl Args {
    fn read_config(&self) -> Result<LotteryFile, CliError> {
        match &self.config {
            Some(path) => {
                config::read_lottery(path).map_err(|error| CliError::rendered(CliExitCode::Usage, error))
            }
            None => {
                let text = self.flags.to_toml().map_err(|error| CliError::new(CliExitCode::Usage, error))?;
                config::read_lottery_text("the command line", text.into_bytes())
                    .map_err(|problems| CliError::new(CliExitCode::Usage, problems.first()))
            }
        }
    }

    /// Prints all problems, or that there are none. It opens no socket and looks no name up, like `plimsoll
    /// config check`.
    fn check(&self, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
        if let (Some(path), true) = (&self.config, globals.is_json()) {
            let result = config::read_lottery(path);
            let problems = match &result {
                Ok(file) => file.warnings.to_json(),
                Err(ReadError::Wrong(problems)) => problems.to_json(),
                Err(error @ ReadError::Io(_)) => return Err(CliError::rendered(CliExitCode::Usage, error)),
            };
            let (ok, file) = (result.is_ok(), config::name_of(path));
            let report = json!({ "schema": 1, "file": file, "ok": ok, "problems": problems });
            globals.print_result(&report, String::new)?;
            return Ok(if ok { ExitCode::SUCCESS } else { CliExitCode::Usage.into() });
        }
        let file = self.read_config()?;
        if let Some(rules) = &file.lottery.admin.access.file {
            config::check_access(&rules.0).map_err(|error| CliError::rendered(CliExitCode::Usage, error))?;
        }
        let services = pluralize(file.lottery.services.len(), "service");
        globals.print_message(&file.warnings.to_string());
        globals.print_message(&format!("{}: ok (member {}, {services})\n", file.name(), file.lottery.member));
        Ok(ExitCode::SUCCESS)
    }
}
