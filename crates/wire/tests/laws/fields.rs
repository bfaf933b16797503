//! The fields of a head as a second, independent parser reads them, and the rules for a relay.

use httparse::{EMPTY_HEADER, Header, Status};

/// The maximum number of fields: [`plimsoll_wire::http1::MAX_FIELDS`] and those that a relay adds.
const MOST: usize = 160;

/// A name in lower case, and a value.
pub(super) type Field = (String, Vec<u8>);

/// A head as `httparse` reads it.
#[derive(Debug)]
pub(super) struct Read {
    /// Method and target, or status.
    pub(super) start: (String, String),
    /// The minor version.
    pub(super) minor: u8,
    pub(super) len: usize,
    pub(super) fields: Vec<Field>,
}

/// Parses a request head that this crate accepted.
pub(super) fn of_request(head: &[u8]) -> Read {
    let mut headers = [EMPTY_HEADER; MOST];
    let mut request = httparse::Request::new(&mut headers);
    let len = whole(request.parse(head), head);
    let start = (request.method.unwrap_or_default().to_owned(), request.path.unwrap_or_default().to_owned());
    Read { start, minor: request.version.unwrap_or(9), len, fields: owned(request.headers) }
}

/// Parses a response head that this crate accepted.
pub(super) fn of_response(head: &[u8]) -> Read {
    let mut headers = [EMPTY_HEADER; MOST];
    let mut response = httparse::Response::new(&mut headers);
    let mut lenient = httparse::ParserConfig::default();
    lenient.allow_spaces_after_header_name_in_responses(true);
    let len = whole(lenient.parse_response(&mut response, head), head);
    let start = (response.code.unwrap_or_default().to_string(), String::new());
    Read { start, minor: response.version.unwrap_or(9), len, fields: owned(response.headers) }
}

fn whole(status: httparse::Result<usize>, head: &[u8]) -> usize {
    match status {
        Ok(Status::Complete(len)) => len,
        other => panic!("another parser finds no head in what was accepted: {other:?}\n{}", show(head)),
    }
}

fn owned(headers: &[Header<'_>]) -> Vec<Field> {
    // `close` is an option of `Connection` and never a field. A field with this name may be forwarded or not.
    let fields = headers.iter().map(|header| (header.name.to_ascii_lowercase(), header.value.to_vec()));
    fields.filter(|(name, _)| name != "close").collect()
}

impl Read {
    /// Returns all values of a field.
    pub(super) fn values(&self, name: &str) -> Vec<&[u8]> {
        self.fields.iter().filter(|(found, _)| found == name).map(|(_, value)| &value[..]).collect()
    }

    /// Returns the fields that must not pass this hop: the known ones, and those that `Connection` names.
    pub(super) fn hop_by_hop(&self, known: &[&str]) -> Vec<String> {
        // Without these the message would change its meaning at the next hop, or its origin. They stay even
        // if `Connection` names them.
        const VITAL: [&str; 8] = [
            "host",
            "content-length",
            "transfer-encoding",
            "trailer",
            "forwarded",
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-forwarded-host",
        ];
        let named = self.values("connection").into_iter().flat_map(|value| value.split(|byte| *byte == b','));
        named
            .map(|token| String::from_utf8_lossy(token.trim_ascii()).to_ascii_lowercase())
            .filter(|token| !VITAL.contains(&&**token))
            .chain(known.iter().map(|name| (*name).to_owned()))
            .collect()
    }

    /// Returns the fields whose names are not in `names`.
    pub(super) fn without(&self, names: &[String]) -> Vec<Field> {
        self.fields.iter().filter(|(name, _)| !names.contains(name)).cloned().collect()
    }
}

/// Formats bytes for people.
pub(super) fn show(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
