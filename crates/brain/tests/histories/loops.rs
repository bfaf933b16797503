//! The balancers' event loops: their events, and the members that they choose.

use super::*;

impl World<'_> {
    /// Posts an event to the balancer of a request.
    pub(super) fn post(&mut self, flight: usize, item: Item, now: f64) {
        let (who, generation) = (self.flights[flight].who, self.flights[flight].generation);
        if generation != self.generation {
            return;
        }
        let balancer = &mut self.balancers[who];
        if balancer.inbox.is_empty() && balancer.free_at <= now {
            balancer.free_at = now + self.composition.handling;
            self.take(who, item, now);
        } else {
            balancer.inbox.push_back(item);
            self.rouse(who, now);
        }
    }

    /// Wakes the event loop of a balancer if it has pending events.
    pub(super) fn rouse(&mut self, who: usize, now: f64) {
        let balancer = &mut self.balancers[who];
        if !balancer.woken && !balancer.inbox.is_empty() {
            balancer.woken = true;
            let when = balancer.free_at.max(now);
            self.at(when + 1e-9, Event::Wake(who));
        }
    }

    pub(super) fn wake(&mut self, who: usize, now: f64) {
        let balancer = &mut self.balancers[who];
        balancer.woken = false;
        if balancer.free_at <= now
            && let Some(item) = balancer.inbox.pop_front()
        {
            balancer.free_at = now + self.composition.handling;
            self.take(who, item, now);
        }
        self.rouse(who, now);
    }

    pub(super) fn take(&mut self, who: usize, item: Item, now: f64) {
        match item {
            Item::Arrive(flight) if self.flights[flight].state == State::Over => {}
            Item::Arrive(flight) => {
                self.tokens = (self.tokens + 0.2).min(100.0);
                if self.flights[flight].upload == 0.0 {
                    self.owe(self.flights[flight].work, now);
                }
                self.seek(flight, None, now);
            }
            Item::Sent(flight) => self.sent(flight, now),
            Item::Answer(flight) => self.answer(flight, now),
            Item::Ended(flight) => {
                let entry = &mut self.flights[flight];
                if entry.state == State::Streaming {
                    entry.state = State::Over;
                    let (member, head) = (entry.member, entry.head);
                    if let Some(vitals) = entry.vitals.take() {
                        self.balancers[who].observe(member, &vitals, head, false, now);
                        vitals.end_streaming();
                        vitals.end();
                        self.balancers[who].rung = true;
                    }
                }
            }
            Item::Left(flight) => self.left(flight, now),
            Item::Timer(flight) => {
                if self.flights[flight].state == State::Queued {
                    let since = self.flights[flight].full.unwrap_or(now);
                    match self.balancers[who].timer(flight, since, now) {
                        Ok(Some(found)) => self.dispatch(flight, found, now),
                        Ok(None) => {}
                        Err(again) => self.at(again, Event::Timer(flight)),
                    }
                }
            }
            Item::Asked(asked) => self.balancers[who].answered(asked, now),
        }
        self.settle(who, now);
    }

    /// Looks for a member for a request, which waits for one if it may.
    pub(super) fn seek(&mut self, flight: usize, failed: Option<usize>, now: f64) {
        let who = self.flights[flight].who;
        self.flights[flight].state = State::Queued;
        let found = match self.flights[flight].tries {
            MOST.. => {
                self.dispatch(flight, Found::Full, now);
                return;
            }
            ATTEMPTS.. => Found::Full,
            _ => self.balancers[who].choose(now, failed, false),
        };
        if let Found::Full = found {
            let since = *self.flights[flight].full.get_or_insert(now);
            if let Some(again) = self.balancers[who].wait(flight, since, now) {
                self.at(again, Event::Timer(flight));
                return;
            }
        } else if let Found::Member(..) = found {
            // If one found room there may be more.
            self.balancers[who].rung = true;
        }
        self.dispatch(flight, found, now);
    }

    /// Sends a request to a member, or rejects it.
    pub(super) fn dispatch(&mut self, flight: usize, found: Found, now: f64) {
        let entry = &mut self.flights[flight];
        let (member, vitals) = match found {
            Found::Member(member, vitals) => (member, vitals),
            Found::Full => {
                let waited = now - entry.full.unwrap_or(now);
                self.refuse(flight, waited, now);
                return;
            }
            Found::Nobody => {
                self.over(flight, Fate::Failed, now);
                return;
            }
        };
        (entry.member, entry.failed, entry.refused, entry.reading) = (member, false, false, None);
        entry.tries += 1;
        let left = entry.base - now;
        if entry.upload > 0.0 && left > 0.0 {
            vitals.begin_streaming();
            entry.state = State::Sending;
            entry.vitals = Some(vitals);
            self.at(now + left, Event::Sent(flight));
            return;
        }
        entry.vitals = Some(vitals);
        (entry.state, entry.awaited) = (State::Travelling, now);
        self.at(now + self.composition.network, Event::Reach(flight));
    }
}
