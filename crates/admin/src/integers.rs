//! Integers in received JSON. JSON has one type of number (RFC 8259, section 6), and an `integer` of JSON
//! Schema is any number without a fraction: `5.0` is equal to `5`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// Deserializes an integer from 0 to `u32::MAX`.
///
/// # Errors
/// The value is not such an integer.
pub(crate) fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number = f64::deserialize(deserializer)?;
    let is_whole = number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
    // The conversion is exact: the number was checked.
    if is_whole {
        Ok(number as u32)
    } else {
        Err(D::Error::custom(format_args!("{number} is no whole number that fits")))
    }
}

/// Deserializes such an integer, or `null`.
///
/// # Errors
/// The value is neither.
pub(crate) fn whole_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    #[derive(Deserialize)]
    struct WholeNumber(#[serde(deserialize_with = "whole")] u32);
    Ok(Option::<WholeNumber>::deserialize(deserializer)?.map(|WholeNumber(number)| number))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    struct IntegerBody {
        #[serde(deserialize_with = "super::whole")]
        id: u32,
        #[serde(default, deserialize_with = "super::whole_or_none")]
        most: Option<u32>,
    }

    fn read(text: &str) -> Result<(u32, Option<u32>), String> {
        serde_json::from_str(text)
            .map(|IntegerBody { id, most }| (id, most))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_whole_number_is_one_however_it_is_written() {
        assert_eq!(read(r#"{"id": 7}"#), Ok((7, None)));
        assert_eq!(read(r#"{"id": 7.0, "most": 1506.0}"#), Ok((7, Some(1506))));
        assert_eq!(read(r#"{"id": 4.294967295e9, "most": null}"#), Ok((u32::MAX, None)));
        for invalid in ["7.5", "-1", "4294967296", "1e300", "\"7\"", "null"] {
            read(&format!(r#"{{"id": {invalid}}}"#)).unwrap_err();
        }
        assert!(read(r#"{"id": 1, "most": 0.5}"#).unwrap_err().contains("0.5 is no whole number"));
    }
}
