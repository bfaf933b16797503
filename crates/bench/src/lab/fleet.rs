//! Balancers of one point that form a fleet: plimsoll's `[fleet]`, over UDP, with a key that is created for
//! the point.

use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::child_process::POLL_INTERVAL;
use super::proxy_under_test::ProxyUnderTest;
use super::{LabError, ports};

/// One balancer of the fleet: its address, and those of the others.
#[derive(Clone, Debug)]
pub(super) struct FleetPeer {
    name: String,
    listen: SocketAddr,
    others: Vec<SocketAddr>,
    keys: PathBuf,
    interval: Duration,
}

/// The name of the key file.
const KEYS_FILE: &str = "fleet.keys";

/// The time within which all balancers must receive reports of all others.
const REPORTS_TIMEOUT: Duration = Duration::from_secs(20);

impl FleetPeer {
    /// Creates `count` balancers on `host` with the report interval `interval`; their key file is in
    /// `folder`.
    pub(super) fn create_all(
        count: usize,
        host: IpAddr,
        interval: Duration,
        folder: &Path,
    ) -> Result<Vec<Self>, LabError> {
        let keys = folder.join(KEYS_FILE);
        let random_bits = || RandomState::new().hash_one(());
        let key: String = (0..4).map(|_| format!("{:016x}", random_bits())).collect();
        std::fs::write(&keys, format!("1 {key}\n"))
            .map_err(|error| LabError::failed(format!("cannot write {}: {error}", keys.display())))?;
        let addresses = (0..count).map(|_| ports::free_address(host)).collect::<Result<Vec<_>, _>>()?;
        let create_peer = |(number, listen): (usize, &SocketAddr)| Self {
            name: format!("lb{number}"),
            listen: *listen,
            others: addresses.iter().copied().filter(|address| address != listen).collect(),
            keys: keys.clone(),
            interval,
        };
        Ok((1..).zip(&addresses).map(create_peer).collect())
    }

    /// Returns its `[fleet]` table.
    pub(super) fn config_table(&self) -> serde_json::Value {
        serde_json::json!({
            "name": self.name,
            "listen": self.listen.to_string(),
            "seeds": self.others.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "key_file": self.keys.display().to_string(),
            "interval": format!("{}us", self.interval.as_micros()),
        })
    }
}

/// Waits until each balancer receives reports of all others.
pub(super) fn wait_for_reports(proxies: &mut [ProxyUnderTest]) -> Result<(), LabError> {
    let deadline = Instant::now() + REPORTS_TIMEOUT;
    let peer_count = proxies.len().saturating_sub(1);
    while !proxies
        .iter()
        .all(|proxy| proxy.status().is_some_and(|status| reporting_peers(&status) >= peer_count))
    {
        proxies.iter_mut().try_for_each(ProxyUnderTest::check_alive)?;
        if Instant::now() > deadline {
            return Err(LabError::failed(format!(
                "the balancers have not met after {} s",
                REPORTS_TIMEOUT.as_secs()
            )));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Returns the number of others from which a balancer receives reports.
fn reporting_peers(status: &str) -> usize {
    let status: serde_json::Value = serde_json::from_str(status).unwrap_or_default();
    let balancers = status["fleet"]["balancers"].as_array();
    balancers.map_or(0, |balancers| balancers.iter().filter(|balancer| balancer["state"] == "up").count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_knows_the_others_and_the_same_key() {
        let folder = std::env::temp_dir().join(format!("plimsoll-fellows-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let peers =
            FleetPeer::create_all(3, [127, 0, 0, 1].into(), Duration::from_millis(10), &folder).unwrap();
        let key = std::fs::read_to_string(folder.join(KEYS_FILE)).unwrap();
        assert!(key.len() == 67 && key.starts_with("1 "), "{key}");
        let second = peers[1].config_table();
        assert_eq!((&second["name"], &second["interval"]), (&"lb2".into(), &"10000us".into()));
        let seeds: Vec<&str> =
            second["seeds"].as_array().unwrap().iter().map(|seed| seed.as_str().unwrap()).collect();
        assert_eq!(seeds, [peers[0].listen.to_string(), peers[2].listen.to_string()]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn those_that_are_silent_are_not_heard() {
        let status = r#"{"fleet": {"balancers": [{"state": "up"}, {"state": "silent"}, {"state": "up"}]}}"#;
        assert_eq!((reporting_peers(status), reporting_peers("{}")), (2, 0));
    }
}
