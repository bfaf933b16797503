//! One balancer's report about a member, and its size in bytes (`docs/guide/fleet.md` describes the bytes).

use alloc::vec::Vec;
use core::time::Duration;

use crate::meter::Reading;

/// One balancer's entry about one member. All of it is its own observation: it does not pass on reports of
/// others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemberEntry {
    /// The number of the member: see [`member_id`](super::member_id).
    pub member: u64,
    /// The requests, sessions or flows in flight there from this balancer, now.
    pub in_flight: u32,
    /// The mean of those over about the last half second, sixteenths.
    pub mean: u32,
    /// The requests that wait for a place there, sixteenths.
    pub waiting: u32,
    /// The requests that it begins there, a second, quarters.
    pub rate: u32,
    /// The latency of a request, microseconds; 0 if unknown.
    pub latency: u32,
    /// The evidence of its own requests against the member: a log-likelihood ratio, eighths; 0 for none that
    /// counts.
    pub suspicion: u8,
    /// The remaining milliseconds of its ejection of the member.
    pub ejected: Option<u32>,
    /// Whether its last health check of the member passed, and the age, milliseconds.
    pub check: Option<(bool, u32)>,
    /// The load report of the member, and its age, milliseconds.
    pub reading: Option<(Reading, u32)>,
    /// The load that a monitor reported here.
    pub load: Option<MonitorLoad>,
}

/// A monitor's load report of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MonitorLoad {
    /// The load in the unit of the group's metric; finite, not negative.
    pub value: f32,
    /// Whether it is the load of the member's whole host.
    pub of_host: bool,
    /// The age in milliseconds.
    pub age: u32,
}

/// The entries about the members of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupSection {
    /// The number of the group: see [`group_id`](super::group_id).
    pub group: u64,
    /// The requests that it begins with the group, a second, quarters.
    pub rate: u32,
    /// The entries of members to report.
    pub entries: Vec<MemberEntry>,
}

/// The content of one datagram.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FleetReport {
    /// A section for each group to report.
    pub sections: Vec<GroupSection>,
}

/// The maximum bytes of a report's sections: with head, name and seal they stay below 1400.
pub const MAX_REPORT_BYTES: usize = 1232;

/// The maximum number of entries of a section.
pub const MAX_SECTION_ENTRIES: usize = 255;

/// The bytes of the group's id and of the count of entries.
const SECTION_HEADER_BYTES: usize = 9;

/// Returns the bytes of `number`, seven bits in each.
pub fn varint_size(value: u32) -> usize {
    (32 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

impl MemberEntry {
    /// Returns its size in bytes.
    pub fn size(&self) -> usize {
        // The id, the flags of its parts, and the suspicion.
        let fixed = 8 + 1 + 1;
        let values = [self.in_flight, self.mean, self.waiting, self.rate, self.latency];
        let values_size: usize = values.into_iter().map(varint_size).sum();
        let optional_sizes = [
            self.ejected.map(varint_size),
            self.check.map(|(_, age)| varint_size(age)),
            self.reading.map(|(reading, age)| 16 + varint_size(reading.in_flight) + varint_size(age)),
            self.load.map(|load| 4 + varint_size(load.age)),
        ];
        fixed + values_size + optional_sizes.into_iter().flatten().sum::<usize>()
    }
}

impl GroupSection {
    /// Returns the bytes of a section without entries.
    pub(super) fn header_size(rate: u32) -> usize {
        SECTION_HEADER_BYTES + varint_size(rate)
    }

    /// Returns its size in bytes.
    pub fn size(&self) -> usize {
        Self::header_size(self.rate) + self.entries.iter().map(MemberEntry::size).sum::<usize>()
    }
}

impl FleetReport {
    /// Returns its size in bytes.
    pub fn size(&self) -> usize {
        self.sections.iter().map(GroupSection::size).sum()
    }

    /// Returns `true` if it only shows that its sender is present.
    pub fn is_empty(&self) -> bool {
        self.sections.is_empty()
    }
}

/// Returns the milliseconds of a report.
pub(super) fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

/// Returns a number of a report, in parts of a whole.
pub(super) fn quantize(value: f64, resolution: f64) -> u32 {
    // A conversion saturates and converts a value that is not a number to 0.
    libm::round(value * resolution) as u32
}
