//! Why there are to be as many members as there are to be, in one word: for counters and alerts, beside the sentence for people.

use serde::{Deserialize, Serialize};

/// What decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Nothing is known of the load: what is there is kept.
    #[default]
    Unknown,
    /// As many as are wanted are there.
    Enough,
    /// What goes on now takes more.
    Demand,
    /// What goes on now has room; what is foreseen takes more.
    Forecast,
    /// Requests are refused for want of room, or wait for it.
    NoRoom,
    /// There are more than are wanted.
    Spare,
    /// Fewer are wanted than there have to be.
    Least,
    /// More are wanted than there may be.
    Most,
    /// There is something to be done, and a pause is not over.
    CoolDown,
    /// An operator has paused it.
    Paused,
    /// Members cannot be started or stopped.
    Failing,
    /// Another balancer decides.
    Elsewhere,
}

impl Reason {
    /// All of them.
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

    /// As it is written.
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

/// What decides among what is known of the load.
pub(super) struct Known {
    /// Is there too little room?
    pub(super) pressed: bool,
    /// Members that are there or coming, that the load asks for, and that it asks for within bounds.
    pub(super) have: u32,
    pub(super) asked: u32,
    pub(super) desired: u32,
    /// Does what goes on now take more than there is?
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
