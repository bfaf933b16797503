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
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        units::parse_duration(&text).map(Self).map_err(D::Error::custom)
    }
}

/// A number of bytes such as `"10MB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub usize);

/// The maximum size that is kept in memory for a request or an answer.
const MOST: usize = 1 << 30;

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        match units::parse_bytes(&text) {
            Ok(size) if size <= MOST => Ok(Self(size)),
            Ok(_) => Err(D::Error::custom("at most 1GiB")),
            Err(why) => Err(D::Error::custom(why)),
        }
    }
}

/// Parses an optional service time.
pub(super) fn service<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ServiceTime>, D::Error> {
    text(from).map(Some)
}

/// Parses an optional antagonist.
pub(super) fn antagonist<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Antagonist>, D::Error> {
    text(from).map(Some)
}

/// Parses an optional form of failure.
pub(super) fn refusal<'de, D: Deserializer<'de>>(from: D) -> Result<Option<FailureResponse>, D::Error> {
    text(from).map(Some)
}

/// Parses an optional workload of a log.
pub(super) fn workload<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ReplayWorkload>, D::Error> {
    text(from).map(Some)
}

/// Parses an arrival process.
pub(super) fn arrival<'de, D: Deserializer<'de>>(from: D) -> Result<ArrivalProcess, D::Error> {
    text(from)
}

fn text<'de, T: FromStr<Err = String>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}
