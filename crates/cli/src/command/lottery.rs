//! `plimsoll lottery`: the daemon beside a server in a cluster without a balancer.

mod flags;
mod key;
mod reload;
pub(super) mod says;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_agent::{Act, Acts, Agent, Told};
use plimsoll_cluster::Expression;
use plimsoll_cluster::lottery::{Lottery, Statistics};
use sd_notify::NotifyState;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{Exit, Failure, Globals};
use crate::config::{self, LotteryFile, ReadError, Severity, count};
use crate::log;
use crate::running::notify;

use flags::Flags;
pub(super) use key::exposed;

/// Refer clients to servers without a balancer: run beside each server
///
/// Daemons tell one another how their servers do and draw who serves a request; a client asks any of them (`plimsoll pick`).
/// SIGHUP reads the file and the keys again. SIGTERM and SIGINT tell the others that it leaves, and end it.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// What is to be done, in place of the options below
    #[arg(short, long, value_name = "FILE", conflicts_with = "flags")]
    config: Option<PathBuf>,

    #[command(flatten)]
    flags: Flags,

    /// Only say whether all is right with that, and start nothing; exit code 2 if anything is wrong
    #[arg(long)]
    check: bool,

    /// Form of the log on standard error
    #[arg(long, value_enum, default_value_t = log::Form::Text)]
    log: log::Form,
}

impl Args {
    /// Its configuration, if that is a file.
    pub(super) fn file(&self) -> Option<PathBuf> {
        self.config.clone()
    }
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    if args.check {
        return args.check(globals);
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

/// Serves until it is told to end.
async fn on(args: &Args, mut file: LotteryFile) -> Result<ExitCode, Failure> {
    // Before anything listens, so that no signal finds the process unprepared.
    let taken = [SignalKind::hangup(), SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    let [Ok(mut hangup), Ok(mut term), Ok(mut int)] = taken else {
        return Err(Failure::failed("cannot take signals"));
    };
    let keys = key::open(&file.keys())?;
    let settings =
        file.settings(keys, config::look_up).map_err(|problems| Failure::rendered(Exit::Failed, problems))?;
    let drained = watch::Sender::new(false);
    let mut drains = drained.subscribe();
    let acts = Acts(Arc::new(move |act| {
        drained.send_replace(act == Act::Drain);
    }));
    let agent = plimsoll_agent::Config {
        listen: file.lottery.status.0,
        acts: Some(acts),
        ..plimsoll_agent::Config::default()
    };
    let agent = Agent::open(agent).await.map_err(Failure::failed)?;
    if let Some(address) = agent.addr() {
        tracing::info!("listening status {address}: /load, /metrics, /v1/report, /v1/drain");
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
    tracing::info!(
        "listening lottery {}: member {}, {}, {}",
        lottery.address(),
        file.lottery.member,
        count(force.services.len(), "service"),
        count(force.peers.len(), "peer")
    );
    notify(&[NotifyState::Ready]);
    let told = agent.told();
    let mut ended = None;
    agent
        .run(async {
            loop {
                tokio::select! {
                    end = feed(&file, &lottery, &told) => ended = Some(end),
                    () = lottery.check() => {}
                    () = drain(&lottery, &mut drains) => {}
                    () = told_to_stop(&mut term, &mut int) => {}
                    _ = hangup.recv() => {
                        match reload::read(args, &file, &force) {
                            Ok((fresh, settings, changes)) => {
                                reload::tell(&changes);
                                lottery.change(settings.clone()).await;
                                (file, force) = (fresh, settings);
                            }
                            Err(why) => tracing::error!("not reloaded, all stays as it was: {why}"),
                        }
                        continue;
                    }
                }
                break;
            }
            notify(&[NotifyState::Stopping]);
        })
        .await;
    match ended {
        // So that whoever watches over this process starts another.
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
    tokio::select! {
        () = lottery.leave() => Ok(ExitCode::SUCCESS),
        () = told_to_stop(&mut term, &mut int) => Err(Failure::new(Exit::Interrupted, "stopped at once")),
    }
}

/// Drains the daemon, and takes it back, as it is told to.
async fn drain(lottery: &Lottery, drains: &mut watch::Receiver<bool>) {
    while drains.changed().await.is_ok() {
        let drain = *drains.borrow_and_update();
        tracing::info!(
            "{}",
            if drain { "draining: clients are sent to others" } else { "taking part again" }
        );
        lottery.drain(drain).await;
    }
    std::future::pending().await
}

async fn told_to_stop(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

/// Why a daemon ends of itself.
enum End {
    /// Its thread is no more.
    Thread,
    /// Another has its number and was there before.
    Twin(SocketAddr),
}

/// Tells the daemon how loaded the servers are, and the world how the daemon does, until the daemon is no more or must not be.
async fn feed(file: &LotteryFile, lottery: &Lottery, told: &Told) -> End {
    let services = file.lottery.services.iter();
    let loads: Vec<(u32, Expression)> =
        services.filter_map(|service| Some((service.number(), service.load()?))).collect();
    let mut tick = interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (begin, mut lost, mut said) = (Instant::now(), 0, BTreeSet::new());
    let mut strangers = Strangers::default();
    loop {
        tick.tick().await;
        if !loads.is_empty() {
            let known = told.known().values;
            let lookup = |name: &str| {
                let value = known.iter().find(|value| value.name == name)?;
                (value.age <= FRESH).then_some(value.value)
            };
            let in_flight = lookup("in_flight").unwrap_or_default();
            for (service, load) in &loads {
                match load.eval(lookup) {
                    // Beyond what fits, what fits: casts of numbers do so.
                    Ok(load) => lottery.load(*service, (load * 1000.0) as u16, in_flight as u16).await,
                    // What takes two looks is not there at once.
                    Err(why) => {
                        if begin.elapsed() > PATIENCE && said.len() < 100 && said.insert(why.clone()) {
                            tracing::warn!("no load by `{}`: {why}", load.text());
                        }
                    }
                }
            }
        }
        let Some(statistics) = lottery.statistics().await else { return End::Thread };
        if let Some(twin) = statistics.twin {
            return End::Twin(twin);
        }
        if statistics.lots.loads_lost > lost {
            let lost = count(statistics.lots.loads_lost, "service");
            tracing::warn!(
                "the load of {lost} is not known any more: shares follow the capacity alone until it is"
            );
        }
        lost = statistics.lots.loads_lost;
        strangers.look(&statistics, &file.keys().display());
        for (name, value) in numbers(&statistics) {
            // There is room as long as programs do not tell dozens of names.
            let _ = told.tell(name, value);
        }
    }
}

/// Between two looks at loads and counts.
const LOOK: Duration = Duration::from_millis(250);

/// A number that was not read or told for so long is not known.
const FRESH: Duration = Duration::from_secs(10);

/// Until then it is no wonder that a number is not known.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two complaints about datagrams of strangers.
const COMPLAINT: Duration = Duration::from_secs(60);

/// Datagrams that nobody who has the keys has sent.
#[derive(Default)]
struct Strangers {
    seen: u64,
    said: Option<Instant>,
}

impl Strangers {
    fn look(&mut self, statistics: &Statistics, keys: &impl std::fmt::Display) {
        let now = statistics.forged + statistics.unknown_key;
        let fresh = now - self.seen;
        if fresh > 0 && self.said.is_none_or(|said| said.elapsed() > COMPLAINT) {
            (self.seen, self.said) = (now, Some(Instant::now()));
            tracing::warn!(
                "{} dropped that no key of {keys} has sealed: all hosts and clients need the same file",
                count(usize::try_from(fresh).unwrap_or(usize::MAX), "datagram")
            );
        }
    }
}

/// What the daemon counts, by the names under which it is shown.
fn numbers(statistics: &Statistics) -> Vec<(&'static str, f64)> {
    let lots = &statistics.lots;
    let counts = [
        ("lottery_received", statistics.received),
        ("lottery_sent", statistics.sent),
        ("lottery_forged", statistics.forged),
        ("lottery_unknown_key", statistics.unknown_key),
        ("lottery_malformed", statistics.malformed),
        ("lottery_replayed", statistics.replayed),
        ("lottery_unsent", statistics.unsent),
        ("lottery_won", lots.won),
        ("lottery_stood_in", lots.stood_in),
        ("lottery_referred", lots.referred),
        ("lottery_turned_away", lots.turned_away),
        ("lottery_repeated", lots.repeated),
        ("lottery_duplicates", lots.duplicates),
        ("lottery_limited", lots.limited),
        ("lottery_dropped", lots.dropped),
        ("lottery_members", lots.members_heard as u64),
        ("lottery_alive", statistics.alive as u64),
        ("lottery_strays", statistics.strays),
        ("lottery_draining", u64::from(statistics.draining)),
        ("lottery_loads_lost", lots.loads_lost as u64),
        ("lottery_members_differ", lots.members_differ as u64),
    ];
    let mut numbers: Vec<(&str, f64)> = counts.map(|(name, count)| (name, count as f64)).into();
    numbers.push(("lottery_step_seconds", lots.step.as_secs_f64()));
    numbers.push(("lottery_lag_seconds", lots.lag.as_secs_f64()));
    numbers.extend(lots.commit_delay.map(|delay| ("lottery_commit_delay_seconds", delay.as_secs_f64())));
    numbers
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

    /// All that is wrong, or that nothing is. Opens no socket and looks no name up, as `plimsoll config check`.
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
        let services = count(file.lottery.services.len(), "service");
        globals.say(&file.warnings.to_string());
        globals.say(&format!("{}: ok (member {}, {services})\n", file.name(), file.lottery.member));
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_numbers_fit_on_the_board() {
        let mut statistics = Statistics::default();
        statistics.lots.commit_delay = Some(Duration::ZERO);
        let names = numbers(&statistics);
        assert!(names.len() <= 24 && names.iter().all(|(name, _)| plimsoll_cluster::is_name(name)));
    }
}
