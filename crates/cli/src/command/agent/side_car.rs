//! The agent as a side-car: it stands in the response path of the server, for http or plain connections.
//!
//! A data plane of one listener and one member carries the traffic, on a thread of its own. Its meter counts what is
//! there, learns how much the server can work on at once, says so with each answer of http, and refuses there what
//! would be too much. Ten times in a second what it sees is told to the agent, which reports it as it does all
//! numbers. Alerts of balancers are passed on to it: connections then go at the boundary of a request, or when they
//! have been quiet for a while.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use plimsoll_agent::{Alert, Told};
use plimsoll_proxy::{Engine, SideCarSettings};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::command::{Exit, Failure};
use crate::config::{self, ListenAddress, Machine, MemberAddress, look_up};
use crate::limits;

/// Name of the only group.
const SERVER: &str = "server";
/// Between two looks at the meter.
const LOOK: Duration = Duration::from_millis(100);
/// Looks that rates and means are of: a second.
const LOOKS: usize = 10;

/// Where to stand: `[http:|tcp:]ADDRESS=SERVER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    http: bool,
    listen: SocketAddr,
    server: MemberAddress,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected [http:|tcp:]ADDRESS=SERVER, such as 0.0.0.0:80=127.0.0.1:8080";
        let (http, rest) = match text.strip_prefix("tcp:") {
            Some(rest) => (false, rest),
            None => (true, text.strip_prefix("http:").unwrap_or(text)),
        };
        let (listen, server) = rest.split_once('=').ok_or_else(|| format!("there is no `=`; {expected}"))?;
        let ListenAddress(listen) =
            listen.parse().map_err(|why| format!("the address `{listen}` {why}; {expected}"))?;
        let server: MemberAddress =
            server.parse().map_err(|why| format!("the server `{server}` {why}; {expected}"))?;
        Ok(Self { http, listen, server })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = if self.http { "http" } else { "tcp" };
        write!(out, "{protocol}:{}={}", self.listen, self.server)
    }
}

/// What it carries, and how.
pub(super) struct SideCar {
    engine: Engine,
    place: Place,
}

impl SideCar {
    /// Begins to carry. `refuse` and `shed_idle` are about plain connections only.
    pub(super) fn start(place: &Place, refuse: bool, shed_idle: Option<Duration>) -> Result<Self, Failure> {
        // A balancer's configuration, so that all that nobody thinks about is as there.
        let file = config::parse("the side-car", written(place).into_bytes())
            .map_err(|problems| Failure::rendered(Exit::Usage, problems))?;
        let machine = Machine::here(&file.config, limits::raise());
        let mut settings =
            file.settings(machine, look_up).map_err(|problems| Failure::rendered(Exit::Failed, problems))?;
        for group in &mut settings.groups {
            group.side_car = Some(SideCarSettings { refuse, shed_idle });
        }
        let engine = Engine::start(settings).map_err(Failure::failed)?;
        Ok(Self { engine, place: place.clone() })
    }

    /// `side-car http 0.0.0.0:80 -> 127.0.0.1:8080`
    pub(super) fn line(&self) -> String {
        let protocol = if self.place.http { "http" } else { "tcp" };
        let listen = self.engine.addresses().first().copied().unwrap_or(self.place.listen);
        format!("side-car {protocol} {listen} -> {}", self.place.server)
    }

    /// Tells what it sees and does what balancers want, for ever.
    pub(super) async fn run(&self, told: Told, mut alerts: watch::Receiver<Alert>) -> Infallible {
        let mut looks = Looks::default();
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.tell(&told, &mut looks),
                Ok(()) = alerts.changed() => {
                    let share = alerts.borrow_and_update().share;
                    self.engine.shed(SERVER, share);
                }
            }
        }
    }

    /// Closes the listener and lets what is under way end.
    pub(super) async fn stop(&self) -> u64 {
        self.engine.stop().await
    }

    fn tell(&self, told: &Told, looks: &mut Looks) {
        let Some(reading) = self.engine.reading(SERVER) else { return };
        let counted = self.engine.counters(SERVER);
        let (requests, seconds) = counted.first().map_or((0, 0.0), |one| (one.requests, one.seconds));
        let (rate, latency) = looks.push(Instant::now(), requests, seconds);
        let sojourn = (reading.sojourn > 0.0).then_some(f64::from(reading.sojourn));
        let values = [
            ("in_flight", Some(f64::from(reading.in_flight))),
            ("requests_per_second", rate),
            ("latency", latency),
            ("knee", Some(f64::from(reading.knee))),
            ("sojourn", sojourn),
        ];
        for (name, value) in values {
            if let Some(value) = value {
                // Refused only where programs have told 40 other names already, which they were told then.
                let _ = told.tell(name, value);
            }
        }
    }
}

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
fn written(Place { http, listen, server }: &Place) -> String {
    let protocol = if *http { "http" } else { "tcp" };
    format!(
        "threads = 1\n\
         [[listener]]\naddress = '{listen}'\nprotocol = '{protocol}'\ngroup = '{SERVER}'\nforwarded = 'off'\n\
         timeouts.idle = '1d'\ntimeouts.tunnel = '1d'\n\
         [[group]]\nname = '{SERVER}'\nstrategy = 'round_robin'\nmembers = ['{server}']\nretry.attempts = 0\n\
         outlier = false\npool = 1024\ntimeouts.idle = '1d'\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        for (text, shown) in [
            ("0.0.0.0:80=127.0.0.1:8080", "http:0.0.0.0:80=127.0.0.1:8080"),
            ("http:127.0.0.1:0=localhost:8080", "http:127.0.0.1:0=localhost:8080"),
            ("tcp:[::]:5432=[::1]:15432", "tcp:[::]:5432=[::1]:15432"),
        ] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), shown);
        }
        for (text, why) in [
            ("0.0.0.0:80", "no `=`"),
            ("80=127.0.0.1:8080", "the address `80` "),
            ("0.0.0.0:80=8080", "the server `8080` has no port"),
            ("udp:0.0.0.0:80=127.0.0.1:8080", "the address `udp:0.0.0.0:80` "),
        ] {
            let said = text.parse::<Place>().unwrap_err();
            assert!(said.contains(why) && said.contains("expected [http:|tcp:]ADDRESS=SERVER"), "{said}");
        }
    }

    #[test]
    fn the_configuration_is_one() {
        for text in ["0.0.0.0:80=127.0.0.1:8080", "tcp:[::]:5432=[::1]:15432"] {
            let place: Place = text.parse().unwrap();
            let file = config::parse("x", written(&place).into_bytes()).unwrap();
            let settings = file.settings(Machine { threads: 8, max_connections: 10 }, look_up).unwrap();
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
