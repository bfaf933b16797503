//! The keys that a person presses, from the bytes of a terminal.

use super::Sort;

/// A key with a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
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
pub(super) const HELP: [(&str, &str); 11] = [
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
pub(super) fn keys(bytes: &[u8]) -> Vec<Key> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        let key = match first {
            b'q' | b'Q' => Key::Quit,
            0x03 => Key::Interrupt,
            b's' | b'S' => Key::Sort,
            b'g' | b'G' | b'\t' => Key::Group,
            b'p' | b'P' | b' ' => Key::Pause,
            b'h' | b'H' | b'?' => Key::Help,
            b'k' => Key::Up,
            b'j' => Key::Down,
            0x1b => match after {
                [b'[' | b'O', end @ ..] => {
                    // Parameters, then one letter or `~`.
                    let length = end.iter().position(|byte| (0x40..=0x7e).contains(byte));
                    let (sequence, left) = end.split_at(length.map_or(end.len(), |at| at + 1));
                    rest = left;
                    match sequence {
                        b"A" => Key::Up,
                        b"B" => Key::Down,
                        b"5~" => Key::PageUp,
                        b"6~" => Key::PageDown,
                        _ => continue,
                    }
                }
                _ => Key::Close,
            },
            _ => continue,
        };
        found.push(key);
    }
    found
}

impl Sort {
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
        let at = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// Returns the name for people.
    pub(super) fn word(self) -> &'static str {
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
        assert_eq!(keys(b"q"), [Key::Quit]);
        assert_eq!(keys(b"\x03"), [Key::Interrupt]);
        assert_eq!(keys(b"sgp ?x"), [Key::Sort, Key::Group, Key::Pause, Key::Pause, Key::Help]);
        assert_eq!(
            keys(b"\x1b[A\x1bOB\x1b[5~\x1b[6~j"),
            [Key::Up, Key::Down, Key::PageUp, Key::PageDown, Key::Down]
        );
        assert_eq!(keys(b"\x1b"), [Key::Close]);
        // A key with unknown modifiers is one key, and not its letters.
        assert_eq!(keys(b"\x1b[1;5Cq"), [Key::Quit]);
        assert_eq!(keys("ä€\x1b[".as_bytes()), []);
    }

    #[test]
    fn every_order_comes_round() {
        let mut sort = Sort::Configured;
        let mut seen = Vec::new();
        for _ in Sort::ALL {
            seen.push(sort);
            sort = sort.next();
        }
        assert_eq!((sort, seen.as_slice()), (Sort::Configured, &Sort::ALL[..]));
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(keys(&bytes).len() <= bytes.len());
        }
    }
}
