//! Requests at members: from the last byte sent to the end of the work.

use super::*;

impl World<'_> {
    pub(super) fn sent(&mut self, flight: usize, now: f64) {
        let entry = &mut self.flights[flight];
        if entry.state != State::Sending {
            return;
        }
        if let Some(vitals) = &entry.vitals {
            vitals.end_streaming();
        }
        (entry.state, entry.awaited) = (State::Travelling, now);
        let work = entry.work;
        self.owe(work, now);
        self.at(now + self.composition.network, Event::Reach(flight));
    }

    pub(super) fn reach(&mut self, flight: usize, now: f64) {
        let entry = &mut self.flights[flight];
        if entry.state != State::Travelling {
            return;
        }
        let (member, back) = (entry.member, self.composition.network + self.hiccup);
        let server = &mut self.servers[member];
        if server.dead || server.fails {
            entry.failed = true;
            entry.state = State::Gone;
            self.at(now + back + 0.000_5, Event::Answer(flight));
            return;
        }
        server.advance(now);
        if let Some(meter) = &mut server.meter {
            if meter.is_full() {
                (entry.refused, entry.state) = (true, State::Gone);
                entry.reading = Some(meter.reading());
                self.at(now + back, Event::Answer(flight));
                return;
            }
            entry.job = Some(meter.begin(time(now)));
        }
        entry.state = State::Waiting;
        server.waiting.push_back(flight);
        self.begin_work(member, now);
    }

    /// Lets workers take waiting requests, and schedules the next end.
    pub(super) fn begin_work(&mut self, member: usize, now: f64) {
        let server = &mut self.servers[member];
        let mut changed = false;
        while server.free() {
            let Some(flight) = server.waiting.pop_front() else { break };
            if self.flights[flight].state == State::Waiting {
                self.flights[flight].state = State::Running;
                server.start(flight, self.flights[flight].work);
                changed = true;
            }
        }
        if changed {
            self.schedule(member, now);
        }
    }

    pub(super) fn schedule(&mut self, member: usize, now: f64) {
        let flights = &self.flights;
        let runs =
            |flight: usize| flights[flight].state == State::Running && flights[flight].member == member;
        if let Some(when) = self.servers[member].next(now, runs) {
            let version = self.servers[member].version;
            self.at(when, Event::Work(member, version));
        }
    }

    pub(super) fn work(&mut self, member: usize, version: u64, now: f64) {
        if self.servers[member].version != version {
            return;
        }
        self.servers[member].advance(now);
        if let Some(Reverse((_, flight))) = self.servers[member].ends.pop() {
            self.servers[member].running -= 1;
            self.leave_member(flight, true, now);
        }
        self.begin_work(member, now);
        self.schedule(member, now);
    }

    /// Ends a request at its member with an answer.
    pub(super) fn leave_member(&mut self, flight: usize, succeeded: bool, now: f64) {
        let entry = &mut self.flights[flight];
        if let (Some(job), Some(meter)) = (entry.job.take(), &mut self.servers[entry.member].meter) {
            entry.reading = Some(meter.end(job, succeeded, time(now)));
        }
        entry.failed |= !succeeded;
        if entry.vitals.is_none() {
            // Its client has gone.
            entry.state = State::Over;
            return;
        }
        entry.state = State::Gone;
        self.at(now + self.composition.network + self.hiccup, Event::Answer(flight));
    }
}
