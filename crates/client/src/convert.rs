//! What a client says and hears, as the brain has it and as datagrams.

use plimsoll_brain::lottery as brain;
use plimsoll_brain::lottery::Message;
use plimsoll_wire::rfs::{self, Keys, Unwritable};

/// What came, for the brain; `None` for what is not a client's affair.
pub(crate) fn read(message: rfs::Message) -> Option<Message> {
    match message {
        rfs::Message::Answer(answer) => {
            let further = answer.further.iter();
            Some(Message::Answer(brain::Answer {
                id: answer.id,
                service: answer.service,
                status: match answer.status {
                    rfs::Status::Ok => brain::Status::Ok,
                    rfs::Status::Busy => brain::Status::Busy,
                    rfs::Status::UnknownService => brain::Status::UnknownService,
                    rfs::Status::Draining => brain::Status::Draining,
                },
                rank: answer.rank,
                ttl: answer.ttl,
                member: answer.member,
                endpoint: answer.endpoint,
                client_time: answer.client_time,
                generation: answer.generation,
                info: answer.info.into(),
                further: further
                    .map(|further| brain::Further { member: further.member, endpoint: further.endpoint })
                    .collect(),
                // Nobody answers an answer.
                room: 0,
            }))
        }
        rfs::Message::Table(rfs::Table { id, generation, part, parts, members }) => {
            // Whom to ask; what they offer they say when they are asked.
            let listed = |listed: rfs::Listed| brain::Listed {
                member: listed.member,
                incarnation: listed.incarnation,
                address: listed.address,
                offers: Vec::new(),
            };
            let members = members.into_iter().map(listed).collect();
            Some(Message::Table(brain::Table { id, generation, part, parts, members }))
        }
        _ => None,
    }
}

/// Appends what the brain wants to send, sealed.
///
/// # Errors
/// It cannot be written, which is never so of a client's; nothing was appended.
pub(crate) fn write(message: Message, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
    match message {
        Message::Request(request) => {
            let least = usize::from(request.room);
            let brain::Request { id, service, attempt, mode, generation, client_time, avoid, info, .. } =
                request;
            let mode = match mode {
                brain::Mode::Referral => rfs::Mode::Referral,
                brain::Mode::Lottery => rfs::Mode::Lottery,
            };
            let request = rfs::Request { id, service, attempt, mode, generation, client_time, avoid, info };
            request.encode(least, keys, out)
        }
        Message::Fetch(brain::Fetch { id, generation, part }) => {
            rfs::Fetch { id, generation, part }.encode(keys, out)
        }
        _ => Err(Unwritable::Contradiction("a client only asks")),
    }
}
