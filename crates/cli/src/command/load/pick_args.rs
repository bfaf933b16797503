//! `--pick`: the lottery's daemons name the server of each request.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use plimsoll_bench::pick::{MemberPicker, PickerSettings};
use plimsoll_config::{MemberAddress, look_up};

use super::{CliError, usage_error};
use crate::command::pick::{group, service};
use crate::lottery_picker;

#[derive(clap::Args, Debug)]
pub(super) struct PickArgs {
    /// Service for which the daemons of a lottery are asked for a server before each request; the host in the
    /// URL is then only a name. If no server is named, the request fails; the time of the query counts as
    /// latency
    #[arg(long, value_name = "SERVICE", value_parser = name, requires = "keys")]
    pick: Option<String>,

    /// Daemons to ask; the others are discovered
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', requires = "pick")]
    daemon: Vec<MemberAddress>,

    /// Multicast group and port of all daemons
    #[arg(long, value_name = "ADDRESS", value_parser = group, requires = "pick")]
    multicast: Option<SocketAddr>,

    /// IPv4 address of the interface for multicast [default: by the routing table]
    #[arg(long, value_name = "ADDRESS", requires = "multicast")]
    interface: Option<Ipv4Addr>,

    /// File with the keys of the cluster
    #[arg(long, value_name = "FILE", requires = "pick")]
    keys: Option<PathBuf>,

    /// Ask all daemons at once, which draw among themselves, instead of one that refers to another
    #[arg(long, requires = "pick")]
    lottery: bool,
}

impl PickArgs {
    /// Returns `true` if daemons are asked for the server of each request.
    pub(super) fn is_enabled(&self) -> bool {
        self.pick.is_some()
    }

    /// Returns the client of the daemons; `None` without `--pick`.
    pub(super) fn picker(&self) -> Result<Option<Box<dyn MemberPicker>>, CliError> {
        let (Some(service), Some(keys)) = (&self.pick, &self.keys) else { return Ok(None) };
        let daemons = self.daemon.iter().map(|daemon| {
            look_up(daemon)
                .map_err(|error| usage_error(format_args!("cannot look up `{}`: {error}", daemon.host)))
        });
        let settings = PickerSettings {
            service: service.clone(),
            daemons: daemons.collect::<Result<_, _>>()?,
            keys: keys.clone(),
            multicast: self.multicast,
            interface: self.interface,
            lottery: self.lottery,
        };
        lottery_picker::open(&settings).map(Some).map_err(usage_error)
    }
}

/// Checks the name of a service.
fn name(text: &str) -> Result<String, String> {
    service(text).map(|_| text.to_owned())
}
