//! The keys that a person presses, from the bytes of a terminal.

use super::SortOrder;

/// A key with a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyPress {
    Quit,
    /// Ctrl-C.
    Interrupt,
    Sort,
    Group,
    Pause,
    Help,
    /// Escape.
    Close,
    Up,
    Down,
    PageUp,
    PageDown,
}

/// The keys with their functions, for people.
pub(super) const KEY_HELP: [(&str, &str); 11] = [
    ("q, Ctrl-C", "end"),
    ("s", "sort members by the next column"),
    ("g", "show the next group alone, then all again"),
    ("p, space", "hold the picture, go on"),
    ("↑ ↓, PgUp PgDn", "move through what does not fit"),
    ("h, ?", "this, and back"),
    ("", ""),
    ("load", "the part of the capacity in use, else the load that is reported, else requests under way"),
    ("age", "since the load was measured"),
    ("p50, p99", "since the member joined, at most 6 % off"),
    ("sheds", "sessions that left under alert"),
];

/// Returns the keys in the bytes of a terminal. Unknown ones are passed over.
pub(super) fn parse_keys(bytes: &[u8]) -> Vec<KeyPress> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let Some((&first, remaining)) = rest.split_first() {
        rest = remaining;
        let key = match first {
            b'q' | b'Q' => KeyPress::Quit,
            0x03 => KeyPress::Interrupt,
            b's' | b'S' => KeyPress::Sort,
            b'g' | b'G' | b'\t' => KeyPress::Group,
            b'p' | b'P' | b' ' => KeyPress::Pause,
            b'h' | b'H' | b'?' => KeyPress::Help,
            b'k' => KeyPress::Up,
            b'j' => KeyPress::Down,
            0x1b => match remaining {
                [b'[' | b'O', tail @ ..] => {
                    // Parameters, then one letter or `~`.
                    let length = tail.iter().position(|byte| (0x40..=0x7e).contains(byte));
                    let (sequence, following) = tail.split_at(length.map_or(tail.len(), |index| index + 1));
                    rest = following;
                    match sequence {
                        b"A" => KeyPress::Up,
                        b"B" => KeyPress::Down,
                        b"5~" => KeyPress::PageUp,
                        b"6~" => KeyPress::PageDown,
                        _ => continue,
                    }
                }
                _ => KeyPress::Close,
            },
            _ => continue,
        };
        keys.push(key);
    }
    keys
}

impl SortOrder {
    const ALL: [Self; 8] = [
        Self::Configured,
        Self::Name,
        Self::State,
        Self::Load,
        Self::Rate,
        Self::P99,
        Self::Errors,
        Self::Age,
    ];

    /// Returns the next order.
    pub(super) fn next(self) -> Self {
        let index = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(index + 1) % Self::ALL.len()]
    }

    /// Returns the name for people.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Configured => "configuration",
            Self::Name => "name",
            Self::State => "state",
            Self::Load => "load",
            Self::Rate => "rate",
            Self::P99 => "p99",
            Self::Errors => "errors",
            Self::Age => "age",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_terminals_send() {
        assert_eq!(parse_keys(b"q"), [KeyPress::Quit]);
        assert_eq!(parse_keys(b"\x03"), [KeyPress::Interrupt]);
        assert_eq!(
            parse_keys(b"sgp ?x"),
            [KeyPress::Sort, KeyPress::Group, KeyPress::Pause, KeyPress::Pause, KeyPress::Help]
        );
        assert_eq!(
            parse_keys(b"\x1b[A\x1bOB\x1b[5~\x1b[6~j"),
            [KeyPress::Up, KeyPress::Down, KeyPress::PageUp, KeyPress::PageDown, KeyPress::Down]
        );
        assert_eq!(parse_keys(b"\x1b"), [KeyPress::Close]);
        // A key with unknown modifiers is one key, and not its letters.
        assert_eq!(parse_keys(b"\x1b[1;5Cq"), [KeyPress::Quit]);
        assert_eq!(parse_keys("ä€\x1b[".as_bytes()), []);
    }

    #[test]
    fn every_order_comes_round() {
        let mut sort = SortOrder::Configured;
        let mut seen = Vec::new();
        for _ in SortOrder::ALL {
            seen.push(sort);
            sort = sort.next();
        }
        assert_eq!((sort, seen.as_slice()), (SortOrder::Configured, &SortOrder::ALL[..]));
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(parse_keys(&bytes).len() <= bytes.len());
        }
    }
}
