//! Durations and sizes in human-readable form: `2ms`, `1.5s`, `64KiB`; also short output of them.

use std::time::Duration;

/// Parses a number and a unit: `ns`, `us`, `ms`, `s`, `m` or `h`; at most a year. `0` needs no unit.
///
/// # Errors
/// Returns one sentence that states the expected form.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let error = || {
        format!("`{text}` is not a duration: expected a number and a unit, such as `200us`, `2ms` or `1.5s`")
    };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (number, unit) = split_unit(text).ok_or_else(error)?;
    let scale = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(error()),
    };
    let seconds = number * scale;
    if seconds > 366.0 * 86400.0 {
        return Err(format!("`{text}` is too long: at most a year"));
    }
    Ok(Duration::from_nanos((seconds * 1e9).round() as u64))
}

/// Parses a number of bytes: `512`, `512B`, `1KiB`, `2MiB`, `1GiB` (powers of 1024) or `1kB`, `1MB`, `1GB`.
///
/// # Errors
/// Returns one sentence that states the expected form.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let error =
        || format!("`{text}` is not a size: expected a number of bytes, such as `512`, `1KiB` or `2MiB`");
    let (number, unit) = split_unit(text).ok_or_else(error)?;
    let scale = match unit {
        "" | "B" => 1.0,
        "KiB" | "K" | "k" => 1024.0,
        "MiB" | "M" => 1024.0 * 1024.0,
        "GiB" | "G" => 1024.0 * 1024.0 * 1024.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return Err(error()),
    };
    let size = number * scale;
    if size > (1u64 << 40) as f64 {
        return Err(format!("`{text}` is too large: at most 1024GiB"));
    }
    Ok(size as usize)
}

/// Formats a duration with three significant digits and the unit that suits: `412 µs`, `8.13 ms`, `1.20 s`.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let (value, unit) = if seconds < 0.000_999_5 {
        (seconds * 1e6, "µs")
    } else if seconds < 0.999_5 {
        (seconds * 1e3, "ms")
    } else {
        (seconds, "s")
    };
    let digits = if value < 9.995 && unit != "µs" {
        2
    } else if value < 99.95 && unit != "µs" {
        1
    } else {
        0
    };
    format!("{value:.digits$} {unit}")
}

/// Splits the number, finite and not negative, from the rest.
fn split_unit(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    number.is_finite().then_some((number, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(parse_duration("2ms"), Ok(Duration::from_millis(2)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        for invalid in ["", "5", "ms", "-1s", "1 s", "1e3s", "1.2.3s", "nans", "infs", "9999999h"] {
            assert!(parse_duration(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_bytes("0"), Ok(0));
        assert_eq!(parse_bytes("1KiB"), Ok(1024));
        assert_eq!(parse_bytes("1.5MiB"), Ok(1_572_864));
        assert_eq!(parse_bytes("64kB"), Ok(64_000));
        for invalid in ["", "x", "1XB", "-1", "9999999GiB"] {
            assert!(parse_bytes(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn short_keeps_three_digits() {
        let format_nanos = |nanos| format_duration(Duration::from_nanos(nanos));
        assert_eq!(format_nanos(0), "0 µs");
        assert_eq!(format_nanos(412_300), "412 µs");
        assert_eq!(format_nanos(999_900), "1.00 ms");
        assert_eq!(format_nanos(8_130_000), "8.13 ms");
        assert_eq!(format_nanos(81_300_000), "81.3 ms");
        assert_eq!(format_nanos(813_000_000), "813 ms");
        assert_eq!(format_nanos(999_900_000), "1.00 s");
        assert_eq!(format_nanos(12_340_000_000), "12.3 s");
    }
}
