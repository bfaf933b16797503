//! The reason of the desired number of members as a keyword: for counters and alerts, beside the sentence for
//! display.

use serde::{Deserialize, Serialize};

/// The reason of a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The load is unknown: the present members are kept.
    #[default]
    Unknown,
    /// The desired members are present.
    Enough,
    /// The present demand takes more.
    Demand,
    /// The present demand has room; the forecast one takes more.
    Forecast,
    /// Requests are rejected for want of room, or wait for it.
    NoRoom,
    /// There are more than desired.
    Spare,
    /// The demand needs fewer than the minimum.
    Least,
    /// The demand needs more than the maximum.
    Most,
    /// An action is due, and a cool-down is not over.
    CoolDown,
    /// An operator has paused it.
    Paused,
    /// Members cannot be started or stopped.
    Failing,
    /// Another balancer decides.
    Elsewhere,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 12] = [
        Self::Unknown,
        Self::Enough,
        Self::Demand,
        Self::Forecast,
        Self::NoRoom,
        Self::Spare,
        Self::Least,
        Self::Most,
        Self::CoolDown,
        Self::Paused,
        Self::Failing,
        Self::Elsewhere,
    ];

    /// Returns its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Enough => "enough",
            Self::Demand => "demand",
            Self::Forecast => "forecast",
            Self::NoRoom => "no_room",
            Self::Spare => "spare",
            Self::Least => "least",
            Self::Most => "most",
            Self::CoolDown => "cool_down",
            Self::Paused => "paused",
            Self::Failing => "failing",
            Self::Elsewhere => "elsewhere",
        }
    }
}

/// The inputs of the reason if the load is known.
pub(super) struct Known {
    /// Whether room is lacking.
    pub(super) pressed: bool,
    /// The members that are present or coming, the number that the load needs, and that number within bounds.
    pub(super) have: u32,
    pub(super) asked: u32,
    pub(super) desired: u32,
    /// Whether the present demand takes more than there is.
    pub(super) now: bool,
}

impl Known {
    pub(super) fn reason(&self) -> Reason {
        let Self { pressed, have, asked, desired, now } = *self;
        match () {
            () if asked > desired => Reason::Most,
            () if pressed => Reason::NoRoom,
            () if asked < desired => Reason::Least,
            () if desired > have && now => Reason::Demand,
            () if desired > have => Reason::Forecast,
            () if desired < have => Reason::Spare,
            () => Reason::Enough,
        }
    }
}
