//! The places of side-cars on the command line: their servers, and the addresses of the groups of these.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use plimsoll_config::{ListenAddress, MemberAddress, PublicUrl};
use plimsoll_proxy::Protocol;

use crate::command::{CliError, CliExitCode};

/// The place of a side-car: `[http:|tcp:]ADDRESS=SERVER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::command::agent) struct SideCarAddresses {
    pub(super) protocol: Protocol,
    pub(super) listen: SocketAddr,
    pub(super) server: MemberAddress,
    /// The address at which clients reach its group (http).
    pub(super) group_url: Option<PublicUrl>,
}

/// Adds the URLs of their groups to places: one for all of http, or one for each of them, in order.
pub(in crate::command::agent) fn with_group_urls(
    mut side_cars: Vec<SideCarAddresses>,
    urls: &[PublicUrl],
) -> Result<Vec<SideCarAddresses>, CliError> {
    let http_count = side_cars.iter().filter(|addresses| addresses.protocol == Protocol::Http).count();
    let usage_error = |message: String| Err(CliError::new(CliExitCode::Usage, message));
    match urls.len() {
        0 => return Ok(side_cars),
        _ if http_count == 0 => {
            return usage_error("--group-url is about http, and no --side-car is".to_owned());
        }
        1 => {}
        url_count if url_count == http_count => {}
        url_count => {
            return usage_error(format!(
                "--group-url is given {url_count} times and there are {http_count} --side-car of http: \
                 give it once for \
                 all, or once for each"
            ));
        }
    }
    let http_side_cars = side_cars.iter_mut().filter(|addresses| addresses.protocol == Protocol::Http);
    for (addresses, url) in http_side_cars.zip(urls.iter().cycle()) {
        addresses.group_url = Some(url.clone());
    }
    Ok(side_cars)
}

impl SideCarAddresses {
    /// Returns the place before a CORBA server.
    pub(in crate::command::agent) fn iiop(listen: SocketAddr, server: MemberAddress) -> Self {
        Self { protocol: Protocol::Iiop, listen, server, group_url: None }
    }

    /// Returns the option that gave it.
    pub(super) fn option(&self) -> &'static str {
        if self.protocol == Protocol::Iiop { "--iiop" } else { "--side-car" }
    }

    pub(super) fn protocol(&self) -> &'static str {
        match self.protocol {
            Protocol::Http => "http",
            Protocol::Iiop => "iiop",
            Protocol::Tcp | Protocol::Udp | Protocol::Dns | Protocol::DnsStream | Protocol::Xds => "tcp",
        }
    }
}

impl FromStr for SideCarAddresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected [http:|tcp:]ADDRESS=SERVER, such as 0.0.0.0:80=127.0.0.1:8080";
        let (protocol, rest) = match text.strip_prefix("tcp:") {
            Some(rest) => (Protocol::Tcp, rest),
            None => (Protocol::Http, text.strip_prefix("http:").unwrap_or(text)),
        };
        let (listen, server) = rest.split_once('=').ok_or_else(|| format!("there is no `=`; {expected}"))?;
        let ListenAddress(listen) =
            listen.parse().map_err(|error| format!("the address `{listen}` {error}; {expected}"))?;
        let server: MemberAddress =
            server.parse().map_err(|error| format!("the server `{server}` {error}; {expected}"))?;
        if server.is_at(listen) {
            return Err(format!(
                "the server `{server}` is the side-car itself: {listen} is where it listens; {expected}"
            ));
        }
        Ok(Self { protocol, listen, server, group_url: None })
    }
}

impl fmt::Display for SideCarAddresses {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}={}", self.protocol(), self.listen, self.server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        for (text, displayed) in [
            ("0.0.0.0:80=127.0.0.1:8080", "http:0.0.0.0:80=127.0.0.1:8080"),
            ("http:127.0.0.1:0=localhost:8080", "http:127.0.0.1:0=localhost:8080"),
            ("tcp:[::]:5432=[::1]:15432", "tcp:[::]:5432=[::1]:15432"),
        ] {
            assert_eq!(text.parse::<SideCarAddresses>().unwrap().to_string(), displayed);
        }
        for (text, expected) in [
            ("0.0.0.0:80", "no `=`"),
            ("80=127.0.0.1:8080", "the address `80` "),
            ("0.0.0.0:80=8080", "the server `8080` has no port"),
            ("udp:0.0.0.0:80=127.0.0.1:8080", "the address `udp:0.0.0.0:80` "),
            ("0.0.0.0:80=127.0.0.1:80", "the server `127.0.0.1:80` is the side-car itself"),
        ] {
            let error = text.parse::<SideCarAddresses>().unwrap_err();
            assert!(
                error.contains(expected) && error.contains("expected [http:|tcp:]ADDRESS=SERVER"),
                "{error}"
            );
        }
    }

    #[test]
    fn groups_are_at_one_url_or_each_at_its_own() {
        let parse_side_cars = |texts: &[&str]| {
            texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<SideCarAddresses>>()
        };
        let parse_urls =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<PublicUrl>>();
        let group_urls = |side_car_texts: &[&str], url_texts: &[&str]| {
            let side_cars = with_group_urls(parse_side_cars(side_car_texts), &parse_urls(url_texts))
                .map_err(|failure| failure.one_line().to_owned())?;
            Ok::<_, String>(
                side_cars.into_iter().map(|addresses| Some(addresses.group_url?.0)).collect::<Vec<_>>(),
            )
        };
        let [first_http, tcp, second_http] = ["127.0.0.1:80=x:1", "tcp:127.0.0.1:81=x:2", "127.0.0.1:82=x:3"];
        let url = |name: &str| Some(format!("http://{name}"));
        assert_eq!(group_urls(&[first_http, tcp], &[]), Ok(vec![None, None]));
        assert_eq!(
            group_urls(&[first_http, tcp, second_http], &["http://a"]),
            Ok(vec![url("a"), None, url("a")])
        );
        assert_eq!(
            group_urls(&[first_http, tcp, second_http], &["http://a", "http://b"]),
            Ok(vec![url("a"), None, url("b")])
        );
        let error_of =
            |side_car_texts: &[&str], url_texts: &[&str]| group_urls(side_car_texts, url_texts).unwrap_err();
        let error = error_of(&[first_http, tcp], &["http://a", "http://b"]);
        assert!(error.contains("given 2 times and there are 1"), "{error}");
        assert!(error_of(&[tcp], &["http://a"]).contains("is about http"));
    }
}
