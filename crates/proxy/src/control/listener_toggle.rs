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
const MAX_ATTEMPTS: u32 = 50;
/// The time between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// The reason why a listener is not opened.
pub(crate) enum ListenerOpenError {
    /// Its address is in use, perhaps by its own previous sockets.
    AddressInUse(String),
    /// Any other reason.
    Other(String),
}

/// Repeats an attempt while the address is in use, for a second.
pub(crate) fn open(mut attempt: impl FnMut() -> Result<bool, ListenerOpenError>) -> Result<bool, String> {
    let mut attempts = 0;
    loop {
        match attempt() {
            Ok(opened) => return Ok(opened),
            Err(ListenerOpenError::AddressInUse(_)) if attempts < MAX_ATTEMPTS => attempts += 1,
            Err(ListenerOpenError::AddressInUse(message) | ListenerOpenError::Other(message)) => {
                return Err(message);
            }
        }
        sleep(RETRY_DELAY);
    }
}

impl ControlPlane {
    /// Implements [`Engine::close_listener`](crate::Engine::close_listener).
    pub(crate) fn close_listener(&mut self, listener: &str) -> Result<bool, String> {
        let index = self.listener_index(listener)?;
        let listener = &mut self.listeners[index];
        if listener.disabled {
            return Ok(false);
        }
        listener.disabled = true;
        listener.sockets.clear();
        let id = listener.id;
        let all_sent = self.send_to_workers(|| WorkerCommand::Close { id });
        self.write_listener_event(
            index,
            EventKind::Disabled,
            "disabled by an operator: nothing new is accepted",
        );
        if all_sent { Ok(true) } else { Err(StartError::Stuck.to_string()) }
    }

    /// Implements [`Engine::open_listener`](crate::Engine::open_listener).
    pub(crate) fn open_listener(&mut self, listener: &str) -> Result<bool, ListenerOpenError> {
        let index = self.listener_index(listener).map_err(ListenerOpenError::Other)?;
        if !self.listeners[index].disabled {
            return Ok(false);
        }
        let shared = Arc::clone(&self.listeners[index].shared);
        let settings = self.settings.listeners[index].clone();
        let Some(groups) = self.groups_of(&settings) else { return Ok(false) };
        // The previous address: if the kernel chose the port, clients know that one.
        let bound_settings = ListenerSettings { address: shared.address, ..settings.clone() };
        let bound = self.bind_listener(&bound_settings).and_then(|(_, mut sockets)| {
            let core_sockets = distribute(&bound_settings, shared.address, &mut sockets, self.cores)?;
            Ok((sockets, core_sockets))
        });
        let (sockets, core_sockets) = bound.map_err(|source| {
            let in_use = source.kind() == io::ErrorKind::AddrInUse;
            let message = StartError::Bind { address: shared.address, source }.to_string();
            if in_use { ListenerOpenError::AddressInUse(message) } else { ListenerOpenError::Other(message) }
        })?;
        let id = self.listeners.iter().map(|listener| listener.id + 1).max().unwrap_or(0);
        let listener = ListenerState { id, shared, disabled: false, sockets };
        let all_sent = self.start_listener(&listener, &settings, &groups, core_sockets, Vec::new());
        self.listeners[index] = listener;
        self.write_listener_event(index, EventKind::Enabled, "enabled by an operator");
        if all_sent { Ok(true) } else { Err(ListenerOpenError::Other(StartError::Stuck.to_string())) }
    }

    /// Implements [`Engine::listener`](crate::Engine::listener).
    pub(crate) fn listener_name(&self, text: &str) -> Result<String, String> {
        let index = self.listener_index(text)?;
        let (settings, bound) = (&self.settings.listeners[index], self.listeners[index].shared.address);
        let address = if settings.address.port() == 0 { bound } else { settings.address };
        Ok(format!("{}:{address}", settings.label()))
    }

    /// Implements [`Engine::socket_of`](crate::Engine::socket_of).
    pub(crate) fn socket_of(&self, text: &str) -> Result<(SocketAddr, bool), String> {
        let index = self.listener_index(text)?;
        Ok((self.listeners[index].shared.address, self.settings.listeners[index].protocol.is_datagram()))
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
        let matching = listeners().filter(|(_, (settings, state))| {
            let address_matches =
                settings.address.to_string() == address || state.shared.address.to_string() == address;
            address_matches && protocol.is_none_or(|protocol| protocol == settings.label())
        });
        let indices: Vec<usize> = matching.map(|(index, _)| index).collect();
        let all_names = || {
            let names = listeners()
                .map(|(_, (settings, state))| format!("{}:{}", settings.label(), state.shared.address));
            names.collect::<Vec<_>>().join(", ")
        };
        match indices[..] {
            [index] => Ok(index),
            [] => Err(format!("there is no listener {text}; there are: {}", all_names())),
            _ => Err(format!(
                "{text} is more than one listener: name the protocol, too; there are: {}",
                all_names()
            )),
        }
    }

    fn write_listener_event(&mut self, index: usize, kind: EventKind, reason: &str) {
        let settings = &self.settings.listeners[index];
        let address = self.listeners[index].shared.address;
        let message = format!("listener {} {address}: {reason}", settings.label());
        let group = Arc::clone(&settings.group);
        self.event_log.write(Event { kind, group, member: None, why: message, inputs: Vec::new() });
    }
}

/// The prefixes of listeners' names.
const PROTOCOLS: [&str; 8] = ["http", "https", "tcp", "udp", "iiop", "dns", "dns_tcp", "xds"];
