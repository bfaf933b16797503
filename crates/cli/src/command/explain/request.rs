//! `plimsoll explain request`: the route of a request by a configuration file, and the routes that it missed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use plimsoll_config::{self as config, ConfigFile, MachineDefaults, limits};
use plimsoll_proxy::{
    ListenerSettings, Protocol, RequestExplanation, RouteOutcome, Settings, explain_request,
};
use serde_json::{Value, json};

use crate::command::{CliError, CliExitCode, GlobalArgs};
use crate::control::format::{sanitize, short_number};

/// Explain the route of a request: the group, and the better routes that it missed
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Method and URL, such as `GET https://api.example.org/v1/x`; GET if there is no method
    request: String,

    /// Header of the request, such as 'x-canary: yes'
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,

    /// Address of the listener, if several could get the request
    #[arg(long, value_name = "ADDRESS")]
    listener: Option<SocketAddr>,

    /// Configuration file
    #[arg(short, long, value_name = "FILE", default_value = config::DEFAULT_FILE)]
    config: PathBuf,
}

/// A request from the command line.
struct RequestText {
    is_https: bool,
    /// The port of the URL, or that of its scheme.
    port: u16,
    head: Vec<u8>,
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    let usage = |message: String| CliError::new(CliExitCode::Usage, message);
    let request = read_request(&args.request, &args.headers).map_err(usage)?;
    let file = config::read(&args.config).map_err(|error| CliError::rendered(CliExitCode::Usage, error))?;
    let settings = settings(&file)?;
    let listener = find_listener(&settings, args.listener, &request).map_err(usage)?;
    let explanation = explain_request(listener, &request.head, request.is_https).map_err(usage)?;
    let is_answered = !matches!(explanation.outcome, RouteOutcome::Rejected { .. });
    globals.print_result(&to_json(listener, &explanation), || render(listener, &explanation, &settings))?;
    Ok(if is_answered { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the settings of the data plane. Names of members are not looked up: routes do not depend on them.
fn settings(file: &ConfigFile) -> Result<Settings, CliError> {
    let machine = MachineDefaults::detect(&file.config, limits::hard());
    let resolve = |address: &config::MemberAddress| Ok((Ipv4Addr::UNSPECIFIED, address.port).into());
    file.settings(machine, resolve).map_err(|problems| CliError::rendered(CliExitCode::Usage, problems))
}

/// Reads a method, a URL and header lines as the head of a request.
fn read_request(text: &str, headers: &[String]) -> Result<RequestText, String> {
    let (method, url) = text.trim().split_once(' ').unwrap_or_else(|| ("GET", text.trim()));
    let url = url.trim();
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let is_https = match scheme {
        "http" => false,
        "https" => true,
        _ => return Err(format!("{} is not an http or https URL", sanitize(url))),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    let target = target.split('#').next().unwrap_or_default();
    if authority.is_empty() {
        return Err(format!("{} names no host: write METHOD http://HOST/PATH", sanitize(url)));
    }
    let slash = if target.starts_with('/') { "" } else { "/" };
    let is_host = |header: &&String| {
        header.split_once(':').is_some_and(|(name, _)| name.trim().eq_ignore_ascii_case("host"))
    };
    let host = headers.iter().rfind(is_host).and_then(|header| header.split_once(':'));
    let host = host.map_or(authority, |(_, value)| value.trim());
    let mut head = format!("{method} {slash}{target} HTTP/1.1\r\nHost: {host}\r\n");
    for header in headers.iter().filter(|header| !is_host(header)) {
        let Some((name, value)) = header.split_once(':') else {
            return Err(format!("{} is not a header: write NAME: VALUE", sanitize(header)));
        };
        if header.chars().any(char::is_control) {
            return Err(format!("{} has a control character", sanitize(header)));
        }
        head += &format!("{name}: {}\r\n", value.trim());
    }
    head += "\r\n";
    let written_port = authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let port = written_port.unwrap_or(if is_https { 443 } else { 80 });
    Ok(RequestText { is_https, port, head: head.into_bytes() })
}

/// Returns the listener that would get the request: the one at `address`; or the only one of its scheme; or
/// the only one of its scheme and port.
fn find_listener<'s>(
    settings: &'s Settings,
    address: Option<SocketAddr>,
    request: &RequestText,
) -> Result<&'s ListenerSettings, String> {
    let is_http = |listener: &&ListenerSettings| listener.protocol == Protocol::Http;
    if let Some(address) = address {
        let mut listeners = settings.listeners.iter().filter(is_http);
        let found = listeners.find(|listener| listener.address == address);
        return found.ok_or_else(|| format!("there is no http listener on {address}"));
    }
    let of_scheme: Vec<&ListenerSettings> = settings
        .listeners
        .iter()
        .filter(is_http)
        .filter(|listener| listener.tls.is_some() == request.is_https)
        .collect();
    let scheme = if request.is_https { "https" } else { "http" };
    match of_scheme.as_slice() {
        [] => Err(format!("the file has no {scheme} listener")),
        [only] => Ok(only),
        several => {
            let of_port: Vec<_> =
                several.iter().filter(|listener| listener.address.port() == request.port).collect();
            match of_port.as_slice() {
                [only] => Ok(only),
                _ => {
                    let addresses: Vec<String> =
                        several.iter().map(|listener| listener.address.to_string()).collect();
                    let addresses = addresses.join(", ");
                    Err(format!("several {scheme} listeners: write --listener with one of {addresses}"))
                }
            }
        }
    }
}

fn route_name(listener: &ListenerSettings, index: usize) -> &str {
    let route = listener.routes.as_ref().and_then(|routes| routes.routes().get(index));
    route.map_or("", |route| &route.name)
}

fn to_json(listener: &ListenerSettings, explanation: &RequestExplanation) -> Value {
    let passed_over = explanation.passed_over.iter();
    let passed_over: Vec<Value> = passed_over
        .map(|(index, mismatch)| json!({ "route": route_name(listener, *index), "mismatch": mismatch }))
        .collect();
    let also_match: Vec<&str> =
        explanation.also_match.iter().map(|index| route_name(listener, *index)).collect();
    let outcome = match &explanation.outcome {
        RouteOutcome::Forwarded { groups, head } => {
            let total: u64 = groups.iter().map(|(_, weight)| u64::from(*weight)).sum();
            let share = |weight: u32| f64::from(weight) / total.max(1) as f64;
            let groups: Vec<Value> = groups
                .iter()
                .map(|(group, weight)| json!({ "group": **group, "share": share(*weight) }))
                .collect();
            json!({ "kind": "forwarded", "groups": groups, "head": head })
        }
        RouteOutcome::Redirected { status, location } => {
            json!({ "kind": "redirected", "status": status, "location": location })
        }
        RouteOutcome::Responded { status } => json!({ "kind": "responded", "status": status }),
        RouteOutcome::Rejected { status, reason } => {
            json!({ "kind": "rejected", "status": status, "reason": reason })
        }
    };
    json!({
        "schema": 1,
        "listener": listener.address.to_string(),
        "path": explanation.path,
        "route": explanation.route.map(|index| route_name(listener, index)),
        "outcome": outcome,
        "passed_over": passed_over,
        "also_match": also_match,
    })
}

fn render(listener: &ListenerSettings, explanation: &RequestExplanation, settings: &Settings) -> String {
    let mut out = format!("listener  {} {}\n", listener.label(), listener.address);
    out += &format!("path      {}\n", sanitize(&explanation.path));
    let route = match explanation.route {
        Some(index) => route_name(listener, index),
        None if matches!(explanation.outcome, RouteOutcome::Rejected { .. }) => "none",
        None if listener.routes.is_some() => "none matches: the listener's group",
        None => "the listener has no routes",
    };
    out += &format!("route     {route}\n");
    match &explanation.outcome {
        RouteOutcome::Forwarded { groups, head } => {
            let total: u64 = groups.iter().map(|(_, weight)| u64::from(*weight)).sum();
            for (group, weight) in groups {
                let share = f64::from(*weight) / total.max(1) as f64;
                out += &format!("group     {group}{}\n", describe_group(settings, group, share));
            }
            out += "\nThe member gets:\n";
            head.lines().filter(|line| !line.is_empty()).for_each(|line| {
                out += &format!("  {}\n", sanitize(line));
            });
        }
        RouteOutcome::Redirected { status, location } => {
            out += &format!("answer    {status}, Location: {}\n", sanitize(location));
        }
        RouteOutcome::Responded { status } => out += &format!("answer    {status}, by the balancer\n"),
        RouteOutcome::Rejected { status, reason } => out += &format!("answer    {status} ({reason})\n"),
    }
    if !explanation.passed_over.is_empty() {
        out += "\nBetter routes that do not match:\n";
        for (index, mismatch) in &explanation.passed_over {
            out += &format!("  {}: {}\n", route_name(listener, *index), sanitize(mismatch));
        }
    }
    if !explanation.also_match.is_empty() {
        out += "\nLess specific routes that match, too:\n";
        for index in &explanation.also_match {
            out += &format!("  {}\n", route_name(listener, *index));
        }
    }
    out
}

fn describe_group(settings: &Settings, name: &str, share: f64) -> String {
    let group = settings.groups.iter().find(|group| *group.spec.name == *name);
    let strategy = group.map_or("", |group| group.spec.strategy.name);
    let share = if share < 1.0 {
        format!(", {} % of the requests", short_number(share * 100.0))
    } else {
        String::new()
    };
    format!(" (strategy {strategy}){share}")
}
