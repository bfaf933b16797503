//! Listeners that an operator closes and opens at runtime. A closed listener behaves as if it were not
//! configured. It keeps its counters, its place, and its state across reloads.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use plimsoll_brain::{Event, EventKind};

use crate::bind::deal;
use crate::control::{Control, Opened};
use crate::worker::Order;
use crate::{ListenerSettings, StartError};

/// The number of attempts: workers close their sockets with a delay, and until then this process itself uses
/// the address.
const TRIES: u32 = 50;
/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// The reason why a listener is not opened.
pub(crate) enum Refusal {
    /// Its address is in use, perhaps by its own previous sockets.
    Taken(String),
    /// Any other reason.
    Other(String),
}

/// Repeats an attempt while the address is in use, for a second.
pub(crate) fn open(mut attempt: impl FnMut() -> Result<bool, Refusal>) -> Result<bool, String> {
    let mut tries = 0;
    loop {
        match attempt() {
            Ok(opened) => return Ok(opened),
            Err(Refusal::Taken(_)) if tries < TRIES => tries += 1,
            Err(Refusal::Taken(why) | Refusal::Other(why)) => return Err(why),
        }
        sleep(PAUSE);
    }
}

impl Control {
    /// Implements [`Engine::close_listener`](crate::Engine::close_listener).
    pub(crate) fn close_listener(&mut self, listener: &str) -> Result<bool, String> {
        let place = self.listener(listener)?;
        let open = &mut self.listeners[place];
        if open.disabled {
            return Ok(false);
        }
        open.disabled = true;
        open.sockets.clear();
        let id = open.id;
        let told = self.order_all(|| Order::Close { id });
        self.tell(place, EventKind::Disabled, "disabled by an operator: nothing new is accepted");
        if told { Ok(true) } else { Err(StartError::Stuck.to_string()) }
    }

    /// Implements [`Engine::open_listener`](crate::Engine::open_listener).
    pub(crate) fn open_listener(&mut self, listener: &str) -> Result<bool, Refusal> {
        let place = self.listener(listener).map_err(Refusal::Other)?;
        if !self.listeners[place].disabled {
            return Ok(false);
        }
        let door = Arc::clone(&self.listeners[place].door);
        let settings = self.settings.listeners[place].clone();
        let Some(groups) = self.groups_of(&settings) else { return Ok(false) };
        // The previous address: if the kernel chose the port, clients know that one.
        let there = ListenerSettings { address: door.address, ..settings.clone() };
        let had = self.bind_listener(&there).and_then(|(_, mut sockets)| {
            let hands = deal(&there, door.address, &mut sockets, self.cores)?;
            Ok((sockets, hands))
        });
        let (sockets, hands) = had.map_err(|source| {
            let taken = source.kind() == io::ErrorKind::AddrInUse;
            let why = StartError::Bind { address: door.address, source }.to_string();
            if taken { Refusal::Taken(why) } else { Refusal::Other(why) }
        })?;
        let id = self.listeners.iter().map(|listener| listener.id + 1).max().unwrap_or(0);
        let opened = Opened { id, door, disabled: false, sockets };
        let told = self.listen(&opened, &settings, &groups, hands, Vec::new());
        self.listeners[place] = opened;
        self.tell(place, EventKind::Enabled, "enabled by an operator");
        if told { Ok(true) } else { Err(Refusal::Other(StartError::Stuck.to_string())) }
    }

    /// Implements [`Engine::listener`](crate::Engine::listener).
    pub(crate) fn name_of_listener(&self, text: &str) -> Result<String, String> {
        let place = self.listener(text)?;
        let (settings, bound) = (&self.settings.listeners[place], self.listeners[place].door.address);
        let address = if settings.address.port() == 0 { bound } else { settings.address };
        Ok(format!("{}:{address}", settings.label()))
    }

    /// Implements [`Engine::socket_of`](crate::Engine::socket_of).
    pub(crate) fn socket_of(&self, text: &str) -> Result<(SocketAddr, bool), String> {
        let place = self.listener(text)?;
        Ok((self.listeners[place].door.address, self.settings.listeners[place].protocol.datagrams()))
    }

    /// Returns the index of the listener with this name.
    fn listener(&self, text: &str) -> Result<usize, String> {
        let (protocol, address) = match PROTOCOLS
            .iter()
            .find_map(|name| Some((*name, text.strip_prefix(name)?.strip_prefix(':')?)))
        {
            Some((protocol, address)) => (Some(protocol), address),
            None => (None, text),
        };
        let listeners = || self.settings.listeners.iter().zip(&self.listeners).enumerate();
        let meant = listeners().filter(|(_, (settings, open))| {
            let here = settings.address.to_string() == address || open.door.address.to_string() == address;
            here && protocol.is_none_or(|protocol| protocol == settings.label())
        });
        let places: Vec<usize> = meant.map(|(place, _)| place).collect();
        let all = || {
            let names = listeners()
                .map(|(_, (settings, open))| format!("{}:{}", settings.label(), open.door.address));
            names.collect::<Vec<_>>().join(", ")
        };
        match places[..] {
            [place] => Ok(place),
            [] => Err(format!("there is no listener {text}; there are: {}", all())),
            _ => {
                Err(format!("{text} is more than one listener: name the protocol, too; there are: {}", all()))
            }
        }
    }

    fn tell(&mut self, place: usize, kind: EventKind, why: &str) {
        let settings = &self.settings.listeners[place];
        let address = self.listeners[place].door.address;
        let why = format!("listener {} {address}: {why}", settings.label());
        let group = Arc::clone(&settings.group);
        self.journal.write(Event { kind, group, member: None, why, inputs: Vec::new() });
    }
}

/// The prefixes of listeners' names.
const PROTOCOLS: [&str; 8] = ["http", "https", "tcp", "udp", "iiop", "dns", "dns_tcp", "xds"];
