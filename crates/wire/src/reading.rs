//! A member's [`Reading`] in an ORCA report: with each answer, as named metrics, so that balancers that know nothing of
//! them read the rest.
//!
//! | metric | field |
//! |---|---|
//! | `rif` | requests in flight |
//! | `knee` | requests that fit before they slow one another down |
//! | `work` | seconds that a request takes alone |
//! | `mean` | mean of the requests in flight |
//! | `sojourn` | seconds that a request takes now |
//! | `slot` | 1 if room for one more is promised |
//! | `full` | 1 if this answer only says that there is no room |
//! | `away` | 1 if this answer only says that the server cannot be reached |

use plimsoll_brain::meter::Reading;

use crate::orca::{self, Bad, Kind, Metric};

/// What a report says of the member itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Said {
    /// As the member's meter has it.
    pub reading: Reading,
    /// Why the server has not seen the request, if it has not.
    pub unseen: Option<Unseen>,
}

/// Why a server has not seen a request that whoever stands before it has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// There is no room.
    Full,
    /// It cannot be reached.
    Away,
}

/// Reads the value of the header [`orca::HEADER`]; `None` if the report says nothing of this kind. Every metric,
/// those of other kinds too, is shown to `other`.
///
/// # Errors
/// The report is malformed: see [`orca::read`].
pub fn read(value: &[u8], mut other: impl FnMut(&Metric<'_>)) -> Result<Option<Said>, Bad> {
    let mut reading = Reading::default();
    let mut unseen = None;
    let mut found = false;
    orca::read(value, |metric| {
        if metric.kind == Kind::Named {
            let value = metric.value as f32;
            match metric.name {
                "rif" => (reading.in_flight, found) = (metric.value as u32, true),
                "knee" => reading.knee = value,
                "work" => reading.work = value,
                "mean" => reading.mean_in_flight = value,
                "sojourn" => reading.sojourn = value,
                "slot" => reading.slot = value > 0.0,
                "full" if value > 0.0 => unseen = Some(Unseen::Full),
                "away" if value > 0.0 => unseen = Some(Unseen::Away),
                _ => {}
            }
        }
        other(&metric);
    })?;
    Ok(found.then_some(Said { reading, unseen }))
}

/// The same of the very form that [`write()`] has, which nearly all reports of this kind have, at a tenth of the cost: it goes with every
/// answer. `None` for any other, which may be as good; what it finds is what [`read`] finds.
pub fn quick(value: &[u8]) -> Option<Said> {
    begin(value).and_then(|(said, rest)| rest.is_empty().then_some(said))
}

/// The same of a value that ends with its line; and how long it is. It has no characters but those of the form, so nobody need look
/// for others.
#[inline(always)]
pub(crate) fn quick_line(text: &[u8]) -> Option<(Said, usize)> {
    begin(text).and_then(|(said, rest)| rest.starts_with(b"\r\n").then_some((said, text.len() - rest.len())))
}

/// What `text` begins with, and what follows that.
#[inline(always)]
fn begin(text: &[u8]) -> Option<(Said, &[u8])> {
    let (in_flight, rest) = number(text, b"TEXT named_metrics.rif=")?;
    let (knee, rest) = number(rest, b", named_metrics.knee=")?;
    let (work, rest) = number(rest, b", named_metrics.work=")?;
    let (mean, rest) = number(rest, b", named_metrics.mean=")?;
    let (sojourn, mut rest) = number(rest, b", named_metrics.sojourn=")?;
    let reading = Reading {
        in_flight: in_flight as u32,
        knee: knee as f32,
        work: work as f32,
        mean_in_flight: mean as f32,
        sojourn: sojourn as f32,
        slot: passed(&mut rest, b", named_metrics.slot=1"),
    };
    let unseen = match rest.first() {
        Some(b',') if passed(&mut rest, b", named_metrics.full=1") => Some(Unseen::Full),
        Some(b',') if passed(&mut rest, b", named_metrics.away=1") => Some(Unseen::Away),
        _ => None,
    };
    Some((Said { reading, unseen }, rest))
}

/// Goes on to after `name`, if that is what stands there.
#[inline(always)]
fn passed<const N: usize>(text: &mut &[u8], name: &[u8; N]) -> bool {
    match text.split_first_chunk::<N>() {
        Some((begin, rest)) if begin == name => {
            *text = rest;
            true
        }
        _ => false,
    }
}

/// The number after the `name` that `text` begins with, of digits, with a point among them or not; and what follows. Most are of seven
/// digits or less with a point among them, or of six without: of those one word is looked at.
#[inline(always)]
fn number<'t, const N: usize>(mut text: &'t [u8], name: &[u8; N]) -> Option<(f64, &'t [u8])> {
    if !passed(&mut text, name) {
        return None;
    }
    let Some(word) = text.first_chunk::<8>() else { return long(text) };
    let word = digits_of(u64::from_le_bytes(*word));
    let others = others(word);
    let whole = others.trailing_zeros() as usize / 8;
    if !(1..7).contains(&whole) {
        return long(text);
    }
    let width = 8 * whole;
    if (word >> width) as u8 != b'.' ^ b'0' {
        return Some((f64::from(value(word, whole)), &text[whole..]));
    }
    let after = others >> (width + 8);
    let decimals = (after.trailing_zeros() as usize / 8).min(7 - whole);
    let rest = &text[whole + 1 + decimals..];
    if after == 0 && rest.first().is_some_and(u8::is_ascii_digit) {
        return long(text);
    }
    // Without the point.
    let word = (word & !(u64::MAX << width)) | ((word >> (width + 8)) << width);
    Some((f64::from(value(word, whole + decimals)) / TENS[decimals & 7], rest))
}

/// The same of any number of digits, which `text` begins with.
#[cold]
#[inline(never)]
fn long(text: &[u8]) -> Option<(f64, &[u8])> {
    let (number, point) = digits(text, 0, 0);
    let (number, end, decimals) = match text.get(point) {
        Some(b'.') => {
            let (number, end) = digits(text, point + 1, number);
            (number, end, end - point - 1)
        }
        _ => (number, point, 0),
    };
    let count = point + decimals;
    // As many digits as are exact, divided by an exact power of ten: the nearest number there is, as when it is read in any other way.
    (1..TENS.len()).contains(&count).then(|| (number as f64 / TENS[decimals], &text[end..]))
}

/// Appends the digits from `at` on to those of `number`; and where they end. Of more than nineteen it is the lowest 64 bits.
fn digits(text: &[u8], at: usize, number: u64) -> (u64, usize) {
    let digits = text[at..].iter().map(|byte| byte.wrapping_sub(b'0')).take_while(|digit| *digit < 10);
    digits.fold((number, at), |(number, at), digit| {
        (number.wrapping_mul(10).wrapping_add(u64::from(digit)), at + 1)
    })
}

const TENS: [f64; 16] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// What digits stand for, in each byte; above 9 for all others.
#[inline(always)]
fn digits_of(word: u64) -> u64 {
    word ^ u64::from_le_bytes([b'0'; 8])
}

/// The highest bit of each byte above 9. A carry of one can only reach those after it, so it is the first that counts.
#[inline(always)]
fn others(word: u64) -> u64 {
    (word.wrapping_add(0x7676_7676_7676_7676) | word) & 0x8080_8080_8080_8080
}

/// The number of the first `count` digits, 1 to 8.
#[inline(always)]
fn value(word: u64, count: usize) -> u32 {
    // The last digit comes to the top, zeros to before the first; then pairs of them, of pairs, and of those.
    let ones = word << (64 - 8 * count);
    let pairs = ones.wrapping_mul(10).wrapping_add(ones >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
    fours.wrapping_mul(10_000).wrapping_add(fours >> 32) as u32
}

/// Appends a whole header line.
pub fn write(said: &Said, out: &mut Vec<u8>) {
    let Reading { in_flight, knee, work, mean_in_flight, sojourn, slot } = said.reading;
    out.extend_from_slice(orca::HEADER.as_bytes());
    out.extend_from_slice(b": TEXT named_metrics.rif=");
    fixed(f64::from(in_flight), 0, out);
    out.extend_from_slice(b", named_metrics.knee=");
    fixed(f64::from(knee), 2, out);
    out.extend_from_slice(b", named_metrics.work=");
    fixed(f64::from(work), 6, out);
    out.extend_from_slice(b", named_metrics.mean=");
    fixed(f64::from(mean_in_flight), 2, out);
    out.extend_from_slice(b", named_metrics.sojourn=");
    fixed(f64::from(sojourn), 6, out);
    if slot {
        out.extend_from_slice(b", named_metrics.slot=1");
    }
    match said.unseen {
        Some(Unseen::Full) => out.extend_from_slice(b", named_metrics.full=1"),
        Some(Unseen::Away) => out.extend_from_slice(b", named_metrics.away=1"),
        None => {}
    }
    out.extend_from_slice(b"\r\n");
}

/// Takes a report that the server made itself (the value of its header) into the header line that [`write()`] appended
/// last. What cannot be read is left out, and so is what says the same as the reading.
pub fn join(theirs: &[u8], out: &mut Vec<u8>) {
    out.truncate(out.len().saturating_sub(b"\r\n".len()));
    let mut text = Vec::new();
    let mut left = orca::MAX_METRICS - OURS.len();
    let _ = orca::read(theirs, |metric| {
        if left == 0 || metric.kind == Kind::Named && OURS.contains(&metric.name) {
            return;
        }
        left -= 1;
        text.clear();
        orca::write_text(&mut text, [metric]);
        if let Some(said) = text.strip_prefix(b"TEXT ").filter(|said| !said.is_empty()) {
            out.extend_from_slice(b", ");
            out.extend_from_slice(said);
        }
    });
    out.extend_from_slice(b"\r\n");
}

const OURS: [&str; 8] = ["rif", "knee", "work", "mean", "sojourn", "slot", "full", "away"];

/// Appends a number with so many decimals, at most 9. Readings are not negative, and far below 10^10; this goes with
/// every answer, and formatting numbers in general would be half of what a side-car adds to it.
fn fixed(value: f64, decimals: usize, out: &mut Vec<u8>) {
    const SCALE: [f64; 10] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
    // Not a number becomes 0, and what is out of range the nearest that is in it.
    let mut left = (value * SCALE[decimals] + 0.5) as u64;
    // As many digits as a number can have, and the point.
    let mut text = [b'0'; 21];
    let mut at = text.len();
    for digit in 0.. {
        if digit == decimals && decimals > 0 {
            at -= 1;
            text[at] = b'.';
        }
        at -= 1;
        text[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 && digit >= decimals {
            break;
        }
    }
    out.extend_from_slice(&text[at..]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_is_written_is_found_quickly(
            (in_flight, knee, work) in (any::<u32>(), 0.0f32..1e5, 0.0f32..1e3),
            (mean_in_flight, sojourn, slot) in (0.0f32..1e5, 0.0f32..1e3, any::<bool>()),
            unseen in prop_oneof![Just(None), Just(Some(Unseen::Full)), Just(Some(Unseen::Away))],
        ) {
            let said = Said { reading: Reading { in_flight, knee, work, mean_in_flight, sojourn, slot }, unseen };
            let mut line = Vec::new();
            write(&said, &mut line);
            let value = line.strip_prefix(b"endpoint-load-metrics: ").and_then(|rest| rest.strip_suffix(b"\r\n"));
            let found = quick(value.unwrap());
            prop_assert!(found.is_some());
            prop_assert_eq!(Ok(found), read(value.unwrap(), |_| ()));
        }

        #[test]
        fn what_is_found_quickly_of_any_number_is_what_is_found(
            numbers in proptest::array::uniform5("[0-9]{0,18}(\\.[0-9]{0,10})?[0-9eE,./:\\x7f-\\u{ff}]?"),
            more in prop_oneof![4 => Just(String::new()), 1 => "(, named_metrics.(slot|full|away)=[01]{1,2}){1,3}", 1 => "[ -~]{0,9}"],
        ) {
            let [rif, knee, work, mean, sojourn] = numbers;
            let text = format!(
                "TEXT named_metrics.rif={rif}, named_metrics.knee={knee}, named_metrics.work={work}, named_metrics.mean={mean}, \
                 named_metrics.sojourn={sojourn}{more}"
            );
            for end in (0..=text.len()).filter(|end| text.len() - end < 40) {
                let text = &text.as_bytes()[..end];
                if let Some(said) = quick(text) {
                    prop_assert_eq!(read(text, |_| ()), Ok(Some(said)), "{}", String::from_utf8_lossy(text));
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
        };
        let none = Reading { slot: false, ..reading };
        for said in [
            Said { reading, unseen: None },
            Said { reading: none, unseen: Some(Unseen::Full) },
            Said { reading: none, unseen: Some(Unseen::Away) },
        ] {
            let mut line = Vec::new();
            write(&said, &mut line);
            let value =
                line.strip_prefix(b"endpoint-load-metrics: ").and_then(|rest| rest.strip_suffix(b"\r\n"));
            assert_eq!(quick(value.unwrap()), Some(said));
            let mut metrics = 0;
            assert_eq!(read(value.unwrap(), |_| metrics += 1), Ok(Some(said)));
            assert_eq!(metrics, 6);
        }
    }

    #[test]
    fn what_is_found_quickly_is_what_is_found() {
        let numbers = [
            "0",
            "7",
            "3.75",
            "0.000001",
            "4294967295",
            "123456789.123456",
            "1.",
            ".5",
            "1e3",
            "-1",
            "",
            ".",
        ];
        let more = [
            "",
            ", named_metrics.slot=1",
            ", named_metrics.full=1",
            ", cpu_utilization=0.3",
            ", named_metrics.slot=10",
            ",",
        ];
        let (mut quickly, mut all) = (0, 0);
        for (first, second) in numbers.iter().flat_map(|first| numbers.map(|second| (*first, second))) {
            for more in more {
                let text = format!(
                    "TEXT named_metrics.rif={first}, named_metrics.knee={second}, named_metrics.work=0.0125, \
                     named_metrics.mean={second}, named_metrics.sojourn={first}{more}"
                );
                all += 1;
                if let Some(said) = quick(text.as_bytes()) {
                    quickly += 1;
                    assert_eq!(read(text.as_bytes(), |_| ()), Ok(Some(said)), "{text}");
                }
            }
        }
        assert!(quickly > all / 8, "{quickly} of {all}");
        for text in [
            "",
            "TEXT ",
            "JSON {}",
            "TEXT named_metrics.rif=1",
            "TEXT named_metrics.rif=1, named_metrics.knee=1",
        ] {
            assert_eq!(quick(text.as_bytes()), None);
        }
    }

    #[test]
    fn what_the_server_says_itself_is_said_with_it() {
        let said = Said { reading: Reading { in_flight: 7, knee: 3.5, ..Reading::default() }, unseen: None };
        let joined = |theirs: &str| {
            let mut line = b"a: b\r\n".to_vec();
            write(&said, &mut line);
            join(theirs.as_bytes(), &mut line);
            let line = String::from_utf8(line).unwrap();
            let value =
                line.strip_prefix("a: b\r\nendpoint-load-metrics: ").unwrap().strip_suffix("\r\n").unwrap();
            let mut others = Vec::new();
            let read = read(value.as_bytes(), |metric| {
                if !OURS.contains(&metric.name) {
                    others.push((metric.name.to_owned(), metric.value));
                }
            });
            assert_eq!(read, Ok(Some(said)), "{value}");
            others
        };
        let theirs = [("cpu_utilization".to_owned(), 0.3), ("queue".to_owned(), 4.0)];
        for text in [
            "TEXT cpu_utilization=0.3, named_metrics.queue=4, named_metrics.rif=9",
            r#"JSON {"cpu_utilization": 0.3, "named_metrics": {"queue": 4, "knee": 1}}"#,
        ] {
            assert_eq!(joined(text), theirs);
        }
        assert!(joined("").is_empty() && joined("nonsense").is_empty() && joined("TEXT a=b").is_empty());
        let many: Vec<String> = (0..64).map(|number| format!("named_metrics.n{number}=1")).collect();
        assert_eq!(joined(&format!("TEXT {}", many.join(", "))).len(), orca::MAX_METRICS - OURS.len());
    }

    #[test]
    fn numbers_have_so_many_decimals() {
        let text = |value, decimals| {
            let mut out = Vec::new();
            fixed(value, decimals, &mut out);
            String::from_utf8(out).unwrap()
        };
        for value in [0.0, 0.004, 0.005001, 0.996, 1.0, 9.999, 12.345678, 4095.75, 1e9, f64::from(u32::MAX)] {
            for decimals in [0, 2, 6] {
                // Halves are up; others are as everywhere.
                let all = format!("{:.decimals$}", value + 1e-9);
                assert_eq!(text(value, decimals), all, "{value} {decimals}");
            }
        }
        assert_eq!((text(f64::NAN, 2), text(-3.0, 2)), ("0.00".to_owned(), "0.00".to_owned()));
        assert_eq!(text(f64::INFINITY, 6), "18446744073709.551615");
    }

    #[test]
    fn other_reports_say_nothing_of_the_kind() {
        let mut cpu = 0.0;
        let said = read(b"TEXT cpu_utilization=0.3, named_metrics.queue=4", |metric| {
            if metric.name == "cpu_utilization" {
                cpu = metric.value;
            }
        });
        assert_eq!((said, cpu), (Ok(None), 0.3));
        assert!(read(b"TEXT named_metrics.rif=NaN", |_| {}).is_err());
    }
}
