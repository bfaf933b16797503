//! The agent as a side-car: it stands in the response path of the server, for http, plain connections or
//! CORBA.
//!
//! A data plane of one listener and one member carries the traffic, on a thread of its own. Its meter counts
//! the requests in flight and learns the server's concurrency limit. It adds both to each answer of http, and
//! rejects the excess there.
//!
//! Each of several servers on this host has a listener and a meter, and one more meter counts all of them
//! together. The thread is the same for all, so that none waits for another. Ten times in a second the
//! figures go to the agent, which reports them with its other numbers.
//!
//! Alerts of balancers are passed on to the data plane: connections are then closed at the boundary of a
//! request, or when they have been quiet for a while. Clients of a CORBA server are forwarded to its group
//! then, and those of http are redirected if the address of the group is known.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_agent::{Agent, ShedAlert, ValueReporter};
use plimsoll_config::limits;
use plimsoll_config::{self as config, ConfigDiagnostics, MachineDefaults, MemberAddress, look_up};
use plimsoll_proxy::{CorbaObject, Engine, Protocol, Settings, SideCarSettings};
use plimsoll_wire::giop::Ior;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use crate::command::{CliError, CliExitCode};

mod addresses;

pub(super) use addresses::{SideCarAddresses, with_group_urls};

/// The name of the group, if there is only one.
const SERVER_GROUP: &str = "server";
/// The time between two looks at the meter.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// The time between two checks that the server can be reached.
const SECOND: Duration = Duration::from_secs(1);
/// The number of looks over which rates and means are computed: a second.
const SAMPLES_PER_WINDOW: usize = 10;

/// The number of keys of a CORBA server's object from before its restarts that are remembered.
const MAX_FORMER_KEYS: usize = 16;

/// A running side-car.
pub(super) struct SideCar {
    engine: Engine,
    current: RefCell<CurrentSettings>,
    /// The bound addresses of its listeners, for each server.
    bound_addresses: Vec<SocketAddr>,
}

/// The settings that may change while it runs.
#[derive(Clone)]
struct CurrentSettings {
    /// One for each server; only one, if it is a CORBA server.
    addresses: Vec<SideCarAddresses>,
    side_car_settings: SideCarSettings,
    /// The server's object, and the group's, if it is a CORBA server and they are known.
    server_object: Option<Ior>,
    group_object: Option<Ior>,
    /// The former keys of the object.
    former_keys: Vec<Vec<u8>>,
}

impl SideCar {
    /// Starts to carry, for one server or more. `refuse` does not concern http, `shed_idle` only plain
    /// connections.
    pub(super) fn start(
        side_cars: Vec<SideCarAddresses>,
        refuse: bool,
        shed_idle: Option<Duration>,
    ) -> Result<Self, CliError> {
        let side_car_settings = SideCarSettings { refuse, shed_idle, shares_host: false, home: None };
        let current = CurrentSettings {
            addresses: side_cars,
            side_car_settings,
            server_object: None,
            former_keys: Vec::new(),
            group_object: None,
        };
        let settings = current.settings(look_up)?;
        let engine = Engine::start(settings).map_err(CliError::failed)?;
        let bound_addresses = engine.addresses();
        Ok(Self { engine, current: RefCell::new(current), bound_addresses })
    }

    /// Returns the bound addresses, for each server, in the order in which they were given.
    pub(super) fn bound_addresses(&self) -> &[SocketAddr] {
        &self.bound_addresses
    }

    /// Returns a line for each server: `side-car http 0.0.0.0:80 -> 127.0.0.1:8080`.
    pub(super) fn lines(&self) -> Vec<String> {
        let side_cars = &self.current.borrow().addresses;
        let line = |(addresses, listen): (&SideCarAddresses, &SocketAddr)| {
            format!("side-car {} {listen} -> {}", addresses.protocol(), addresses.server)
        };
        side_cars.iter().zip(&self.bound_addresses).map(line).collect()
    }

    /// Sets the object of the CORBA server, and its address if that is given.
    pub(super) fn set_server_object(
        &self,
        object: &Ior,
        server: Option<MemberAddress>,
    ) -> Result<(), String> {
        self.update_settings(|current| {
            let key = |ior: &Ior| ior.first_iiop_profile().map(|profile| profile.key);
            let (previous_object, new_key) = (current.server_object.replace(object.clone()), key(object));
            if let Some(former_key) = previous_object.as_ref().and_then(key) {
                current.former_keys.insert(0, former_key);
            }
            current.former_keys.retain(|former| Some(former) != new_key.as_ref());
            current.former_keys.truncate(MAX_FORMER_KEYS);
            if let (Some(server), Some(addresses)) = (server, current.addresses.first_mut()) {
                addresses.server = server;
            }
        })
    }

    /// Sets the group to which clients are sent away.
    pub(super) fn set_group_object(&self, group_object: &Ior) -> Result<(), String> {
        self.update_settings(|current| current.group_object = Some(group_object.clone()))
    }

    fn update_settings(&self, change: impl FnOnce(&mut CurrentSettings)) -> Result<(), String> {
        let mut next = self.current.borrow().clone();
        change(&mut next);
        let settings = next.settings(look_up).map_err(|failure| failure.one_line().to_owned())?;
        self.engine.reload(settings, Vec::new()).map_err(|error| error.to_string())?;
        *self.current.borrow_mut() = next;
        Ok(())
    }

    /// Reports its figures to an agent, and obeys the alerts of balancers, for as long as it carries. Each of
    /// several servers has a report of its own, and the host has one of all together.
    pub(super) fn report_load(&self, agent: &Agent) -> impl Future<Output = Infallible> + use<> {
        let mut tasks = JoinSet::new();
        let count = self.bound_addresses.len();
        if count == 1 {
            tasks.spawn(report_server_load(
                self.engine.clone(),
                SERVER_GROUP.to_owned(),
                agent.reporter(),
                agent.alerts(),
            ));
        } else {
            for (index, (reporter, alerts)) in agent.servers().into_iter().enumerate() {
                tasks.spawn(report_server_load(
                    self.engine.clone(),
                    server_name(index, count),
                    reporter,
                    alerts,
                ));
            }
            tasks.spawn(report_host_load(self.engine.clone(), agent.reporter()));
        }
        async move {
            // None of them ends, unless it panics, which is logged then.
            while tasks.join_next().await.is_some() {}
            std::future::pending().await
        }
    }

    /// Closes the listener and lets requests in flight end.
    pub(super) async fn stop(&self) -> u64 {
        self.engine.stop().await
    }
}

/// Reports the figures of one server, and passes on its alerts.
async fn report_server_load(
    engine: Engine,
    group: String,
    reporter: ValueReporter,
    mut alerts: watch::Receiver<ShedAlert>,
) {
    let mut rate_window = RateWindow::default();
    let mut reachability = ServerReachability::default();
    let (mut sample_ticks, mut second_ticks) = (sampling_interval(), interval(SECOND));
    second_ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = sample_ticks.tick() => record_server_load(&engine, &group, &reporter, &mut rate_window),
            _ = second_ticks.tick() => reachability.log_changes(&engine, &group),
            Ok(()) = alerts.changed() => {
                let share = alerts.borrow_and_update().share;
                engine.request_shed(&group, share);
            }
        }
    }
}

/// Reports the figures of the host.
async fn report_host_load(engine: Engine, reporter: ValueReporter) {
    let mut ticks = sampling_interval();
    loop {
        ticks.tick().await;
        let reading = engine.host_reading();
        record_values(
            &reporter,
            [
                ("host_in_flight", Some(f64::from(reading.in_flight))),
                ("host_knee", Some(f64::from(reading.knee))),
            ],
        );
    }
}

fn record_server_load(engine: &Engine, group: &str, reporter: &ValueReporter, rate_window: &mut RateWindow) {
    let Some(reading) = engine.meter_reading(group) else { return };
    let counters = engine.member_counters(group);
    let (requests, seconds) = counters.first().map_or((0, 0.0), |member| (member.requests, member.seconds));
    let (rate, latency) = rate_window.push(Instant::now(), requests, seconds);
    let sojourn = (reading.sojourn > 0.0).then_some(f64::from(reading.sojourn));
    record_values(
        reporter,
        [
            ("in_flight", Some(f64::from(reading.in_flight))),
            ("requests_per_second", rate),
            ("latency", latency),
            ("knee", Some(f64::from(reading.knee))),
            ("sojourn", sojourn),
        ],
    );
}

fn record_values<const N: usize>(reporter: &ValueReporter, values: [(&str, Option<f64>); N]) {
    for (name, value) in values {
        if let Some(value) = value {
            // An error is possible only if programs have reported 40 other names already; they got it then.
            let _ = reporter.report(name, value);
        }
    }
}

fn sampling_interval() -> Interval {
    let mut ticks = interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Returns the name of the group of one of so many servers.
fn server_name(index: usize, count: usize) -> String {
    if count == 1 { SERVER_GROUP.to_owned() } else { format!("{SERVER_GROUP}-{}", index + 1) }
}

impl CurrentSettings {
    /// Returns a balancer's settings, so that all defaults are the same. Errors name the command line,
    /// because there is no file.
    fn settings(
        &self,
        mut resolve: impl FnMut(&MemberAddress) -> io::Result<SocketAddr>,
    ) -> Result<Settings, CliError> {
        for addresses in &self.addresses {
            resolve(&addresses.server).map_err(|error| {
                let (option, host) = (addresses.option(), &addresses.server.host);
                let message =
                    format!("cannot look up `{host}`: {error}; correct the name, or write an IP address");
                CliError::failed(format_args!("{option} {addresses}: {message}"))
            })?;
        }
        let option = self.addresses.first().map_or("--side-car", SideCarAddresses::option);
        let config_error = |exit_code| {
            move |problems: ConfigDiagnostics| {
                CliError::new(exit_code, format_args!("{option}: {}", problems.first()))
            }
        };
        let file = config::parse("the side-car", render_config(&self.addresses).into_bytes())
            .map_err(config_error(CliExitCode::Usage))?;
        let machine = MachineDefaults::detect(&file.config, limits::raise());
        let mut settings = file.settings(machine, resolve).map_err(config_error(CliExitCode::Failed))?;
        for (group, addresses) in settings.groups.iter_mut().zip(&self.addresses) {
            // An open connection is no measure of its cost for the host, unless the option to refuse excess
            // connections makes it one.
            let group = Arc::make_mut(group);
            let is_metered = addresses.protocol != Protocol::Tcp || self.side_car_settings.refuse;
            let shares_host = is_metered && self.addresses.len() > 1;
            let home = addresses.group_url.as_ref().map(|url| url.0.as_str().into());
            group.side_car = Some(SideCarSettings { shares_host, home, ..self.side_car_settings });
            let Some(iiop) = &mut group.iiop else { continue };
            // The server has many objects that the side-car does not know.
            iiop.key = None;
            let object = self.server_object.clone().and_then(CorbaObject::new);
            iiop.objects = object.map(|object| (Arc::from(SERVER_GROUP), object)).into_iter().collect();
            iiop.former.clone_from(&self.former_keys);
            iiop.home.clone_from(&self.group_object);
        }
        Ok(settings)
    }
}

/// The reachability of a server, as last reported.
#[derive(Default)]
struct ServerReachability {
    is_unreachable: bool,
    /// The requests that found no connection to it, and those that it has answered, well or not.
    failed_connects: u64,
    answered: u64,
}

impl ServerReachability {
    /// Logs when it cannot be reached any more, and when it can be again.
    fn log_changes(&mut self, engine: &Engine, group: &str) {
        let Some(snapshot) = engine.group_snapshot(group) else { return };
        let status = snapshot.status;
        let failed_connects = UNREACHED.iter().filter_map(|reason| status.rejected.get(*reason)).sum();
        let Some(server) = status.members.first() else { return };
        // An answer of 5xx is an answer, too.
        let answered = server.requests.saturating_sub(server.failures)
            + server.answers.get("5xx").copied().unwrap_or_default();
        let (previous_failed, previous_answered) = (self.failed_connects, self.answered);
        (self.failed_connects, self.answered) = (failed_connects, answered);
        if !self.is_unreachable && failed_connects > previous_failed {
            self.is_unreachable = true;
            tracing::warn!("the server {} cannot be reached", server.name);
        } else if self.is_unreachable && answered > previous_answered && failed_connects == previous_failed {
            self.is_unreachable = false;
            tracing::info!("the server {} can be reached again", server.name);
        }
    }
}

/// The reasons of requests that found no connection to their server.
const UNREACHED: [&str; 3] = ["connect_failed", "connect_timeout", "no_member"];

/// The looks of the last second.
#[derive(Default)]
struct RateWindow(VecDeque<(Instant, u64, f64)>);

impl RateWindow {
    /// Adds the number of ended requests so far and their total seconds. Returns the requests that end in a
    /// second, and the mean seconds of each, if there were any.
    fn push(&mut self, now: Instant, requests: u64, seconds: f64) -> (Option<f64>, Option<f64>) {
        let (window_start, start_requests, start_seconds) =
            *self.0.front().unwrap_or(&(now, requests, seconds));
        self.0.push_back((now, requests, seconds));
        if self.0.len() > SAMPLES_PER_WINDOW {
            self.0.pop_front();
        }
        let elapsed = now.duration_since(window_start).as_secs_f64();
        // The counts of a member begin again if it does.
        let completed = requests.saturating_sub(start_requests) as f64;
        let rate = (elapsed > 0.0).then(|| completed / elapsed);
        (rate, (completed > 0.0).then(|| (seconds - start_seconds).max(0.0) / completed))
    }
}

/// Returns the configuration. Timeouts of idle connections are left to the balancers and to the server.
fn render_config(side_cars: &[SideCarAddresses]) -> String {
    let mut text = "threads = 1\n".to_owned();
    for (index, addresses) in side_cars.iter().enumerate() {
        text += &render_section(addresses, &server_name(index, side_cars.len()));
    }
    text
}

fn render_section(addresses: &SideCarAddresses, group: &str) -> String {
    let SideCarAddresses { listen, server, .. } = addresses;
    let protocol = addresses.protocol();
    let binding = if addresses.protocol == Protocol::Iiop { "binding = 'per_request'\n" } else { "" };
    format!(
        "[[listener]]\naddress = '{listen}'\nprotocol = '{protocol}'\ngroup = '{group}'\nforwarded = 'off'\n\
         {binding}timeouts.idle = '1d'\ntimeouts.tunnel = '1d'\n\
         [[group]]\nname = '{group}'\nstrategy = 'round_robin'\nmembers = ['{server}']\nretry.attempts = 0\n\
         outlier = false\nmax_idle_connections = 1024\niiop.connections = 1024\n\
         iiop.max_message = 67108864\ntimeouts.idle = '1d'\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_one() {
        let side_cars =
            ["0.0.0.0:80=127.0.0.1:8080", "tcp:[::]:5432=[::1]:15432"].map(|text| text.parse().unwrap());
        let server: MemberAddress = "127.0.0.1:1".parse().unwrap();
        for addresses in
            side_cars.into_iter().chain([SideCarAddresses::iiop("0.0.0.0:2809".parse().unwrap(), server)])
        {
            let file =
                config::parse("x", render_config(std::slice::from_ref(&addresses)).into_bytes()).unwrap();
            let settings = file
                .settings(
                    MachineDefaults {
                        threads: 8,
                        max_connections: 10,
                        max_descriptors: 1000,
                        max_memory: 1 << 30,
                        max_flows: 16384,
                    },
                    look_up,
                )
                .unwrap();
            assert_eq!((settings.threads, settings.groups.len()), (1, 1));
            let (listener, group) = (&settings.listeners[0], &settings.groups[0]);
            assert_eq!(
                (listener.address, listener.forwarded),
                (addresses.listen, plimsoll_proxy::ForwardedHeaders::Off)
            );
            assert_eq!((group.retry.attempts, group.spec.outlier.is_none()), (0, true));
            assert!(group.probe.is_none());
        }
    }

    #[test]
    fn what_is_wrong_is_said_of_the_command_line() {
        let settings_failure = |side_cars: Vec<SideCarAddresses>| {
            let side_car_settings =
                SideCarSettings { refuse: false, shed_idle: None, shares_host: false, home: None };
            let current = CurrentSettings {
                addresses: side_cars,
                side_car_settings,
                server_object: None,
                former_keys: Vec::new(),
                group_object: None,
            };
            let resolve = |address: &MemberAddress| {
                let parsed = format!("{address}").parse();
                parsed.map_err(|_| io::Error::other("no such name"))
            };
            let failure = current.settings(resolve).unwrap_err();
            (failure.exit_code, failure.one_line().to_owned())
        };
        let parse = |text: &str| text.parse::<SideCarAddresses>().unwrap();
        let unknown = "--side-car http:127.0.0.1:80=nosuch:80: cannot look up `nosuch`: no such name; \
                       correct the name, \
                       or write an IP address";
        assert_eq!(
            settings_failure(vec![parse("127.0.0.1:80=nosuch:80")]),
            (CliExitCode::Failed, unknown.to_owned())
        );
        let addresses = parse("127.0.0.1:80=127.0.0.1:81");
        let (exit, message) = settings_failure(vec![addresses.clone(), addresses]);
        assert_eq!(
            (exit, &*message),
            (CliExitCode::Usage, "--side-car: a second listener on 127.0.0.1:80 (tcp)")
        );
        let listen: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let (exit, message) =
            settings_failure(vec![SideCarAddresses::iiop(listen, "127.0.0.1:80".parse().unwrap())]);
        assert!(
            exit == CliExitCode::Usage && message.starts_with("--iiop: member 127.0.0.1:80 is the listener"),
            "{message}"
        );
    }

    #[test]
    fn rates_are_of_the_last_second() {
        let mut rate_window = RateWindow::default();
        let begin = Instant::now();
        assert_eq!(rate_window.push(begin, 100, 5.0), (None, None));
        // 10 requests of 20 ms end in each look of 100 ms.
        let mut last = (None, None);
        for sample in 1..=30 {
            last = rate_window.push(
                begin + SAMPLE_INTERVAL * sample,
                100 + 10 * u64::from(sample),
                5.0 + 0.2 * f64::from(sample),
            );
        }
        let (rate, latency) = (last.0.unwrap(), last.1.unwrap());
        assert!((rate - 100.0).abs() < 1e-6 && (latency - 0.02).abs() < 1e-9, "{rate} {latency}");
        assert_eq!(rate_window.0.len(), SAMPLES_PER_WINDOW);
        for sample in 31..=41 {
            last = rate_window.push(begin + SAMPLE_INTERVAL * sample, 400, 11.0);
        }
        assert_eq!(last, (Some(0.0), None));
    }
}
