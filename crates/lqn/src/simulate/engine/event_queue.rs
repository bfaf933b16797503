//! The event queue, ordered by time.
//!
//! A simulation spends much of its time here, so an entry is small: 16 bytes, so that a cache line holds
//! four, with the event in four of the bytes.

use super::super::station::sortable;

/// An event, with the index of the object that it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimulationEvent {
    /// A slice of work of a branch ends.
    SliceEnd(u32),
    /// The think time of a branch ends.
    ActivityThinkEnd(u32),
    /// The think time of a client ends; the index is that of its thread.
    ClientThinkEnd(u32),
    /// A request from outside arrives at an entry.
    Arrival(u32),
    /// A station's alarm.
    StationAlarm(u32),
    /// An entry reads the loads of its targets.
    LoadRefresh(u32),
    /// The timeout of a branch's call.
    CallTimeout(u32),
    /// The end of the delay before a branch retries its call.
    CallRetry(u32),
}

/// The bits of an index, far more than needed.
const BITS: u32 = 29;

impl SimulationEvent {
    /// Packs the kind into the upper three bits and the index into the others.
    fn packed(self) -> u32 {
        let (kind, number) = match self {
            Self::SliceEnd(number) => (0, number),
            Self::ActivityThinkEnd(number) => (1, number),
            Self::ClientThinkEnd(number) => (2, number),
            Self::Arrival(number) => (3, number),
            Self::StationAlarm(number) => (4, number),
            Self::LoadRefresh(number) => (5, number),
            Self::CallTimeout(number) => (6, number),
            Self::CallRetry(number) => (7, number),
        };
        kind << BITS | number
    }

    fn of(packed: u32) -> Self {
        let number = packed & ((1 << BITS) - 1);
        match packed >> BITS {
            0 => Self::SliceEnd(number),
            1 => Self::ActivityThinkEnd(number),
            2 => Self::ClientThinkEnd(number),
            3 => Self::Arrival(number),
            4 => Self::StationAlarm(number),
            5 => Self::LoadRefresh(number),
            6 => Self::CallTimeout(number),
            _ => Self::CallRetry(number),
        }
    }
}

/// The time, a unique ascending number, and the event, in one integer: two of these are compared without an
/// unpredictable branch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct QueuedEvent(u128);

impl QueuedEvent {
    fn new(time: f64, number: u32, event: SimulationEvent) -> Self {
        Self(u128::from(sortable(time)) << 64 | u128::from(number) << 32 | u128::from(event.packed()))
    }

    /// Returns its time in sortable form.
    fn time_bits(self) -> u64 {
        (self.0 >> 64) as u64
    }

    fn parts(self) -> (f64, u32, SimulationEvent) {
        (f64::from_bits(self.time_bits()), (self.0 >> 32) as u32, SimulationEvent::of(self.0 as u32))
    }
}

/// The event queue: a binary heap, in which each entry is before its two children at `2 i + 1` and `2 i + 2`.
///
/// An event mostly leads to a new one. The new entry takes the place of the removed one, so that one
/// operation restores the heap for both.
#[derive(Default)]
pub(super) struct EventQueue {
    heap: Vec<QueuedEvent>,
    /// Whether the first entry was removed and its place is still empty.
    has_gap: bool,
    number: u32,
}

impl EventQueue {
    /// Adds an event and returns its number, which is not 0 for the first 2^32 - 1 events.
    pub(super) fn push(&mut self, time: f64, event: SimulationEvent) -> u32 {
        self.number = self.number.wrapping_add(1);
        let queued = QueuedEvent::new(time, self.number, event);
        if self.has_gap {
            self.has_gap = false;
            self.replace(queued);
        } else {
            self.heap.push(queued);
            self.sift_up(self.heap.len() - 1, queued);
        }
        self.number
    }

    /// Returns `true` if there is an event up to this time.
    pub(super) fn has_event_by(&mut self, until: f64) -> bool {
        self.fill_gap();
        self.heap.first().is_some_and(|first_event| first_event.time_bits() <= sortable(until))
    }

    /// Removes the next event; returns its time, its number and the event.
    pub(super) fn pop(&mut self) -> Option<(f64, u32, SimulationEvent)> {
        self.fill_gap();
        let first = *self.heap.first()?;
        self.has_gap = true;
        Some(first.parts())
    }

    /// Fills the empty first place with the last entry.
    fn fill_gap(&mut self) {
        if std::mem::take(&mut self.has_gap)
            && let Some(last) = self.heap.pop()
            && !self.heap.is_empty()
        {
            self.replace(last);
        }
    }

    /// Inserts an entry at the first place. The gap moves down to a leaf, because a new entry is seldom
    /// early; then the entry rises from there (Wegener, Bottom-up heapsort, 1993).
    fn replace(&mut self, event: QueuedEvent) {
        let (heap, mut gap) = (&mut self.heap[..], 0);
        while let Some(&[left, right]) = heap.get(2 * gap + 1..2 * gap + 3) {
            let child = 2 * gap + 1 + usize::from(right < left);
            heap[gap] = heap[child];
            gap = child;
        }
        if let Some(&last) = heap.get(2 * gap + 1) {
            heap[gap] = last;
            gap = 2 * gap + 1;
        }
        self.sift_up(gap, event);
    }

    /// Inserts an entry at a place or at one above it.
    fn sift_up(&mut self, mut index: usize, event: QueuedEvent) {
        let heap = &mut self.heap[..];
        while index > 0 {
            let parent = (index - 1) / 2;
            if heap[parent] < event {
                break;
            }
            heap[index] = heap[parent];
            index = parent;
        }
        heap[index] = event;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_appointment_is_small_and_comes_out_as_it_was() {
        assert_eq!(size_of::<QueuedEvent>(), 16);
        let kinds = [
            SimulationEvent::SliceEnd,
            SimulationEvent::ActivityThinkEnd,
            SimulationEvent::ClientThinkEnd,
            SimulationEvent::Arrival,
            SimulationEvent::StationAlarm,
            SimulationEvent::LoadRefresh,
            SimulationEvent::CallTimeout,
            SimulationEvent::CallRetry,
        ];
        let mut queue = EventQueue::default();
        for (index, kind) in kinds.into_iter().enumerate() {
            assert_eq!(queue.push(1.5, kind(2_000_000 + index as u32)), index as u32 + 1);
        }
        queue.push(0.5, SimulationEvent::LoadRefresh(0));
        assert!(queue.has_event_by(0.5) && !queue.has_event_by(0.4));
        assert_eq!(queue.pop(), Some((0.5, 9, SimulationEvent::LoadRefresh(0))));
        for (index, kind) in kinds.into_iter().enumerate() {
            assert_eq!(queue.pop(), Some((1.5, index as u32 + 1, kind(2_000_000 + index as u32))));
        }
        assert_eq!(queue.pop(), None);
    }
}
