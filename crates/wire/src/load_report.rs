//! A member's [`Reading`] in an ORCA report: with each answer, as named metrics, so that balancers that know
//! nothing of them read the rest.
//!
//! | metric | field |
//! |---|---|
//! | `rif` | requests in flight |
//! | `knee` | requests that fit before they slow one another down |
//! | `work` | seconds that a request takes alone |
//! | `mean` | mean of the requests in flight |
//! | `sojourn` | seconds that a request takes now |
//! | `slot` | 1 if room for one more is promised |
//! | `open` | 1 while the knee is a lower bound only, and no limit |
//! | `full` | 1 if this answer only says that there is no room |
//! | `away` | 1 if this answer only says that the server cannot be reached |

use plimsoll_brain::meter::Reading;

use crate::orca::{self, MetricKind, OrcaError, OrcaMetric};

/// The part of a report that describes the member itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadReport {
    /// The reading of the member's meter.
    pub reading: Reading,
    /// The reason why the server has not received the request, if it has not.
    pub not_processed: Option<NotProcessed>,
}

/// The reason why a server has not received a request that a proxy in front of it has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotProcessed {
    /// The server has no room.
    Full,
    /// The server cannot be reached.
    Away,
}

/// Reads the value of the header [`orca::HEADER`]; `None` if the report says nothing of this kind. Every
/// metric, those of other kinds too, is shown to `other`.
///
/// # Errors
/// The report is malformed: see [`orca::read`].
pub fn read(
    value: &[u8],
    mut on_metric: impl FnMut(&OrcaMetric<'_>),
) -> Result<Option<LoadReport>, OrcaError> {
    let mut reading = Reading::default();
    let mut not_processed = None;
    let mut has_in_flight = false;
    orca::read(value, |metric| {
        if metric.kind == MetricKind::Named {
            let value = metric.value as f32;
            match metric.name {
                "rif" => (reading.in_flight, has_in_flight) = (metric.value as u32, true),
                "knee" => reading.knee = value,
                "work" => reading.work = value,
                "mean" => reading.mean_in_flight = value,
                "sojourn" => reading.sojourn = value,
                "slot" => reading.slot = value > 0.0,
                "open" => reading.open = value > 0.0,
                "full" if value > 0.0 => not_processed = Some(NotProcessed::Full),
                "away" if value > 0.0 => not_processed = Some(NotProcessed::Away),
                _ => {}
            }
        }
        on_metric(&metric);
    })?;
    Ok(has_in_flight.then_some(LoadReport { reading, not_processed }))
}

/// The same of the very form that [`write()`] has, which nearly all reports of this kind have, at a tenth of
/// the cost: it goes with every answer. `None` for any other, which may be as good; what it finds is what
/// [`read`] finds.
pub fn parse_fast(value: &[u8]) -> Option<LoadReport> {
    parse_prefix(value).and_then(|(report, rest)| rest.is_empty().then_some(report))
}

/// The same of a value that ends with its line; and how long it is. It has no characters but those of the
/// form, so nobody need look for others.
#[inline(always)]
pub(crate) fn parse_fast_line(text: &[u8]) -> Option<(LoadReport, usize)> {
    parse_prefix(text)
        .and_then(|(report, rest)| rest.starts_with(b"\r\n").then_some((report, text.len() - rest.len())))
}

/// Returns the report at the start of `text`, and the rest of it.
#[inline(always)]
fn parse_prefix(text: &[u8]) -> Option<(LoadReport, &[u8])> {
    let mut rest = text.strip_prefix(b"TEXT named_metrics.rif=")?;
    let in_flight = parse_integer(&mut rest)?;
    rest = rest.strip_prefix(b", named_metrics.knee=")?;
    let knee = parse_decimal::<2, _>(&mut rest, b", named_metrics.work=")?;
    let work = parse_decimal::<6, _>(&mut rest, b", named_metrics.mean=")?;
    let mean = parse_decimal::<2, _>(&mut rest, b", named_metrics.sojourn=")?;
    let sojourn = parse_decimal::<6, _>(&mut rest, b"")?;
    let slot = skip_name(&mut rest, b", named_metrics.slot=1");
    let open = skip_name(&mut rest, b", named_metrics.open=1");
    let reading = Reading {
        in_flight: in_flight.min(u32::MAX.into()) as u32,
        knee: knee as f32,
        work: work as f32,
        mean_in_flight: mean as f32,
        sojourn: sojourn as f32,
        slot,
        open,
    };
    let not_processed = match rest.first() {
        Some(b',') if skip_name(&mut rest, b", named_metrics.full=1") => Some(NotProcessed::Full),
        Some(b',') if skip_name(&mut rest, b", named_metrics.away=1") => Some(NotProcessed::Away),
        _ => None,
    };
    Some((LoadReport { reading, not_processed }, rest))
}

/// Goes on to after `name`, if that is what stands there.
#[inline(always)]
fn skip_name(text: &mut &[u8], name: &[u8]) -> bool {
    text.strip_prefix(name).map(|rest| *text = rest).is_some()
}

/// Goes on to after a number without a point, of ten digits at most.
#[inline(always)]
fn parse_integer(text: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for (index, byte) in text.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            *text = &text[index..];
            return (index > 0).then_some(number);
        }
        if index == 10 {
            return None;
        }
        number = number * 10 + u64::from(digit);
    }
    *text = &[];
    (number > 0).then_some(number)
}

/// Goes on to after a number with so many `DECIMALS`, six at most, as [`write()`] has it, and the `name` that
/// follows it.
#[inline(always)]
fn parse_decimal<const DECIMALS: usize, const N: usize>(text: &mut &[u8], name: &[u8; N]) -> Option<f64> {
    let number = parse_integer(text)?;
    // So many are exact with all decimals, divided by an exact power of ten: the nearest number there is, as
    // when it is read in any other way.
    if number >= 1_000_000_000 {
        return None;
    }
    let (fixed, rest) = text.split_at_checked(1 + DECIMALS + N)?;
    let (point, decimals) = fixed.split_first_chunk::<1>()?;
    let (decimals, separator) = decimals.split_first_chunk::<DECIMALS>()?;
    if point != b"." || separator != name {
        return None;
    }
    *text = rest;
    let number = number * POWERS_OF_TEN[DECIMALS] + u64::from(parse_digits(decimals)?);
    Some(number as i64 as f64 / POWERS_OF_TEN[DECIMALS] as f64)
}

const POWERS_OF_TEN: [u64; 7] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];

/// Returns the value of `N` digits, at most eight; `None` if a byte is not a digit.
#[inline(always)]
fn parse_digits<const N: usize>(digits: &[u8; N]) -> Option<u32> {
    // The last digit at the top, zeros before the first.
    let mut digit_bytes = [b'0'; 8];
    digit_bytes[8 - N..].copy_from_slice(digits);
    let digit_bytes = u64::from_le_bytes(digit_bytes) ^ u64::from_le_bytes([b'0'; 8]);
    // The highest bit of each byte above 9.
    if (digit_bytes.wrapping_add(0x7676_7676_7676_7676) | digit_bytes) & 0x8080_8080_8080_8080 != 0 {
        return None;
    }
    // Pairs of them, of pairs, and of those.
    let pairs = digit_bytes.wrapping_mul(10).wrapping_add(digit_bytes >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
    Some(fours.wrapping_mul(10_000).wrapping_add(fours >> 32) as u32)
}

/// Appends a whole header line.
pub fn write(report: &LoadReport, out: &mut Vec<u8>) {
    let Reading { in_flight, knee, work, mean_in_flight, sojourn, slot, open } = report.reading;
    out.extend_from_slice(orca::HEADER.as_bytes());
    out.extend_from_slice(b": TEXT named_metrics.rif=");
    write_decimal(f64::from(in_flight), 0, out);
    out.extend_from_slice(b", named_metrics.knee=");
    write_decimal(f64::from(knee), 2, out);
    out.extend_from_slice(b", named_metrics.work=");
    write_decimal(f64::from(work), 6, out);
    out.extend_from_slice(b", named_metrics.mean=");
    write_decimal(f64::from(mean_in_flight), 2, out);
    out.extend_from_slice(b", named_metrics.sojourn=");
    write_decimal(f64::from(sojourn), 6, out);
    if slot {
        out.extend_from_slice(b", named_metrics.slot=1");
    }
    if open {
        out.extend_from_slice(b", named_metrics.open=1");
    }
    match report.not_processed {
        Some(NotProcessed::Full) => out.extend_from_slice(b", named_metrics.full=1"),
        Some(NotProcessed::Away) => out.extend_from_slice(b", named_metrics.away=1"),
        None => {}
    }
    out.extend_from_slice(b"\r\n");
}

/// Takes a report that the server made itself (the value of its header) into the header line that [`write()`]
/// appended last. What cannot be read is left out, and so is what says the same as the reading.
pub fn merge(other_report: &[u8], out: &mut Vec<u8>) {
    out.truncate(out.len().saturating_sub(b"\r\n".len()));
    let mut text = Vec::new();
    let mut remaining = orca::MAX_METRICS - METRIC_NAMES.len();
    let _ = orca::read(other_report, |metric| {
        if remaining == 0 || metric.kind == MetricKind::Named && METRIC_NAMES.contains(&metric.name) {
            return;
        }
        remaining -= 1;
        text.clear();
        orca::write_text(&mut text, [metric]);
        if let Some(metric_text) = text.strip_prefix(b"TEXT ").filter(|metric_text| !metric_text.is_empty()) {
            out.extend_from_slice(b", ");
            out.extend_from_slice(metric_text);
        }
    });
    out.extend_from_slice(b"\r\n");
}

const METRIC_NAMES: [&str; 9] = ["rif", "knee", "work", "mean", "sojourn", "slot", "open", "full", "away"];

/// Appends a number with so many decimals, at most 9. Readings are not negative, and far below 10^10; this
/// goes with every answer, and formatting numbers in general would be half of what a side-car adds to it.
fn write_decimal(value: f64, decimals: usize, out: &mut Vec<u8>) {
    const SCALE: [f64; 10] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
    // Not a number becomes 0, and what is out of range the nearest that is in it.
    let mut remaining = (value * SCALE[decimals] + 0.5) as u64;
    // As many digits as a number can have, and the point.
    let mut text = [b'0'; 21];
    let mut position = text.len();
    for digit in 0.. {
        if digit == decimals && decimals > 0 {
            position -= 1;
            text[position] = b'.';
        }
        position -= 1;
        text[position] = b'0' + (remaining % 10) as u8;
        remaining /= 10;
        if remaining == 0 && digit >= decimals {
            break;
        }
    }
    out.extend_from_slice(&text[position..]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_is_written_is_found_quickly(
            (in_flight, knee, work) in (any::<u32>(), 0.0f32..1e5, 0.0f32..1e3),
            (mean_in_flight, sojourn, slot, open) in (0.0f32..1e5, 0.0f32..1e3, any::<bool>(), any::<bool>()),
            unseen in prop_oneof![Just(None), Just(Some(NotProcessed::Full)), Just(Some(NotProcessed::Away))],
        ) {
            let reading = Reading { in_flight, knee, work, mean_in_flight, sojourn, slot, open };
            let report = LoadReport { reading, not_processed: unseen };
            let mut line = Vec::new();
            write(&report, &mut line);
            let value = line.strip_prefix(b"endpoint-load-metrics: ");
            let value = value.and_then(|rest| rest.strip_suffix(b"\r\n"));
            let parsed = parse_fast(value.unwrap());
            prop_assert!(parsed.is_some());
            prop_assert_eq!(Ok(parsed), read(value.unwrap(), |_| ()));
        }

        #[test]
        fn what_is_found_quickly_of_any_number_is_what_is_found(
            (rif, knee, work) in (
                prop_oneof![4 => "[0-9]{1,10}", 1 => "[0-9]{0,12}[.]?"],
                prop_oneof![4 => "[0-9]{1,9}\\.[0-9]{2}", 1 => "[0-9]{0,12}(\\.[0-9]{0,3})?"],
                prop_oneof![4 => "[0-9]{1,9}\\.[0-9]{6}", 1 => "[0-9]{0,12}(\\.[0-9]{5,7})?"],
            ),
            // Those about digits among the characters are a hard case.
            (mean, sojourn) in (
                prop_oneof![4 => "[0-9]{1,9}\\.[0-9]{2}", 1 => "[0-9]{0,2}[./:eE,+\\x7f-\\u{ff}]{3}"],
                prop_oneof![4 => "[0-9]{1,9}\\.[0-9]{6}", 1 => "[0-9]{0,2}\\.[0-9./:eE,+\\x7f-\\u{ff}]{6}"],
            ),
            more in prop_oneof![
                4 => Just(String::new()),
                1 => "(, named_metrics.(slot|open|full|away)=[01]{1,2}){1,3}",
                1 => "[ -~]{0,9}",
            ],
        ) {
            let text = format!(
                "TEXT named_metrics.rif={rif}, named_metrics.knee={knee}, named_metrics.work={work}, \
                 named_metrics.mean={mean}, \
                 named_metrics.sojourn={sojourn}{more}"
            );
            for end in (0..=text.len()).filter(|end| text.len() - end < 40) {
                let text = &text.as_bytes()[..end];
                if let Some(report) = parse_fast(text) {
                    prop_assert_eq!(
                        read(text, |_| ()),
                        Ok(Some(report)),
                        "{}",
                        String::from_utf8_lossy(text)
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let reading = Reading {
            in_flight: 7,
            knee: 3.75,
            work: 0.0125,
            mean_in_flight: 5.5,
            sojourn: 0.021,
            slot: true,
            open: false,
        };
        let none = Reading { slot: false, ..reading };
        for report in [
            LoadReport { reading, not_processed: None },
            LoadReport { reading: Reading { open: true, ..none }, not_processed: None },
            LoadReport { reading: none, not_processed: Some(NotProcessed::Full) },
            LoadReport { reading: none, not_processed: Some(NotProcessed::Away) },
        ] {
            let mut line = Vec::new();
            write(&report, &mut line);
            let value =
                line.strip_prefix(b"endpoint-load-metrics: ").and_then(|rest| rest.strip_suffix(b"\r\n"));
            assert_eq!(parse_fast(value.unwrap()), Some(report));
            let mut metrics = 0;
            assert_eq!(read(value.unwrap(), |_| metrics += 1), Ok(Some(report)));
            assert_eq!(metrics, 6);
        }
    }

    #[test]
    fn what_is_found_quickly_is_what_is_found() {
        let wholes = [
            "0",
            "7",
            "65536",
            "4294967295",
            "9999999999",
            "",
            "12345678901",
            "1.",
            "3.75",
            "1e3",
            "-1",
            "+1",
        ];
        let hundredths = [
            "0.00",
            "3.75",
            "0012.50",
            "123456789.99",
            "",
            "7",
            "3.7",
            "3.755",
            "1.",
            ".50",
            "1e30",
            "-1.00",
        ];
        let millionths = [
            "0.000001",
            "0.012500",
            "7.000000",
            "123456789.123456",
            "",
            "0.0125",
            "0.01250",
            "0.0125000",
            "1.",
            ".012500",
            "1.2e456",
            "1.+23456",
        ];
        let more = [
            "",
            ", named_metrics.slot=1",
            ", named_metrics.full=1",
            ", cpu_utilization=0.3",
            ", named_metrics.slot=10",
            ",",
        ];
        let (mut fast_count, mut total) = (0, 0);
        for (first, second) in
            (0..wholes.len()).flat_map(|first| (0..wholes.len()).map(move |second| (first, second)))
        {
            for more in more {
                let text = format!(
                    "TEXT named_metrics.rif={}, named_metrics.knee={}, named_metrics.work={}, \
                     named_metrics.mean={}, \
                     named_metrics.sojourn={}{more}",
                    wholes[first],
                    hundredths[second],
                    millionths[first],
                    hundredths[first],
                    millionths[second],
                );
                total += 1;
                if let Some(report) = parse_fast(text.as_bytes()) {
                    fast_count += 1;
                    assert_eq!(read(text.as_bytes(), |_| ()), Ok(Some(report)), "{text}");
                }
            }
        }
        assert_eq!((fast_count, total), (4 * 4 * 3, 12 * 12 * 6), "of numbers as they are written");
        for text in [
            "",
            "TEXT ",
            "JSON {}",
            "TEXT named_metrics.rif=1",
            "TEXT named_metrics.rif=1, named_metrics.knee=1",
        ] {
            assert_eq!(parse_fast(text.as_bytes()), None);
        }
    }

    #[test]
    fn what_the_server_says_itself_is_said_with_it() {
        let report = LoadReport {
            reading: Reading { in_flight: 7, knee: 3.5, ..Reading::default() },
            not_processed: None,
        };
        let merged = |other_report: &str| {
            let mut line = b"a: b\r\n".to_vec();
            write(&report, &mut line);
            merge(other_report.as_bytes(), &mut line);
            let line = String::from_utf8(line).unwrap();
            let value =
                line.strip_prefix("a: b\r\nendpoint-load-metrics: ").unwrap().strip_suffix("\r\n").unwrap();
            let mut others = Vec::new();
            let parsed = read(value.as_bytes(), |metric| {
                if !METRIC_NAMES.contains(&metric.name) {
                    others.push((metric.name.to_owned(), metric.value));
                }
            });
            assert_eq!(parsed, Ok(Some(report)), "{value}");
            others
        };
        let expected = [("cpu_utilization".to_owned(), 0.3), ("queue".to_owned(), 4.0)];
        for text in [
            "TEXT cpu_utilization=0.3, named_metrics.queue=4, named_metrics.rif=9",
            r#"JSON {"cpu_utilization": 0.3, "named_metrics": {"queue": 4, "knee": 1}}"#,
        ] {
            assert_eq!(merged(text), expected);
        }
        assert!(merged("").is_empty() && merged("nonsense").is_empty() && merged("TEXT a=b").is_empty());
        let many: Vec<String> = (0..64).map(|number| format!("named_metrics.n{number}=1")).collect();
        assert_eq!(
            merged(&format!("TEXT {}", many.join(", "))).len(),
            orca::MAX_METRICS - METRIC_NAMES.len()
        );
    }

    #[test]
    fn numbers_have_so_many_decimals() {
        let text = |value, decimals| {
            let mut out = Vec::new();
            write_decimal(value, decimals, &mut out);
            String::from_utf8(out).unwrap()
        };
        for value in [0.0, 0.004, 0.005001, 0.996, 1.0, 9.999, 12.345678, 4095.75, 1e9, f64::from(u32::MAX)] {
            for decimals in [0, 2, 6] {
                // Halves are up; others are as everywhere.
                let expected = format!("{:.decimals$}", value + 1e-9);
                assert_eq!(text(value, decimals), expected, "{value} {decimals}");
            }
        }
        assert_eq!((text(f64::NAN, 2), text(-3.0, 2)), ("0.00".to_owned(), "0.00".to_owned()));
        assert_eq!(text(f64::INFINITY, 6), "18446744073709.551615");
    }

    #[test]
    fn other_reports_say_nothing_of_the_kind() {
        let mut cpu = 0.0;
        let report = read(b"TEXT cpu_utilization=0.3, named_metrics.queue=4", |metric| {
            if metric.name == "cpu_utilization" {
                cpu = metric.value;
            }
        });
        assert_eq!((report, cpu), (Ok(None), 0.3));
        assert!(read(b"TEXT named_metrics.rif=NaN", |_| {}).is_err());
    }
}
