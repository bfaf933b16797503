//! A message given another id, and a request another object: what a relay does to what passes through it.
//!
//! Only the head of a request changes, and only up to where its body begins; the body, and the fragments that follow,
//! are passed on as they are. That needs the body to keep its alignment. Since 1.2 it begins at a multiple of 8, whatever
//! precedes it. Before, it begins where the head ends: there a service context of four bytes that mean nothing is put in
//! front if the head would otherwise end 4 bytes off (all of a head is aligned to 4, so that no other case can be).

use super::{BadGiop, Context, HEADER, Header, Kind, Reader, Request, Target, Version, Writer};

/// The id of the context that only takes up room; what a receiver does not know it must leave aside.
const ROOM: Context<'static> = Context { id: 0x504c_4d00, data: &[0; 4] };

/// What a request is given.
#[derive(Clone, Copy, Debug)]
pub struct Change<'c> {
    /// Its new id.
    pub id: u32,
    /// The key of the object that it goes to instead.
    pub key: &'c [u8],
    /// What is put in front of its contexts, unless it has one of that id itself.
    pub context: Option<Context<'c>>,
}

/// Appends a request with another id and another object, and as much of its body as `there` has.
///
/// `there` is the message or its beginning, the one that `header` and `request` were read from. What follows it (of the
/// body, and fragments) is to be passed on as it is, but for the id of the fragments: see [`set_id`].
///
/// # Errors
/// The message would be longer than 4 GiB.
pub fn request(
    header: &Header,
    there: &[u8],
    request: &Request<'_>,
    change: &Change<'_>,
    out: &mut Vec<u8>,
) -> Result<(), BadGiop> {
    let base = out.len();
    header.write(out);
    let context = change.context.filter(|context| request.contexts.find(context.id).is_none());
    let before: &[Context<'_>] = context.as_slice();
    if header.version < Version::V1_2 {
        old_head(header, there, request, change, before, out, base);
        if (out.len() - base) % 8 != request.body_at % 8 {
            out.truncate(base + HEADER);
            let padded = [ROOM, context.unwrap_or(ROOM)];
            old_head(header, there, request, change, &padded[..=before.len()], out, base);
        }
    } else {
        new_head(header, there, request, change, before, out, base);
    }
    let body = header.total() - request.body_at;
    let size = u32::try_from(out.len() - base - HEADER + body);
    let size =
        size.map_err(|_| BadGiop::Malformed("a request would be longer than 4 GiB with its new head"))?;
    let mut head = Vec::with_capacity(HEADER);
    Header { size, ..*header }.write(&mut head);
    out[base..base + HEADER].copy_from_slice(&head);
    out.extend_from_slice(request.body);
    Ok(())
}

/// Gives a message another id, in place: a reply on its way back, a fragment or a cancellation on its way on.
///
/// # Errors
/// It is malformed, or of a kind that has no id (before 1.2 a fragment has none, and needs none).
pub fn set_id(message: &mut [u8], id: u32) -> Result<(), BadGiop> {
    let header = Header::parse(message)?.ok_or(BadGiop::Truncated)?;
    let at = match header.kind {
        Kind::Request | Kind::Reply if header.version < Version::V1_2 => {
            let mut reader = Reader::message(message, header.order, HEADER);
            super::Contexts::read(&mut reader)?;
            reader.align(4)?;
            reader.position()
        }
        Kind::CloseConnection | Kind::MessageError => return Err(BadGiop::Malformed("a message has no id")),
        Kind::Fragment if header.version < Version::V1_2 => {
            return Err(BadGiop::Malformed("a fragment has no id before GIOP 1.2"));
        }
        _ => HEADER,
    };
    let place = message.get_mut(at..at + 4).ok_or(BadGiop::Truncated)?;
    place.copy_from_slice(&match header.order {
        super::Order::Big => id.to_be_bytes(),
        super::Order::Little => id.to_le_bytes(),
    });
    Ok(())
}

/// 1.0 and 1.1: contexts, id, whether a reply is wanted, key, operation, principal.
fn old_head(
    header: &Header,
    there: &[u8],
    request: &Request<'_>,
    change: &Change<'_>,
    before: &[Context<'_>],
    out: &mut Vec<u8>,
    base: usize,
) {
    let spans = request.spans;
    let mut writer = Writer::with_base(out, header.order, base);
    request.contexts.write(before, &mut writer);
    writer.u32(change.id);
    writer.u8(spans.flags);
    if header.version == Version::V1_1 {
        writer.bytes(&[0; 3]);
    }
    writer.octets(change.key);
    writer.align(4);
    writer.bytes(&there[spans.operation_at..spans.operation_end]);
}

/// 1.2: id, what is wanted, target, operation, contexts, and the padding of the body.
fn new_head(
    header: &Header,
    there: &[u8],
    request: &Request<'_>,
    change: &Change<'_>,
    before: &[Context<'_>],
    out: &mut Vec<u8>,
    base: usize,
) {
    let spans = request.spans;
    let mut writer = Writer::with_base(out, header.order, base);
    writer.u32(change.id);
    writer.bytes(&[spans.flags, 0, 0, 0]);
    Target::Key(change.key).write(header.version, &mut writer);
    writer.align(4);
    writer.bytes(&there[spans.operation_at..spans.operation_end]);
    request.contexts.write(before, &mut writer);
    if header.more || header.total() > request.body_at {
        writer.align(8);
    }
}
