//! Processors: who is served now, who next, and when somebody is done.
//!
//! A station asks for alarms and is told when one rings; an alarm that was asked for again is the only one that counts.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::dice::Dice;
use crate::model::{Copies, Processor, Scheduling};

/// Time as a number that sorts as it does; times are not negative.
pub(super) fn sortable(time: f64) -> u64 {
    time.to_bits()
}

/// What a station wants after something happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wish {
    /// Tell me so that this branch is done at this time.
    Done { who: u32, at: f64 },
    /// Ring me at this time.
    Ring { at: f64 },
    /// Nothing.
    Nothing,
}

/// A processor at work.
pub(super) struct Station {
    scheduling: Scheduling,
    /// Is everyone served to the end, in the order of coming? Then it may be asked in the short way.
    pub(super) plain: bool,
    /// Cores; the greatest number for as many as are needed.
    cores: u32,
    busy: u32,
    waiting: VecDeque<(u32, f64)>,
    ranked: BinaryHeap<Ranked>,
    turn: u64,
    /// Preemptive: who is served, by priority, and until when.
    served: Vec<(i32, u64, u32, f64)>,
    /// Sharing: when the share of each that is served is used up, on a clock that runs as fast as each is served.
    sharing: BinaryHeap<Reverse<(u64, u64, u32)>>,
    clock: f64,
    /// Up to when the clock was set.
    at: f64,
    /// Cores in use times time, up to `counted`.
    pub(super) area: f64,
    counted: f64,
}

/// Priority, then who came first; what is left to do.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Ranked(i32, Reverse<u64>, u32, u64);

impl Station {
    pub(super) fn new(processor: &Processor) -> Self {
        let (cores, endless) = match processor.copies {
            Copies::Some(count) => (count, false),
            Copies::Infinite => (u32::MAX, true),
        };
        Self {
            scheduling: processor.scheduling,
            plain: endless || processor.scheduling == Scheduling::Fcfs,
            cores,
            busy: 0,
            waiting: VecDeque::new(),
            ranked: BinaryHeap::new(),
            turn: 0,
            served: Vec::new(),
            sharing: BinaryHeap::new(),
            clock: 0.0,
            at: 0.0,
            area: 0.0,
            counted: 0.0,
        }
    }

    /// Counts what was used until now.
    pub(super) fn count(&mut self, now: f64) {
        self.area += f64::from(self.busy.min(self.cores)) * (now - self.counted);
        self.counted = now;
    }

    /// A branch comes with so much work to a plain one: when it will be done; none if it waits.
    pub(super) fn enters(&mut self, who: u32, work: f64, now: f64) -> Option<f64> {
        self.count(now);
        if self.busy < self.cores {
            self.busy += 1;
            return Some(now + work);
        }
        self.waiting.push_back((who, work));
        None
    }

    /// A branch of a plain one is done: who is next, and when that will be done.
    pub(super) fn leaves(&mut self, now: f64) -> Option<(u32, f64)> {
        self.count(now);
        let next = self.waiting.pop_front();
        if next.is_none() {
            self.busy -= 1;
        }
        next.map(|(who, work)| (who, now + work))
    }

    /// A branch comes with so much work, above 0. Preemption tells whose end is off: its branch is to forget its alarm.
    pub(super) fn come(&mut self, who: u32, priority: i32, work: f64, now: f64) -> (Wish, Option<u32>) {
        self.count(now);
        self.turn += 1;
        let free = self.busy < self.cores;
        if self.scheduling == Scheduling::Sharing {
            self.run(now);
            self.busy += 1;
            self.sharing.push(Reverse((sortable(self.clock + work), self.turn, who)));
            return (self.ring(now), None);
        }
        if free {
            return (self.serve(who, priority, self.turn, work, now), None);
        }
        match self.scheduling {
            Scheduling::HeadOfLine => {
                self.ranked.push(Ranked(priority, Reverse(self.turn), who, work.to_bits()));
            }
            Scheduling::Preemptive => {
                // The one of the lowest priority, of those the one that came last.
                let least = self.served.iter().enumerate().min_by_key(|(_, own)| (own.0, Reverse(own.1)));
                if let Some((place, own)) = least
                    && own.0 < priority
                {
                    let (rank, turn, other, until) = self.served.swap_remove(place);
                    let left = (until - now).max(0.0);
                    self.ranked.push(Ranked(rank, Reverse(turn), other, left.to_bits()));
                    self.busy -= 1;
                    return (self.serve(who, priority, self.turn, work, now), Some(other));
                }
                self.ranked.push(Ranked(priority, Reverse(self.turn), who, work.to_bits()));
            }
            _ => self.waiting.push_back((who, work)),
        }
        (Wish::Nothing, None)
    }

    fn serve(&mut self, who: u32, priority: i32, turn: u64, work: f64, now: f64) -> Wish {
        self.busy += 1;
        if self.scheduling == Scheduling::Preemptive {
            self.served.push((priority, turn, who, now + work));
        }
        Wish::Done { who, at: now + work }
    }

    /// A branch is done as it was told: who is next.
    pub(super) fn done(&mut self, who: u32, now: f64, dice: &mut Dice) -> Wish {
        self.count(now);
        self.busy -= 1;
        if self.scheduling == Scheduling::Preemptive {
            self.served.retain(|own| own.2 != who);
        }
        if let Some(Ranked(priority, Reverse(turn), who, work)) = self.ranked.pop() {
            return self.serve(who, priority, turn, f64::from_bits(work), now);
        }
        let next = if self.scheduling == Scheduling::Random && !self.waiting.is_empty() {
            self.waiting.swap_remove_back(dice.below(self.waiting.len()))
        } else {
            self.waiting.pop_front()
        };
        next.map_or(Wish::Nothing, |(who, work)| self.serve(who, 0, 0, work, now))
    }

    /// The alarm rings: who is done, and when to ring again.
    pub(super) fn rung(&mut self, now: f64) -> (Option<u32>, Wish) {
        self.count(now);
        self.run(now);
        let Some(Reverse((until, _, who))) = self.sharing.pop() else { return (None, Wish::Nothing) };
        self.clock = self.clock.max(f64::from_bits(until));
        self.busy -= 1;
        if self.sharing.is_empty() {
            // So that it does not lose digits.
            self.clock = 0.0;
        }
        (Some(who), self.ring(now))
    }

    /// How fast each of those served is.
    fn speed(&self) -> f64 {
        (f64::from(self.cores) / f64::from(self.busy.max(1))).min(1.0)
    }

    fn run(&mut self, now: f64) {
        if self.busy > 0 {
            self.clock += (now - self.at) * self.speed();
        }
        self.at = now;
    }

    fn ring(&self, now: f64) -> Wish {
        match self.sharing.peek() {
            Some(Reverse((until, _, _))) => {
                let left = (f64::from_bits(*until) - self.clock).max(0.0);
                Wish::Ring { at: now + left / self.speed() }
            }
            None => Wish::Nothing,
        }
    }
}
