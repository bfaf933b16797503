//! Messages as the brain has them and as datagrams: the one place where both are named.
//!
//! They say the same. The brain shares an application's information among many answers (`Arc`), and carries the room of an
//! answer as a number from the request to the answer.

use plimsoll_brain::lottery as brain;
use plimsoll_brain::lottery::Message;
use plimsoll_wire::rfs::{self, Keys, Room, Unwritable};

/// What came, for the brain.
pub(super) fn read(message: rfs::Message) -> Message {
    match message {
        rfs::Message::Request(request, room) => {
            let rfs::Request { id, service, attempt, mode, generation, client_time, avoid, info } = request;
            let mode = match mode {
                rfs::Mode::Referral => brain::Mode::Referral,
                rfs::Mode::Lottery => brain::Mode::Lottery,
            };
            let room = u16::try_from(room.bytes()).unwrap_or(u16::MAX);
            Message::Request(brain::Request {
                id,
                service,
                attempt,
                mode,
                generation,
                client_time,
                avoid,
                info,
                room,
            })
        }
        rfs::Message::Answer(answer) => {
            let further = answer.further.iter();
            Message::Answer(brain::Answer {
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
            })
        }
        rfs::Message::Commit(rfs::Commit { member, incarnation, ids }) => {
            Message::Commit(brain::Commit { member, incarnation, ids })
        }
        rfs::Message::Report(report) => {
            let rfs::Report { member, incarnation, seq, state, digest, services, ids } = report;
            let state = match state {
                rfs::Standing::Joining => brain::Standing::Joining,
                rfs::Standing::Up => brain::Standing::Up,
                rfs::Standing::Draining => brain::Standing::Draining,
                rfs::Standing::Leaving => brain::Standing::Leaving,
            };
            let share = |share: rfs::Share| {
                let rfs::Share { service, capacity, weight, load, in_flight } = share;
                brain::Share { service, capacity, weight, load, in_flight }
            };
            let services = services.into_iter().map(share).collect();
            Message::Report(brain::Report { member, incarnation, seq, state, digest, services, ids })
        }
        rfs::Message::Fetch(rfs::Fetch { id, generation, part }, _) => {
            Message::Fetch(brain::Fetch { id, generation, part })
        }
        rfs::Message::Table(rfs::Table { id, generation, part, parts, members }) => {
            let offer = |rfs::Offer { service, capacity, endpoint, info }: rfs::Offer| brain::Offer {
                service,
                capacity,
                endpoint,
                info: info.into(),
            };
            let listed = |listed: rfs::Listed| brain::Listed {
                member: listed.member,
                incarnation: listed.incarnation,
                address: listed.address,
                offers: listed.offers.into_iter().map(offer).collect(),
            };
            let members = members.into_iter().map(listed).collect();
            Message::Table(brain::Table { id, generation, part, parts, members })
        }
    }
}

/// Appends what the brain wants to send, sealed. An answer names as many further members as there is room for.
///
/// # Errors
/// It cannot be written: an answer's information is longer than its client made room for, or somebody else's table has more
/// in it than a datagram. Nothing was appended.
pub(super) fn write(message: Message, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
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
        Message::Answer(answer) => {
            let room = Room::again(answer.room);
            let further = answer.further.iter();
            let mut answer = rfs::Answer {
                id: answer.id,
                service: answer.service,
                status: match answer.status {
                    brain::Status::Ok => rfs::Status::Ok,
                    brain::Status::Busy => rfs::Status::Busy,
                    brain::Status::UnknownService => rfs::Status::UnknownService,
                    brain::Status::Draining => rfs::Status::Draining,
                },
                rank: answer.rank,
                ttl: answer.ttl,
                member: answer.member,
                endpoint: answer.endpoint,
                client_time: answer.client_time,
                generation: answer.generation,
                info: answer.info.to_vec(),
                further: further
                    .map(|further| rfs::Further { member: further.member, endpoint: further.endpoint })
                    .collect(),
            };
            answer.further.truncate(answer.further_that_fit(room));
            answer.encode(room, keys, out)
        }
        Message::Commit(brain::Commit { member, incarnation, ids }) => {
            rfs::Commit { member, incarnation, ids }.encode(keys, out)
        }
        Message::Report(report) => {
            let brain::Report { member, incarnation, seq, state, digest, services, ids } = report;
            let state = match state {
                brain::Standing::Joining => rfs::Standing::Joining,
                brain::Standing::Up => rfs::Standing::Up,
                brain::Standing::Draining => rfs::Standing::Draining,
                brain::Standing::Leaving => rfs::Standing::Leaving,
            };
            let share = |share: brain::Share| {
                let brain::Share { service, capacity, weight, load, in_flight } = share;
                rfs::Share { service, capacity, weight, load, in_flight }
            };
            let services = services.into_iter().map(share).collect();
            rfs::Report { member, incarnation, seq, state, digest, services, ids }.encode(keys, out)
        }
        Message::Fetch(brain::Fetch { id, generation, part }) => {
            rfs::Fetch { id, generation, part }.encode(keys, out)
        }
        Message::Table(table) => {
            let brain::Table { id, generation, part, parts, members } = table;
            let members = members.into_iter().map(listed).collect();
            // What asked for it had the length of the longest there is.
            let room = Room::again(rfs::LONGEST as u16);
            rfs::Table { id, generation, part, parts, members }.encode(room, keys, out)
        }
    }
}

fn listed(listed: brain::Listed) -> rfs::Listed {
    let offer = |brain::Offer { service, capacity, endpoint, info }: brain::Offer| rfs::Offer {
        service,
        capacity,
        endpoint,
        info: info.to_vec(),
    };
    let brain::Listed { member, incarnation, address, offers } = listed;
    rfs::Listed { member, incarnation, address, offers: offers.into_iter().map(offer).collect() }
}

#[cfg(test)]
mod tests;
