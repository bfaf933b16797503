//! The load generator's picker: a client of the lottery.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use plimsoll_bench::pick::{MemberPicker, PickedMember, PickerSettings};
use plimsoll_client::{self as client, AnswerMode, Client, KeySource};

/// A client that asks for one service.
#[derive(Debug)]
struct LotteryPicker {
    client: Client,
    service: u32,
}

/// Opens a client.
///
/// # Errors
/// Fails if the service is invalid, the keys cannot be read, or the system gives no socket.
pub(crate) fn open(settings: &PickerSettings) -> Result<Box<dyn MemberPicker>, String> {
    let PickerSettings { service, daemons, keys, multicast, interface, lottery } = settings;
    let service = client::service(service)?;
    let client = Client::open(client::ClientSettings {
        multicast: *multicast,
        interface: *interface,
        mode: if *lottery { AnswerMode::Lottery } else { AnswerMode::Referral },
        ..client::ClientSettings::new(daemons.clone(), KeySource::File(keys.clone()))
    })
    .map_err(|error| error.to_string())?;
    Ok(Box::new(LotteryPicker { client, service }))
}

impl MemberPicker for LotteryPicker {
    fn request_pick(&mut self, tag: u64) -> bool {
        self.client.start_request(tag, self.service, b"").is_ok()
    }

    fn process(&mut self) {
        // The rest, if there is more, makes the descriptor readable again.
        self.client.process();
    }

    fn next_pick(&mut self) -> Option<(u64, Option<PickedMember>)> {
        let (tag, pick) = self.client.next_outcome()?;
        Some((tag, pick.ok().map(|pick| PickedMember { member: pick.member, address: pick.address })))
    }

    fn timeout(&self) -> Option<Duration> {
        self.client.timeout()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.client.as_fd()
    }

    fn report_failure(&mut self, member: u16) {
        self.client.record_failure(member);
    }

    fn duplicate_picks(&self) -> u64 {
        self.client.answered_twice()
    }
}
