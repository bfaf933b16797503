//! The JSON form, parsed in one pass.
//!
//! Names may be those of the message or the camel case of protobuf's JSON. A number may be quoted, and `null`
//! is the same as a missing field. Names of metrics with an escape are rejected: they would need a buffer,
//! and no valid name contains a character that requires an escape.

use super::{FIELDS, MetricKind, MetricList, OrcaError, OrcaMetric, name, number};

/// The maximum nesting of objects and lists in ignored fields.
const DEPTH: usize = 16;

/// The camel-case name of each field, in the order of [`FIELDS`].
const CAMEL: [&str; 6] =
    ["cpuUtilization", "memUtilization", "applicationUtilization", "rpsFractional", "eps", "rps"];

/// Reads the value after `JSON `.
pub(super) fn read<'a>(value: &'a [u8], metrics: &mut MetricList<'a>) -> Result<(), OrcaError> {
    let mut json = JsonReader { rest: value };
    json.object(|json, key| {
        let position_in = |names: [&str; 6]| names.iter().position(|name| name.as_bytes() == key);
        if let Some(index) = position_in(FIELDS).or_else(|| position_in(CAMEL)) {
            return json.metric(MetricKind::Field, FIELDS[index], metrics);
        }
        let map = MetricKind::MAPS
            .iter()
            .find(|(_, snake, camel)| [snake.as_bytes(), camel.as_bytes()].contains(&key));
        match map {
            Some((kind, ..)) if json.peek() == Some(b'{') => {
                json.object(|json, key| json.metric(*kind, name(key)?, metrics))
            }
            Some(_) if json.word(b"null") => Ok(()),
            Some(_) => Err(OrcaError("a map of metrics is no object")),
            None => json.skip(DEPTH),
        }
    })?;
    json.space();
    if json.rest.is_empty() { Ok(()) } else { Err(OrcaError("something follows the object")) }
}

/// The unread rest of the value.
struct JsonReader<'a> {
    rest: &'a [u8],
}

impl<'a> JsonReader<'a> {
    fn space(&mut self) {
        let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.rest = &self.rest[self.rest.iter().take_while(|byte| is_blank(byte)).count()..];
    }

    /// Skips white space and returns the next byte without consuming it.
    fn peek(&mut self) -> Option<u8> {
        self.space();
        self.rest.first().copied()
    }

    /// Consumes the next byte if it is `byte`.
    fn take_if(&mut self, byte: u8) -> bool {
        let matched = self.peek() == Some(byte);
        if matched {
            self.rest = &self.rest[1..];
        }
        matched
    }

    fn expect(&mut self, byte: u8, message: &'static str) -> Result<(), OrcaError> {
        if self.take_if(byte) { Ok(()) } else { Err(OrcaError(message)) }
    }

    fn word(&mut self, word: &[u8]) -> bool {
        self.space();
        self.rest.strip_prefix(word).inspect(|rest| self.rest = rest).is_some()
    }

    /// Reads an object. Calls `each` with each key when its value comes next.
    fn object(
        &mut self,
        mut on_entry: impl FnMut(&mut Self, &'a [u8]) -> Result<(), OrcaError>,
    ) -> Result<(), OrcaError> {
        self.expect(b'{', "it is no object")?;
        if self.take_if(b'}') {
            return Ok(());
        }
        loop {
            let key = self.string()?;
            self.expect(b':', "a key has no value")?;
            on_entry(self, key)?;
            if self.take_if(b'}') {
                return Ok(());
            }
            self.expect(b',', "an object does not end")?;
        }
    }

    /// Reads a string and returns the bytes between the quotation marks, with escapes unchanged.
    fn string(&mut self) -> Result<&'a [u8], OrcaError> {
        self.expect(b'"', "a string is expected")?;
        let mut escaped = false;
        for (index, byte) in self.rest.iter().enumerate() {
            match byte {
                b'"' if !escaped => {
                    let string = &self.rest[..index];
                    self.rest = &self.rest[index + 1..];
                    return Ok(string);
                }
                0..0x20 => return Err(OrcaError("a string has a control character")),
                byte => escaped = *byte == b'\\' && !escaped,
            }
        }
        Err(OrcaError("a string does not end"))
    }

    fn metric(
        &mut self,
        kind: MetricKind,
        name: &'a str,
        metrics: &mut MetricList<'a>,
    ) -> Result<(), OrcaError> {
        let digits = match self.peek() {
            Some(b'"') => self.string()?,
            Some(b'n') if self.word(b"null") => return Ok(()),
            _ => self.digits(),
        };
        metrics.add(OrcaMetric { kind, name, value: number(digits)? })
    }

    /// Consumes all bytes that can belong to a number.
    fn digits(&mut self) -> &'a [u8] {
        let is_number_byte = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
        let (digits, rest) =
            self.rest.split_at(self.rest.iter().take_while(|byte| is_number_byte(byte)).count());
        self.rest = rest;
        digits
    }

    /// Skips a value with at most `depth` levels of nesting.
    fn skip(&mut self, depth: usize) -> Result<(), OrcaError> {
        let Some(next_depth) = depth.checked_sub(1) else { return Err(OrcaError("it is nested too deep")) };
        match self.peek() {
            Some(b'{') => self.object(|json, _| json.skip(next_depth)),
            Some(b'[') => {
                self.take_if(b'[');
                if self.take_if(b']') {
                    return Ok(());
                }
                loop {
                    self.skip(next_depth)?;
                    if self.take_if(b']') {
                        return Ok(());
                    }
                    self.expect(b',', "a list does not end")?;
                }
            }
            Some(b'"') => self.string().map(drop),
            _ if [&b"true"[..], b"false", b"null"].iter().any(|word| self.word(word)) => Ok(()),
            _ => number(self.digits()).map(drop),
        }
    }
}
