//! The course of the demo: load, two faults, and a view of everything.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_bench::pace::{Arrival, Pace};
use plimsoll_bench::run::{self, Limits, Run};
use plimsoll_bench::target::Http;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::stage::Stage;
use super::tally::Tally;
use super::view::{Frame, Row, Screen};
use super::watch::{self, Seen, Watch};
use super::{Args, verdict};
use crate::command::{Exit, Failure, Globals};

/// The time between two pictures.
const TICK: Duration = Duration::from_millis(200);
/// The lateness up to which a request left on time. The demo shows shares and failures on a machine that
/// serves and loads at once, not microseconds; any lateness counts in the latencies.
pub(super) const TOLERANCE: Duration = Duration::from_millis(20);
/// The factor by which the slow member becomes slower.
const SLOWER: u32 = 10;

/// A fault of a member, by its index.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Slow(usize),
    Kill(usize),
}

/// Runs the demo to its end and prints the report.
pub(super) async fn play(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    let mut signals = Signals::new().map_err(Failure::failed)?;
    globals.say(&format!("starting {} members and a balancer ({})\n", args.members, args.strategy));
    let stage = tokio::select! {
        stage = Stage::build(args) => stage.map_err(Failure::failed)?,
        () = signals.next() => return Ok(Exit::Interrupted.into()),
    };
    if let Some(dashboard) = stage.dashboard {
        globals.say(&format!("dashboard http://{dashboard}/ for as long as it runs\n"));
    }
    let target =
        Http::new("GET", &format!("http://{}/", stage.address), &[], b"").map_err(Failure::failed)?;
    let pace = Pace::new(Arrival::Poisson, args.rate, args.duration, args.seed);
    let watch = Watch::start(stage.control.clone());
    let began = SystemTime::now();
    let run = run::start(target, pace, Limits { tolerance: TOLERANCE, ..Limits::default() })
        .map_err(|error| Failure::failed(format_args!("cannot start the load: {error}")))?;
    let play = Play {
        args,
        watch,
        began,
        run,
        tally: Tally::new("all is well"),
        seen: Seen::default(),
        faults: [(args.duration / 3, Fault::Slow(1)), (args.duration * 2 / 3, Fault::Kill(2))].into(),
        marks: vec![None; stage.members.len()],
        stage,
    };
    play.go(&mut signals, Screen::new(globals, args.no_live), globals).await
}

struct Play<'a> {
    args: &'a Args,
    // The watch is dropped before the balancer that it asks.
    watch: Watch,
    began: SystemTime,
    run: Run,
    tally: Tally,
    seen: Seen,
    faults: VecDeque<(Duration, Fault)>,
    /// The fault of each member, if any.
    marks: Vec<Option<String>>,
    stage: Stage,
}

impl Play<'_> {
    async fn go(
        mut self,
        signals: &mut Signals,
        mut screen: Screen,
        globals: &Globals,
    ) -> Result<ExitCode, Failure> {
        let mut interrupted = false;
        while !self.run.finished() {
            let now = self.run.elapsed();
            let wait = self.faults.front().map_or(TICK, |(at, _)| at.saturating_sub(now).min(TICK));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = signals.next() => {
                    interrupted = true;
                    self.faults.clear();
                    self.run.stop();
                }
            }
            let now = self.run.elapsed();
            self.tally.add(now, self.run.take());
            if let Some((_, fault)) = self.faults.pop_front_if(|(at, _)| *at <= now) {
                self.inflict(fault, now, &screen).map_err(Failure::failed)?;
            }
            self.look(now, &screen);
            if let Some(end) = self.stage.balancer_ended() {
                return Err(Failure::failed(format_args!("{end}; after {:.1} s", now.as_secs_f64())));
            }
            screen.draw(&self.frame(now));
        }
        let end = self.run.elapsed();
        let rest = self.run.join().map_err(|error| Failure::failed(format_args!("the load: {error}")))?;
        self.tally.add(end.min(self.args.duration), rest);
        screen.clear();
        let retries = watch::group(&self.stage.control).map(|group| group.retries);
        let report = verdict::judge(self.args, &self.stage.cast(), &self.tally, retries, interrupted);
        globals.show(&report, || report.render(globals.color()))?;
        Ok(report.exit())
    }

    /// Applies a fault to a member, and begins a phase.
    fn inflict(&mut self, fault: Fault, now: Duration, screen: &Screen) -> Result<(), String> {
        let (index, mark, phase) = match fault {
            Fault::Slow(index) => {
                self.stage.members[index].slow(SLOWER)?;
                (index, format!("{SLOWER}x slower"), format!("is now {SLOWER} times slower"))
            }
            Fault::Kill(index) => {
                self.stage.members[index].kill();
                (index, "killed".to_owned(), "is killed (SIGKILL)".to_owned())
            }
        };
        let name = &self.stage.members[index].name;
        // The phase begins once the fault is in effect, with the requests that end from then on.
        let now = self.run.elapsed().max(now);
        self.tally.add(now, self.run.take());
        self.tally.turn(now, &format!("{name} {mark}"));
        let what = format!("{name} {phase}");
        screen.note(now, &what);
        self.tally.note(now, "demo", what);
        self.marks[index] = Some(mark);
        Ok(())
    }

    /// Notes the balancer's new events.
    fn look(&mut self, now: Duration, screen: &Screen) {
        let seen = self.watch.look();
        let start = self.began.duration_since(UNIX_EPOCH).unwrap_or_default();
        for event in &seen.events {
            let at = Duration::from_millis(event.unix_ms).saturating_sub(start).min(now);
            let member = event.member.as_deref().map(|member| format!("{member} ")).unwrap_or_default();
            let kind = serde_json::to_value(event.kind).unwrap_or_default();
            let kind = kind.as_str().unwrap_or_default().replace('_', " ");
            let mut what = format!("{member}{kind}: {}", event.why);
            for member in &self.stage.members {
                what = what.replace(&member.address.to_string(), &member.name);
            }
            screen.note(at, &format!("balancer: {what}"));
            self.tally.note(at, "balancer", what);
        }
        self.seen = seen;
    }

    /// Returns the current picture.
    fn frame(&self, now: Duration) -> Frame<'_> {
        let (span, recent) = self.tally.recent();
        let shares = recent.shares();
        let seconds = span.as_secs_f64().max(TICK.as_secs_f64());
        let rows = self.stage.members.iter().zip(&self.marks).map(|(member, mark)| {
            let address = member.address.to_string();
            let status =
                self.seen.group.iter().flat_map(|group| &group.members).find(|status| status.name == address);
            let tally = recent.members.get(member.name.as_str());
            Row {
                name: &member.name,
                state: status.map(|status| status.state),
                mark: mark.as_deref(),
                share: shares.get(member.name.as_str()).copied().unwrap_or(0.0),
                rate: tally.map_or(0.0, |tally| tally.ok as f64 / seconds),
                in_flight: status.map_or(0, |status| status.in_flight),
                latency: tally.map(|tally| (tally.latency.quantile(0.5), tally.latency.quantile(0.99))),
                failed: status.map_or(0, |status| status.failures),
            }
        });
        Frame {
            title: format!("plimsoll demo · {}", self.args.strategy),
            cast: self.stage.cast().to_string(),
            hint: format!("look: plimsoll members --control {}", self.stage.control),
            elapsed: now.min(self.args.duration),
            duration: self.args.duration,
            phase: match self.tally.phases.last() {
                Some(phase) if now <= self.args.duration => &phase.name,
                _ => "waiting for the last answers",
            },
            rows: rows.collect(),
            seconds,
            recent,
            failed: self.tally.phases.iter().map(|phase| phase.record.failures()).sum(),
            notes: &self.tally.notes,
        }
    }
}

/// The signals that end a program, Ctrl-C among them.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> std::io::Result<Self> {
        let [int, term, hup] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        Ok(Self([int?, term?, hup?]))
    }

    async fn next(&mut self) {
        let [int, term, hup] = &mut self.0;
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
            _ = hup.recv() => {}
        }
    }
}
