//! Values in text form: durations, sizes, service times, arrivals.

use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::member::{Antagonist, FailureResponse, ServiceTime};
use crate::pace::ArrivalProcess;
use crate::replay::ReplayWorkload;
use crate::units;

/// A duration such as `"1.5s"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DurationValue(pub Duration);

impl<'de> Deserialize<'de> for DurationValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        units::parse_duration(&text).map(Self).map_err(D::Error::custom)
    }
}

/// A number of bytes such as `"10MB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub usize);

/// The maximum size that is kept in memory for a request or an answer.
const MAX_BYTES: usize = 1 << 30;

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match units::parse_bytes(&text) {
            Ok(size) if size <= MAX_BYTES => Ok(Self(size)),
            Ok(_) => Err(D::Error::custom("at most 1GiB")),
            Err(message) => Err(D::Error::custom(message)),
        }
    }
}

/// Parses an optional service time.
pub(super) fn service<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ServiceTime>, D::Error> {
    parse_text(deserializer).map(Some)
}

/// Parses an optional antagonist.
pub(super) fn antagonist<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Antagonist>, D::Error> {
    parse_text(deserializer).map(Some)
}

/// Parses an optional form of failure.
pub(super) fn refusal<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<FailureResponse>, D::Error> {
    parse_text(deserializer).map(Some)
}

/// Parses an optional workload of a log.
pub(super) fn workload<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ReplayWorkload>, D::Error> {
    parse_text(deserializer).map(Some)
}

/// Parses an arrival process.
pub(super) fn arrival<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ArrivalProcess, D::Error> {
    parse_text(deserializer)
}

fn parse_text<'de, T: FromStr<Err = String>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}
