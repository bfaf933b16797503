//! The status of a balancer in words: aligned columns, durations, glyphs beside the colours, so that a state
//! can be read without colour.

use std::fmt::Write;

use plimsoll_brain::MemberState;
use plimsoll_brain::status::{GroupHealth, SLOW};
pub(crate) use plimsoll_config::short_duration;

/// The meaning of a text, which decides its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TextStyle {
    /// The tone of the surrounding text.
    #[default]
    Plain,
    /// Headings.
    Strong,
    /// Text of less weight.
    Faint,
    /// A good state.
    Good,
    /// A state of transition, or an intended one.
    Fair,
    /// A bad state.
    Bad,
}

impl From<GroupHealth> for TextStyle {
    fn from(health: GroupHealth) -> Self {
        match health {
            GroupHealth::Healthy => Self::Good,
            GroupHealth::Warning => Self::Fair,
            GroupHealth::Degraded | GroupHealth::Shedding | GroupHealth::Down => Self::Bad,
        }
    }
}

impl TextStyle {
    /// Returns `text` in this tone; unchanged if colour is off.
    pub(crate) fn paint(self, text: &str, color: bool) -> String {
        let code = match self {
            _ if !color => "",
            Self::Plain => "",
            Self::Strong => "1",
            Self::Faint => "2",
            Self::Good => "32",
            Self::Fair => "33",
            Self::Bad => "31",
        };
        if code.is_empty() { text.to_owned() } else { format!("\x1b[{code}m{text}\x1b[0m") }
    }
}

/// Returns glyph, word and tone of a member: that it is slow, if it is, or its state.
pub(crate) fn member_state_label(member: MemberState, slow: bool) -> (&'static str, &'static str, TextStyle) {
    match slow {
        true => (SLOW.0, SLOW.1, TextStyle::Fair),
        false => state_label(member),
    }
}

/// Returns glyph, word and tone of a state.
pub(crate) fn state_label(state: MemberState) -> (&'static str, &'static str, TextStyle) {
    let (glyph, label) = state.glyph_and_label();
    let style = match state {
        MemberState::Up => TextStyle::Good,
        MemberState::SlowStart | MemberState::Unchecked | MemberState::Draining | MemberState::Disabled => {
            TextStyle::Fair
        }
        MemberState::Ejected | MemberState::Down => TextStyle::Bad,
    };
    (glyph, label, style)
}

/// Returns a number to four digits if it has a fraction, or unchanged if it has none.
pub(crate) fn short_number(value: f64) -> String {
    if value == value.trunc() && value.abs() < 1e9 {
        return format!("{value}");
    }
    let magnitude = value.abs().log10().floor();
    if !(-4.0..9.0).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    let digits = (3.0 - magnitude).clamp(0.0, 8.0) as usize;
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A cell of a table.
pub(crate) struct TableCell {
    text: String,
    style: TextStyle,
    /// Whether the text is aligned to the right, as numbers are.
    align_right: bool,
}

impl TableCell {
    /// Returns a cell with text, aligned to the left. Control characters are replaced.
    pub(crate) fn text(text: &str) -> Self {
        Self { text: sanitize(text), style: TextStyle::Plain, align_right: false }
    }

    /// Returns a cell with a number, aligned to the right.
    pub(crate) fn number(text: impl ToString) -> Self {
        Self { text: text.to_string(), style: TextStyle::Plain, align_right: true }
    }

    /// Returns the cell in a tone.
    pub(crate) fn style(self, style: TextStyle) -> Self {
        Self { style, ..self }
    }
}

/// Returns rows in aligned columns, with two spaces between them and none at the end of a line.
pub(crate) fn table(rows: &[Vec<TableCell>], color: bool) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|index| {
            rows.iter()
                .filter_map(|row| row.get(index))
                .map(|cell| display_width(&cell.text))
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        // Spaces are written before the next text, hence never at the end.
        let mut gap = 0;
        for (cell, &column) in row.iter().zip(&widths) {
            let pad = column - display_width(&cell.text);
            if !cell.text.is_empty() {
                let before = gap + if cell.align_right { pad } else { 0 };
                let _ = write!(line, "{:before$}{}", "", cell.style.paint(&cell.text, color));
                gap = 0;
            }
            gap += 2 + match (cell.text.is_empty(), cell.align_right) {
                (true, _) => column,
                (false, true) => 0,
                (false, false) => pad,
            };
        }
        out.push_str(&line);
        out.push('\n');
    }
    out
}

/// Returns text on one line, with control characters replaced.
pub(crate) fn sanitize(text: &str) -> String {
    let replace_control = |c: char| match c {
        '\n' | '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.trim_end().chars().map(replace_control).collect()
}

/// Returns the columns of a text; none of the characters in use is wide.
fn display_width(text: &str) -> usize {
    text.chars().count()
}

/// Returns a number with groups of three digits: `12 000`.
pub(crate) fn group_digits(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Returns a latency to three digits: `850µs`, `1.24ms`, `12.4ms`, `2.50s`.
pub(crate) fn latency(seconds: f64) -> String {
    let micros = seconds * 1e6;
    let digits = |value: f64| if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    if micros < 999.5 {
        format!("{micros:.0}µs")
    } else if micros < 999_500.0 {
        let value = micros / 1e3;
        format!("{value:.*}ms", digits(value))
    } else {
        format!("{seconds:.*}s", digits(seconds))
    }
}

/// Returns a moment in UTC: `2026-11-20 17:30:40.123Z`.
///
/// Days become a date by counting from the first of March, so that the leap day is the last of its year. Eras
/// of 400 years all have 146 097 days.
pub(crate) fn utc_time(unix_ms: u64) -> String {
    let (day, ms) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    let since_era = day + 719_468;
    let (era, day_of_era) = (since_era / 146_097, since_era % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let (month, carry) =
        if month_from_march < 10 { (month_from_march + 3, 0) } else { (month_from_march - 9, 1) };
    let year = era * 400 + year_of_era + carry;
    let date = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let (hour, minute, second, ms) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
    format!("{year:04}-{month:02}-{date:02} {hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let formatted =
            [0.0, 1.0, -3.0, 1.0 / 3.0, 12.3456, 0.000_012_34, 1.5e10, 123_456.789, 2.0e9].map(short_number);
        assert_eq!(
            formatted,
            ["0", "1", "-3", "0.3333", "12.35", "1.234e-5", "1.500e10", "123457", "2.000e9"]
        );
    }

    #[test]
    fn moments_are_dates() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00:00.000Z"),
            (951_782_399, "2000-02-28 23:59:59.000Z"),
            (951_782_400, "2000-02-29 00:00:00.000Z"),
            (1_709_251_200, "2024-03-01 00:00:00.000Z"),
            (1_798_761_599, "2026-12-31 23:59:59.000Z"),
            (4_107_542_400, "2100-03-01 00:00:00.000Z"),
        ] {
            assert_eq!(utc_time(seconds * 1000), date);
        }
        assert_eq!(utc_time(1_795_195_840_123), "2026-11-20 17:30:40.123Z");
        utc_time(u64::MAX);
    }

    #[test]
    fn lengths_of_time_have_three_digits() {
        let formatted =
            [0.0, 4.4e-7, 9.994e-4, 9.996e-4, 0.001_239, 0.012_44, 0.1244, 0.9996, 2.5, 61.04, 3600.0];
        let formatted = formatted.map(latency);
        assert_eq!(
            formatted,
            [
                "0µs", "0µs", "999µs", "1.00ms", "1.24ms", "12.4ms", "124ms", "1.00s", "2.50s", "61.0s",
                "3600s"
            ]
        );
    }

    #[test]
    fn columns_align_with_and_without_colour() {
        let rows = vec![
            vec![
                TableCell::text("A").style(TextStyle::Strong),
                TableCell::number("B"),
                TableCell::text("C"),
                TableCell::text("D"),
            ],
            vec![
                TableCell::text("ü\x1b[2J"),
                TableCell::number(12345),
                TableCell::text(""),
                TableCell::text("d"),
            ],
            vec![TableCell::text(""), TableCell::number(""), TableCell::text("c")],
        ];
        let expected = "\
A          B  C  D
ü\u{fffd}[2J  12345     d
              c
";
        assert_eq!(table(&rows, false), expected);
        assert_eq!(table(&rows, true), expected.replacen('A', "\x1b[1mA\x1b[0m", 1));
    }
}
