//! The JSON form, read in one pass.
//!
//! Names may be the message's own or in the camel case of protobuf's JSON; a number may stand between quotation
//! marks, and `null` is as good as not there. Names of metrics with an escape in them are refused: they would need
//! room of their own, and no character that a name may have needs one.

use super::{Bad, FIELDS, Found, Kind, Metric, name, number};

/// Objects and lists in one another that are passed over in fields that are not known.
const DEPTH: usize = 16;

/// The other name of a field, in the same order as [`FIELDS`].
const CAMEL: [&str; 6] =
    ["cpuUtilization", "memUtilization", "applicationUtilization", "rpsFractional", "eps", "rps"];

/// Reads what follows `JSON `.
pub(super) fn read<'a>(value: &'a [u8], found: &mut Found<'a>) -> Result<(), Bad> {
    let mut json = Json { rest: value };
    json.object(|json, key| {
        let named = |names: [&str; 6]| names.iter().position(|name| name.as_bytes() == key);
        if let Some(at) = named(FIELDS).or_else(|| named(CAMEL)) {
            return json.metric(Kind::Field, FIELDS[at], found);
        }
        let map =
            Kind::MAPS.iter().find(|(_, plain, camel)| [plain.as_bytes(), camel.as_bytes()].contains(&key));
        match map {
            Some((kind, ..)) if json.peek() == Some(b'{') => {
                json.object(|json, key| json.metric(*kind, name(key)?, found))
            }
            Some(_) if json.word(b"null") => Ok(()),
            Some(_) => Err(Bad("a map of metrics is no object")),
            None => json.skip(DEPTH),
        }
    })?;
    json.space();
    if json.rest.is_empty() { Ok(()) } else { Err(Bad("something follows the object")) }
}

/// What is left to read.
struct Json<'a> {
    rest: &'a [u8],
}

impl<'a> Json<'a> {
    fn space(&mut self) {
        let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.rest = &self.rest[self.rest.iter().take_while(|byte| blank(byte)).count()..];
    }

    /// What comes next, white space left aside.
    fn peek(&mut self) -> Option<u8> {
        self.space();
        self.rest.first().copied()
    }

    /// Takes that byte if it comes next.
    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        if there {
            self.rest = &self.rest[1..];
        }
        there
    }

    fn expect(&mut self, byte: u8, otherwise: &'static str) -> Result<(), Bad> {
        if self.take(byte) { Ok(()) } else { Err(Bad(otherwise)) }
    }

    fn word(&mut self, word: &[u8]) -> bool {
        self.space();
        self.rest.strip_prefix(word).inspect(|rest| self.rest = rest).is_some()
    }

    /// Members of an object, each told with its key when its value comes next.
    fn object(&mut self, mut each: impl FnMut(&mut Self, &'a [u8]) -> Result<(), Bad>) -> Result<(), Bad> {
        self.expect(b'{', "it is no object")?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let key = self.string()?;
            self.expect(b':', "a key has no value")?;
            each(self, key)?;
            if self.take(b'}') {
                return Ok(());
            }
            self.expect(b',', "an object does not end")?;
        }
    }

    /// What stands between quotation marks, escapes as they are.
    fn string(&mut self) -> Result<&'a [u8], Bad> {
        self.expect(b'"', "a string is expected")?;
        let mut escaped = false;
        for (at, byte) in self.rest.iter().enumerate() {
            match byte {
                b'"' if !escaped => {
                    let string = &self.rest[..at];
                    self.rest = &self.rest[at + 1..];
                    return Ok(string);
                }
                0..0x20 => return Err(Bad("a string has a control character")),
                byte => escaped = *byte == b'\\' && !escaped,
            }
        }
        Err(Bad("a string does not end"))
    }

    fn metric(&mut self, kind: Kind, name: &'a str, found: &mut Found<'a>) -> Result<(), Bad> {
        let digits = match self.peek() {
            Some(b'"') => self.string()?,
            Some(b'n') if self.word(b"null") => return Ok(()),
            _ => self.digits(),
        };
        found.add(Metric { kind, name, value: number(digits)? })
    }

    /// As much as can belong to a number.
    fn digits(&mut self) -> &'a [u8] {
        let part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
        let (digits, rest) = self.rest.split_at(self.rest.iter().take_while(|byte| part(byte)).count());
        self.rest = rest;
        digits
    }

    /// Passes over a value, with no more than `depth` objects or lists in one another.
    fn skip(&mut self, depth: usize) -> Result<(), Bad> {
        let Some(deeper) = depth.checked_sub(1) else { return Err(Bad("it is nested too deep")) };
        match self.peek() {
            Some(b'{') => self.object(|json, _| json.skip(deeper)),
            Some(b'[') => {
                self.take(b'[');
                if self.take(b']') {
                    return Ok(());
                }
                loop {
                    self.skip(deeper)?;
                    if self.take(b']') {
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
