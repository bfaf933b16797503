//! Addresses in text form. Nothing is looked up here: a host name stays a name until `up`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{TextValue, text};

/// The address to accept clients at: an IP address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress(pub SocketAddr);

text! {
    ListenAddress,
    format: "plimsoll-listen-address",
    what: "an IP address and a port",
    example: "0.0.0.0:8080",
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Self(address));
        }
        if text.parse::<Ipv6Addr>().is_ok() {
            return Err(format!("has no port: write \"[{text}]:PORT\""));
        }
        let unbracketed = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if unbracketed.parse::<IpAddr>().is_ok() {
            return Err("has no port".into());
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return Err(match text.parse::<u16>() {
                Ok(port) => format!("has no address: write \"0.0.0.0:{port}\" to listen on all of them"),
                Err(_) => "is not an IP address and a port".into(),
            });
        };
        let port = parse_port(port)?;
        Err(match host {
            "" | "*" => format!("names no address: write \"0.0.0.0:{port}\" (IPv4) or \"[::]:{port}\" (all)"),
            "localhost" => format!("must be an IP address: write \"127.0.0.1:{port}\""),
            _ if host.contains(':') => {
                format!("is an IPv6 address without brackets: write \"[{host}]:{port}\"")
            }
            _ => "is not an IP address and a port".into(),
        })
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// The address of a member: a host name or IP address, and a port. Names are compared in lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberAddress {
    /// An IP address (IPv6 without brackets) or a host name.
    pub host: String,
    /// The port, not 0.
    pub port: u16,
}

text! {
    MemberAddress,
    format: "plimsoll-member-address",
    what: "a host and a port",
    example: "10.0.0.1:80",
}

impl FromStr for MemberAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains("://") {
            return Err("has a scheme: write only host:port".into());
        }
        let has_scheme = |scheme: &&str| {
            text.get(..scheme.len()).is_some_and(|prefix| prefix.eq_ignore_ascii_case(scheme))
        };
        if ["IOR:", "corbaloc:"].iter().any(has_scheme) {
            return Err("is an object reference: write { ior = \"…\" } with it".into());
        }
        if text.contains('/') {
            return Err("has a path: write only host:port".into());
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(bracketed) => bracketed.split_once("]:").ok_or("has no port after the brackets")?,
            None => text.rsplit_once(':').ok_or("has no port")?,
        };
        let port = parse_port(port)?;
        if port == 0 {
            return Err("has port 0".into());
        }
        if text.starts_with('[') {
            let address: Ipv6Addr = host.parse().map_err(|_| "has no IPv6 address between the brackets")?;
            return Ok(Self { host: address.to_string(), port });
        }
        if host.contains(':') {
            return Err(format!("is an IPv6 address without brackets: write \"[{host}]:{port}\""));
        }
        if !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            let address: Ipv4Addr = host.parse().map_err(|_| "has a malformed IPv4 address")?;
            return Ok(Self { host: address.to_string(), port });
        }
        check_host_name(host)?;
        Ok(Self { host: host.to_ascii_lowercase(), port })
    }
}

impl MemberAddress {
    /// Returns `true` if it is certainly the address `listen`. A name may be any address until it is looked
    /// up.
    pub fn is_at(&self, listen: SocketAddr) -> bool {
        let Ok(host) = self.host.parse::<IpAddr>() else { return false };
        let (host, listen_ip) = (host.to_canonical(), listen.ip().to_canonical());
        // The unspecified address of IPv6 includes those of IPv4.
        let listens_everywhere = listen_ip.is_unspecified() && (listen_ip.is_ipv6() || host.is_ipv4());
        self.port == listen.port() && (host == listen_ip || (listens_everywhere && host.is_loopback()))
    }
}

impl fmt::Display for MemberAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(out, "[{}]:{}", self.host, self.port)
        } else {
            write!(out, "{}:{}", self.host, self.port)
        }
    }
}

/// A set of peers in address notation: one address, or a network with its prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(pub IpNet);

text! {
    Network,
    format: "plimsoll-network",
    what: "an IP network",
    example: "10.0.0.0/8",
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self(address.into()));
        }
        let network: IpNet = text.parse().map_err(|_| "is not an IP address or network")?;
        if network.trunc() != network {
            return Err(format!("has bits set behind its prefix: write \"{}\"", network.trunc()));
        }
        Ok(Self(network))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// The address for status and metrics; `off` for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminListen(pub Option<SocketAddr>);

text! {
    AdminListen,
    format: "plimsoll-admin-listen",
    what: "an IP address and a port, or \"off\"",
    example: "127.0.0.1:9901",
}

impl FromStr for AdminListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        Ok(Self(Some(text.parse::<ListenAddress>()?.0)))
    }
}

impl fmt::Display for AdminListen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(out),
            None => out.write_str("off"),
        }
    }
}

/// The place where commands are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlAddress {
    /// None.
    Off,
    /// A unix socket that only its owner may open.
    Unix(PathBuf),
    /// An address with TLS and credentials.
    Tls(SocketAddr),
}

text! {
    ControlAddress,
    format: "plimsoll-control",
    what: "the path of a unix socket, an address for TLS, or \"off\"",
    example: "unix:/run/plimsoll.sock",
    pattern: "^(off|unix:/.+|tls://.+)$",
}

/// The bytes that fit into `sockaddr_un` beside its closing NUL.
const LONGEST_SOCKET_PATH: usize = 107;

impl FromStr for ControlAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        if let Some(address) = text.strip_prefix("tls://") {
            return Ok(Self::Tls(address.parse::<ListenAddress>()?.0));
        }
        let Some(path) = text.strip_prefix("unix:") else {
            return Err(format!("does not begin with unix: (write \"unix:{text}\")"));
        };
        if !path.starts_with('/') {
            return Err("is not an absolute path".into());
        }
        if path.contains('\0') {
            return Err("contains a NUL byte".into());
        }
        if path.len() > LONGEST_SOCKET_PATH {
            return Err(format!(
                "is too long: the path of a unix socket has at most {LONGEST_SOCKET_PATH} bytes"
            ));
        }
        Ok(Self::Unix(path.into()))
    }
}

impl fmt::Display for ControlAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
            Self::Tls(address) => write!(out, "tls://{address}"),
            Self::Off => out.write_str("off"),
        }
    }
}

/// Where commands are taken: at one address, or at several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ControlAddresses {
    /// At one.
    One(ControlAddress),
    /// At each of these.
    Several(Vec<ControlAddress>),
}

impl ControlAddresses {
    /// Returns all of them.
    pub fn list(&self) -> &[ControlAddress] {
        match self {
            Self::One(single) => std::slice::from_ref(single),
            Self::Several(addresses) => addresses,
        }
    }

    /// Returns the unix socket.
    pub fn unix(&self) -> Option<&PathBuf> {
        self.list().iter().find_map(|control| match control {
            ControlAddress::Unix(path) => Some(path),
            _ => None,
        })
    }

    /// Returns the address for TLS.
    pub fn tls(&self) -> Option<SocketAddr> {
        self.list().iter().find_map(|control| match control {
            ControlAddress::Tls(address) => Some(*address),
            _ => None,
        })
    }
}

fn parse_port(text: &str) -> Result<u16, String> {
    if text.is_empty() {
        return Err("has no port".into());
    }
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let port = text.parse().ok().filter(|_| digits);
    port.ok_or_else(|| "has a port that is not a number from 0 to 65535".into())
}

/// Checks a name by RFC 1123 with underscores, which service names in container networks do have.
fn check_host_name(host: &str) -> Result<(), String> {
    if host.is_empty() {
        return Err("has no host".into());
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    if name.len() > 253 || !name.split('.').all(label) {
        return Err("has a malformed host name".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_error<T: TextValue + fmt::Debug>(text: &str) -> String {
        text.parse::<T>().expect_err(text)
    }

    #[test]
    fn what_listens_there_is_known_by_its_address() {
        let is_at = |member: &str, listen: &str| {
            member.parse::<MemberAddress>().unwrap().is_at(listen.parse().unwrap())
        };
        for (member, listen) in [
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("127.0.0.1:80", "0.0.0.0:80"),
            ("127.0.0.2:80", "[::]:80"),
            ("[::1]:80", "[::]:80"),
            ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
        ] {
            assert!(is_at(member, listen), "{member} {listen}");
        }
        for (member, listen) in [
            ("10.0.0.1:81", "10.0.0.1:80"),
            ("127.0.0.2:80", "127.0.0.1:80"),
            ("10.0.0.1:80", "0.0.0.0:80"),
            ("[::1]:80", "0.0.0.0:80"),
            ("localhost:80", "127.0.0.1:80"),
        ] {
            assert!(!is_at(member, listen), "{member} {listen}");
        }
    }

    #[test]
    fn listen_addresses() {
        for valid in ["0.0.0.0:8080", "[::]:80", "127.0.0.1:0"] {
            assert_eq!(valid.parse::<ListenAddress>().unwrap().to_string(), valid);
        }
        for (invalid, expected) in [
            ("8080", "write \"0.0.0.0:8080\""),
            (":8080", "write \"0.0.0.0:8080\""),
            ("*:8080", "write \"0.0.0.0:8080\""),
            ("localhost:80", "write \"127.0.0.1:80\""),
            ("::1", "write \"[::1]:PORT\""),
            ("1:2:3:4:5:6:7:8:80", "write \"[1:2:3:4:5:6:7:8]:80\""),
            ("10.0.0.1", "has no port"),
            ("[::1]", "has no port"),
            ("10.0.0.1:99999", "not a number from 0 to 65535"),
            ("10.0.0.1:+80", "not a number from 0 to 65535"),
            ("example.org:80", "is not an IP address and a port"),
            ("", "is not an IP address and a port"),
        ] {
            assert!(
                parse_error::<ListenAddress>(invalid).contains(expected),
                "{invalid}: {}",
                parse_error::<ListenAddress>(invalid)
            );
        }
    }

    #[test]
    fn member_addresses() {
        for (valid, displayed) in [
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("[2001:DB8::1]:80", "[2001:db8::1]:80"),
            ("App-1.example.org:8080", "app-1.example.org:8080"),
            ("my_app:1", "my_app:1"),
        ] {
            assert_eq!(valid.parse::<MemberAddress>().unwrap().to_string(), displayed);
        }
        for (invalid, expected) in [
            ("http://10.0.0.1:80", "has a scheme"),
            ("corbaloc:iiop:1.2@10.0.0.1:80/Accounts", "is an object reference"),
            ("Corbaloc:9", "is an object reference"),
            ("10.0.0.1:80/x", "has a path"),
            ("10.0.0.1", "has no port"),
            ("10.0.0.1:", "has no port"),
            ("10.0.0.1:0", "port 0"),
            ("10.0.0.1:http", "not a number"),
            ("10.0.0.256:80", "malformed IPv4"),
            ("10.1:80", "malformed IPv4"),
            ("::1:80", "without brackets"),
            ("[::1]", "no port"),
            ("[nope]:80", "no IPv6"),
            ("-a:80", "malformed host name"),
            ("a..b:80", "malformed host name"),
            ("ü:80", "malformed host name"),
            (":80", "has no host"),
        ] {
            assert!(
                parse_error::<MemberAddress>(invalid).contains(expected),
                "{invalid}: {}",
                parse_error::<MemberAddress>(invalid)
            );
        }
    }

    #[test]
    fn networks_and_the_admin_side() {
        assert_eq!("10.0.0.1".parse::<Network>().unwrap().to_string(), "10.0.0.1/32");
        assert_eq!("fd00::/8".parse::<Network>().unwrap().to_string(), "fd00::/8");
        assert!(parse_error::<Network>("10.0.0.1/8").contains("write \"10.0.0.0/8\""));
        assert!(parse_error::<Network>("10.0.0.0/33").contains("not an IP address or network"));
        assert_eq!("off".parse::<AdminListen>().unwrap().0, None);
        assert!(parse_error::<AdminListen>(":9900").contains("0.0.0.0:9900"));
        assert_eq!("off".parse::<ControlAddress>().unwrap(), ControlAddress::Off);
        assert_eq!("tls://[::]:9905".parse::<ControlAddress>().unwrap().to_string(), "tls://[::]:9905");
        assert!(parse_error::<ControlAddress>("tls://localhost:9905").contains("127.0.0.1:9905"));
        assert_eq!("unix:/run/x".parse::<ControlAddress>().unwrap().to_string(), "unix:/run/x");
        assert!(parse_error::<ControlAddress>("/run/x").contains("write \"unix:/run/x\""));
        assert!(parse_error::<ControlAddress>("unix:x").contains("absolute"));
        assert!(parse_error::<ControlAddress>(&format!("unix:/{}", "x".repeat(107))).contains("at most 107"));
    }
}
