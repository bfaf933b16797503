//! The course of the demo: load, two faults, and a view of everything.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_bench::pace::{ArrivalProcess, RequestPacer};
use plimsoll_bench::run::{self, LoadRun, RunLimits};
use plimsoll_bench::target::HttpTarget;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::counts::RunCounts;
use super::live_view::{LiveScreen, MemberRow, ViewFrame};
use super::processes::DemoCluster;
use super::status_poll::{self, PolledStatus, StatusPoller};
use super::{Args, report};
use crate::command::{CliError, CliExitCode, GlobalArgs};

/// The time between two pictures.
const TICK: Duration = Duration::from_millis(200);
/// The lateness up to which a request left on time. The demo shows shares and failures on a machine that
/// serves and loads at once, not microseconds; any lateness counts in the latencies.
pub(super) const PUNCTUALITY_TOLERANCE: Duration = Duration::from_millis(20);
/// The factor by which the slow member becomes slower.
const SLOWDOWN_FACTOR: u32 = 10;

/// A fault of a member, by its index.
#[derive(Clone, Copy, Debug)]
enum MemberFault {
    Slow(usize),
    Kill(usize),
}

/// Runs the demo to its end and prints the report.
pub(super) async fn run_demo(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let mut signals = StopSignals::new().map_err(CliError::failed)?;
    globals.print_message(&format!("starting {} members and a balancer ({})\n", args.members, args.strategy));
    let cluster = tokio::select! {
        stage = DemoCluster::start(args) => stage.map_err(CliError::failed)?,
        () = signals.next() => return Ok(CliExitCode::Interrupted.into()),
    };
    if let Some(dashboard) = cluster.dashboard {
        globals.print_message(&format!("dashboard http://{dashboard}/ for as long as it runs\n"));
    }
    let target = HttpTarget::new("GET", &format!("http://{}/", cluster.address), &[], b"")
        .map_err(CliError::failed)?;
    let pacer = RequestPacer::new(ArrivalProcess::Poisson, args.rate, args.duration, args.seed);
    let poller = StatusPoller::start(cluster.control_client.clone());
    let started_at = SystemTime::now();
    let run =
        run::start(target, pacer, RunLimits { tolerance: PUNCTUALITY_TOLERANCE, ..RunLimits::default() })
            .map_err(|error| CliError::failed(format_args!("cannot start the load: {error}")))?;
    let demo_run = DemoRun {
        args,
        poller,
        started_at,
        run,
        counts: RunCounts::new("all is well"),
        last_status: PolledStatus::default(),
        faults: [(args.duration / 3, MemberFault::Slow(1)), (args.duration * 2 / 3, MemberFault::Kill(2))]
            .into(),
        fault_labels: vec![None; cluster.members.len()],
        cluster,
    };
    demo_run.run_until_end(&mut signals, LiveScreen::new(globals, args.no_live), globals).await
}

struct DemoRun<'a> {
    args: &'a Args,
    // The watch is dropped before the balancer that it asks.
    poller: StatusPoller,
    started_at: SystemTime,
    run: LoadRun,
    counts: RunCounts,
    last_status: PolledStatus,
    faults: VecDeque<(Duration, MemberFault)>,
    /// The fault of each member, if any.
    fault_labels: Vec<Option<String>>,
    cluster: DemoCluster,
}

impl DemoRun<'_> {
    async fn run_until_end(
        mut self,
        signals: &mut StopSignals,
        mut screen: LiveScreen,
        globals: &GlobalArgs,
    ) -> Result<ExitCode, CliError> {
        let mut interrupted = false;
        while !self.run.is_finished() {
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
            self.counts.add(now, self.run.take_record());
            if let Some((_, fault)) = self.faults.pop_front_if(|(at, _)| *at <= now) {
                self.inject_fault(fault, now, &screen).map_err(CliError::failed)?;
            }
            self.poll_events(now, &screen);
            if let Some(reason) = self.cluster.balancer_exit_reason() {
                return Err(CliError::failed(format_args!("{reason}; after {:.1} s", now.as_secs_f64())));
            }
            screen.draw(&self.frame(now));
        }
        let elapsed = self.run.elapsed();
        let remaining =
            self.run.join().map_err(|error| CliError::failed(format_args!("the load: {error}")))?;
        self.counts.add(elapsed.min(self.args.duration), remaining);
        screen.clear();
        let retries = status_poll::fetch_group(&self.cluster.control_client).map(|group| group.retries);
        let report = report::build_report(
            self.args,
            &self.cluster.member_summary(),
            &self.counts,
            retries,
            interrupted,
        );
        globals.print_result(&report, || report.render(globals.stdout_has_color()))?;
        Ok(report.exit_code())
    }

    /// Applies a fault to a member, and begins a phase.
    fn inject_fault(&mut self, fault: MemberFault, now: Duration, screen: &LiveScreen) -> Result<(), String> {
        let (index, label, description) = match fault {
            MemberFault::Slow(index) => {
                self.cluster.members[index].slow_down(SLOWDOWN_FACTOR)?;
                (
                    index,
                    format!("{SLOWDOWN_FACTOR}x slower"),
                    format!("is now {SLOWDOWN_FACTOR} times slower"),
                )
            }
            MemberFault::Kill(index) => {
                self.cluster.members[index].kill();
                (index, "killed".to_owned(), "is killed (SIGKILL)".to_owned())
            }
        };
        let name = &self.cluster.members[index].name;
        // The phase begins once the fault is in effect, with the requests that end from then on.
        let now = self.run.elapsed().max(now);
        self.counts.add(now, self.run.take_record());
        self.counts.begin_phase(now, &format!("{name} {label}"));
        let message = format!("{name} {description}");
        screen.print_event(now, &message);
        self.counts.add_event(now, "demo", message);
        self.fault_labels[index] = Some(label);
        Ok(())
    }

    /// Notes the balancer's new events.
    fn poll_events(&mut self, now: Duration, screen: &LiveScreen) {
        let status = self.poller.take_status();
        let start = self.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        for event in &status.events {
            let elapsed = Duration::from_millis(event.unix_ms).saturating_sub(start).min(now);
            let member = event.member.as_deref().map(|member| format!("{member} ")).unwrap_or_default();
            let kind = serde_json::to_value(event.kind).unwrap_or_default();
            let kind = kind.as_str().unwrap_or_default().replace('_', " ");
            let mut message = format!("{member}{kind}: {}", event.why);
            for member in &self.cluster.members {
                message = message.replace(&member.address.to_string(), &member.name);
            }
            screen.print_event(elapsed, &format!("balancer: {message}"));
            self.counts.add_event(elapsed, "balancer", message);
        }
        self.last_status = status;
    }

    /// Returns the current picture.
    fn frame(&self, now: Duration) -> ViewFrame<'_> {
        let (span, recent) = self.counts.recent();
        let shares = recent.shares();
        let seconds = span.as_secs_f64().max(TICK.as_secs_f64());
        let rows = self.cluster.members.iter().zip(&self.fault_labels).map(|(member, fault_label)| {
            let address = member.address.to_string();
            let status = self
                .last_status
                .group
                .iter()
                .flat_map(|group| &group.members)
                .find(|status| status.name == address);
            let answers = recent.members.get(member.name.as_str());
            MemberRow {
                name: &member.name,
                state: status.map(|status| status.state),
                fault_label: fault_label.as_deref(),
                share: shares.get(member.name.as_str()).copied().unwrap_or(0.0),
                rate: answers.map_or(0.0, |answers| answers.ok as f64 / seconds),
                in_flight: status.map_or(0, |status| status.in_flight),
                latency: answers
                    .map(|answers| (answers.latency.quantile(0.5), answers.latency.quantile(0.99))),
                failed: status.map_or(0, |status| status.failures),
            }
        });
        ViewFrame {
            title: format!("plimsoll demo · {}", self.args.strategy),
            member_summary: self.cluster.member_summary().to_string(),
            hint: format!("look: plimsoll members --control {}", self.cluster.control_client),
            elapsed: now.min(self.args.duration),
            duration: self.args.duration,
            phase: match self.counts.phases.last() {
                Some(phase) if now <= self.args.duration => &phase.name,
                _ => "waiting for the last answers",
            },
            rows: rows.collect(),
            seconds,
            recent,
            failed: self.counts.phases.iter().map(|phase| phase.record.failures()).sum(),
            events: &self.counts.events,
        }
    }
}

/// The signals that end a program, Ctrl-C among them.
struct StopSignals([Signal; 3]);

impl StopSignals {
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
