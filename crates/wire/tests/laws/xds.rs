//! The messages of an xDS client: the same for any cut of the bytes, and unchanged by encoding and decoding.

use plimsoll_wire::xds::{
    DiscoveryRequest, FrameDecoder, FrameError, LoadStatsRequest, Message, encode_frame,
};

use super::fields::show;
use super::{Verdict, cuts};

/// The maximum length of a message, in bytes.
const MOST: usize = 4096;

/// Checks the law; panics if it is broken.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let (whole, left) = match messages([input, b""]) {
        Ok(found) => found,
        Err(bad) => {
            for at in some(input) {
                let (begin, rest) = input.split_at(at);
                assert_eq!(messages([begin, rest]), Err(bad), "cut at {at}: {}", show(input));
            }
            return Verdict::Refused;
        }
    };
    for at in some(input) {
        let (begin, rest) = input.split_at(at);
        assert_eq!(messages([begin, rest]), Ok((whole.clone(), left)), "cut at {at}: {}", show(input));
    }
    let understood = whole.iter().filter(|message| {
        let asked = again::<DiscoveryRequest>(message);
        let told = again::<LoadStatsRequest>(message);
        asked || told
    });
    match understood.count() {
        all if all < whole.len() => Verdict::Refused,
        _ if left || whole.is_empty() => Verdict::Partial,
        _ => Verdict::Accepted,
    }
}

/// Returns the offsets at which to cut, a sample for long inputs.
fn some(input: &[u8]) -> impl Iterator<Item = usize> {
    cuts(input).step_by(if input.len() > 128 { 7 } else { 1 })
}

/// Returns the messages, and whether bytes are left.
fn messages(pieces: [&[u8]; 2]) -> Result<(Vec<Vec<u8>>, bool), FrameError> {
    let mut frames = FrameDecoder::new(MOST);
    let mut found = Vec::new();
    for piece in pieces {
        frames.push(piece);
        while let Some(message) = frames.next_message()? {
            assert!(message.len() <= MOST);
            found.push(message);
        }
    }
    Ok((found, !frames.is_empty()))
}

/// Returns `true` if the bytes are a message of this type.
fn again<M: Message + Default>(bytes: &[u8]) -> bool {
    let Ok(message) = M::decode(bytes) else { return false };
    let written = message.encode_to_vec();
    let read = M::decode(&written[..]).unwrap_or_else(|error| panic!("{error}: {}", show(bytes)));
    // The encodings are compared, not the messages: NaN is not equal to itself.
    assert_eq!(read.encode_to_vec(), written, "{}", show(bytes));
    let framed = encode_frame(&message);
    assert_eq!((framed[0], &framed[5..]), (0, &written[..]), "{}", show(bytes));
    true
}
