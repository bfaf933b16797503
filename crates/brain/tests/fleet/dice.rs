//! Random numbers for the tests: everything from a seed.

use plimsoll_brain::mix;

/// A deterministic source of 64 random bits at a time.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = mix(self.0);
        self.0
    }
}
