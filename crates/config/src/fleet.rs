//! `[fleet]`: the balancers that act together with this one.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use plimsoll_cluster::fleet as cluster;
use plimsoll_wire::rfs::{KeyFileError, KeyRing, KeyRole};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::diagnostic::{ConfigDiagnostic, ConfigDiagnostics};
use super::root::millis;
use super::spans::SpanTree;
use super::{Config, ConfigFile, ConfigName, FilePath, ListenAddress, MemberAddress, TimeSpan};

/// Other balancers of the same groups, which exchange state so that all choose members as one. They exchange
/// the requests in flight per member, health check results and load reports. The settings of this section are
/// fixed at start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetConfig {
    /// Name of this balancer in the fleet. Default: the host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<ConfigName>,

    /// UDP address to which the other balancers send.
    pub listen: ListenAddress,

    /// Address at which the other balancers reach this one, if it differs from `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<MemberAddress>,

    /// Addresses of other balancers; one that runs is enough to find all. A name may have the addresses of
    /// several balancers, and is resolved again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seeds: Vec<MemberAddress>,

    /// File of keys, identical on all balancers. Each line has a key's number and 64 hexadecimal digits. The
    /// first key seals datagrams; all of them (at most three) open them.
    #[schemars(extend("examples" = ["/etc/plimsoll/fleet.keys"]))]
    pub key_file: FilePath,

    /// Interval at which changes are sent to the other balancers.
    #[schemars(extend("x-minimum" = "5ms"))]
    #[schemars(extend("x-maximum" = "1s"))]
    #[serde(default = "millis::<10>")]
    pub interval: TimeSpan,

    /// Maximum size of the reports sent per second to all other balancers together, in bytes. The rest is
    /// sent later.
    #[schemars(range(min = 20_000, max = 1_000_000_000))]
    #[serde(default = "million")]
    pub bytes_per_second: u64,

    /// Number of balancers that check each member's health. They send the results to the others.
    #[schemars(range(min = 1, max = 16))]
    #[serde(default = "single")]
    pub checks_per_member: usize,

    /// Time for which a lost balancer keeps its share of the members' limits.
    #[schemars(extend("x-maximum" = "1d"))]
    #[serde(default = "millis::<60000>")]
    pub lost_peer_timeout: TimeSpan,
}

fn million() -> u64 {
    1_000_000
}

fn single() -> usize {
    1
}

/// Checks its keys against one another, and against those of other sections.
pub(super) fn check(config: &Config, root_spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let Some(fleet) = &config.fleet else { return };
    let spans = root_spans.key("fleet");
    if fleet.listen.0.ip().is_unspecified() && fleet.address.is_none() {
        let message = format!("others cannot reach {}", fleet.listen);
        let hint = "listen on one address of this host, or add `address` with the one that others reach";
        diagnostics.push(ConfigDiagnostic::error(spans.key("listen").value_span(), message).hint(hint));
    }
    for (index, listener) in config.listeners.iter().enumerate() {
        let is_same_address = listener.protocol.transport() == "udp" && listener.address.0 == fleet.listen.0;
        if is_same_address && fleet.listen.0.port() != 0 {
            let message = format!("the udp listener on {} has the same address", listener.address);
            let listener_span = root_spans.key("listener").item(index).key("address").value_span();
            diagnostics.push(
                ConfigDiagnostic::error(spans.key("listen").value_span(), message)
                    .with_related(listener_span, "it is here"),
            );
        }
    }
}

impl ConfigFile {
    /// Returns the settings of the fleet, with the keys as they are now; `None` without a fleet.
    ///
    /// # Errors
    /// Fails if the keys cannot be read, or an address of its own cannot be looked up, each with its place in
    /// the file.
    pub fn fleet(
        &self,
        mut resolve: impl FnMut(&MemberAddress) -> io::Result<SocketAddr>,
    ) -> Result<Option<cluster::FleetSettings>, ConfigDiagnostics> {
        let Some(fleet) = &self.config.fleet else { return Ok(None) };
        let spans = self.spans.key("fleet");
        let to_error = |problem| Err(ConfigDiagnostics::new(Arc::clone(&self.source), vec![problem]));
        let path = &fleet.key_file.0;
        let key_text = std::fs::read_to_string(path).map_err(|error| error.to_string());
        let daemon_keys = |keys: KeyRing| match keys.role() {
            KeyRole::Daemon => Ok(keys),
            KeyRole::Client => {
                Err("its keys are for clients of a lottery, and there are none here".to_owned())
            }
        };
        let keys = match key_text
            .and_then(|text| text.parse().map_err(|parse_error: KeyFileError| parse_error.to_string()))
            .and_then(daemon_keys)
        {
            Ok(keys) => keys,
            Err(cause) => {
                let message = format!("cannot read the keys {}: {cause}", path.display());
                let hint = "a line of it is a number and 64 hexadecimal digits, such as `openssl rand -hex \
                    32` makes";
                return to_error(
                    ConfigDiagnostic::error(spans.key("key_file").value_span(), message).hint(hint),
                );
            }
        };
        let address = match fleet.address.as_ref().map(&mut resolve).transpose() {
            Ok(address) => address,
            Err(error) => {
                let message = format!("cannot look it up: {error}");
                let hint = "correct the name, or write an IP address";
                return to_error(
                    ConfigDiagnostic::error(spans.key("address").value_span(), message).hint(hint),
                );
            }
        };
        let seeds = fleet.seeds.iter().map(|seed| (seed.host.clone(), seed.port)).collect();
        Ok(Some(cluster::FleetSettings {
            name: fleet.name.as_ref().map_or_else(host, |name| name.0.clone()),
            listen: fleet.listen.0,
            address,
            seeds,
            keys,
            interval: fleet.interval.0,
            bytes_per_second: fleet.bytes_per_second,
            probers: fleet.checks_per_member,
            forget_after: fleet.lost_peer_timeout.0,
        }))
    }
}

/// Returns the name of this host, or `balancer` if that is not a valid name.
pub fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.parse::<ConfigName>().map_or_else(|_| "balancer".into(), |name| name.0)
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    const REST: &str = "key_file = \"k\"\n[[listener]]\naddress = \"127.0.0.1:7946\"\nprotocol = \
                        \"udp\"\ngroup = \"web\"\n\
                        [[group]]\nname = \"web\"\nmembers = [\"127.0.0.1:1\"]\n";

    fn errors_of(fleet_toml: &str) -> String {
        let text = format!("[fleet]\n{fleet_toml}{REST}");
        parse("plimsoll.toml", text.into_bytes()).expect_err("it is wrong").to_string()
    }

    #[test]
    fn an_address_that_nobody_reaches_needs_another() {
        let error = errors_of("listen = \"0.0.0.0:7947\"\n");
        assert!(error.contains("plimsoll.toml:2:10: others cannot reach 0.0.0.0:7947"), "{error}");
        assert!(error.contains("add `address`"), "{error}");
    }

    #[test]
    fn nobody_else_listens_there() {
        let error = errors_of("listen = \"127.0.0.1:7946\"\n");
        assert!(error.contains("plimsoll.toml:2:10") && error.contains("has the same address"), "{error}");
    }

    #[test]
    fn keys_that_are_not_there_are_named() {
        let text = format!(
            "[fleet]\nlisten = \"127.0.0.1:7947\"\nname = \"a\"\n{}",
            REST.replace("\"k\"", "\"/none/k\"")
        );
        let file = parse("plimsoll.toml", text.into_bytes()).expect("valid");
        let error = file.fleet(super::super::look_up).expect_err("there is no such file").to_string();
        assert!(error.contains("plimsoll.toml:4:12") && error.contains("/none/k"), "{error}");
    }
}
