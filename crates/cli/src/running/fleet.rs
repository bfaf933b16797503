//! This balancer among others: the data plane from the view of the fleet, and the events of the others.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use plimsoll_brain::fleet::{Listed, News};
use plimsoll_brain::status::FleetStatus;
use plimsoll_brain::{Event, EventKind, Time};
use plimsoll_cluster::Source;
use plimsoll_cluster::fleet::{Became, Change, Did, Fleet, Local, Notice, Past, Seat, Settings};
use plimsoll_proxy::{self as proxy, Engine};

use super::{Running, lock};

/// The data plane from the view of the fleet.
struct Crew(Engine);

impl Local for Crew {
    fn now(&self) -> Time {
        self.0.now()
    }

    fn version(&self) -> u64 {
        self.0.version()
    }

    fn groups(&self) -> Vec<Listed> {
        self.0.listed()
    }

    fn waiting(&self) -> Vec<(Arc<str>, u32)> {
        self.0.waiting()
    }

    fn news(&self, news: &News, by: &str) {
        self.0.take_news(news, by);
    }

    fn change(&self, change: &Change) {
        let Change { name, address, what } = change;
        let (kind, why) = match what {
            Became::Joined => (EventKind::BalancerJoined, format!("balancer {name} is there, at {address}")),
            Became::Silent => {
                let why = "nothing is heard of it, and nobody says that it is gone: what it has in flight does not count";
                (EventKind::BalancerSilent, format!("balancer {name}: {why}"))
            }
            Became::Heard => (EventKind::BalancerJoined, format!("balancer {name} is heard of again")),
            Became::Lost => {
                let why =
                    "is lost, and did not say that it goes: what it had in flight does not count any more";
                (EventKind::BalancerLost, format!("balancer {name} {why}"))
            }
            Became::Left => (EventKind::BalancerLeft, format!("balancer {name} has left")),
        };
        self.0.tell(Event { kind, group: "".into(), member: None, why, inputs: Vec::new() });
    }
}

impl Running {
    /// Joins the fleet; returns the address for the others. With `past` it goes on as the balancer that
    /// another process was.
    ///
    /// # Errors
    /// Fails if the system gives no thread.
    pub(crate) fn join_fleet(
        self: &Arc<Self>,
        settings: Settings,
        seat: Seat,
        past: Option<Past>,
    ) -> io::Result<SocketAddr> {
        let mut notices = self.engine.notices();
        let fleet = Fleet::start(settings, seat, past, Arc::new(Crew(self.engine.clone())))?;
        let address = fleet.address();
        *lock(&self.fleet) = Some(fleet);
        let running = Arc::downgrade(self);
        std::thread::Builder::new().name("notices".into()).spawn(move || {
            while let Some(notice) = notices.blocking_recv() {
                if !tell(&running, &notice) {
                    return;
                }
            }
        })?;
        Ok(address)
    }

    /// Leaves the fleet with a farewell to the others, if there are any.
    pub(crate) fn leave_fleet(&self) {
        let fleet = lock(&self.fleet).take();
        drop(fleet);
    }

    /// Returns the socket for the others, for another process.
    pub(crate) fn fleet_socket(&self) -> io::Result<Option<OwnedFd>> {
        lock(&self.fleet).as_ref().map(Fleet::socket).transpose()
    }

    /// Stops all messages; returns the past with which another process goes on.
    pub(super) fn pause_fleet(&self) -> Option<Past> {
        lock(&self.fleet).as_ref()?.pause()
    }

    /// Goes on after a pause.
    pub(super) fn resume_fleet(&self) {
        if let Some(fleet) = &*lock(&self.fleet) {
            fleet.resume();
        }
    }

    /// Leaves the fleet without a message: another process goes on as this balancer.
    pub(super) fn vanish_from_fleet(&self) {
        if let Some(fleet) = lock(&self.fleet).take() {
            fleet.vanish();
        }
    }

    /// Returns the status of the fleet, if this balancer acts together with others.
    pub(super) fn fleet_status(&self) -> Option<FleetStatus> {
        lock(&self.fleet).as_ref().map(Fleet::status)
    }

    /// Returns `true` if the load of a group's members is this balancer's own count, which others do not
    /// need.
    fn passive(&self, group: &str) -> bool {
        let force = self.force();
        let watched = force.watched.iter().find(|watched| *watched.name == *group);
        watched
            .and_then(|watched| watched.monitor.as_ref())
            .is_some_and(|monitor| monitor.source == Source::Passive)
    }
}

/// Reports a notice to the others; returns `false` if the balancer has ended.
fn tell(running: &Weak<Running>, notice: &proxy::Notice) -> bool {
    let Some(running) = running.upgrade() else { return false };
    let proxy::Notice { group, member, what } = notice;
    let what = match *what {
        proxy::Did::Checked(passed) => Did::Checked(passed),
        proxy::Did::Ejected(lasts) => Did::Ejected(lasts),
        proxy::Did::Loaded(_) if running.passive(group) => return true,
        proxy::Did::Loaded(load) => Did::Loaded(load),
    };
    let fleet = lock(&running.fleet);
    let Some(fleet) = fleet.as_ref() else { return false };
    fleet.notice(Notice { group: Arc::clone(group), member: Arc::clone(member), what });
    true
}
