//! Reads the options of a C program. The structure begins with its size, because a program may be built with
//! another version of the header.

use std::ffi::{c_char, c_uint};
use std::mem::{offset_of, size_of};
use std::net::{Ipv4Addr, SocketAddr};

use ::plimsoll_client::{AnswerMode, ClientSettings, KeySource, resolve_daemons};

use crate::fault::Fault;
use crate::text_of;

/// The options, with the layout of the header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct plimsoll_options {
    pub(crate) size: usize,
    pub(crate) daemons: *const c_char,
    pub(crate) keys: *const c_char,
    pub(crate) multicast: *const c_char,
    pub(crate) multicast_if: *const c_char,
    pub(crate) lottery: c_uint,
    pub(crate) attempts: c_uint,
}

/// The size of the structure in the first version of the header, which every program passes at least.
const LEAST: usize = offset_of!(plimsoll_options, attempts) + size_of::<c_uint>();

impl plimsoll_options {
    /// Reads the options into settings.
    ///
    /// # Safety
    /// `options` is null, or points to as many bytes as its first field states. Its strings are null or end
    /// with 0.
    pub(crate) unsafe fn settings(options: *const Self) -> Result<ClientSettings, Fault> {
        if options.is_null() {
            return Err(Fault::usage("there are no options (NULL)"));
        }
        // SAFETY: it is not null, and by contract it starts with its size.
        let size = unsafe { options.cast::<usize>().read() };
        if size < LEAST {
            return Err(Fault::usage("the options have no size: begin with PLIMSOLL_OPTIONS"));
        }
        // SAFETY: by contract the structure has at least this size; fields that a later version appended are
        // not read.
        let options = unsafe { options.read() };
        // SAFETY: by contract.
        let daemons = unsafe { text_of(options.daemons) }?.unwrap_or_default();
        // SAFETY: by contract.
        let keys = unsafe { text_of(options.keys) }?
            .ok_or_else(|| Fault::usage("there is no file of keys (NULL)"))?;
        // SAFETY: by contract.
        let multicast = unsafe { text_of(options.multicast) }?;
        // SAFETY: by contract.
        let interface = unsafe { text_of(options.multicast_if) }?;
        let multicast = multicast.map(str::parse::<SocketAddr>).transpose();
        let multicast = multicast.map_err(|_| Fault::usage("the multicast group is not ADDRESS:PORT"))?;
        let interface = interface.map(str::parse::<Ipv4Addr>).transpose();
        let interface = interface.map_err(|_| Fault::usage("the interface is not an address of IPv4"))?;
        let attempts = match options.attempts {
            0 => 8,
            some => u8::try_from(some).map_err(|_| Fault::usage("there are more than 255 attempts"))?,
        };
        let daemons = match resolve_daemons(daemons) {
            Err(_) if multicast.is_some() => Vec::new(),
            known => known?,
        };
        let mode = if options.lottery == 0 { AnswerMode::Referral } else { AnswerMode::Lottery };
        Ok(ClientSettings {
            daemons,
            multicast,
            interface,
            keys: KeySource::File(keys.into()),
            mode,
            attempts,
        })
    }
}
