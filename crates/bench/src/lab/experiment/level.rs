//! The factors and their levels.

use std::fmt::{self, Display, Formatter};

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A factor that can be varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Factor {
    /// Servers behind the balancer; 0 for one server without a balancer.
    Endpoints,
    /// The balancer.
    Balancer,
    /// Clients of a closed loop.
    Concurrency,
    /// Load as a share of the measured capacity.
    Share,
    /// Requests per second.
    Rate,
    /// The maximum retries of the balancer.
    Retries,
    /// The protocol of clients, balancer and members.
    Protocol,
    /// SA of the application, in milliseconds; SB = 1.5 SA.
    Demand,
    /// D of the application, in milliseconds.
    Delay,
    /// L of the application, in bytes.
    Length,
    /// C of the application.
    Clones,
    /// The scaler that decides the number of members.
    Scaler,
    /// Balancers at once.
    Instances,
    /// Groups of the balancer at the same servers.
    Groups,
    /// The maximum age in seconds of the loads by which the application's agent chooses; 0 for a random
    /// choice.
    Age,
}

impl Factor {
    /// The factors with numeric levels.
    const NUMBERS: [Self; 12] = [
        Self::Endpoints,
        Self::Concurrency,
        Self::Share,
        Self::Rate,
        Self::Retries,
        Self::Instances,
        Self::Groups,
        Self::Demand,
        Self::Delay,
        Self::Length,
        Self::Clones,
        Self::Age,
    ];

    /// Returns the factor of this name with numeric levels.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NUMBERS.into_iter().find(|factor| factor.name() == name)
    }

    /// Returns the name as in experiment files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Endpoints => "endpoints",
            Self::Balancer => "balancer",
            Self::Concurrency => "concurrency",
            Self::Share => "share",
            Self::Rate => "rate",
            Self::Retries => "retries",
            Self::Protocol => "protocol",
            Self::Demand => "demand",
            Self::Delay => "delay",
            Self::Length => "length",
            Self::Clones => "clones",
            Self::Scaler => "scaler",
            Self::Instances => "instances",
            Self::Groups => "groups",
            Self::Age => "age",
        }
    }

    /// Returns the label of an axis.
    pub fn label(self) -> &'static str {
        match self {
            Self::Endpoints => "endpoints",
            Self::Balancer => "balancer",
            Self::Concurrency => "concurrent requests N",
            Self::Share => "offered load / capacity",
            Self::Rate => "offered load (requests/s)",
            Self::Retries => "retries",
            Self::Protocol => "protocol",
            Self::Demand => "service demand SA (ms)",
            Self::Delay => "inter-node delay D (ms)",
            Self::Length => "message length L (bytes)",
            Self::Clones => "clones C",
            Self::Scaler => "scaler",
            Self::Instances => "balancers",
            Self::Groups => "groups",
            Self::Age => "age of loads (s)",
        }
    }

    /// Returns `true` for factors of the application.
    pub fn is_of_application(self) -> bool {
        matches!(self, Self::Demand | Self::Delay | Self::Length | Self::Clones | Self::Age)
    }
}

/// One value of a factor: a number from 0 on, or text.
#[derive(Clone, Debug, PartialEq)]
pub enum FactorLevel {
    /// The level of a numeric factor: of all but the balancer, the protocol and the scaler.
    Number(f64),
    /// The level of one of these.
    Text(String),
}

impl FactorLevel {
    /// Returns the number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) => None,
        }
    }
}

impl Display for FactorLevel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl Serialize for FactorLevel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_f64(*number),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for FactorLevel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LevelVisitor)
    }
}

struct LevelVisitor;

impl Visitor<'_> for LevelVisitor {
    type Value = FactorLevel;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a text")
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<FactorLevel, E> {
        if number.is_finite() && number >= 0.0 {
            Ok(FactorLevel::Number(number))
        } else {
            Err(E::custom(format_args!("`{number}` is below 0")))
        }
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<FactorLevel, E> {
        self.visit_f64(number as f64)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<FactorLevel, E> {
        self.visit_f64(number as f64)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<FactorLevel, E> {
        Ok(FactorLevel::Text(text.to_owned()))
    }
}
