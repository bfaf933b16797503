mod golden;
mod keys;
mod laws;
mod limits;
mod malformed;
mod replay;
mod roles;
mod tables;

use super::*;

/// Returns the key of the examples: number 7, with the bytes 0 to 31 as its secret.
fn keys() -> KeyRing {
    KeyRing::new(DatagramKey::new(7, &std::array::from_fn(|index| index as u8)))
}

/// Decodes a datagram with the key of the examples.
fn read(datagram: &[u8]) -> Result<LotteryMessage, DatagramDecodeError> {
    keys().open(datagram)?.message()
}

/// Seals these bytes with their current length, and decodes the result.
fn resealed(bytes: &[u8]) -> Result<LotteryMessage, DatagramDecodeError> {
    let mut datagram = bytes.to_vec();
    if let Some(length) = datagram.get_mut(6..8) {
        length.copy_from_slice(&((bytes.len() + TRAILER_LEN) as u16).to_be_bytes());
    }
    keys().seal(0, &mut datagram);
    read(&datagram)
}

/// Encodes any message, an answer with the maximum room.
fn written(message: &LotteryMessage) -> Result<Vec<u8>, DatagramEncodeError> {
    let (mut message, mut out) = (message.clone(), Vec::new());
    if let LotteryMessage::Answer(answer) = &mut message {
        answer.max_bytes = MAX_DATAGRAM_LEN as u16;
    }
    message.encode(&keys(), &mut out)?;
    Ok(out)
}

/// Clears the room of a message.
fn roomless(mut message: LotteryMessage) -> LotteryMessage {
    match &mut message {
        LotteryMessage::Request(request) => request.max_answer_bytes = 0,
        LotteryMessage::Answer(answer) => answer.max_bytes = 0,
        _ => {}
    }
    message
}
