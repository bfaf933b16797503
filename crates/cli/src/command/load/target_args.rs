//! The requests: URLs with weights, method, headers, body.

use plimsoll_bench::target::{HttpRequest, HttpTarget, IiopTarget, TcpEcho, UdpEcho};
use plimsoll_wire::giop::{Corbaloc, Ior};

use super::{Args, CliError, usage_error};

/// The target of requests.
pub(super) enum LoadTarget {
    /// HTTP/1.1.
    Http(HttpTarget),
    /// A server that sends bytes back.
    Tcp(TcpEcho),
    /// A server that sends datagrams back.
    Udp(UdpEcho),
    /// A CORBA object.
    Iiop(IiopTarget),
}

/// Returns the URLs of the command line with their weights.
pub(super) fn weighted_urls(args: &Args) -> Result<Vec<(u32, &str)>, CliError> {
    args.urls.iter().map(|text| parse_weighted(text).map_err(usage_error)).collect()
}

/// Returns the requests that the command line describes.
pub(super) fn build_target(args: &Args, seed: u64) -> Result<LoadTarget, CliError> {
    let urls = weighted_urls(args)?;
    if let [(_, reference)] = urls[..]
        && is_reference(reference)
        && !args.pick.is_enabled()
    {
        return IiopTarget::new(reference, !args.no_follow).map(LoadTarget::Iiop).map_err(usage_error);
    }
    let scheme =
        |url: &str| url.split_once("://").map_or(String::new(), |(scheme, _)| scheme.to_ascii_lowercase());
    if let Some((_, reference)) = urls.iter().find(|(_, url)| is_reference(url)) {
        let excerpt: String = reference.chars().take(60).collect();
        return Err(usage_error(format_args!("`{excerpt}`: a CORBA object is the only target of its run")));
    }
    let first_scheme = scheme(urls[0].1);
    if let Some((_, other)) = urls.iter().find(|(_, url)| scheme(url) != first_scheme) {
        return Err(usage_error(format_args!(
            "`{other}`: all URLs of a run have the same scheme; the first is {first_scheme}"
        )));
    }
    if args.pick.is_enabled() && first_scheme != "http" {
        return Err(usage_error(format_args!(
            "`{}`: with --pick the target is http://NAME[/PATH]",
            urls[0].1
        )));
    }
    let single_address = || match &urls[..] {
        [(_, url)] => Ok(url.split_once("://").map_or(*url, |(_, rest)| rest.trim_end_matches('/'))),
        _ => Err(usage_error("an echo server is the only target of its run")),
    };
    match first_scheme.as_str() {
        "http" => {
            let headers = headers(args)?;
            let body = body(args)?;
            let method = args.method.as_deref().unwrap_or(if body.is_empty() { "GET" } else { "POST" });
            let headers: Vec<_> =
                headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let requests = urls
                .iter()
                .map(|(weight, url)| Ok((f64::from(*weight), request(args, method, url, &headers, &body)?)))
                .collect::<Result<_, CliError>>()?;
            HttpTarget::mixed(requests, seed).map(LoadTarget::Http).map_err(usage_error)
        }
        "tcp" => TcpEcho::new(single_address()?, args.bytes).map(LoadTarget::Tcp).map_err(usage_error),
        "udp" => UdpEcho::new(single_address()?, args.bytes).map(LoadTarget::Udp).map_err(usage_error),
        _ => Err(usage_error(format_args!(
            "`{}`: expected http://HOST[:PORT][/PATH], tcp://HOST:PORT, udp://HOST:PORT, or a CORBA object: \
             iiop://HOST:PORT/KEY, corbaloc:..., IOR:... or file:PATH",
            urls[0].1
        ))),
    }
}

/// Returns a request to the address of the URL, unless another one is given.
pub(super) fn request(
    args: &Args,
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Result<HttpRequest, CliError> {
    let build = if args.pick.is_enabled() { HttpRequest::without_destination } else { HttpRequest::new };
    build(method, url, headers, body).map_err(usage_error)
}

/// Returns `true` if the URL refers to a CORBA object.
fn is_reference(url: &str) -> bool {
    let schemes = ["iiop:", "corbaloc:", "ior:", "file:"];
    schemes
        .iter()
        .any(|scheme| url.get(..scheme.len()).is_some_and(|prefix| prefix.eq_ignore_ascii_case(scheme)))
}

/// Returns the name of a target: a reference in digits becomes a corbaloc.
pub(super) fn target_name(url: &str) -> String {
    let ior = url.parse::<Ior>().ok();
    ior.and_then(|ior| Corbaloc::from_ior(&ior))
        .map_or_else(|| url.to_owned(), |corbaloc| corbaloc.to_string())
}

/// Parses a weight: `3=http://…` is three parts of http://…; no URL begins with a digit.
fn parse_weighted(text: &str) -> Result<(u32, &str), String> {
    if !text.starts_with(|letter: char| letter.is_ascii_digit()) {
        return Ok((1, text));
    }
    let expected = || format!("`{text}`: expected WEIGHT=URL with a whole weight from 1 to 1000000");
    let missing_weight = || match text.contains(':') {
        true => format!("`{text}` is no URL: write http://{text}, or tcp:// or udp:// before it"),
        false => expected(),
    };
    let (weight, url) = text.split_once('=').ok_or_else(missing_weight)?;
    let weight =
        weight.parse().ok().filter(|weight| (1..=1_000_000).contains(weight)).ok_or_else(expected)?;
    Ok((weight, url))
}

/// Returns names and values of the headers of the command line.
pub(super) fn headers(args: &Args) -> Result<Vec<(String, String)>, CliError> {
    let header = |text: &String| {
        let (name, value) = text
            .split_once(':')
            .ok_or_else(|| usage_error(format_args!("header `{text}`: expected NAME: VALUE")))?;
        Ok((name.trim().to_owned(), value.trim().to_owned()))
    };
    let mut headers: Vec<_> = args.headers.iter().map(header).collect::<Result<_, CliError>>()?;
    if args.no_keepalive && !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("connection")) {
        headers.push(("connection".to_owned(), "close".to_owned()));
    }
    Ok(headers)
}

fn body(args: &Args) -> Result<Vec<u8>, CliError> {
    match args.body.as_deref() {
        None => Ok(Vec::new()),
        Some(text) => match text.strip_prefix('@') {
            Some(file) => std::fs::read(file)
                .map_err(|error| usage_error(format_args!("cannot read the body from {file}: {error}"))),
            None => Ok(text.as_bytes().to_vec()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::parse_weighted;

    #[test]
    fn weights_stand_before_urls() {
        assert_eq!(parse_weighted("http://a/?b=1"), Ok((1, "http://a/?b=1")));
        assert_eq!(parse_weighted("30=http://a/?b=1"), Ok((30, "http://a/?b=1")));
        for text in ["0=http://a/", "3", "3x=http://a/", "99999999999=http://a/"] {
            assert!(parse_weighted(text).is_err(), "{text}");
        }
    }
}
