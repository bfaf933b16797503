//! The place of each value in the text: a shadow of the checked tree. The types of the configuration stay
//! plain, and a check across sections can still point at its subject.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// One value and those below it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpanTree {
    /// The bytes of the value (of the header, for a table with one).
    value: Range<usize>,
    /// The bytes of the key in front of it.
    key: Range<usize>,
    keys: BTreeMap<String, Self>,
    items: Vec<Self>,
    broken_keys: BTreeSet<String>,
}

impl SpanTree {
    /// Returns a value without anything below it.
    pub(super) fn new(value: Range<usize>) -> Self {
        Self { value, ..Self::default() }
    }

    /// Adds the value of a key.
    pub(super) fn insert(&mut self, name: &str, key: Range<usize>, mut spans: Self) {
        spans.key = key;
        self.keys.insert(name.to_owned(), spans);
    }

    /// Adds an element of an array.
    pub(super) fn push(&mut self, spans: Self) {
        self.items.push(spans);
    }

    /// Notes that the value of a key (all or part of it) was wrong and has been left out.
    pub(super) fn mark_broken(&mut self, name: &str) {
        self.broken_keys.insert(name.to_owned());
    }

    /// Returns the value of a key; the table itself if the key is missing.
    pub(crate) fn key(&self, name: &str) -> &Self {
        self.keys.get(name).unwrap_or(self)
    }

    /// Returns an element of an array; the array itself if there is none.
    pub(crate) fn item(&self, index: usize) -> &Self {
        self.items.get(index).unwrap_or(self)
    }

    /// Returns `true` if the key is written in this table.
    pub(crate) fn has_key(&self, name: &str) -> bool {
        self.keys.contains_key(name)
    }

    /// Returns `true` if the value of this key was wrong: then nothing can be concluded from it.
    pub(crate) fn is_broken(&self, name: &str) -> bool {
        self.broken_keys.contains(name)
    }

    /// Returns `true` if any value in this table was wrong, or any key unknown.
    pub(crate) fn has_broken_keys(&self) -> bool {
        !self.broken_keys.is_empty()
    }

    /// Returns the bytes of the value.
    pub(crate) fn value_span(&self) -> Range<usize> {
        self.value.clone()
    }

    /// Returns the bytes of the key of the value under `name`; of the table if it is missing.
    pub(crate) fn key_span(&self, name: &str) -> Range<usize> {
        self.keys.get(name).map_or_else(|| self.value_span(), |spans| spans.key.clone())
    }
}
