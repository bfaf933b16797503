//! The reason of the desired number of members as a keyword: for counters and alerts, beside the sentence for
//! display.

use serde::{Deserialize, Serialize};

/// The reason of a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleReason {
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

impl ScaleReason {
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
pub(super) struct ReasonInputs {
    /// Whether room is lacking.
    pub(super) shortage: bool,
    /// The members that are present or coming, the number that the load needs, and that number within bounds.
    pub(super) present: u32,
    pub(super) needed: u32,
    pub(super) desired: u32,
    /// Whether the present demand takes more than there is.
    pub(super) demand_exceeds_capacity: bool,
}

impl ReasonInputs {
    pub(super) fn reason(&self) -> ScaleReason {
        let Self {
            shortage: has_shortage,
            present,
            needed,
            desired,
            demand_exceeds_capacity: exceeds_capacity,
        } = *self;
        match () {
            () if needed > desired => ScaleReason::Most,
            () if has_shortage => ScaleReason::NoRoom,
            () if needed < desired => ScaleReason::Least,
            () if desired > present && exceeds_capacity => ScaleReason::Demand,
            () if desired > present => ScaleReason::Forecast,
            () if desired < present => ScaleReason::Spare,
            () => ScaleReason::Enough,
        }
    }
}
