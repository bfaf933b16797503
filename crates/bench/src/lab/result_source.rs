//! The origin of numbers: the running system, or its model.

use serde::{Deserialize, Serialize};

/// The origin of a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultSource {
    /// A measurement.
    #[default]
    Measured,
    /// The model, solved by formulas.
    Model,
    /// The model, simulated.
    Simulated,
}

impl ResultSource {
    /// The columns of the model.
    pub const OF_MODEL: [Self; 2] = [Self::Model, Self::Simulated];

    /// Returns the name as in experiment files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Model => "model",
            Self::Simulated => "simulated",
        }
    }
}
