//! Troubles of members and of the machine, and the resulting backlog.

use super::*;

impl World<'_> {
    pub(super) fn trouble(&mut self, index: usize, now: f64) {
        let trouble = self.composition.troubles[index];
        match trouble.what {
            What::Hang(member) => self.affect(member, now, |server| server.hangs = true),
            What::Crawl(member) => self.affect(member, now, |server| server.factor *= 0.1),
            What::Fail(member) => self.affect(member, now, |server| server.fails = true),
            What::Die(member) => {
                self.affect(member, now, |server| server.dead = true);
                let lost: Vec<usize> = (0..self.flights.len())
                    .filter(|flight| self.flights[*flight].member == member)
                    .filter(|flight| matches!(self.flights[*flight].state, State::Waiting | State::Running))
                    .collect();
                lost.into_iter().for_each(|flight| self.leave_member(flight, false, now));
                let server = &mut self.servers[member];
                server.waiting.clear();
                (server.running, server.version) = (0, server.version + 1);
            }
            What::Speed(member, factor) => self.affect(member, now, |server| server.factor *= factor),
            What::Collect { member, pause, every } => {
                let collecting = !self.servers[member].collecting;
                self.affect(member, now, |server| server.collecting = collecting);
                let next = if collecting { now + pause } else { now + every };
                if collecting || next < trouble.end {
                    self.at(next, Event::Again(index));
                }
            }
            What::Hiccup(more) => self.hiccup = more,
            What::Lag { balancer, pause, every } => {
                let busy = &mut self.balancers[balancer];
                busy.free_at = busy.free_at.max(now) + pause;
                if now + every < trouble.end {
                    self.at(now + every, Event::Again(index));
                }
            }
            What::Stop(balancer) => {
                let stands = &mut self.balancers[balancer];
                stands.free_at = stands.free_at.max(trouble.end);
                stands.stopped = trouble.end;
            }
        }
    }

    pub(super) fn relief(&mut self, index: usize, now: f64) {
        match self.composition.troubles[index].what {
            What::Hang(member) => self.affect(member, now, |server| server.hangs = false),
            What::Crawl(member) => self.affect(member, now, |server| server.factor *= 10.0),
            What::Fail(member) => self.affect(member, now, |server| server.fails = false),
            What::Die(member) => self.affect(member, now, |server| server.dead = false),
            What::Speed(member, factor) => self.affect(member, now, |server| server.factor /= factor),
            What::Hiccup(_) => self.hiccup = 0.0,
            What::Collect { .. } | What::Lag { .. } | What::Stop(_) => {}
        }
    }

    /// Changes a member.
    pub(super) fn affect(&mut self, member: usize, now: f64, change: impl FnOnce(&mut Server)) {
        self.servers[member].advance(now);
        change(&mut self.servers[member]);
        self.schedule(member, now);
        self.weigh(now);
    }

    pub(super) fn change(&mut self, now: f64) {
        for (server, kind) in self.servers.iter_mut().zip(&self.composition.members) {
            server.there = kind.joins <= now + 1e-6 && now + 1e-6 < kind.leaves;
        }
        let there = self.there();
        for who in 0..self.balancers.len() {
            self.balancers[who].update(self.strategy, self.composition, &there, now);
            self.settle(who, now);
        }
        self.weigh(now);
    }

    /// Adds arrived work to the backlog.
    pub(super) fn owe(&mut self, work: f64, now: f64) {
        self.repay(now);
        if self.owed < self.composition.patience * self.usual {
            self.owed += work;
        }
        self.note(now);
    }

    /// Reduces the backlog by the time passed.
    pub(super) fn repay(&mut self, now: f64) {
        self.owed = (self.owed - self.capacity * (now - self.owed_at)).max(0.0);
        self.owed_at = now;
        while self.debts.front().is_some_and(|(at, _)| *at < now - GONE) {
            self.debts.pop_front();
        }
    }

    pub(super) fn note(&mut self, now: f64) {
        let debt = self.owed / self.usual;
        while self.debts.back().is_some_and(|(_, least)| *least <= debt) {
            self.debts.pop_back();
        }
        self.debts.push_back((now, debt));
    }

    /// Follows a change of the members' capacity.
    pub(super) fn weigh(&mut self, now: f64) {
        self.repay(now);
        let count = self.balancers.len() as f64;
        self.capacity = 0.0;
        for (index, server) in self.servers.iter().enumerate() {
            let out = self.balancers.iter().filter(|balancer| balancer.out[index]).count();
            self.capacity += server.capacity() * (1.0 - out as f64 / count);
        }
        if self.capacity > 0.0 {
            self.usual = self.capacity;
        }
        self.note(now);
    }
}
