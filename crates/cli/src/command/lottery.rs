//! `plimsoll lottery`: the daemon beside a server in a cluster without a balancer.

mod key;
mod reload;
pub(super) mod says;

use std::collections::BTreeSet;
use std::fmt::Write as _;
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

/// What a file says, on the command line.
#[derive(clap::Args, Debug)]
#[group(id = "flags", multiple = true)]
struct Flags {
    /// Number of the daemon and of the server beside it, alone in the cluster: 1 to 65535
    #[arg(short, long, value_name = "NUMBER", required_unless_present = "config")]
    member: Option<u16>,

    /// Address of the daemon; port 0 takes a free one
    #[arg(short, long, value_name = "ADDRESS", required_unless_present = "config")]
    listen: Option<String>,

    /// Where the others reach it, if that is not where it listens
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,

    /// Other daemons; one that runs is enough to find all
    #[arg(short, long, value_name = "HOST:PORT", value_delimiter = ',')]
    peers: Vec<String>,

    /// Group and port by which all are reached at once, where the network carries multicast
    #[arg(long, value_name = "ADDRESS")]
    multicast: Option<String>,

    /// File of the cluster's keys, the same on all hosts; made if there is none
    #[arg(short, long, value_name = "FILE", required_unless_present = "config")]
    keys: Option<String>,

    /// What the server does and where: web=10.0.0.1:80,capacity=4,health=/healthz,load=cpu (health=tcp only connects); as
    /// often as needed
    #[arg(short, long, value_name = "NAME=HOST:PORT[,...]")]
    service: Vec<String>,

    /// For how long a client may use an answer again
    #[arg(long, value_name = "TIME")]
    ttl: Option<String>,

    /// How long a server takes to come to its whole share after it came [default: 10s]
    #[arg(long, value_name = "TIME")]
    slow_start: Option<String>,

    /// Requests a second of one address above which they are not heard; 0 for any number [default: 20000]
    #[arg(long, value_name = "NUMBER")]
    rate: Option<u32>,

    /// Where programs tell numbers (POST /v1/report), and /load and /metrics show what is known
    #[arg(long, value_name = "ADDRESS")]
    status: Option<String>,
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

impl Flags {
    /// As a file would say it, so that it is held to all that a file is held to.
    fn text(&self) -> Result<String, String> {
        let mut text = String::new();
        let mut line = |key: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{key} = {value}");
        };
        if let Some(member) = self.member {
            line("member", &member.to_string());
        }
        if let Some(rate) = self.rate {
            line("rate", &rate.to_string());
        }
        let words = [
            ("listen", &self.listen),
            ("address", &self.address),
            ("multicast", &self.multicast),
            ("keys", &self.keys),
            ("ttl", &self.ttl),
            ("slow_start", &self.slow_start),
            ("status", &self.status),
        ];
        for (key, value) in words {
            if let Some(value) = value {
                line(key, &quoted(value));
            }
        }
        let peers: Vec<String> = self.peers.iter().map(|peer| quoted(peer)).collect();
        line("peers", &format!("[{}]", peers.join(", ")));
        for service in &self.service {
            text += &table(service)?;
        }
        Ok(text)
    }
}

/// `[[service]]` of `web=10.0.0.1:80,capacity=4,health=/healthz,load=cpu`.
fn table(service: &str) -> Result<String, String> {
    let parts = parts(service);
    let mut parts = parts.iter().copied();
    let (name, server) = parts
        .next()
        .and_then(|first| first.split_once('='))
        .ok_or_else(|| format!("`{service}` is not a service: write NAME=HOST:PORT"))?;
    let mut text = format!("[[service]]\nname = {}\nserver = {}\n", quoted(name), quoted(server));
    for part in parts {
        let line = match part.split_once('=') {
            Some(("capacity", number)) if number.parse::<u16>().is_ok() => format!("capacity = {number}"),
            Some(("id", number)) if number.parse::<u32>().is_ok() => format!("id = {number}"),
            Some(("load", load)) => format!("load = {}", quoted(load)),
            Some(("health", "tcp")) => "health = { tcp = true }".to_owned(),
            Some(("health", path)) => format!("health = {{ http = {} }}", quoted(path)),
            _ => {
                return Err(format!(
                    "`{part}` says nothing of a service: there are capacity=0..65535, id=NUMBER, load=EXPRESSION and \
                     health=/PATH or health=tcp"
                ));
            }
        };
        text += &line;
        text.push('\n');
    }
    Ok(text)
}

/// What stands between commas, but for those within brackets: an expression may have some.
fn parts(service: &str) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0_u32, 0, Vec::new());
    for (at, char) in service.char_indices() {
        match char {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&service[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&service[from..]);
    parts
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_written_as_a_file_has_it() {
        let text = table("web=10.0.0.1:80,capacity=4,health=/a\"b,load=cpu / 2").unwrap();
        insta::assert_snapshot!(text, @r#"
        [[service]]
        name = "web"
        server = "10.0.0.1:80"
        capacity = 4
        health = { http = '/a"b' }
        load = "cpu / 2"
        "#);
        let text = table("web=[::1]:80,load=[cpu, in_flight / 8]|max,health=/a?b=(x,y),capacity=4").unwrap();
        insta::assert_snapshot!(text, @r#"
        [[service]]
        name = "web"
        server = "[::1]:80"
        load = "[cpu, in_flight / 8]|max"
        health = { http = "/a?b=(x,y)" }
        capacity = 4
        "#);
        for wrong in ["web", "web=1:1,capacity=x", "web=1:1,capacity=70000", "web=1:1,weight=1", "web=1:1,x"]
        {
            assert!(table(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_of_numbers_fit_on_the_board() {
        let names = numbers(&Statistics::default());
        assert!(names.len() <= 24 && names.iter().all(|(name, _)| plimsoll_cluster::is_name(name)));
    }
}
