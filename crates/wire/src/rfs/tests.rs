mod golden;
mod keys;
mod laws;
mod limits;
mod malformed;
mod replay;

use super::*;

/// The key of the examples: number 7, the secret counts from 0 to 31.
fn keys() -> Keys {
    Keys::new(Key::new(7, &std::array::from_fn(|at| at as u8)))
}

/// What a datagram says under the key of the examples.
fn read(datagram: &[u8]) -> Result<Message, Refused> {
    keys().open(datagram)?.message()
}

/// What these bytes say when they are sealed, with the length that they have then.
fn resealed(bytes: &[u8]) -> Result<Message, Refused> {
    let mut datagram = bytes.to_vec();
    if let Some(length) = datagram.get_mut(6..8) {
        length.copy_from_slice(&((bytes.len() + TRAILER) as u16).to_be_bytes());
    }
    keys().seal(0, &mut datagram);
    read(&datagram)
}

/// The room that a request of so many bytes has.
fn room(len: usize) -> Room {
    let request = Request {
        id: 1,
        service: 1,
        attempt: 0,
        mode: Mode::Referral,
        generation: 0,
        client_time: 0,
        avoid: Vec::new(),
        info: Vec::new(),
    };
    let mut out = Vec::new();
    request.encode(len, &keys(), &mut out).unwrap();
    match read(&out) {
        Ok(Message::Request(again, room)) if again == request => room,
        other => panic!("{other:?}"),
    }
}

/// Writes any message; an answer in as much room as there can be.
fn written(message: &Message) -> Result<Vec<u8>, Unwritable> {
    let (keys, mut out) = (keys(), Vec::new());
    match message {
        Message::Request(request, room) => request.encode(room.bytes(), &keys, &mut out),
        Message::Answer(answer) => answer.encode(room(LONGEST), &keys, &mut out),
        Message::Commit(commit) => commit.encode(&keys, &mut out),
        Message::Report(report) => report.encode(&keys, &mut out),
        Message::Fetch(fetch, _) => fetch.encode(&keys, &mut out),
        Message::Table(table) => table.encode(room(LONGEST), &keys, &mut out),
    }?;
    Ok(out)
}
