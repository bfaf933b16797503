//! What can be varied, and the values it takes.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What can be varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Factor {
    /// Servers behind the balancer; 0 for one server without a balancer.
    Endpoints,
    /// What stands between.
    Balancer,
    /// Clients of a closed loop.
    Concurrency,
    /// Load as a share of the measured capacity.
    Share,
    /// Requests per second.
    Rate,
}

impl Factor {
    /// As in experiment files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Endpoints => "endpoints",
            Self::Balancer => "balancer",
            Self::Concurrency => "concurrency",
            Self::Share => "share",
            Self::Rate => "rate",
        }
    }

    /// On an axis.
    pub fn label(self) -> &'static str {
        match self {
            Self::Endpoints => "endpoints",
            Self::Balancer => "balancer",
            Self::Concurrency => "concurrent requests N",
            Self::Share => "offered load / capacity",
            Self::Rate => "offered load (requests/s)",
        }
    }
}

/// One value of a factor: a number from 0 on, or text.
#[derive(Clone, Debug, PartialEq)]
pub enum Level {
    /// Of all factors but the balancer.
    Number(f64),
    /// Of the balancer.
    Text(String),
}

impl Level {
    /// The number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) => None,
        }
    }
}

impl Display for Level {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl Serialize for Level {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => to.serialize_f64(*number),
            Self::Text(text) => to.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for Level {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Either)
    }
}

struct Either;

impl Visitor<'_> for Either {
    type Value = Level;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a text")
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Level, E> {
        if number.is_finite() && number >= 0.0 {
            Ok(Level::Number(number))
        } else {
            Err(E::custom(format_args!("`{number}` is below 0")))
        }
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Level, E> {
        self.visit_f64(number as f64)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Level, E> {
        self.visit_f64(number as f64)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Level, E> {
        Ok(Level::Text(text.to_owned()))
    }
}

/// A balancer and how it chooses: `none`, `plimsoll:round_robin`, `haproxy`, `nginx:least_connections`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancer {
    /// Which.
    pub kind: BalancerKind,
    /// A strategy of plimsoll; `round_robin` or `least_connections` for the others. The default is
    /// `least_connections`.
    pub strategy: String,
}

/// Which balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalancerKind {
    /// Clients go straight to the only member.
    None,
    /// This program.
    Plimsoll,
    /// HAProxy.
    Haproxy,
    /// nginx.
    Nginx,
}

impl BalancerKind {
    /// As in experiment files.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Plimsoll => "plimsoll",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
        }
    }
}

impl Default for Balancer {
    fn default() -> Self {
        Self { kind: BalancerKind::Plimsoll, strategy: "least_connections".to_owned() }
    }
}

impl FromStr for Balancer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, strategy) = text.split_once(':').unwrap_or((text, "least_connections"));
        let kind = match kind {
            "none" => BalancerKind::None,
            "plimsoll" => BalancerKind::Plimsoll,
            "haproxy" => BalancerKind::Haproxy,
            "nginx" => BalancerKind::Nginx,
            _ => {
                return Err(format!(
                    "`{text}` is not a balancer: expected `none`, `plimsoll`, `haproxy` or `nginx`, with a strategy \
                     as in `plimsoll:round_robin`"
                ));
            }
        };
        let plain = matches!(strategy, "round_robin" | "least_connections");
        let word =
            !strategy.is_empty() && strategy.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase());
        if !plain && (kind != BalancerKind::Plimsoll || !word) {
            return Err(format!("`{text}`: expected the strategy `round_robin` or `least_connections`"));
        }
        Ok(Self { kind, strategy: strategy.to_owned() })
    }
}

impl<'de> Deserialize<'de> for Balancer {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
