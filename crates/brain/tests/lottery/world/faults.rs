//! Hosts that start, die, stall, and come back; partitions; and the membership protocol's reaction.

use std::time::Duration;

use plimsoll_brain::lottery::{LotteryNode, NodeConfig, NodeDescription, ServiceOffer, SipHashKey};

use super::{Event, Node, SERVICE, World};
use crate::checks::{address, endpoint};
use crate::server::Server;
use crate::setting::Fault;

impl World {
    /// Starts a host: its daemon gets the members from the membership protocol, and they learn of it soon.
    pub(super) fn start(&mut self, who: usize) {
        if self.nodes[who].daemon.is_some() {
            return;
        }
        let now = self.local(who);
        let seed = self.setting.seed;
        let node = &mut self.nodes[who];
        node.life += 1;
        node.server = Server::new(node.capacity, node.life, self.now);
        let listed = listed(who, node);
        let NodeDescription { member, incarnation, address, offers } = listed.clone();
        let mut config =
            NodeConfig::new(member, incarnation, address, offers, SipHashKey::new(*b"key of the tests"));
        config.memory = 1 << 13;
        config.seed ^= seed;
        config.multicast = !self.setting.unicast;
        node.daemon = Some(LotteryNode::new(config, now));
        for other in 0..self.nodes.len() {
            if other != who {
                let about = self::listed(other, &self.nodes[other]);
                let life = self.nodes[who].life;
                self.after(0.0, Event::Swim { observer: who, life, about, up: true });
                let wait = self.swim.between(0.05, 0.2);
                let life = self.nodes[other].life;
                self.after(wait, Event::Swim { observer: other, life, about: listed.clone(), up: true });
            }
        }
        self.call(who, false, |_, _| {});
    }

    pub(super) fn fault(&mut self, index: usize, on: bool) {
        match (self.setting.faults[index], on) {
            (Fault::Crash { who, .. }, true) => {
                let about = listed(who, &self.nodes[who]);
                let node = &mut self.nodes[who];
                (node.daemon, node.wake) = (None, f64::INFINITY);
                (node.stalled, node.lagging) = (false, false);
                node.life += 1;
                node.inbox.clear();
                self.rumour(&about, false, (0.8, 1.2), |_| true);
            }
            (Fault::Crash { who, .. }, false) => {
                self.nodes[who].incarnation += 1;
                self.start(who);
            }
            (Fault::Lag { who, .. }, on) => {
                self.nodes[who].lagging = on;
                let life = self.nodes[who].life;
                self.after(0.0, Event::Stall(who, life));
            }
            (Fault::Stop { who, at, until }, true) => {
                self.nodes[who].stalled = self.nodes[who].daemon.is_some();
                if until - at > 1.2 {
                    let about = listed(who, &self.nodes[who]);
                    self.rumour(&about, false, (0.8, 1.2), |_| true);
                }
            }
            (Fault::Stop { who, at, until }, false) => {
                if self.nodes[who].stalled {
                    self.resume(who);
                }
                if until - at > 1.2 && self.nodes[who].daemon.is_some() {
                    // It learns that it was considered dead, and begins anew, a moment later.
                    self.nodes[who].incarnation += 1;
                    let (life, incarnation) = (self.nodes[who].life, self.nodes[who].incarnation);
                    self.after(0.2, Event::Anew(who, life, incarnation));
                }
            }
            (Fault::Drain { who, .. }, on) => {
                self.call(who, false, |daemon, now| daemon.set_draining(now, on))
            }
            (Fault::Leave { who, .. }, true) => {
                self.call(who, false, |daemon, now| daemon.leave(now));
            }
            (Fault::Leave { .. }, false) => {}
            (Fault::Slow { who, .. }, on) => self.nodes[who].server.slow = on,
            (Fault::Partition { split, .. }, true) => {
                self.split = Some(split);
                for who in 0..self.nodes.len() {
                    let about = listed(who, &self.nodes[who]);
                    self.rumour(&about, false, (0.8, 1.2), |other| (other < split) != (who < split));
                }
            }
            (Fault::Partition { .. }, false) => {
                self.split = None;
                for who in 0..self.nodes.len() {
                    self.nodes[who].incarnation += 1;
                    self.anew(who);
                }
            }
        }
    }

    /// Lets a daemon begin anew that was considered dead.
    pub(super) fn anew(&mut self, who: usize) {
        let incarnation = self.nodes[who].incarnation;
        self.call(who, false, |daemon, now| daemon.rejoin(now, incarnation));
        let about = listed(who, &self.nodes[who]);
        self.rumour(&about, true, (0.05, 0.2), |_| true);
    }

    /// Lets the membership protocol notify the observers that `hear` selects.
    fn rumour(&mut self, about: &NodeDescription, up: bool, after: (f64, f64), hear: impl Fn(usize) -> bool) {
        for observer in 0..self.nodes.len() {
            if observer + 1 != usize::from(about.member) && hear(observer) {
                let wait = self.swim.between(after.0, after.1);
                let life = self.nodes[observer].life;
                self.after(wait, Event::Swim { observer, life, about: about.clone(), up });
            }
        }
    }

    /// Resumes a stopped daemon: its timers first, then the messages of that time.
    pub(super) fn resume(&mut self, who: usize) {
        self.nodes[who].stalled = false;
        let inbox = std::mem::take(&mut self.nodes[who].inbox);
        self.nodes[who].wake = f64::INFINITY;
        if let Some((came, ..)) = inbox.first().filter(|_| self.setting.stamps) {
            let lag = Duration::from_secs_f64(self.now - came);
            self.call(who, false, |daemon, now| daemon.note_lag(now, lag));
        }
        self.call(who, true, |daemon, now| {
            if daemon.poll_timeout().is_some_and(|due| due <= now) {
                daemon.handle_timeout(now);
            }
        });
        for (_, from, message) in inbox {
            self.call(who, false, |daemon, now| daemon.handle(now, from, (*message).clone()));
        }
    }
}

fn listed(who: usize, node: &Node) -> NodeDescription {
    let info: &[u8] = b"";
    let offer = ServiceOffer {
        service: SERVICE,
        capacity: node.capacity as u16,
        endpoint: endpoint(who),
        info: info.into(),
    };
    NodeDescription {
        member: who as u16 + 1,
        incarnation: node.incarnation,
        address: address(who),
        offers: vec![offer],
    }
}
