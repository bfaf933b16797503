//! The event queue, ordered by time.
//!
//! A simulation spends much of its time here, so an entry is small: 16 bytes, so that a cache line holds
//! four, with the event in four of the bytes.

use super::super::station::sortable;

/// An event, with the index of the object that it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A slice of work of a branch ends.
    Done(u32),
    /// The think time of a branch ends.
    Thought(u32),
    /// The think time of a client ends; the index is that of its thread.
    Awake(u32),
    /// A request from outside arrives at an entry.
    Arrival(u32),
    /// A station's alarm.
    Ring(u32),
    /// An entry reads the loads of its targets.
    Look(u32),
    /// The timeout of a branch's call.
    GiveUp(u32),
    /// The end of the delay before a branch retries its call.
    Again(u32),
}

/// The bits of an index, far more than needed.
const BITS: u32 = 29;

impl Event {
    /// Packs the kind into the upper three bits and the index into the others.
    fn packed(self) -> u32 {
        let (kind, number) = match self {
            Self::Done(number) => (0, number),
            Self::Thought(number) => (1, number),
            Self::Awake(number) => (2, number),
            Self::Arrival(number) => (3, number),
            Self::Ring(number) => (4, number),
            Self::Look(number) => (5, number),
            Self::GiveUp(number) => (6, number),
            Self::Again(number) => (7, number),
        };
        kind << BITS | number
    }

    fn of(packed: u32) -> Self {
        let number = packed & ((1 << BITS) - 1);
        match packed >> BITS {
            0 => Self::Done(number),
            1 => Self::Thought(number),
            2 => Self::Awake(number),
            3 => Self::Arrival(number),
            4 => Self::Ring(number),
            5 => Self::Look(number),
            6 => Self::GiveUp(number),
            _ => Self::Again(number),
        }
    }
}

/// The time, a unique ascending number, and the event, in one integer: two of these are compared without an
/// unpredictable branch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Appointment(u128);

impl Appointment {
    fn new(at: f64, number: u32, event: Event) -> Self {
        Self(u128::from(sortable(at)) << 64 | u128::from(number) << 32 | u128::from(event.packed()))
    }

    /// Returns its time in sortable form.
    fn at(self) -> u64 {
        (self.0 >> 64) as u64
    }

    fn parts(self) -> (f64, u32, Event) {
        (f64::from_bits(self.at()), (self.0 >> 32) as u32, Event::of(self.0 as u32))
    }
}

/// The event queue: a binary heap, in which each entry is before its two children at `2 i + 1` and `2 i + 2`.
///
/// An event mostly leads to a new one. The new entry takes the place of the removed one, so that one
/// operation restores the heap for both.
#[derive(Default)]
pub(super) struct Agenda {
    all: Vec<Appointment>,
    /// Whether the first entry was removed and its place is still empty.
    open: bool,
    number: u32,
}

impl Agenda {
    /// Adds an event and returns its number, which is not 0 for the first 2^32 - 1 events.
    pub(super) fn put(&mut self, at: f64, event: Event) -> u32 {
        self.number = self.number.wrapping_add(1);
        let own = Appointment::new(at, self.number, event);
        if self.open {
            self.open = false;
            self.replace(own);
        } else {
            self.all.push(own);
            self.rise(self.all.len() - 1, own);
        }
        self.number
    }

    /// Returns `true` if there is an event up to this time.
    pub(super) fn has_by(&mut self, until: f64) -> bool {
        self.close();
        self.all.first().is_some_and(|own| own.at() <= sortable(until))
    }

    /// Removes the next event; returns its time, its number and the event.
    pub(super) fn take(&mut self) -> Option<(f64, u32, Event)> {
        self.close();
        let first = *self.all.first()?;
        self.open = true;
        Some(first.parts())
    }

    /// Fills the empty first place with the last entry.
    fn close(&mut self) {
        if std::mem::take(&mut self.open)
            && let Some(last) = self.all.pop()
            && !self.all.is_empty()
        {
            self.replace(last);
        }
    }

    /// Inserts an entry at the first place. The gap moves down to a leaf, because a new entry is seldom
    /// early; then the entry rises from there (Wegener, Bottom-up heapsort, 1993).
    fn replace(&mut self, own: Appointment) {
        let (all, mut gap) = (&mut self.all[..], 0);
        while let Some(&[one, other]) = all.get(2 * gap + 1..2 * gap + 3) {
            let child = 2 * gap + 1 + usize::from(other < one);
            all[gap] = all[child];
            gap = child;
        }
        if let Some(&only) = all.get(2 * gap + 1) {
            all[gap] = only;
            gap = 2 * gap + 1;
        }
        self.rise(gap, own);
    }

    /// Inserts an entry at a place or at one above it.
    fn rise(&mut self, mut place: usize, own: Appointment) {
        let all = &mut self.all[..];
        while place > 0 {
            let above = (place - 1) / 2;
            if all[above] < own {
                break;
            }
            all[place] = all[above];
            place = above;
        }
        all[place] = own;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_appointment_is_small_and_comes_out_as_it_was() {
        assert_eq!(size_of::<Appointment>(), 16);
        let kinds = [
            Event::Done,
            Event::Thought,
            Event::Awake,
            Event::Arrival,
            Event::Ring,
            Event::Look,
            Event::GiveUp,
            Event::Again,
        ];
        let mut agenda = Agenda::default();
        for (place, kind) in kinds.into_iter().enumerate() {
            assert_eq!(agenda.put(1.5, kind(2_000_000 + place as u32)), place as u32 + 1);
        }
        agenda.put(0.5, Event::Look(0));
        assert!(agenda.has_by(0.5) && !agenda.has_by(0.4));
        assert_eq!(agenda.take(), Some((0.5, 9, Event::Look(0))));
        for (place, kind) in kinds.into_iter().enumerate() {
            assert_eq!(agenda.take(), Some((1.5, place as u32 + 1, kind(2_000_000 + place as u32))));
        }
        assert_eq!(agenda.take(), None);
    }
}
