//! The agent as a side-car: it stands in the response path of the server, for http, plain connections or CORBA.
//!
//! A data plane of one listener and one member carries the traffic, on a thread of its own. Its meter counts what is
//! there, learns how much the server can work on at once, says so with each answer of http, and refuses there what
//! would be too much. Of several servers on this host each has a listener and a meter, and one more meter counts what
//! they do together; the thread is the same for all, so that nothing has to be waited for. Ten times in a second what it sees is told to the agent, which reports it as it does all
//! numbers. Alerts of balancers are passed on to it: connections then go at the boundary of a request, or when they
//! have been quiet for a while. Clients of a CORBA server are sent to its group then, and so are those of http if it is known
//! where that is.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_agent::{Agent, Alert, Told};
use plimsoll_proxy::{Engine, Object, Protocol, Settings, SideCarSettings};
use plimsoll_wire::giop::Ior;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use crate::command::{Exit, Failure};
use crate::config::{self, Machine, MemberAddress, Problems, look_up};
use crate::limits;

mod place;

pub(super) use place::{Place, at_home};

/// Name of the group, if there is only one.
const SERVER: &str = "server";
/// Between two looks at the meter.
const LOOK: Duration = Duration::from_millis(100);
/// Between two looks at whether the server can be reached.
const SECOND: Duration = Duration::from_secs(1);
/// Looks that rates and means are of: a second.
const LOOKS: usize = 10;

/// Keys of a CORBA server's object from before it was started again that are remembered.
const FORMER: usize = 16;

/// What it carries, and how.
pub(super) struct SideCar {
    engine: Engine,
    as_now: RefCell<Carried>,
    /// Where it listens, as bound: for each server.
    listen: Vec<SocketAddr>,
}

/// What may change while it runs.
#[derive(Clone)]
struct Carried {
    /// One for each server; only one, if it is a CORBA server.
    places: Vec<Place>,
    manner: SideCarSettings,
    /// The server's object, and the group's, if it is a CORBA server and they are known.
    object: Option<Ior>,
    home: Option<Ior>,
    /// Keys that the object had before.
    former: Vec<Vec<u8>>,
}

impl SideCar {
    /// Begins to carry, for one server or more. `refuse` is not about http, `shed_idle` about plain connections only.
    pub(super) fn start(
        places: Vec<Place>,
        refuse: bool,
        shed_idle: Option<Duration>,
    ) -> Result<Self, Failure> {
        let manner = SideCarSettings { refuse, shed_idle, shares_host: false, home: None };
        let carried = Carried { places, manner, object: None, former: Vec::new(), home: None };
        let settings = carried.settings(look_up)?;
        let engine = Engine::start(settings).map_err(Failure::failed)?;
        let listen = engine.addresses();
        Ok(Self { engine, as_now: RefCell::new(carried), listen })
    }

    /// Where it listens, as bound: for each server, in the order in which they were given.
    pub(super) fn listen(&self) -> &[SocketAddr] {
        &self.listen
    }

    /// `side-car http 0.0.0.0:80 -> 127.0.0.1:8080`, for each server.
    pub(super) fn lines(&self) -> Vec<String> {
        let places = &self.as_now.borrow().places;
        let line = |(place, listen): (&Place, &SocketAddr)| {
            format!("side-car {} {listen} -> {}", place.protocol(), place.server)
        };
        places.iter().zip(&self.listen).map(line).collect()
    }

    /// The object of the CORBA server that clients come for is this, and the server is here if that is said.
    pub(super) fn serve(&self, object: &Ior, server: Option<MemberAddress>) -> Result<(), String> {
        self.change(|carried| {
            let key = |ior: &Ior| ior.iiop().map(|profile| profile.key);
            let (before, now) = (carried.object.replace(object.clone()), key(object));
            if let Some(before) = before.as_ref().and_then(key) {
                carried.former.insert(0, before);
            }
            carried.former.retain(|former| Some(former) != now.as_ref());
            carried.former.truncate(FORMER);
            if let (Some(server), Some(place)) = (server, carried.places.first_mut()) {
                place.server = server;
            }
        })
    }

    /// Clients that are sent away go here.
    pub(super) fn home(&self, home: &Ior) -> Result<(), String> {
        self.change(|carried| carried.home = Some(home.clone()))
    }

    fn change(&self, change: impl FnOnce(&mut Carried)) -> Result<(), String> {
        let mut next = self.as_now.borrow().clone();
        change(&mut next);
        let settings = next.settings(look_up).map_err(|failure| failure.line().to_owned())?;
        self.engine.reload(settings, Vec::new()).map_err(|error| error.to_string())?;
        *self.as_now.borrow_mut() = next;
        Ok(())
    }

    /// To be run for as long as it carries: tells an agent what it sees, and does what balancers want. Of several servers
    /// each is told of for itself, and of the host what is there together.
    pub(super) fn tell(&self, agent: &Agent) -> impl Future<Output = Infallible> + use<> {
        let mut parts = JoinSet::new();
        let count = self.listen.len();
        if count == 1 {
            parts.spawn(serve(self.engine.clone(), SERVER.to_owned(), agent.told(), agent.alerts()));
        } else {
            for (number, (told, alerts)) in agent.servers().into_iter().enumerate() {
                parts.spawn(serve(self.engine.clone(), name(number, count), told, alerts));
            }
            parts.spawn(tell_host(self.engine.clone(), agent.told()));
        }
        async move {
            // None of them ends, unless it panics, which has been said then.
            while parts.join_next().await.is_some() {}
            std::future::pending().await
        }
    }

    /// Closes the listener and lets what is under way end.
    pub(super) async fn stop(&self) -> u64 {
        self.engine.stop().await
    }
}

/// Tells of one server, and passes on what balancers want of it.
async fn serve(engine: Engine, group: String, told: Told, mut alerts: watch::Receiver<Alert>) {
    let mut looks = Looks::default();
    let mut reach = Reach::default();
    let (mut ticks, mut seconds) = (ticks(), interval(SECOND));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => tell(&engine, &group, &told, &mut looks),
            _ = seconds.tick() => reach.tell(&engine, &group),
            Ok(()) = alerts.changed() => {
                let share = alerts.borrow_and_update().share;
                engine.shed(&group, share);
            }
        }
    }
}

/// Tells of the host.
async fn tell_host(engine: Engine, told: Told) {
    let mut ticks = ticks();
    loop {
        ticks.tick().await;
        let reading = engine.host_reading();
        say(
            &told,
            [
                ("host_in_flight", Some(f64::from(reading.in_flight))),
                ("host_knee", Some(f64::from(reading.knee))),
            ],
        );
    }
}

fn tell(engine: &Engine, group: &str, told: &Told, looks: &mut Looks) {
    let Some(reading) = engine.reading(group) else { return };
    let counted = engine.counters(group);
    let (requests, seconds) = counted.first().map_or((0, 0.0), |one| (one.requests, one.seconds));
    let (rate, latency) = looks.push(Instant::now(), requests, seconds);
    let sojourn = (reading.sojourn > 0.0).then_some(f64::from(reading.sojourn));
    say(
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

fn say<const N: usize>(told: &Told, values: [(&str, Option<f64>); N]) {
    for (name, value) in values {
        if let Some(value) = value {
            // Refused only where programs have told 40 other names already, which they were told then.
            let _ = told.tell(name, value);
        }
    }
}

fn ticks() -> Interval {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Name of the group of one of so many servers.
fn name(number: usize, count: usize) -> String {
    if count == 1 { SERVER.to_owned() } else { format!("{SERVER}-{}", number + 1) }
}

impl Carried {
    /// A balancer's settings, so that all that nobody thinks about is as there. What is wrong is said of the command line: nobody
    /// has written a file.
    fn settings(
        &self,
        mut resolve: impl FnMut(&MemberAddress) -> io::Result<SocketAddr>,
    ) -> Result<Settings, Failure> {
        for place in &self.places {
            resolve(&place.server).map_err(|why| {
                let (option, host) = (place.option(), &place.server.host);
                let what =
                    format!("cannot look up `{host}`: {why}; correct the name, or write an IP address");
                Failure::failed(format_args!("{option} {place}: {what}"))
            })?;
        }
        let option = self.places.first().map_or("--side-car", Place::option);
        let wrong = |exit| {
            move |problems: Problems| Failure::new(exit, format_args!("{option}: {}", problems.first()))
        };
        let file =
            config::parse("the side-car", written(&self.places).into_bytes()).map_err(wrong(Exit::Usage))?;
        let machine = Machine::here(&file.config, limits::raise());
        let mut settings = file.settings(machine, resolve).map_err(wrong(Exit::Failed))?;
        for (group, place) in settings.groups.iter_mut().zip(&self.places) {
            // That a connection is open says nothing of what it costs the host, unless so much is said of it that those
            // that are too many are to be refused.
            let group = Arc::make_mut(group);
            let works = place.protocol != Protocol::Tcp || self.manner.refuse;
            let shares_host = works && self.places.len() > 1;
            let home = place.home.as_ref().map(|home| home.0.as_str().into());
            group.side_car = Some(SideCarSettings { shares_host, home, ..self.manner });
            let Some(iiop) = &mut group.iiop else { continue };
            // The server has many objects, which the side-car knows nothing of.
            iiop.key = None;
            let object = self.object.clone().and_then(Object::new);
            iiop.objects = object.map(|object| (Arc::from(SERVER), object)).into_iter().collect();
            iiop.former.clone_from(&self.former);
            iiop.home.clone_from(&self.home);
        }
        Ok(settings)
    }
}

/// Whether a server can be reached, as far as was said.
#[derive(Default)]
struct Reach {
    away: bool,
    /// Requests that found no connection to it, and those that it has answered, well or not.
    lost: u64,
    answered: u64,
}

impl Reach {
    /// Says so when it cannot be reached any more, and when it can be again.
    fn tell(&mut self, engine: &Engine, group: &str) {
        let Some(look) = engine.look(group) else { return };
        let status = look.status;
        let lost = UNREACHED.iter().filter_map(|reason| status.rejected.get(*reason)).sum();
        let Some(server) = status.members.first() else { return };
        // An answer of 5xx is one, too.
        let answered = server.requests.saturating_sub(server.failures)
            + server.answers.get("5xx").copied().unwrap_or_default();
        let (lost_before, answered_before) = (self.lost, self.answered);
        (self.lost, self.answered) = (lost, answered);
        if !self.away && lost > lost_before {
            self.away = true;
            tracing::warn!("the server {} cannot be reached", server.name);
        } else if self.away && answered > answered_before && lost == lost_before {
            self.away = false;
            tracing::info!("the server {} can be reached again", server.name);
        }
    }
}

/// Why a request has found no connection to its server.
const UNREACHED: [&str; 3] = ["connect_failed", "connect_timeout", "no_member"];

/// The looks of the last second.
#[derive(Default)]
struct Looks(VecDeque<(Instant, u64, f64)>);

impl Looks {
    /// So many requests have ended so far, which took so many seconds: how many end in a second, and how long each
    /// takes, if there were any.
    fn push(&mut self, now: Instant, requests: u64, seconds: f64) -> (Option<f64>, Option<f64>) {
        let (then, requests_then, seconds_then) = *self.0.front().unwrap_or(&(now, requests, seconds));
        self.0.push_back((now, requests, seconds));
        if self.0.len() > LOOKS {
            self.0.pop_front();
        }
        let passed = now.duration_since(then).as_secs_f64();
        // Counts of a member begin again if it does.
        let ended = requests.saturating_sub(requests_then) as f64;
        let rate = (passed > 0.0).then(|| ended / passed);
        (rate, (ended > 0.0).then(|| (seconds - seconds_then).max(0.0) / ended))
    }
}

/// The configuration. What ends connections that are idle is left to the balancers and to the server.
fn written(places: &[Place]) -> String {
    let mut text = "threads = 1\n".to_owned();
    for (number, place) in places.iter().enumerate() {
        text += &section(place, &name(number, places.len()));
    }
    text
}

fn section(place: &Place, group: &str) -> String {
    let Place { listen, server, .. } = place;
    let protocol = place.protocol();
    let binding = if place.protocol == Protocol::Iiop { "binding = 'per_request'\n" } else { "" };
    format!(
        "[[listener]]\naddress = '{listen}'\nprotocol = '{protocol}'\ngroup = '{group}'\nforwarded = 'off'\n\
         {binding}timeouts.idle = '1d'\ntimeouts.tunnel = '1d'\n\
         [[group]]\nname = '{group}'\nstrategy = 'round_robin'\nmembers = ['{server}']\nretry.attempts = 0\n\
         outlier = false\npool = 1024\niiop.connections = 1024\niiop.max_message = 67108864\ntimeouts.idle = '1d'\n"
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
        for place in places.into_iter().chain([Place::iiop("0.0.0.0:2809".parse().unwrap(), server)]) {
            let file = config::parse("x", written(std::slice::from_ref(&place)).into_bytes()).unwrap();
            let settings = file
                .settings(
                    Machine {
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
                (place.listen, plimsoll_proxy::Forwarded::Off)
            );
            assert_eq!((group.retry.attempts, group.spec.outlier.is_none()), (0, true));
            assert!(group.probe.is_none());
        }
    }

    #[test]
    fn what_is_wrong_is_said_of_the_command_line() {
        let refused = |places: Vec<Place>| {
            let manner = SideCarSettings { refuse: false, shed_idle: None, shares_host: false, home: None };
            let carried = Carried { places, manner, object: None, former: Vec::new(), home: None };
            let nowhere = |address: &MemberAddress| {
                let found = format!("{address}").parse();
                found.map_err(|_| io::Error::other("no such name"))
            };
            let failure = carried.settings(nowhere).unwrap_err();
            (failure.exit, failure.line().to_owned())
        };
        let place = |text: &str| text.parse::<Place>().unwrap();
        let unknown = "--side-car http:127.0.0.1:80=nosuch:80: cannot look up `nosuch`: no such name; correct the name, \
                       or write an IP address";
        assert_eq!(refused(vec![place("127.0.0.1:80=nosuch:80")]), (Exit::Failed, unknown.to_owned()));
        let same = place("127.0.0.1:80=127.0.0.1:81");
        let (exit, said) = refused(vec![same.clone(), same]);
        assert_eq!((exit, &*said), (Exit::Usage, "--side-car: a second listener on 127.0.0.1:80 (tcp)"));
        let at: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let (exit, said) = refused(vec![Place::iiop(at, "127.0.0.1:80".parse().unwrap())]);
        assert!(
            exit == Exit::Usage && said.starts_with("--iiop: member 127.0.0.1:80 is the listener"),
            "{said}"
        );
    }

    #[test]
    fn rates_are_of_the_last_second() {
        let mut looks = Looks::default();
        let begin = Instant::now();
        assert_eq!(looks.push(begin, 100, 5.0), (None, None));
        // 10 requests of 20 ms in each look of 100 ms.
        let mut last = (None, None);
        for look in 1..=30 {
            last = looks.push(begin + LOOK * look, 100 + 10 * u64::from(look), 5.0 + 0.2 * f64::from(look));
        }
        let (rate, latency) = (last.0.unwrap(), last.1.unwrap());
        assert!((rate - 100.0).abs() < 1e-6 && (latency - 0.02).abs() < 1e-9, "{rate} {latency}");
        assert_eq!(looks.0.len(), LOOKS);
        for look in 31..=41 {
            last = looks.push(begin + LOOK * look, 400, 11.0);
        }
        assert_eq!(last, (Some(0.0), None));
    }
}
