//! Lines on a terminal, for pictures that are drawn over themselves: the live view of `demo`, and `top`.
//!
//! A line is pieces of one tone each, cut to the terminal's width: one that wraps would break the picture.

use std::io;
use std::os::fd::AsFd;

use crate::control::format::TextStyle;

/// The code that hides the cursor.
pub(crate) const HIDE_CURSOR: &str = "\x1b[?25l";
/// The code that shows the cursor.
pub(crate) const SHOW_CURSOR: &str = "\x1b[?25h";
/// The code that clears the screen below the cursor.
pub(crate) const CLEAR_BELOW: &str = "\x1b[J";

/// Returns a bar of so many columns for a share from 0 to 1, to an eighth of a column.
pub(crate) fn bar(share: f64, columns: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * columns as f64 * 8.0).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    bar.extend([' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'].get(eighths % 8).filter(|glyph| **glyph != ' '));
    bar
}

/// One line, in pieces of one tone each.
#[derive(Clone, Debug, Default)]
pub(crate) struct StyledLine(Vec<(String, TextStyle)>);

impl StyledLine {
    pub(crate) fn new(text: &str, style: TextStyle) -> Self {
        Self(vec![(text.to_owned(), style)])
    }

    pub(crate) fn push(&mut self, text: &str, style: TextStyle) {
        self.0.push((text.to_owned(), style));
    }

    /// Appends another line.
    pub(crate) fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Returns its columns. None of the characters in use is wide.
    pub(crate) fn width(&self) -> usize {
        self.0.iter().map(|(text, _)| text.chars().count()).sum()
    }

    /// Cuts it to so many columns.
    pub(crate) fn truncate_to(mut self, mut columns: usize) -> Self {
        for (text, _) in &mut self.0 {
            if let Some((end, _)) = text.char_indices().nth(columns) {
                text.truncate(end);
            }
            columns -= text.chars().count();
        }
        self
    }

    /// Returns it as it is written to a terminal.
    pub(crate) fn paint(&self, color: bool) -> String {
        self.0.iter().map(|(text, style)| style.paint(text, color)).collect()
    }
}

/// Returns columns and lines of a terminal.
pub(crate) fn size(stream: impl AsFd) -> (usize, usize) {
    match rustix::termios::tcgetwinsize(stream) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

/// Returns `true` if the terminal takes no more than plain lines, or if there is none.
pub(crate) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// Restores the terminal before a panic prints its message.
pub(crate) fn restore_on_panic(restore: impl Fn() + Send + Sync + 'static) {
    let previous_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        previous_hook(panic);
    }));
}

/// Writes to standard error. A terminal that has gone ends the program by a signal.
pub(crate) fn write_stderr(text: &str) {
    let _ = io::Write::write_all(&mut io::stderr(), text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_grow_by_eighths() {
        assert_eq!(bar(0.0, 10), "");
        assert_eq!(bar(0.5, 10), "█████");
        assert_eq!(bar(0.5125, 10), "█████▏");
        assert_eq!(bar(0.59, 10), "█████▉");
        assert_eq!(bar(7.0, 3), "███");
        assert_eq!(bar(f64::NAN, 3), "");
    }

    #[test]
    fn lines_are_cut_and_painted() {
        let mut line = StyledLine::new("aä", TextStyle::Good);
        line.push("bcd", TextStyle::Plain);
        assert_eq!(line.width(), 5);
        assert_eq!(line.clone().truncate_to(3).paint(true), "\x1b[32maä\x1b[0mb");
        assert_eq!(line.clone().truncate_to(9).paint(false), "aäbcd");
        assert_eq!(line.truncate_to(0).width(), 0);
    }
}
