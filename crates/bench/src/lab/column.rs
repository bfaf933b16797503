//! What numbers are of: of the running system, or of its model.

use serde::{Deserialize, Serialize};

/// Where a number comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Column {
    /// Measured.
    #[default]
    Measured,
    /// The model, solved by formulas.
    Model,
    /// The model, simulated.
    Simulated,
}

impl Column {
    /// Those that come from the model.
    pub const OF_MODEL: [Self; 2] = [Self::Model, Self::Simulated];

    /// As in experiment files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Model => "model",
            Self::Simulated => "simulated",
        }
    }
}
