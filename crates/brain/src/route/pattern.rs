//! Regular expressions as whole automata.
//!
//! A lazy automaton, as in the crate `regex`, needs memory and a lock while it matches. A whole one is
//! larger, so its size has a limit, but a match only reads it: one step for each byte.

use alloc::boxed::Box;
use alloc::string::{String, ToString as _};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;

use regex_automata::dfa::{Automaton as _, StartKind, dense};
use regex_automata::nfa::thompson::{self, WhichCaptures};
use regex_automata::{Anchored, Input};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, Look};

/// A regular expression that matches a path from end to end.
pub type PathRegex = ValueRegex;

/// A regular expression that matches a value from end to end, in time linear in the value.
///
/// The syntax is that of the crate `regex` without look-around, back-references and Unicode classes. It is
/// over bytes: `.` is a byte, and `\w`, `\d` and `(?i)` know ASCII only, as in RE2. Two are equal if their
/// texts are.
#[derive(Clone)]
pub struct ValueRegex {
    pattern: Box<str>,
    automaton: Arc<dense::DFA<Vec<u32>>>,
}

/// The maximum size of the automaton of a regular expression, bytes; the same holds for the memory in use
/// while it is made.
pub const MAX_AUTOMATON_BYTES: usize = 1 << 20;

/// The reason why a regular expression is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatternError {
    /// Text that is no regular expression.
    Syntax {
        /// The first byte of the part that is wrong; from 0 to the length of the text.
        offset: usize,
        /// The reason.
        reason: String,
    },
    /// An automaton larger than [`MAX_AUTOMATON_BYTES`].
    TooLarge,
    /// A construct that no automaton of bytes has, such as a Unicode word boundary.
    Unsupported {
        /// The reason.
        reason: String,
    },
}

impl ValueRegex {
    /// Compiles a regular expression.
    ///
    /// # Errors
    ///
    /// Fails if the text is no regular expression, if its automaton is too large, or if it has none.
    pub fn new(pattern: &str) -> Result<Self, PatternError> {
        let body = ParserBuilder::new().utf8(false).unicode(false).build().parse(pattern)?;
        let whole = Hir::concat(vec![Hir::look(Look::Start), body, Hir::look(Look::End)]);
        let states = thompson::Compiler::new()
            .configure(
                thompson::Config::new()
                    .utf8(false)
                    .which_captures(WhichCaptures::None)
                    .nfa_size_limit(Some(MAX_AUTOMATON_BYTES)),
            )
            .build_from_hir(&whole)?;
        let automaton = dense::Builder::new()
            .configure(
                dense::Config::new()
                    .start_kind(StartKind::Anchored)
                    .dfa_size_limit(Some(MAX_AUTOMATON_BYTES))
                    .determinize_size_limit(Some(MAX_AUTOMATON_BYTES)),
            )
            .build_from_nfa(&states)?;
        Ok(Self { pattern: Box::from(pattern), automaton: Arc::new(automaton) })
    }

    /// Returns the text that it was compiled from.
    pub fn as_str(&self) -> &str {
        &self.pattern
    }

    /// Returns whether the whole of a value matches. Takes no lock and allocates nothing.
    pub fn matches(&self, value: &[u8]) -> bool {
        let input = Input::new(value).anchored(Anchored::Yes).earliest(true);
        // An automaton without Unicode word boundaries never gives up.
        self.automaton.try_search_fwd(&input).is_ok_and(|end| end.is_some())
    }
}

impl From<regex_syntax::Error> for PatternError {
    fn from(error: regex_syntax::Error) -> Self {
        match error {
            regex_syntax::Error::Parse(error) => {
                Self::Syntax { offset: error.span().start.offset, reason: error.kind().to_string() }
            }
            regex_syntax::Error::Translate(error) => {
                Self::Syntax { offset: error.span().start.offset, reason: error.kind().to_string() }
            }
            other => Self::Syntax { offset: 0, reason: other.to_string() },
        }
    }
}

impl From<thompson::BuildError> for PatternError {
    fn from(error: thompson::BuildError) -> Self {
        match error.size_limit() {
            Some(_) => Self::TooLarge,
            None => Self::Unsupported { reason: error.to_string() },
        }
    }
}

impl From<dense::BuildError> for PatternError {
    fn from(error: dense::BuildError) -> Self {
        if error.is_size_limit_exceeded() {
            Self::TooLarge
        } else {
            Self::Unsupported { reason: error.to_string() }
        }
    }
}

impl fmt::Display for PatternError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax { offset, reason } => write!(formatter, "{reason}, at byte {offset}"),
            Self::TooLarge => write!(formatter, "its automaton would exceed {MAX_AUTOMATON_BYTES} bytes"),
            Self::Unsupported { reason } => formatter.write_str(reason),
        }
    }
}

impl core::error::Error for PatternError {}

impl fmt::Debug for ValueRegex {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("ValueRegex").field(&self.pattern).finish()
    }
}

impl PartialEq for ValueRegex {
    fn eq(&self, other: &Self) -> bool {
        self.pattern == other.pattern
    }
}

impl Eq for ValueRegex {}

impl PartialOrd for ValueRegex {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ValueRegex {
    fn cmp(&self, other: &Self) -> Ordering {
        self.pattern.cmp(&other.pattern)
    }
}
