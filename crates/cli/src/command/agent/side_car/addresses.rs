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
    mut places: Vec<SideCarAddresses>,
    urls: &[PublicUrl],
) -> Result<Vec<SideCarAddresses>, CliError> {
    let count = places.iter().filter(|place| place.protocol == Protocol::Http).count();
    let wrong = |what: String| Err(CliError::new(CliExitCode::Usage, what));
    match urls.len() {
        0 => return Ok(places),
        _ if count == 0 => return wrong("--group-url is about http, and no --side-car is".to_owned()),
        1 => {}
        given if given == count => {}
        given => {
            return wrong(format!(
                "--group-url is given {given} times and there are {count} --side-car of http: give it once \
                 for \
                 all, or once for each"
            ));
        }
    }
    let http = places.iter_mut().filter(|place| place.protocol == Protocol::Http);
    for (place, url) in http.zip(urls.iter().cycle()) {
        place.group_url = Some(url.clone());
    }
    Ok(places)
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
            listen.parse().map_err(|why| format!("the address `{listen}` {why}; {expected}"))?;
        let server: MemberAddress =
            server.parse().map_err(|why| format!("the server `{server}` {why}; {expected}"))?;
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
        for (text, shown) in [
            ("0.0.0.0:80=127.0.0.1:8080", "http:0.0.0.0:80=127.0.0.1:8080"),
            ("http:127.0.0.1:0=localhost:8080", "http:127.0.0.1:0=localhost:8080"),
            ("tcp:[::]:5432=[::1]:15432", "tcp:[::]:5432=[::1]:15432"),
        ] {
            assert_eq!(text.parse::<SideCarAddresses>().unwrap().to_string(), shown);
        }
        for (text, why) in [
            ("0.0.0.0:80", "no `=`"),
            ("80=127.0.0.1:8080", "the address `80` "),
            ("0.0.0.0:80=8080", "the server `8080` has no port"),
            ("udp:0.0.0.0:80=127.0.0.1:8080", "the address `udp:0.0.0.0:80` "),
            ("0.0.0.0:80=127.0.0.1:80", "the server `127.0.0.1:80` is the side-car itself"),
        ] {
            let said = text.parse::<SideCarAddresses>().unwrap_err();
            assert!(said.contains(why) && said.contains("expected [http:|tcp:]ADDRESS=SERVER"), "{said}");
        }
    }

    #[test]
    fn groups_are_at_one_url_or_each_at_its_own() {
        let places = |texts: &[&str]| {
            texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<SideCarAddresses>>()
        };
        let urls =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<PublicUrl>>();
        let homes = |at: &[&str], given: &[&str]| {
            let places =
                with_group_urls(places(at), &urls(given)).map_err(|failure| failure.one_line().to_owned())?;
            Ok::<_, String>(places.into_iter().map(|place| Some(place.group_url?.0)).collect::<Vec<_>>())
        };
        let [one, tcp, other] = ["127.0.0.1:80=x:1", "tcp:127.0.0.1:81=x:2", "127.0.0.1:82=x:3"];
        let url = |name: &str| Some(format!("http://{name}"));
        assert_eq!(homes(&[one, tcp], &[]), Ok(vec![None, None]));
        assert_eq!(homes(&[one, tcp, other], &["http://a"]), Ok(vec![url("a"), None, url("a")]));
        assert_eq!(homes(&[one, tcp, other], &["http://a", "http://b"]), Ok(vec![url("a"), None, url("b")]));
        let refused = |at: &[&str], given: &[&str]| homes(at, given).unwrap_err();
        let said = refused(&[one, tcp], &["http://a", "http://b"]);
        assert!(said.contains("given 2 times and there are 1"), "{said}");
        assert!(refused(&[tcp], &["http://a"]).contains("is about http"));
    }
}
