//! Rewrites a message with another ID, and a request with another object, as a relay needs it.
//!
//! Only the head of a request changes. The body, and the fragments that follow, are forwarded unchanged, so
//! the body must keep its alignment. Since 1.2 it begins at a multiple of 8, whatever precedes it. Before 1.2
//! it begins where the head ends. There a meaningless service context of four bytes is inserted if the head
//! would otherwise end 4 bytes off. All parts of a head are aligned to 4, so no other offset can occur.

use super::{
    CdrReader, CdrWriter, GiopError, GiopHeader, GiopRequest, GiopVersion, HEADER_LEN, MessageType,
    ServiceContext, TargetAddress,
};

/// The context that only takes up space; receivers must ignore unknown contexts.
const PADDING_CONTEXT: ServiceContext<'static> = ServiceContext { id: 0x504c_4d00, data: &[0; 4] };

/// The changes to a request.
#[derive(Clone, Copy, Debug)]
pub struct GiopRewrite<'c> {
    /// The new ID.
    pub id: u32,
    /// The key of the new object.
    pub key: &'c [u8],
    /// The context to insert first, unless the request already has one with this ID.
    pub context: Option<ServiceContext<'c>>,
}

/// Appends a request with another ID and another object, and as much of its body as `there` holds.
///
/// `there` is the message or its beginning, from which `header` and `request` were read. The rest of the body
/// is to be forwarded unchanged. So are fragments, except for their ID: see [`set_id`].
///
/// # Errors
/// The message would be longer than 4 GiB.
pub fn request(
    header: &GiopHeader,
    message: &[u8],
    request: &GiopRequest<'_>,
    changes: &GiopRewrite<'_>,
    out: &mut Vec<u8>,
) -> Result<(), GiopError> {
    let base = out.len();
    header.write(out);
    let context = changes.context.filter(|context| request.contexts.find(context.id).is_none());
    let prepended: &[ServiceContext<'_>] = context.as_slice();
    if header.version < GiopVersion::V1_2 {
        write_old_head(header, message, request, changes, prepended, out, base);
        if (out.len() - base) % 8 != request.body_offset % 8 {
            out.truncate(base + HEADER_LEN);
            let padded = [PADDING_CONTEXT, context.unwrap_or(PADDING_CONTEXT)];
            write_old_head(header, message, request, changes, &padded[..=prepended.len()], out, base);
        }
    } else {
        write_new_head(header, message, request, changes, prepended, out, base);
    }
    let body = header.message_len() - request.body_offset;
    let size = u32::try_from(out.len() - base - HEADER_LEN + body);
    let size =
        size.map_err(|_| GiopError::Malformed("a request would be longer than 4 GiB with its new head"))?;
    let mut head = Vec::with_capacity(HEADER_LEN);
    GiopHeader { size, ..*header }.write(&mut head);
    out[base..base + HEADER_LEN].copy_from_slice(&head);
    out.extend_from_slice(request.body);
    Ok(())
}

/// Replaces the ID of a message in place: of a reply for the client, or of a fragment or a cancellation for
/// the server.
///
/// # Errors
/// The message is malformed, or of a kind without an ID. Before 1.2 a fragment has none, and needs none.
pub fn set_id(message: &mut [u8], id: u32) -> Result<(), GiopError> {
    let header = GiopHeader::parse(message)?.ok_or(GiopError::Truncated)?;
    let offset = match header.kind {
        MessageType::Request | MessageType::Reply if header.version < GiopVersion::V1_2 => {
            let mut reader = CdrReader::message(message, header.order, HEADER_LEN);
            super::ServiceContexts::read(&mut reader)?;
            reader.align(4)?;
            reader.position()
        }
        MessageType::CloseConnection | MessageType::MessageError => {
            return Err(GiopError::Malformed("a message has no id"));
        }
        MessageType::Fragment if header.version < GiopVersion::V1_2 => {
            return Err(GiopError::Malformed("a fragment has no id before GIOP 1.2"));
        }
        _ => HEADER_LEN,
    };
    let id_bytes = message.get_mut(offset..offset + 4).ok_or(GiopError::Truncated)?;
    id_bytes.copy_from_slice(&match header.order {
        super::ByteOrder::Big => id.to_be_bytes(),
        super::ByteOrder::Little => id.to_le_bytes(),
    });
    Ok(())
}

/// Writes a head of 1.0 or 1.1: contexts, ID, whether a reply is expected, key, operation, principal.
fn write_old_head(
    header: &GiopHeader,
    message: &[u8],
    request: &GiopRequest<'_>,
    changes: &GiopRewrite<'_>,
    prepended: &[ServiceContext<'_>],
    out: &mut Vec<u8>,
    base: usize,
) {
    let offsets = request.offsets;
    let mut writer = CdrWriter::with_base(out, header.order, base);
    request.contexts.write(prepended, &mut writer);
    writer.u32(changes.id);
    writer.u8(offsets.flags);
    if header.version == GiopVersion::V1_1 {
        writer.bytes(&[0; 3]);
    }
    writer.octets(changes.key);
    writer.align(4);
    writer.bytes(&message[offsets.operation_at..offsets.operation_end]);
}

/// Writes a head of 1.2: ID, the expected response, target, operation, contexts, and the padding before the
/// body.
fn write_new_head(
    header: &GiopHeader,
    message: &[u8],
    request: &GiopRequest<'_>,
    changes: &GiopRewrite<'_>,
    prepended: &[ServiceContext<'_>],
    out: &mut Vec<u8>,
    base: usize,
) {
    let offsets = request.offsets;
    let mut writer = CdrWriter::with_base(out, header.order, base);
    writer.u32(changes.id);
    writer.bytes(&[offsets.flags, 0, 0, 0]);
    TargetAddress::Key(changes.key).write(header.version, &mut writer);
    writer.align(4);
    writer.bytes(&message[offsets.operation_at..offsets.operation_end]);
    request.contexts.write(prepended, &mut writer);
    if header.more_fragments || header.message_len() > request.body_offset {
        writer.align(8);
    }
}
