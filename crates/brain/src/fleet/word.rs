//! What one balancer tells the others of a member, and how many bytes that takes (`docs/guide/fleet.md` has the bytes).

use alloc::vec::Vec;
use core::time::Duration;

use crate::meter::Reading;

/// One balancer's word about one member. All of it is its own: what it only heard of others it does not tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Word {
    /// Which member: see [`member_id`](super::member_id).
    pub member: u64,
    /// Requests, sessions or flows in flight there from this balancer, now.
    pub in_flight: u32,
    /// The mean of that over about the last half second, sixteenths.
    pub mean: u32,
    /// Requests that wait for a place there, sixteenths.
    pub waiting: u32,
    /// Requests that it begins there, a second, quarters.
    pub rate: u32,
    /// What one takes, microseconds; 0 for not known.
    pub latency: u32,
    /// What its own requests say against the member: a log-likelihood ratio, eighths; 0 for nothing that counts.
    pub suspicion: u8,
    /// It has ejected the member, for so many milliseconds more.
    pub ejected: Option<u32>,
    /// Its last health check of the member passed or not, so many milliseconds ago.
    pub check: Option<(bool, u32)>,
    /// What the member said of itself, so many milliseconds ago.
    pub reading: Option<(Reading, u32)>,
    /// The load that was reported of it here.
    pub load: Option<Reported>,
}

/// A load that was reported of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reported {
    /// In the unit of the group's metric; finite, not negative.
    pub value: f32,
    /// It is of all that goes on at the member's host.
    pub of_host: bool,
    /// So many milliseconds ago.
    pub age: u32,
}

/// What it tells of the members of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Which group: see [`group_id`](super::group_id).
    pub group: u64,
    /// Requests that it begins with the group, a second, quarters.
    pub rate: u32,
    /// Of members that there is something to tell of.
    pub words: Vec<Word>,
}

/// What fits into one datagram.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// One for each group that there is something to tell of.
    pub sections: Vec<Section>,
}

/// Bytes of a report's sections, at most: with head, name and seal they stay below 1400.
pub const MOST: usize = 1232;

/// Words of a section, at most.
pub const WORDS: usize = 255;

/// Bytes of the group's id and of the count of words.
const SECTION: usize = 9;

/// Bytes that `number` takes, seven bits in each.
pub fn varint(number: u32) -> usize {
    (32 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

impl Word {
    /// Bytes that it takes.
    pub fn size(&self) -> usize {
        // The id, which parts there are, and how suspect the member is.
        let fixed = 8 + 1 + 1;
        let numbers = [self.in_flight, self.mean, self.waiting, self.rate, self.latency];
        let numbers: usize = numbers.into_iter().map(varint).sum();
        let parts = [
            self.ejected.map(varint),
            self.check.map(|(_, age)| varint(age)),
            self.reading.map(|(reading, age)| 16 + varint(reading.in_flight) + varint(age)),
            self.load.map(|load| 4 + varint(load.age)),
        ];
        fixed + numbers + parts.into_iter().flatten().sum::<usize>()
    }
}

impl Section {
    /// Bytes of a section without words.
    pub(super) fn head(rate: u32) -> usize {
        SECTION + varint(rate)
    }

    /// Bytes that it takes.
    pub fn size(&self) -> usize {
        Self::head(self.rate) + self.words.iter().map(Word::size).sum::<usize>()
    }
}

impl Report {
    /// Bytes that it takes.
    pub fn size(&self) -> usize {
        self.sections.iter().map(Section::size).sum()
    }

    /// Does it tell nothing but that its sender is there?
    pub fn is_empty(&self) -> bool {
        self.sections.is_empty()
    }
}

/// Milliseconds as they are told.
pub(super) fn millis(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}

/// A number as it is told, in parts of a whole.
pub(super) fn parts(number: f64, of: f64) -> u32 {
    // A conversion saturates and takes what is not a number for 0.
    libm::round(number * of) as u32
}
