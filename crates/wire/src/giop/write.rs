//! Messages made from nothing. Each is appended to a vector, in the version and byte order of what it answers.

use super::{
    Context, Contexts, HEADER, Header, Ior, Kind, LocateStatus, Order, Status, SystemException, Target,
    Version, Wanted, Writer,
};

/// What is said at the head of a request.
#[derive(Clone, Copy, Debug)]
pub struct Head<'h> {
    /// The sender's number for it, unique on its connection.
    pub id: u32,
    /// What is to be answered. Before 1.2 anything but [`Wanted::Nothing`] asks for the result.
    pub wanted: Wanted,
    /// The object.
    pub target: Target<'h>,
    /// The operation's name, without a NUL.
    pub operation: &'h [u8],
    /// What travels beside it.
    pub contexts: &'h [Context<'h>],
}

/// A version and an order of bytes: those of a request are those of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// The version.
    pub version: Version,
    /// The order of bytes.
    pub order: Order,
}

impl Header {
    /// What an answer to this is to be written in.
    pub fn form(&self) -> Form {
        Form { version: self.version, order: self.order }
    }
}

/// A request, its arguments written by `body`.
pub fn request(out: &mut Vec<u8>, form: Form, head: &Head<'_>, body: impl FnOnce(&mut Writer<'_>)) {
    message(out, form, Kind::Request, |writer| {
        let wanted: u8 = match head.wanted {
            Wanted::Nothing => 0,
            Wanted::Arrival => 1,
            Wanted::Result => 3,
        };
        if form.version < Version::V1_2 {
            Contexts::NONE.write(head.contexts, writer);
            writer.u32(head.id);
            writer.bool(wanted != 0);
            if form.version == Version::V1_1 {
                writer.bytes(&[0; 3]);
            }
            head.target.write(form.version, writer);
            writer.string(head.operation);
            writer.octets(&[]); // the principal
        } else {
            writer.u32(head.id);
            writer.bytes(&[wanted, 0, 0, 0]);
            head.target.write(form.version, writer);
            writer.string(head.operation);
            Contexts::NONE.write(head.contexts, writer);
        }
        aligned(form.version, writer, body);
    });
}

/// A reply, its result written by `body`.
pub fn reply(
    out: &mut Vec<u8>,
    form: Form,
    id: u32,
    status: Status,
    contexts: &[Context<'_>],
    body: impl FnOnce(&mut Writer<'_>),
) {
    message(out, form, Kind::Reply, |writer| {
        if form.version < Version::V1_2 {
            Contexts::NONE.write(contexts, writer);
            writer.u32(id);
            writer.u32(status as u32);
        } else {
            writer.u32(id);
            writer.u32(status as u32);
            Contexts::NONE.write(contexts, writer);
        }
        aligned(form.version, writer, body);
    });
}

/// The reply that a request failed, and why.
pub fn exception(out: &mut Vec<u8>, form: Form, id: u32, why: &SystemException<'_>) {
    reply(out, form, id, Status::SystemException, &[], |writer| why.write(writer));
}

/// The reply that the object is elsewhere, for now: the client sends its request there, and comes back if that fails.
///
/// The reference should say the object's type: some clients take one without for no reference at all.
pub fn forward(out: &mut Vec<u8>, form: Form, id: u32, to: &Ior) {
    reply(out, form, id, Status::Forward, &[], |writer| to.write(writer));
}

/// Where is an object?
pub fn locate_request(out: &mut Vec<u8>, form: Form, id: u32, target: &Target<'_>) {
    message(out, form, Kind::LocateRequest, |writer| {
        writer.u32(id);
        target.write(form.version, writer);
    });
}

/// It is here, or it is nowhere: an answer that needs no more words.
pub fn located(out: &mut Vec<u8>, form: Form, id: u32, here: bool) {
    let status = if here { LocateStatus::Here } else { LocateStatus::Unknown };
    locate_reply(out, form, id, status, |_| ());
}

/// It is elsewhere, for now.
pub fn locate_forward(out: &mut Vec<u8>, form: Form, id: u32, to: &Ior) {
    locate_reply(out, form, id, LocateStatus::Forward, |writer| to.write(writer));
}

/// That could not be found out. Before 1.2 there is no saying so; then the object is said to be here, so that the client
/// sends its request and is told why in the reply.
pub fn locate_exception(out: &mut Vec<u8>, form: Form, id: u32, why: &SystemException<'_>) {
    if form.version < Version::V1_2 {
        return located(out, form, id, true);
    }
    locate_reply(out, form, id, LocateStatus::SystemException, |writer| why.write(writer));
}

/// A request is of no more interest.
pub fn cancel(out: &mut Vec<u8>, form: Form, id: u32) {
    message(out, form, Kind::CancelRequest, |writer| writer.u32(id));
}

/// The connection is closed: requests that have no reply were not performed.
pub fn close(out: &mut Vec<u8>, form: Form) {
    message(out, form, Kind::CloseConnection, |_| ());
}

/// What was read was not understood.
pub fn error(out: &mut Vec<u8>, form: Form) {
    message(out, form, Kind::MessageError, |_| ());
}

/// A locate reply, what its status needs written by `body`, which is not aligned to 8 in any version.
pub fn locate_reply(
    out: &mut Vec<u8>,
    form: Form,
    id: u32,
    status: LocateStatus,
    body: impl FnOnce(&mut Writer<'_>),
) {
    message(out, form, Kind::LocateReply, |writer| {
        writer.u32(id);
        writer.u32(status as u32);
        body(writer);
    });
}

impl SystemException<'_> {
    /// Appends it.
    pub fn write(&self, writer: &mut Writer<'_>) {
        writer.string(self.type_id);
        writer.u32(self.minor);
        writer.u32(self.completed as u32);
    }
}

fn message(out: &mut Vec<u8>, form: Form, kind: Kind, content: impl FnOnce(&mut Writer<'_>)) {
    let base = out.len();
    Header { version: form.version, order: form.order, more: false, kind, size: 0 }.write(out);
    let mut writer = Writer::with_base(out, form.order, base);
    content(&mut writer);
    let size = writer.position() - HEADER;
    writer.patch_u32(base + 8, size);
}

/// A body at the next multiple of 8 since 1.2, unless there is none.
fn aligned(version: Version, writer: &mut Writer<'_>, body: impl FnOnce(&mut Writer<'_>)) {
    if version < Version::V1_2 {
        return body(writer);
    }
    let end = writer.out().len();
    writer.align(8);
    let begin = writer.out().len();
    body(writer);
    if writer.out().len() == begin {
        writer.out().truncate(end);
    }
}
