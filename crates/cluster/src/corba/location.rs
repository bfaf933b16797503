//! Locations of members, as names of the naming service's kind (sequences of ID and kind).

use std::fmt;

use plimsoll_wire::giop::{CdrReader, CdrWriter, GiopError};

/// The maximum length of a location's text, in bytes.
const LONGEST: usize = 255;

/// The location of a member. Two are equal if their texts are.
#[derive(Clone, Debug)]
pub struct Location {
    parts: Vec<(String, String)>,
    text: String,
}

impl Location {
    /// Creates the location with this text: one part, without a kind.
    pub fn new(text: &str) -> Self {
        Self { parts: vec![(text.to_owned(), String::new())], text: text.to_owned() }
    }

    /// Returns the parts with `/` between them, each its ID, or `id.kind` if it has a kind. Separators within
    /// a part are not escaped: locations are compared, never parsed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Reads a location; `None` if it is empty, too long, or not printable text.
    pub(super) fn read(reader: &mut CdrReader<'_>) -> Result<Option<Self>, GiopError> {
        let mut parts = Vec::new();
        for _ in 0..reader.count(8)? {
            let mut part = || Ok(String::from_utf8_lossy(reader.string()?).into_owned());
            parts.push((part()?, part()?));
        }
        let written = |(id, kind): &(String, String)| {
            if kind.is_empty() { id.clone() } else { format!("{id}.{kind}") }
        };
        let text = parts.iter().map(written).collect::<Vec<_>>().join("/");
        let sound = !text.is_empty() && text.len() <= LONGEST && !text.chars().any(char::is_control);
        Ok(sound.then_some(Self { parts, text }))
    }

    pub(super) fn write(&self, writer: &mut CdrWriter<'_>) {
        writer.count(self.parts.len());
        for (id, kind) in &self.parts {
            writer.string(id.as_bytes());
            writer.string(kind.as_bytes());
        }
    }
}

impl PartialEq for Location {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl fmt::Display for Location {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}
