//! The choice of a request's destination by a service that is asked first, for the lottery's clients.
//!
//! The generator does not know the lottery. It asks a [`MemberPicker`] when a request is due, goes on with
//! others, and connects to the picked member when the answer arrives. The request's latency thus includes the
//! time of the pick, and a request without a picked member has failed. The caller that starts the run
//! supplies the picker.

use std::fmt::Debug;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

/// The settings of a picker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PickerSettings {
    /// The service to ask for: a name, or `id:NUMBER`.
    pub service: String,
    /// The daemons to begin with.
    pub daemons: Vec<SocketAddr>,
    /// The file of the cluster's keys.
    pub keys: PathBuf,
    /// The multicast group and port of all daemons.
    pub multicast: Option<SocketAddr>,
    /// The address of the interface towards the group; `None` for the one of the routing table.
    pub interface: Option<Ipv4Addr>,
    /// Whether to ask all daemons at once, which draw among themselves, in place of one that refers to
    /// another.
    pub lottery: bool,
}

/// A function that opens a picker, or returns the reason why it cannot.
pub type OpenPicker = fn(&PickerSettings) -> Result<Box<dyn MemberPicker>, String>;

/// A member that is to serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PickedMember {
    /// The member's number.
    pub member: u16,
    /// The member's address.
    pub address: SocketAddr,
}

/// A service that picks a member for each request. None of its methods block.
pub trait MemberPicker: Debug + Send {
    /// Asks for a member; [`next_pick`](Self::next_pick) returns the result later, with `tag`. Returns
    /// `false` if too many requests are outstanding.
    fn request_pick(&mut self, tag: u64) -> bool;

    /// Processes received messages and expired timers.
    fn process(&mut self);

    /// Returns the next result: a request's tag and its member, if one was picked.
    fn next_pick(&mut self) -> Option<(u64, Option<PickedMember>)>;

    /// Returns the time until [`process`](Self::process) must be called even if the descriptor does not
    /// become readable.
    fn timeout(&self) -> Option<Duration>;

    /// Returns the descriptor that is readable when [`process`](Self::process) or
    /// [`next_pick`](Self::next_pick) has work to do.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Reports that a picked member could not be reached; the picker avoids it for a while.
    fn report_failure(&mut self, member: u16);

    /// Returns the number of requests so far that were given two members: the first was used, and then a
    /// second was named.
    fn duplicate_picks(&self) -> u64;
}
