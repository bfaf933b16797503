//! What is to happen, in the order of time.
//!
//! A simulation spends much of its time here, so an appointment is as small as can be: sixteen bytes, four of them in a line of
//! the cache, with the event in four of those.

use super::super::station::sortable;

/// Something that happens; the number says to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A branch's piece of work is done.
    Done(u32),
    /// A branch has thought.
    Thought(u32),
    /// A client has thought: its thread.
    Awake(u32),
    /// A request from outside comes to an entry.
    Arrival(u32),
    /// A station's alarm.
    Ring(u32),
    /// An entry looks at the loads of those whom it forwards to.
    Look(u32),
    /// A branch has waited for an answer for long enough.
    GiveUp(u32),
    /// A branch tries its call again.
    Again(u32),
}

/// Bits of a number: far more than there can be of anything.
const BITS: u32 = 29;

impl Event {
    /// The kind in the upper three bits, the number below.
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

/// Time, a number that makes each different and says who was first, and the event: as one number, because two of those are
/// compared without a branch that nobody could foretell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Appointment(u128);

impl Appointment {
    fn new(at: f64, number: u32, event: Event) -> Self {
        Self(u128::from(sortable(at)) << 64 | u128::from(number) << 32 | u128::from(event.packed()))
    }

    /// Its time, as it sorts.
    fn at(self) -> u64 {
        (self.0 >> 64) as u64
    }

    fn parts(self) -> (f64, u32, Event) {
        (f64::from_bits(self.at()), (self.0 >> 32) as u32, Event::of(self.0 as u32))
    }
}

/// The appointments: a heap, in which each is before its two children at twice its place.
///
/// What is taken mostly leads to something that is put down: that comes to the place of what was taken, and the heap is put in
/// order once for both.
#[derive(Default)]
pub(super) struct Agenda {
    all: Vec<Appointment>,
    /// The first was taken, and nothing has come to its place yet.
    open: bool,
    number: u32,
}

impl Agenda {
    /// Puts an event down; returns its number, which is never 0 while there are fewer than four thousand million.
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

    /// Does anything happen by then?
    pub(super) fn has_by(&mut self, until: f64) -> bool {
        self.close();
        self.all.first().is_some_and(|own| own.at() <= sortable(until))
    }

    /// What is next: its time, its number, the event.
    pub(super) fn take(&mut self) -> Option<(f64, u32, Event)> {
        self.close();
        let first = *self.all.first()?;
        self.open = true;
        Some(first.parts())
    }

    /// Nothing came to the place of what was taken: the last one does.
    fn close(&mut self) {
        if std::mem::take(&mut self.open)
            && let Some(last) = self.all.pop()
            && !self.all.is_empty()
        {
            self.replace(last);
        }
    }

    /// Comes to the first place. The gap goes down to the end, for what comes is seldom soon, and it rises from there
    /// (Wegener, Bottom-up heapsort, 1993).
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

    /// Comes to a place, or to one above it.
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
