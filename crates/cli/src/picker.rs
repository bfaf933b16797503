//! The load generator's picker: a client of the lottery.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use plimsoll_bench::pick::{Picked, Picker, Settings};
use plimsoll_client::{self as client, Client, KeySource, Mode};

/// A client that asks for one service.
#[derive(Debug)]
struct Lottery {
    client: Client,
    service: u32,
}

/// Opens a client.
///
/// # Errors
/// Fails if the service is invalid, the keys cannot be read, or the system gives no socket.
pub(crate) fn open(settings: &Settings) -> Result<Box<dyn Picker>, String> {
    let Settings { service, daemons, keys, multicast, interface, lottery } = settings;
    let service = client::service(service)?;
    let client = Client::open(client::Settings {
        multicast: *multicast,
        interface: *interface,
        mode: if *lottery { Mode::Lottery } else { Mode::Referral },
        ..client::Settings::new(daemons.clone(), KeySource::File(keys.clone()))
    })
    .map_err(|error| error.to_string())?;
    Ok(Box::new(Lottery { client, service }))
}

impl Picker for Lottery {
    fn ask(&mut self, tag: u64) -> bool {
        self.client.ask(tag, self.service, b"").is_ok()
    }

    fn process(&mut self) {
        // The rest, if there is more, makes the descriptor readable again.
        self.client.process();
    }

    fn next(&mut self) -> Option<(u64, Option<Picked>)> {
        let (tag, pick) = self.client.next()?;
        Some((tag, pick.ok().map(|pick| Picked { member: pick.member, address: pick.address })))
    }

    fn timeout(&self) -> Option<Duration> {
        self.client.timeout()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.client.as_fd()
    }

    fn failed(&mut self, member: u16) {
        self.client.failed(member);
    }

    fn answered_twice(&self) -> u64 {
        self.client.answered_twice()
    }
}
