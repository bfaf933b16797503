//! Validates the `Host` of requests.
//!
//! A foreign web page can make its own name resolve to this address (DNS rebinding). The browser then treats
//! the responses as part of that site, and lets the page read them. Such a request has the site's name in
//! `Host`. Endpoints without TLS therefore accept only addresses, `localhost`, the name of this machine and
//! the names in `[admin] names`. With TLS the certificate prevents this.

use std::net::IpAddr;

use hyper::header::HOST;
use hyper::{Request, Version};

/// Checks that a request has a valid host. HTTP/1.0 without `Host` is accepted: browsers do not send it.
///
/// # Errors
/// The reason why the name is rejected, and a remedy.
pub(crate) fn check<B>(request: &Request<B>, names: &[Box<str>]) -> Result<(), String> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (None, _) if request.version() == Version::HTTP_10 => return Ok(()),
        (None, _) => return Err("the request has no Host".into()),
        (Some(host), None) => host.to_str().map_err(|_| "the Host has bytes that no name has")?,
        (Some(_), Some(_)) => return Err("the request has several Hosts".into()),
    };
    let name = without_port(host).to_ascii_lowercase();
    let name = name.strip_suffix('.').unwrap_or(&name);
    let is_system_name = || {
        let system = rustix::system::uname();
        system.nodename().to_str().is_ok_and(|node_name| name.eq_ignore_ascii_case(node_name))
    };
    let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    let is_configured = || names.iter().any(|allowed_name| **allowed_name == *name);
    if is_address
        || name == "localhost"
        || name.ends_with(".localhost")
        || is_configured()
        || is_system_name()
    {
        return Ok(());
    }
    let name: String = name.chars().take(100).collect();
    Err(format!(
        "not the host {name}: ask by the address of this host, by localhost or by the name of the machine, \
         or add the name to names \
         in [admin]; a page of somebody else could read this otherwise"
    ))
}

fn without_port(host: &str) -> &str {
    match host.rfind(':') {
        Some(colon)
            if !host[colon..].contains(']')
                && host[colon + 1..].bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            &host[..colon]
        }
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_host(hosts: &[&str], names: &[&str]) -> Result<(), String> {
        let request = hosts.iter().fold(Request::builder(), |request, host| request.header(HOST, *host));
        let names: Vec<Box<str>> = names.iter().map(|name| Box::from(*name)).collect();
        check(&request.body(()).unwrap(), &names)
    }

    #[test]
    fn names_of_others_are_not_ours() {
        for valid_host in [
            "127.0.0.1:9900",
            "10.0.0.1",
            "[::1]:9900",
            "[fd00::1]",
            "localhost",
            "LOCALHOST:9900",
            "localhost.",
            "a.localhost:1",
        ] {
            assert_eq!(check_host(&[valid_host], &[]), Ok(()), "{valid_host}");
        }
        let node_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        assert_eq!(check_host(&[&format!("{node_name}:9900")], &[]), Ok(()));
        for invalid_host in [
            "evil.example",
            "evil.example:9900",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "",
            "127.0.0.1:x",
        ] {
            assert!(check_host(&[invalid_host], &["lb1.example.org"]).is_err(), "{invalid_host}");
        }
        assert!(check_host(&[], &[]).is_err());
        assert_eq!(check(&Request::builder().version(Version::HTTP_10).body(()).unwrap(), &[]), Ok(()));
        assert!(check_host(&["127.0.0.1", "evil.example"], &[]).is_err());
    }

    #[test]
    fn names_that_are_configured_are_ours() {
        for valid_host in ["lb1.example.org", "LB1.example.org:9900", "lb1.example.org."] {
            assert_eq!(
                check_host(&[valid_host], &["other.example.org", "lb1.example.org"]),
                Ok(()),
                "{valid_host}"
            );
        }
        for invalid_host in ["example.org", "a.lb1.example.org", "lb2.example.org"] {
            assert!(
                check_host(&[invalid_host], &["lb1.example.org"]).unwrap_err().contains("names in [admin]"),
                "{invalid_host}"
            );
        }
    }
}
