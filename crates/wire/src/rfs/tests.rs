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
fn keys() -> Keys {
    Keys::new(Key::new(7, &std::array::from_fn(|at| at as u8)))
}

/// Decodes a datagram with the key of the examples.
fn read(datagram: &[u8]) -> Result<Message, Refused> {
    keys().open(datagram)?.message()
}

/// Seals these bytes with their current length, and decodes the result.
fn resealed(bytes: &[u8]) -> Result<Message, Refused> {
    let mut datagram = bytes.to_vec();
    if let Some(length) = datagram.get_mut(6..8) {
        length.copy_from_slice(&((bytes.len() + TRAILER) as u16).to_be_bytes());
    }
    keys().seal(0, &mut datagram);
    read(&datagram)
}

/// Encodes any message, an answer with the maximum room.
fn written(message: &Message) -> Result<Vec<u8>, Unwritable> {
    let (mut message, mut out) = (message.clone(), Vec::new());
    if let Message::Answer(answer) = &mut message {
        answer.room = LONGEST as u16;
    }
    message.encode(&keys(), &mut out)?;
    Ok(out)
}

/// Clears the room of a message.
fn roomless(mut message: Message) -> Message {
    match &mut message {
        Message::Request(request) => request.room = 0,
        Message::Answer(answer) => answer.room = 0,
        _ => {}
    }
    message
}
