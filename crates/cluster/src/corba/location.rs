//! Locations of members, as names of the naming service's kind (sequences of ID and kind).

use std::fmt;

use plimsoll_wire::giop::{CdrReader, CdrWriter, GiopError};

/// The maximum length of a location's text, in bytes.
const MAX_LENGTH: usize = 255;

/// The location of a member. Two are equal if their texts are.
#[derive(Clone, Debug)]
pub struct Location {
    components: Vec<(String, String)>,
    text: String,
}

impl Location {
    /// Creates the location with this text: one part, without a kind.
    pub fn new(text: &str) -> Self {
        Self { components: vec![(text.to_owned(), String::new())], text: text.to_owned() }
    }

    /// Returns the parts with `/` between them, each its ID, or `id.kind` if it has a kind. Separators within
    /// a part are not escaped: locations are compared, never parsed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Reads a location; `None` if it is empty, too long, or not printable text.
    pub(super) fn read(reader: &mut CdrReader<'_>) -> Result<Option<Self>, GiopError> {
        let mut components = Vec::new();
        for _ in 0..reader.count(8)? {
            let mut component = || Ok(String::from_utf8_lossy(reader.string()?).into_owned());
            components.push((component()?, component()?));
        }
        let component_text = |(id, kind): &(String, String)| {
            if kind.is_empty() { id.clone() } else { format!("{id}.{kind}") }
        };
        let text = components.iter().map(component_text).collect::<Vec<_>>().join("/");
        let is_valid = !text.is_empty() && text.len() <= MAX_LENGTH && !text.chars().any(char::is_control);
        Ok(is_valid.then_some(Self { components, text }))
    }

    pub(super) fn write(&self, writer: &mut CdrWriter<'_>) {
        writer.count(self.components.len());
        for (id, kind) in &self.components {
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
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
