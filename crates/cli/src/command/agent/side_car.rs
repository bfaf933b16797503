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
const SERVER: &str = "server";
/// The time between two looks at the meter.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// The time between two checks that the server can be reached.
const SECOND: Duration = Duration::from_secs(1);
/// The number of looks over which rates and means are computed: a second.
const SAMPLES_PER_WINDOW: usize = 10;

/// The number of keys of a CORBA server's object from before its restarts that are remembered.
const FORMER: usize = 16;

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
        places: Vec<SideCarAddresses>,
        refuse: bool,
        shed_idle: Option<Duration>,
    ) -> Result<Self, CliError> {
        let manner = SideCarSettings { refuse, shed_idle, shares_host: false, home: None };
        let carried = CurrentSettings {
            addresses: places,
            side_car_settings: manner,
            server_object: None,
            former_keys: Vec::new(),
            group_object: None,
        };
        let settings = carried.settings(look_up)?;
        let engine = Engine::start(settings).map_err(CliError::failed)?;
        let listen = engine.addresses();
        Ok(Self { engine, current: RefCell::new(carried), bound_addresses: listen })
    }

    /// Returns the bound addresses, for each server, in the order in which they were given.
    pub(super) fn bound_addresses(&self) -> &[SocketAddr] {
        &self.bound_addresses
    }

    /// Returns a line for each server: `side-car http 0.0.0.0:80 -> 127.0.0.1:8080`.
    pub(super) fn lines(&self) -> Vec<String> {
        let places = &self.current.borrow().addresses;
        let line = |(place, listen): (&SideCarAddresses, &SocketAddr)| {
            format!("side-car {} {listen} -> {}", place.protocol(), place.server)
        };
        places.iter().zip(&self.bound_addresses).map(line).collect()
    }

    /// Sets the object of the CORBA server, and its address if that is given.
    pub(super) fn set_server_object(
        &self,
        object: &Ior,
        server: Option<MemberAddress>,
    ) -> Result<(), String> {
        self.update_settings(|carried| {
            let key = |ior: &Ior| ior.first_iiop_profile().map(|profile| profile.key);
            let (before, now) = (carried.server_object.replace(object.clone()), key(object));
            if let Some(before) = before.as_ref().and_then(key) {
                carried.former_keys.insert(0, before);
            }
            carried.former_keys.retain(|former| Some(former) != now.as_ref());
            carried.former_keys.truncate(FORMER);
            if let (Some(server), Some(place)) = (server, carried.addresses.first_mut()) {
                place.server = server;
            }
        })
    }

    /// Sets the group to which clients are sent away.
    pub(super) fn set_group_object(&self, home: &Ior) -> Result<(), String> {
        self.update_settings(|carried| carried.group_object = Some(home.clone()))
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
        let mut parts = JoinSet::new();
        let count = self.bound_addresses.len();
        if count == 1 {
            parts.spawn(report_server_load(
                self.engine.clone(),
                SERVER.to_owned(),
                agent.reporter(),
                agent.alerts(),
            ));
        } else {
            for (number, (told, alerts)) in agent.servers().into_iter().enumerate() {
                parts.spawn(report_server_load(self.engine.clone(), name(number, count), told, alerts));
            }
            parts.spawn(report_host_load(self.engine.clone(), agent.reporter()));
        }
        async move {
            // None of them ends, unless it panics, which is logged then.
            while parts.join_next().await.is_some() {}
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
    told: ValueReporter,
    mut alerts: watch::Receiver<ShedAlert>,
) {
    let mut looks = RateWindow::default();
    let mut reach = ServerReachability::default();
    let (mut ticks, mut seconds) = (sampling_interval(), interval(SECOND));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => record_server_load(&engine, &group, &told, &mut looks),
            _ = seconds.tick() => reach.log_changes(&engine, &group),
            Ok(()) = alerts.changed() => {
                let share = alerts.borrow_and_update().share;
                engine.request_shed(&group, share);
            }
        }
    }
}

/// Reports the figures of the host.
async fn report_host_load(engine: Engine, told: ValueReporter) {
    let mut ticks = sampling_interval();
    loop {
        ticks.tick().await;
        let reading = engine.host_reading();
        record_values(
            &told,
            [
                ("host_in_flight", Some(f64::from(reading.in_flight))),
                ("host_knee", Some(f64::from(reading.knee))),
            ],
        );
    }
}

fn record_server_load(engine: &Engine, group: &str, told: &ValueReporter, looks: &mut RateWindow) {
    let Some(reading) = engine.meter_reading(group) else { return };
    let counted = engine.member_counters(group);
    let (requests, seconds) = counted.first().map_or((0, 0.0), |one| (one.requests, one.seconds));
    let (rate, latency) = looks.push(Instant::now(), requests, seconds);
    let sojourn = (reading.sojourn > 0.0).then_some(f64::from(reading.sojourn));
    record_values(
        told,
        [
            ("in_flight", Some(f64::from(reading.in_flight))),
            ("requests_per_second", rate),
            ("latency", latency),
            ("knee", Some(f64::from(reading.knee))),
            ("sojourn", sojourn),
        ],
    );
}

fn record_values<const N: usize>(told: &ValueReporter, values: [(&str, Option<f64>); N]) {
    for (name, value) in values {
        if let Some(value) = value {
            // An error is possible only if programs have reported 40 other names already; they got it then.
            let _ = told.report(name, value);
        }
    }
}

fn sampling_interval() -> Interval {
    let mut ticks = interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Returns the name of the group of one of so many servers.
fn name(number: usize, count: usize) -> String {
    if count == 1 { SERVER.to_owned() } else { format!("{SERVER}-{}", number + 1) }
}

impl CurrentSettings {
    /// Returns a balancer's settings, so that all defaults are the same. Errors name the command line,
    /// because there is no file.
    fn settings(
        &self,
        mut resolve: impl FnMut(&MemberAddress) -> io::Result<SocketAddr>,
    ) -> Result<Settings, CliError> {
        for place in &self.addresses {
            resolve(&place.server).map_err(|why| {
                let (option, host) = (place.option(), &place.server.host);
                let what =
                    format!("cannot look up `{host}`: {why}; correct the name, or write an IP address");
                CliError::failed(format_args!("{option} {place}: {what}"))
            })?;
        }
        let option = self.addresses.first().map_or("--side-car", SideCarAddresses::option);
        let wrong = |exit| {
            move |problems: ConfigDiagnostics| {
                CliError::new(exit, format_args!("{option}: {}", problems.first()))
            }
        };
        let file = config::parse("the side-car", render_config(&self.addresses).into_bytes())
            .map_err(wrong(CliExitCode::Usage))?;
        let machine = MachineDefaults::detect(&file.config, limits::raise());
        let mut settings = file.settings(machine, resolve).map_err(wrong(CliExitCode::Failed))?;
        for (group, place) in settings.groups.iter_mut().zip(&self.addresses) {
            // An open connection is no measure of its cost for the host, unless the option to refuse excess
            // connections makes it one.
            let group = Arc::make_mut(group);
            let works = place.protocol != Protocol::Tcp || self.side_car_settings.refuse;
            let shares_host = works && self.addresses.len() > 1;
            let home = place.group_url.as_ref().map(|home| home.0.as_str().into());
            group.side_car = Some(SideCarSettings { shares_host, home, ..self.side_car_settings });
            let Some(iiop) = &mut group.iiop else { continue };
            // The server has many objects that the side-car does not know.
            iiop.key = None;
            let object = self.server_object.clone().and_then(CorbaObject::new);
            iiop.objects = object.map(|object| (Arc::from(SERVER), object)).into_iter().collect();
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
        let Some(look) = engine.group_snapshot(group) else { return };
        let status = look.status;
        let lost = UNREACHED.iter().filter_map(|reason| status.rejected.get(*reason)).sum();
        let Some(server) = status.members.first() else { return };
        // An answer of 5xx is an answer, too.
        let answered = server.requests.saturating_sub(server.failures)
            + server.answers.get("5xx").copied().unwrap_or_default();
        let (lost_before, answered_before) = (self.failed_connects, self.answered);
        (self.failed_connects, self.answered) = (lost, answered);
        if !self.is_unreachable && lost > lost_before {
            self.is_unreachable = true;
            tracing::warn!("the server {} cannot be reached", server.name);
        } else if self.is_unreachable && answered > answered_before && lost == lost_before {
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
        let (then, requests_then, seconds_then) = *self.0.front().unwrap_or(&(now, requests, seconds));
        self.0.push_back((now, requests, seconds));
        if self.0.len() > SAMPLES_PER_WINDOW {
            self.0.pop_front();
        }
        let passed = now.duration_since(then).as_secs_f64();
        // The counts of a member begin again if it does.
        let ended = requests.saturating_sub(requests_then) as f64;
        let rate = (passed > 0.0).then(|| ended / passed);
        (rate, (ended > 0.0).then(|| (seconds - seconds_then).max(0.0) / ended))
    }
}

/// Returns the configuration. Timeouts of idle connections are left to the balancers and to the server.
fn render_config(places: &[SideCarAddresses]) -> String {
    let mut text = "threads = 1\n".to_owned();
    for (number, place) in places.iter().enumerate() {
        text += &section(place, &name(number, places.len()));
    }
    text
}

fn section(place: &SideCarAddresses, group: &str) -> String {
    let SideCarAddresses { listen, server, .. } = place;
    let protocol = place.protocol();
    let binding = if place.protocol == Protocol::Iiop { "binding = 'per_request'\n" } else { "" };
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
        let places =
            ["0.0.0.0:80=127.0.0.1:8080", "tcp:[::]:5432=[::1]:15432"].map(|text| text.parse().unwrap());
        let server: MemberAddress = "127.0.0.1:1".parse().unwrap();
        for place in
            places.into_iter().chain([SideCarAddresses::iiop("0.0.0.0:2809".parse().unwrap(), server)])
        {
            let file = config::parse("x", render_config(std::slice::from_ref(&place)).into_bytes()).unwrap();
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
                (place.listen, plimsoll_proxy::ForwardedHeaders::Off)
            );
            assert_eq!((group.retry.attempts, group.spec.outlier.is_none()), (0, true));
            assert!(group.probe.is_none());
        }
    }

    #[test]
    fn what_is_wrong_is_said_of_the_command_line() {
        let refused = |places: Vec<SideCarAddresses>| {
            let manner = SideCarSettings { refuse: false, shed_idle: None, shares_host: false, home: None };
            let carried = CurrentSettings {
                addresses: places,
                side_car_settings: manner,
                server_object: None,
                former_keys: Vec::new(),
                group_object: None,
            };
            let nowhere = |address: &MemberAddress| {
                let found = format!("{address}").parse();
                found.map_err(|_| io::Error::other("no such name"))
            };
            let failure = carried.settings(nowhere).unwrap_err();
            (failure.exit, failure.one_line().to_owned())
        };
        let place = |text: &str| text.parse::<SideCarAddresses>().unwrap();
        let unknown = "--side-car http:127.0.0.1:80=nosuch:80: cannot look up `nosuch`: no such name; \
                       correct the name, \
                       or write an IP address";
        assert_eq!(refused(vec![place("127.0.0.1:80=nosuch:80")]), (CliExitCode::Failed, unknown.to_owned()));
        let same = place("127.0.0.1:80=127.0.0.1:81");
        let (exit, said) = refused(vec![same.clone(), same]);
        assert_eq!(
            (exit, &*said),
            (CliExitCode::Usage, "--side-car: a second listener on 127.0.0.1:80 (tcp)")
        );
        let at: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let (exit, said) = refused(vec![SideCarAddresses::iiop(at, "127.0.0.1:80".parse().unwrap())]);
        assert!(
            exit == CliExitCode::Usage && said.starts_with("--iiop: member 127.0.0.1:80 is the listener"),
            "{said}"
        );
    }

    #[test]
    fn rates_are_of_the_last_second() {
        let mut looks = RateWindow::default();
        let begin = Instant::now();
        assert_eq!(looks.push(begin, 100, 5.0), (None, None));
        // 10 requests of 20 ms end in each look of 100 ms.
        let mut last = (None, None);
        for look in 1..=30 {
            last = looks.push(
                begin + SAMPLE_INTERVAL * look,
                100 + 10 * u64::from(look),
                5.0 + 0.2 * f64::from(look),
            );
        }
        let (rate, latency) = (last.0.unwrap(), last.1.unwrap());
        assert!((rate - 100.0).abs() < 1e-6 && (latency - 0.02).abs() < 1e-9, "{rate} {latency}");
        assert_eq!(looks.0.len(), SAMPLES_PER_WINDOW);
        for look in 31..=41 {
            last = looks.push(begin + SAMPLE_INTERVAL * look, 400, 11.0);
        }
        assert_eq!(last, (Some(0.0), None));
    }
}
