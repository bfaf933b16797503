//! Settings of a daemon that may be changed while it runs, until its file is read again, and their bounds.

use plimsoll_cluster::lottery::DaemonSettings;

use plimsoll_config::TimeSpan;

/// A change of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DaemonSetting {
    /// The service; without one the setting is that of the whole daemon.
    service: Option<String>,
    key: String,
    value: String,
}

/// The settings of a daemon, and of one of its services.
const DAEMON_KEYS: [&str; 3] = ["ttl", "slow_start", "rate"];
const SERVICE_KEYS: [&str; 1] = ["capacity"];

/// The bounds of `lottery.toml`.
const MAX_TTL: &str = "65s";
const MAX_SLOW_START: &str = "1h";
const MAX_RATE: u32 = 10_000_000;

impl DaemonSetting {
    pub(super) fn new(service: Option<&str>, key: &str, value: &str) -> Self {
        Self { service: service.map(str::to_owned), key: key.to_owned(), value: value.to_owned() }
    }

    /// Returns the settings with this change.
    ///
    /// # Errors
    /// Fails if there is no such key or service, or the value is invalid.
    pub(super) fn apply_to(&self, active_settings: &DaemonSettings) -> Result<DaemonSettings, String> {
        let mut settings = active_settings.clone();
        let Self { service, key, value } = self;
        let Some(name) = service else {
            match key.as_str() {
                "ttl" => settings.ttl = parse_span(key, value, MAX_TTL)?.0,
                "slow_start" => settings.slow_start = parse_span(key, value, MAX_SLOW_START)?.0,
                "rate" => settings.rate = parse_number(key, value, MAX_RATE)?,
                key if SERVICE_KEYS.contains(&key) => {
                    return Err(format!("{key} is of a service: give SERVICE.{key}"));
                }
                _ => return Err(format!("{key} cannot be set: there are {}", DAEMON_KEYS.join(", "))),
            }
            return Ok(settings);
        };
        let found_service = settings.services.iter_mut().find(|candidate| *candidate.name == **name);
        let target = found_service.ok_or_else(|| unknown_service(name, active_settings))?;
        match key.as_str() {
            "capacity" => target.capacity = parse_number(key, value, u16::MAX)?,
            key if DAEMON_KEYS.contains(&key) => {
                return Err(format!("{key} is of the daemon: name no service"));
            }
            _ => {
                return Err(format!(
                    "{key} of a service cannot be set: there is {}",
                    SERVICE_KEYS.join(", ")
                ));
            }
        }
        Ok(settings)
    }
}

/// Returns the error for an unknown service.
pub(super) fn unknown_service(name: &str, active_settings: &DaemonSettings) -> String {
    let names: Vec<&str> = active_settings.services.iter().map(|service| &*service.name).collect();
    match names.as_slice() {
        [] => format!("there is no service {name}: this daemon has none"),
        names => format!("there is no service {name}; there are: {}", names.join(", ")),
    }
}

fn parse_span(key: &str, value: &str, longest: &str) -> Result<TimeSpan, String> {
    let parse_error = |error: String| format!("{key} = {value} {error}");
    let span: TimeSpan = value.parse().map_err(parse_error)?;
    if longest.parse().is_ok_and(|longest: TimeSpan| span > longest) {
        return Err(format!("{key} = {value} is more than {longest}"));
    }
    Ok(span)
}

/// Parses a whole number of at most `most`.
fn parse_number<N: TryFrom<u32> + Into<u32> + Copy>(key: &str, value: &str, max: N) -> Result<N, String> {
    let max: u32 = max.into();
    let range_error = || format!("{key} = {value} is not a whole number from 0 to {max}");
    let number: u32 = value.parse().map_err(|_| range_error())?;
    if number > max {
        return Err(range_error());
    }
    N::try_from(number).map_err(|_| range_error())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use plimsoll_config::{look_up, read_lottery_text};

    #[test]
    fn what_is_set_is_held_to_what_a_file_is_held_to() {
        let text = "member = 3\nlisten = \"127.0.0.1:7447\"\nkeys = \"/k\"\n\
                    [[service]]\nname = \"web\"\nserver = \"127.0.0.1:80\"\n";
        let file = read_lottery_text("x", text.into()).expect("it is right");
        let keys = format!("1 {}", "0".repeat(64)).parse().expect("a key");
        let settings = file.settings(keys, look_up).expect("addresses");
        let set = |service, key, value| DaemonSetting::new(service, key, value).apply_to(&settings);
        assert_eq!(set(None, "ttl", "1500ms").expect("a time").ttl, Duration::from_millis(1500));
        assert_eq!(set(None, "slow_start", "1h").expect("a time").slow_start, Duration::from_secs(3600));
        assert_eq!(set(None, "rate", "0").expect("a number").rate, 0);
        assert_eq!(set(Some("web"), "capacity", "7").expect("a number").services[0].capacity, 7);
        for (service, key, value, expected) in [
            (None, "ttl", "66s", "ttl = 66s is more than 65s"),
            (None, "ttl", "5", "has no unit"),
            (None, "rate", "10000001", "from 0 to 10000000"),
            (None, "rate", "-1", "not a whole number"),
            (None, "member", "4", "cannot be set: there are ttl, slow_start, rate"),
            (None, "capacity", "4", "give SERVICE.capacity"),
            (Some("web"), "capacity", "65536", "from 0 to 65535"),
            (Some("web"), "ttl", "1s", "name no service"),
            (Some("web"), "server", "a:1", "there is capacity"),
            (Some("mail"), "capacity", "4", "no service mail; there are: web"),
        ] {
            let error = set(service, key, value).expect_err(key);
            assert!(error.contains(expected), "{error}");
        }
    }
}
