//! Listeners that an operator closes and opens at runtime. A closed listener behaves as if it were not
//! configured. It keeps its counters, its place, and its state across reloads.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use plimsoll_brain::{Event, EventKind};

use crate::control::bind::distribute;
use crate::control::{ControlPlane, ListenerState};
use crate::worker::WorkerCommand;
use crate::{ListenerSettings, StartError};

/// The number of attempts: workers close their sockets with a delay, and until then this process itself uses
/// the address.
const TRIES: u32 = 50;
/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// The reason why a listener is not opened.
pub(crate) enum ListenerOpenError {
    /// Its address is in use, perhaps by its own previous sockets.
    AddressInUse(String),
    /// Any other reason.
    Other(String),
}

/// Repeats an attempt while the address is in use, for a second.
pub(crate) fn open(mut attempt: impl FnMut() -> Result<bool, ListenerOpenError>) -> Result<bool, String> {
    let mut tries = 0;
    loop {
        match attempt() {
            Ok(opened) => return Ok(opened),
            Err(ListenerOpenError::AddressInUse(_)) if tries < TRIES => tries += 1,
            Err(ListenerOpenError::AddressInUse(why) | ListenerOpenError::Other(why)) => return Err(why),
        }
        sleep(PAUSE);
    }
}

impl ControlPlane {
    /// Implements [`Engine::close_listener`](crate::Engine::close_listener).
    pub(crate) fn close_listener(&mut self, listener: &str) -> Result<bool, String> {
        let place = self.listener_index(listener)?;
        let open = &mut self.listeners[place];
        if open.disabled {
            return Ok(false);
        }
        open.disabled = true;
        open.sockets.clear();
        let id = open.id;
        let told = self.send_to_workers(|| WorkerCommand::Close { id });
        self.write_listener_event(
            place,
            EventKind::Disabled,
            "disabled by an operator: nothing new is accepted",
        );
        if told { Ok(true) } else { Err(StartError::Stuck.to_string()) }
    }

    /// Implements [`Engine::open_listener`](crate::Engine::open_listener).
    pub(crate) fn open_listener(&mut self, listener: &str) -> Result<bool, ListenerOpenError> {
        let place = self.listener_index(listener).map_err(ListenerOpenError::Other)?;
        if !self.listeners[place].disabled {
            return Ok(false);
        }
        let door = Arc::clone(&self.listeners[place].shared);
        let settings = self.settings.listeners[place].clone();
        let Some(groups) = self.groups_of(&settings) else { return Ok(false) };
        // The previous address: if the kernel chose the port, clients know that one.
        let there = ListenerSettings { address: door.address, ..settings.clone() };
        let had = self.bind_listener(&there).and_then(|(_, mut sockets)| {
            let hands = distribute(&there, door.address, &mut sockets, self.cores)?;
            Ok((sockets, hands))
        });
        let (sockets, hands) = had.map_err(|source| {
            let taken = source.kind() == io::ErrorKind::AddrInUse;
            let why = StartError::Bind { address: door.address, source }.to_string();
            if taken { ListenerOpenError::AddressInUse(why) } else { ListenerOpenError::Other(why) }
        })?;
        let id = self.listeners.iter().map(|listener| listener.id + 1).max().unwrap_or(0);
        let opened = ListenerState { id, shared: door, disabled: false, sockets };
        let told = self.start_listener(&opened, &settings, &groups, hands, Vec::new());
        self.listeners[place] = opened;
        self.write_listener_event(place, EventKind::Enabled, "enabled by an operator");
        if told { Ok(true) } else { Err(ListenerOpenError::Other(StartError::Stuck.to_string())) }
    }

    /// Implements [`Engine::listener`](crate::Engine::listener).
    pub(crate) fn listener_name(&self, text: &str) -> Result<String, String> {
        let place = self.listener_index(text)?;
        let (settings, bound) = (&self.settings.listeners[place], self.listeners[place].shared.address);
        let address = if settings.address.port() == 0 { bound } else { settings.address };
        Ok(format!("{}:{address}", settings.label()))
    }

    /// Implements [`Engine::socket_of`](crate::Engine::socket_of).
    pub(crate) fn socket_of(&self, text: &str) -> Result<(SocketAddr, bool), String> {
        let place = self.listener_index(text)?;
        Ok((self.listeners[place].shared.address, self.settings.listeners[place].protocol.is_datagram()))
    }

    /// Returns the index of the listener with this name.
    fn listener_index(&self, text: &str) -> Result<usize, String> {
        let (protocol, address) = match PROTOCOLS
            .iter()
            .find_map(|name| Some((*name, text.strip_prefix(name)?.strip_prefix(':')?)))
        {
            Some((protocol, address)) => (Some(protocol), address),
            None => (None, text),
        };
        let listeners = || self.settings.listeners.iter().zip(&self.listeners).enumerate();
        let meant = listeners().filter(|(_, (settings, open))| {
            let here = settings.address.to_string() == address || open.shared.address.to_string() == address;
            here && protocol.is_none_or(|protocol| protocol == settings.label())
        });
        let places: Vec<usize> = meant.map(|(place, _)| place).collect();
        let all = || {
            let names = listeners()
                .map(|(_, (settings, open))| format!("{}:{}", settings.label(), open.shared.address));
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

    fn write_listener_event(&mut self, place: usize, kind: EventKind, why: &str) {
        let settings = &self.settings.listeners[place];
        let address = self.listeners[place].shared.address;
        let why = format!("listener {} {address}: {why}", settings.label());
        let group = Arc::clone(&settings.group);
        self.event_log.write(Event { kind, group, member: None, why, inputs: Vec::new() });
    }
}

/// The prefixes of listeners' names.
const PROTOCOLS: [&str; 8] = ["http", "https", "tcp", "udp", "iiop", "dns", "dns_tcp", "xds"];
