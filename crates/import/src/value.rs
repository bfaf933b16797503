//! Words of configurations as values: durations, numbers, addresses, names.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use plimsoll_config::{ConfigName, MemberAddress};

/// The longest duration that is carried over; Plimsoll's are bounded, too.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Parses a duration such as `1m30s` or `500ms`; a number alone is of `unit`. The units are those of both
/// programs.
pub(super) fn time(text: &str, unit: Duration) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u32 = rest.get(..digits)?.parse().ok()?;
        rest = &rest[digits..];
        let unit_len = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit_name = &rest[..unit_len];
        rest = &rest[unit_len..];
        let unit_duration = match unit_name {
            "" if rest.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => unit,
            "us" => Duration::from_micros(1),
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3600),
            "d" => Duration::from_secs(86_400),
            "w" => Duration::from_secs(7 * 86_400),
            _ => return None,
        };
        total = total.checked_add(unit_duration.checked_mul(number)?)?;
    }
    Some(total.min(LONGEST))
}

/// Parses an address to listen at: `:80`, `*:80`, `1.2.3.4:80`, `[::]:80`, `:::80`, `80` if a port alone is
/// allowed. `None` for a name, a socket in the file system, or a variable.
pub(super) fn listen(text: &str, bare_port: bool) -> Option<SocketAddr> {
    if bare_port && let Ok(port) = text.parse::<u16>() {
        return Some((Ipv4Addr::UNSPECIFIED, port).into());
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address);
    }
    let text = text.strip_prefix("ipv4@").or_else(|| text.strip_prefix("ipv6@")).unwrap_or(text);
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse::<u16>().ok()?;
    let host = match host {
        "" | "*" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        host => host.trim_start_matches('[').trim_end_matches(']').parse().ok()?,
    };
    Some(SocketAddr::new(host, port))
}

/// Returns a member in Plimsoll's form; a port is appended to one that has none.
pub(super) fn member(text: &str, port: Option<u16>) -> Option<String> {
    let text = text.strip_prefix("ipv4@").or_else(|| text.strip_prefix("ipv6@")).unwrap_or(text);
    let parsed = |text: &str| text.parse::<MemberAddress>().ok().map(|address| address.to_string());
    if let Some(parsed_member) = parsed(text) {
        return Some(parsed_member);
    }
    // HAProxy takes IPv6 addresses without brackets: the port is behind the last colon.
    if let Some((host, last_segment)) = text.rsplit_once(':')
        && host.contains(':')
        && let Some(parsed_member) = parsed(&format!("[{host}]:{last_segment}"))
    {
        return Some(parsed_member);
    }
    let port = port?;
    let host = text.trim_start_matches('[').trim_end_matches(']').trim_end_matches(':');
    if host.contains(':') { parsed(&format!("[{host}]:{port}")) } else { parsed(&format!("{host}:{port}")) }
}

/// Returns a valid name for Plimsoll, as similar as possible.
pub(super) fn name(text: &str) -> String {
    let sanitize = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let mut name: String = text.chars().map(sanitize).take(60).collect();
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        name.insert(0, 'g');
    }
    if name.parse::<ConfigName>().is_ok() { name } else { "group".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time() {
        let ms = Duration::from_millis;
        for (text, expected) in [
            ("5000", Some(ms(5000))),
            ("5s", Some(ms(5000))),
            ("1m30s", Some(ms(90_000))),
            ("250us", Some(Duration::from_micros(250))),
            ("1d", Some(ms(86_400_000))),
            ("99999d", Some(LONGEST)),
            ("4294967295w", Some(LONGEST)),
            ("", None),
            ("5x", None),
            ("s", None),
            ("5s3", None),
            ("99999999999", None),
        ] {
            assert_eq!(time(text, ms(1)), expected, "{text}");
        }
    }

    #[test]
    fn addresses() {
        let parse_address = |text| listen(text, true).map(|address| address.to_string());
        for (text, expected) in [
            ("80", Some("0.0.0.0:80")),
            (":80", Some("0.0.0.0:80")),
            ("*:80", Some("0.0.0.0:80")),
            ("10.0.0.1:80", Some("10.0.0.1:80")),
            ("[::]:80", Some("[::]:80")),
            (":::80", Some("[::]:80")),
            ("ipv6@[::1]:80", Some("[::1]:80")),
            ("localhost:80", Some("127.0.0.1:80")),
            ("example.org:80", None),
            ("unix@/run/x", None),
            ("99999", None),
        ] {
            assert_eq!(parse_address(text).as_deref(), expected, "{text}");
        }
        for (text, port, expected) in [
            ("10.0.0.1:80", None, Some("10.0.0.1:80")),
            ("App.internal", Some(80), Some("app.internal:80")),
            ("fd00::1:8080", None, Some("[fd00::1]:8080")),
            ("[fd00::1]", Some(80), Some("[fd00::1]:80")),
            ("10.0.0.1", None, None),
            ("unix:/run/x.sock", Some(80), None),
            ("$host", Some(80), None),
        ] {
            assert_eq!(member(text, port).as_deref(), expected, "{text}");
        }
        assert_eq!((&*name("web app"), &*name("_x"), &*name("")), ("web_app", "g_x", "g"));
    }
}
