//! Outcomes of requests: answered, rejected, failed, or given up by their clients.

use super::*;

impl World<'_> {
    /// Handles the head of an answer at the balancer.
    pub(super) fn answer(&mut self, flight: usize, now: f64) {
        let entry = &mut self.flights[flight];
        if entry.state != State::Gone {
            return;
        }
        let Some(vitals) = entry.vitals.clone() else { return };
        let (who, member, latency) = (entry.who, entry.member, now - entry.awaited);
        let (failed, refused) = (entry.failed, entry.refused);
        if let Some(reading) = entry.reading.take() {
            self.balancers[who].hear(member, &reading, now);
        }
        let entry = &mut self.flights[flight];
        if !failed && !refused && entry.stream > 0.0 {
            let ends = now + entry.stream;
            (entry.state, entry.head) = (State::Streaming, latency);
            vitals.begin_streaming();
            self.at(ends, Event::Ended(flight));
            self.answered(flight, now);
            return;
        }
        entry.vitals = None;
        if refused {
            vitals.record_unserved();
            vitals.end();
            self.seek(flight, Some(member), now);
            return;
        }
        self.balancers[who].observe(member, &vitals, latency, failed, now);
        vitals.end();
        self.balancers[who].rung = true;
        if !failed {
            self.flights[flight].state = State::Over;
            self.answered(flight, now);
            return;
        }
        if self.tokens >= 1.0
            && self.flights[flight].tries < TRIES
            && let found @ Found::Member(..) = self.balancers[who].choose(now, Some(member), false)
        {
            self.tokens -= 1.0;
            self.dispatch(flight, found, now);
        } else {
            self.over(flight, Fate::Failed, now);
        }
    }

    pub(super) fn answered(&mut self, flight: usize, now: f64) {
        let latency = now - self.flights[flight].base;
        let fate = if latency <= self.composition.patience { Fate::InTime } else { Fate::Late };
        self.fate(flight, fate, latency, now);
    }

    pub(super) fn over(&mut self, flight: usize, fate: Fate, now: f64) {
        self.flights[flight].state = State::Over;
        let latency = now - self.flights[flight].base;
        self.fate(flight, fate, latency, now);
    }

    pub(super) fn fate(&mut self, flight: usize, fate: Fate, latency: f64, now: f64) {
        let entry = &self.flights[flight];
        self.record.rows[entry.row] =
            Row { fate, latency, member: entry.member, ..self.record.rows[entry.row] };
        if let Some(client) = entry.client {
            let Client { dice, think, .. } = &mut self.clients[client];
            let think = dice.exp(*think);
            let think = if fate == Fate::InTime { think } else { think.max(0.02) };
            self.at(now + think, Event::Client(client));
        }
    }

    pub(super) fn refuse(&mut self, flight: usize, waited: f64, now: f64) {
        self.repay(now);
        let debt = self.debts.front().map_or(0.0, |(_, debt)| *debt);
        let who = self.flights[flight].who;
        let shown =
            if self.record.refused.is_empty() { self.balancers[who].shown(now) } else { String::new() };
        self.record.refused.push(Refused { at: now, waited, debt, shown });
        self.over(flight, Fate::Refused, now);
    }

    /// Handles the end of a client's patience.
    pub(super) fn patience(&mut self, flight: usize, now: f64) {
        let entry = &self.flights[flight];
        if !matches!(entry.state, State::Over | State::Streaming) && entry.generation == self.generation {
            self.post(flight, Item::Left(flight), now);
        }
    }

    pub(super) fn left(&mut self, flight: usize, now: f64) {
        let entry = &mut self.flights[flight];
        let (who, member, state) = (entry.who, entry.member, entry.state);
        if matches!(state, State::Over | State::Streaming) {
            return;
        }
        if state == State::Queued {
            self.balancers[who].leave(flight, false, now);
        }
        if let Some(vitals) = entry.vitals.take() {
            let latency = now - entry.awaited;
            if state == State::Sending {
                vitals.end_streaming();
            } else if self.composition.leave {
                self.balancers[who].left(&vitals, latency, now);
            } else {
                self.balancers[who].observe(member, &vitals, latency, true, now);
            }
            vitals.end();
            self.balancers[who].rung = true;
        }
        let at_member = matches!(state, State::Waiting | State::Running);
        self.over(flight, Fate::Late, now);
        if at_member && self.composition.deaf {
            self.flights[flight].state = state;
        } else if at_member {
            let server = &mut self.servers[member];
            server.advance(now);
            if let (Some(job), Some(meter)) = (self.flights[flight].job.take(), &mut server.meter) {
                meter.end(job, false, time(now));
            }
            if state == State::Running {
                server.running -= 1;
                self.begin_work(member, now);
                self.schedule(member, now);
            }
        }
    }
}
