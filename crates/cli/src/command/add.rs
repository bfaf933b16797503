//! `plimsoll add`: take a member into a group while the balancer runs.

use std::process::ExitCode;

use serde_json::json;

use super::{Exit, Failure, Globals};
use crate::config::MemberAddress;
use crate::control::text::plain;
use crate::control::{self, Said, Where};

/// Take a member into a group that takes registered ones, until it is removed
///
/// The group says so by [[group.discover]] with registered = true. Where there is a store the member outlives the balancer.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// A member of a group
    Member {
        #[command(flatten)]
        target: Target,

        /// How much it can do relative to the other members
        #[arg(long, value_name = "NUMBER", default_value_t = 1.0, value_parser = capacity, allow_negative_numbers = true)]
        capacity: f64,

        /// Most requests, connections or flows at once [default: the group's]
        #[arg(long, value_name = "NUMBER")]
        max_connections: Option<u32>,
    },
}

/// A member of a group of a running balancer.
#[derive(clap::Args, Debug)]
pub(super) struct Target {
    /// The member: HOST:PORT
    pub(super) member: String,

    /// Its group
    #[arg(short, long, value_name = "GROUP")]
    pub(super) group: String,

    #[command(flatten)]
    pub(super) at: Where,
}

impl Target {
    /// Returns the path of the member at control.
    ///
    /// # Errors
    /// Fails if the name of the group or the member is invalid.
    pub(super) fn path(&self) -> Result<String, Failure> {
        let wrong = |what: String| Failure::new(Exit::Usage, what);
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if self.group.is_empty() || !self.group.bytes().all(known) {
            return Err(wrong(format!("{} is not the name of a group", plain(&self.group))));
        }
        let member: MemberAddress = self
            .member
            .parse()
            .map_err(|why| wrong(format!("{} is not a member: it {why}", plain(&self.member))))?;
        Ok(format!("/v1/groups/{}/members/{member}", self.group))
    }
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    let What::Member { target, capacity, max_connections } = &args.what;
    let body = json!({"capacity": capacity, "max_connections": max_connections});
    let path = target.path()?;
    control::each(&target.at, globals, |balancer, _| {
        let said = balancer.put(&path, &body)?;
        let name = plain(said["member"].as_str().unwrap_or_default());
        Ok(Said::done(said, format!("{name}: a member of group {}\n", plain(&target.group))))
    })
}

/// Parses the capacity of a member relative to others, within the balancer's bounds.
pub(super) fn capacity(text: &str) -> Result<f64, String> {
    let capacity = text.parse::<f64>().map_err(|_| "expected a number".to_owned())?;
    if (0.001..=1e6).contains(&capacity) { Ok(capacity) } else { Err("expected 0.001 to 1000000".to_owned()) }
}
