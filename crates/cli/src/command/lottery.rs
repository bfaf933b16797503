//! `plimsoll lottery`: the daemon beside a server in a cluster without a balancer.

mod act;
mod adjust;
mod desk;
mod feed;
mod flags;
mod key;
mod keys;
mod peers;
mod reload;
mod ring;
pub(super) mod says;
mod sense;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use plimsoll_admin::Rules;
use plimsoll_agent::Agent;
use plimsoll_cluster::lottery::{Lottery, Settings};
use sd_notify::NotifyState;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Exit, Failure, Globals};
use crate::config::{self, LotteryFile, ReadError, Severity, count};
use crate::running::notify;
use crate::{doors, log};

use desk::{Desk, Request, attend};
use feed::{End, feed};
use flags::Flags;
pub(super) use key::exposed;
use sense::Senses;

/// Refer clients to servers without a balancer: run beside each server
///
/// Daemons tell one another how their servers do and draw who serves a request; a client asks any of them (`plimsoll pick`).
/// SIGHUP reads the file and the keys again. SIGTERM and SIGINT tell the others that it leaves, and end it. The commands below talk to
/// daemons that run, one or many at once.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,

    /// What is to be done, in place of the options below
    #[arg(short, long, value_name = "FILE", conflicts_with = "flags")]
    config: Option<PathBuf>,

    #[command(flatten)]
    flags: Flags,

    /// Make the file of keys if there is none, with a new key: for the first daemon of a cluster. Without peers and multicast it is made in
    /// any case
    #[arg(long)]
    new_keys: bool,

    /// Only say whether all is right with that, and start nothing; exit code 2 if anything is wrong
    #[arg(long)]
    check: bool,

    /// Form of the log on standard error
    #[arg(long, value_enum, default_value_t = log::Form::Text)]
    log: log::Form,
}

/// What is wanted of daemons that run.
#[derive(Debug, Subcommand)]
enum What {
    Status(show::Args),
    Drain(act::Drain),
    Undrain(act::Undrain),
    Disable(act::Disable),
    Enable(act::Enable),
    Set(act::Set),
    Reload(act::Reload),
    Stop(act::Stop),
    Keys(keys::Args),
}

impl Args {
    /// Returns its configuration, if that is a file.
    pub(super) fn file(&self) -> Option<PathBuf> {
        self.config.clone()
    }
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    match &args.what {
        None if args.check => return args.check(globals),
        None => {}
        Some(What::Status(args)) => return show::run(args, globals),
        Some(What::Drain(args)) => return act::drain(args, globals),
        Some(What::Undrain(args)) => return act::undrain(args, globals),
        Some(What::Disable(args)) => return act::disable(args, globals),
        Some(What::Enable(args)) => return act::enable(args, globals),
        Some(What::Set(args)) => return act::set(args, globals),
        Some(What::Reload(args)) => return act::reload(args, globals),
        Some(What::Stop(args)) => return act::stop(args, globals),
        Some(What::Keys(args)) => return keys::run(args, globals),
    }
    let file = args.read()?;
    log::start(args.log, globals);
    if file.warnings.count(Severity::Warning) > 0 {
        file.warnings.lines().iter().for_each(|line| tracing::warn!("{line}"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build()
        .map_err(|error| Failure::failed(format_args!("cannot start: {error}")))?;
    let done = runtime.block_on(on(args, file));
    runtime.shutdown_background();
    done
}

/// Serves until it is stopped.
async fn on(args: &Args, mut file: LotteryFile) -> Result<ExitCode, Failure> {
    // The signals are taken before anything listens, so that none finds the process unprepared.
    let taken = [SignalKind::hangup(), SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    let [Ok(mut hangup), Ok(mut term), Ok(mut int)] = taken else {
        return Err(Failure::failed("cannot take signals"));
    };
    let alone = file.lottery.peers.is_empty() && file.lottery.multicast.is_none();
    let keys = key::open(&file.keys(), alone || args.new_keys)?;
    let settings =
        file.settings(keys, config::look_up).map_err(|problems| Failure::rendered(Exit::Failed, problems))?;
    let table = &file.lottery.admin;
    let (config, rules) = doors::open(table.doors(), table.audit.as_ref())?;
    let audit = config.audit.clone();
    let controlled = config.control.is_some() || config.secured.is_some();
    let agent = plimsoll_agent::Config { listen: file.lottery.status.0, ..plimsoll_agent::Config::default() };
    let agent = Agent::open(agent).await.map_err(Failure::failed)?;
    if let Some(address) = agent.addr() {
        tracing::info!("listening status {address}: /load, /metrics, /v1/report");
    }
    let mut force = settings.clone();
    let mut lottery = Lottery::start(settings).map_err(|error| {
        let listen = force.listen;
        Failure::failed(format_args!(
            "cannot listen on {listen}: {error}; stop what listens there, or choose an address of this machine"
        ))
    })?;
    for service in &force.services {
        tracing::info!("service {} ({:#010x}): server {}", service.name, service.id, service.server);
    }
    let told = agent.told();
    let mut senses = Senses::open(&file).await.map_err(Failure::failed)?;
    let (desk, mut inbox) = Desk::new(told.clone());
    let admin = match controlled {
        true => Some(plimsoll_admin::attend(config, desk.clone()).map_err(|error| {
            Failure::failed(error.to_string().replace("plimsoll stop", "plimsoll lottery stop"))
        })?),
        false => None,
    };
    if let Some(path) = table.doors().unix() {
        tracing::info!("listening control unix:{}", path.display());
    }
    if let Some(address) = admin.as_ref().and_then(plimsoll_admin::Admin::secured) {
        tracing::info!("listening control tls://{address}: for those whom [admin.access] knows");
    }
    // The line comes last: a reader that waits for it finds all of the above.
    tracing::info!(
        "listening lottery {}: member {}, {}, {}",
        lottery.address(),
        file.lottery.member,
        count(force.services.len(), "service"),
        count(force.peers.len(), "peer")
    );
    notify(&[NotifyState::Ready]);
    let (mut ended, mut reload_error) = (None, None);
    agent
        .run(async {
            loop {
                let peers = force.peers.clone();
                tokio::select! {
                    end = feed(&file, &lottery, &told, &senses) => ended = Some(end),
                    () = lottery.check() => {}
                    signal = told_to_stop(&mut term, &mut int) => {
                        doors::note(audit.as_deref(), signal, "stop", Ok(()));
                    }
                    asked = attend(&lottery, &mut inbox, &file, &mut force, reload_error.as_deref()) => {
                        if let Request::Reload(reply) = asked {
                            let mut all = All { file: &mut file, force: &mut force, lottery: &mut lottery, senses: &mut senses };
                            let outcome = all.again(args, &rules).await;
                            reload_error = outcome.as_ref().err().cloned();
                            // The client may have gone.
                            drop(reply.send(outcome));
                            continue;
                        }
                    }
                    peers = peers::moved(&file, peers) => {
                        force.peers = peers;
                        lottery.adjust(force.clone()).await;
                        continue;
                    }
                    _ = hangup.recv() => {
                        let mut all = All { file: &mut file, force: &mut force, lottery: &mut lottery, senses: &mut senses };
                        let outcome = all.again(args, &rules).await;
                        let done = outcome.as_ref().map(drop).map_err(String::as_str);
                        doors::note(audit.as_deref(), "SIGHUP", "reload", done);
                        reload_error = outcome.err();
                        continue;
                    }
                }
                break;
            }
            desk.stop();
            notify(&[NotifyState::Stopping]);
        })
        .await;
    // Questions from here on are answered with the end of the daemon.
    drop(inbox);
    match ended {
        // The failure makes a watching Supervisor start another process.
        Some(End::Thread) => {
            return Err(Failure::failed(
                "the daemon's thread has ended, which it never should: please report it",
            ));
        }
        Some(End::Twin(other)) => {
            lottery.leave().await;
            let member = file.lottery.member;
            return Err(Failure::new(
                Exit::Usage,
                format_args!(
                    "member {member} is another daemon, at {other}: give this one a number of its own"
                ),
            ));
        }
        None => {}
    }
    tracing::info!("leaving");
    let outcome = tokio::select! {
        () = lottery.leave() => Ok(ExitCode::SUCCESS),
        _ = told_to_stop(&mut term, &mut int) => Err(Failure::new(Exit::Interrupted, "stopped at once")),
    };
    // The admin plane ends last, so that the stop can be watched.
    drop(admin);
    outcome
}

/// The state that a reload may change.
struct All<'a> {
    file: &'a mut LotteryFile,
    force: &'a mut Settings,
    lottery: &'a mut Lottery,
    senses: &'a mut Senses,
}

impl All<'_> {
    /// Reads the file and the keys again; returns one line for each difference.
    async fn again(&mut self, args: &Args, rules: &Rules) -> Result<Vec<String>, String> {
        let outcome = self.read(args, rules).await;
        if let Err(why) = &outcome {
            tracing::error!("not reloaded, all stays as it was: {why}");
        }
        outcome
    }

    async fn read(&mut self, args: &Args, rules: &Rules) -> Result<Vec<String>, String> {
        let (fresh, mut settings, changes) = reload::read(args, self.file, self.force)?;
        // The incarnation is the start of the process.
        settings.incarnation = self.force.incarnation;
        let fresh_rules = fresh.lottery.admin.doors().rules()?;
        let senses = Senses::open(&fresh).await?;
        reload::tell(&changes);
        rules.replace(fresh_rules);
        self.lottery.change(settings.clone()).await;
        (*self.file, *self.force, *self.senses) = (fresh, settings, senses);
        Ok(changes)
    }
}

/// Waits for a signal to stop; returns its name.
async fn told_to_stop(term: &mut Signal, int: &mut Signal) -> &'static str {
    tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = int.recv() => "SIGINT",
    }
}

impl Args {
    fn read(&self) -> Result<LotteryFile, Failure> {
        match &self.config {
            Some(path) => config::read_lottery(path).map_err(|error| Failure::rendered(Exit::Usage, error)),
            None => {
                let text = self.flags.text().map_err(|why| Failure::new(Exit::Usage, why))?;
                config::read_lottery_text("the command line", text.into_bytes())
                    .map_err(|problems| Failure::new(Exit::Usage, problems.first()))
            }
        }
    }

    /// Prints all problems, or that there are none. It opens no socket and looks no name up, like `plimsoll
    /// config check`.
    fn check(&self, globals: &Globals) -> Result<ExitCode, Failure> {
        if let (Some(path), true) = (&self.config, globals.json()) {
            let read = config::read_lottery(path);
            let problems = match &read {
                Ok(file) => file.warnings.to_json(),
                Err(ReadError::Wrong(problems)) => problems.to_json(),
                Err(error @ ReadError::Io(_)) => return Err(Failure::rendered(Exit::Usage, error)),
            };
            let (ok, file) = (read.is_ok(), config::name_of(path));
            let report = json!({ "schema": 1, "file": file, "ok": ok, "problems": problems });
            globals.show(&report, String::new)?;
            return Ok(if ok { ExitCode::SUCCESS } else { Exit::Usage.into() });
        }
        let file = self.read()?;
        if let Some(rules) = &file.lottery.admin.access.file {
            config::check_access(&rules.0).map_err(|error| Failure::rendered(Exit::Usage, error))?;
        }
        let services = count(file.lottery.services.len(), "service");
        globals.say(&file.warnings.to_string());
        globals.say(&format!("{}: ok (member {}, {services})\n", file.name(), file.lottery.member));
        Ok(ExitCode::SUCCESS)
    }
}
