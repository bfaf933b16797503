//! Whom to send a request to, where that is asked for first: the lottery's clients.
//!
//! The generator knows no lottery. It asks a [`Picker`] when a request is due, goes on with others, and connects to who was
//! picked when the answer is there. So the time that it takes to be told counts in the request's latency, and a request that
//! nobody was picked for has failed. What the answer costs is the picker's affair, which whoever starts the run brings along.

use std::fmt::Debug;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

/// Where to ask, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What to ask for: a name, or `id:NUMBER`.
    pub service: String,
    /// Daemons to begin with.
    pub daemons: Vec<SocketAddr>,
    /// File of the cluster's keys.
    pub keys: PathBuf,
    /// Group and port by which all are reached at once.
    pub multicast: Option<SocketAddr>,
    /// Address of the interface by which the group is reached; `None` for the one that the routes say.
    pub interface: Option<Ipv4Addr>,
    /// Ask all at once, who draw among themselves, in place of one that refers to another.
    pub lottery: bool,
}

/// Opens a picker; or why it cannot be had.
pub type Open = fn(&Settings) -> Result<Box<dyn Picker>, String>;

/// A member that is to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// Its number.
    pub member: u16,
    /// Where it serves.
    pub address: SocketAddr,
}

/// Somebody who says whom to send a request to. Nothing of it waits.
pub trait Picker: Debug + Send {
    /// Asks; what comes of it is [`next`](Self::next)'s one day, with `tag`. False if so many are on their way that it cannot
    /// be asked.
    fn ask(&mut self, tag: u64) -> bool;

    /// Takes what has come and does what is due.
    fn process(&mut self);

    /// The next request that somebody was picked for, or nobody.
    fn next(&mut self) -> Option<(u64, Option<Picked>)>;

    /// Until [`process`](Self::process) is to be called if the descriptor does not become readable before.
    fn timeout(&self) -> Option<Duration>;

    /// Readable when [`process`](Self::process) or [`next`](Self::next) has something to do.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// A member that was picked could not be reached: not that one again for a while.
    fn failed(&mut self, member: u16);

    /// Requests so far that were given two members: whoever was picked first was given out, and then another was named.
    fn answered_twice(&self) -> u64;
}
