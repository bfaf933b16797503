//! `plimsoll events`: the decisions of the balancer, with time and reason.

use std::io::{self, BufRead, ErrorKind, Write};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_admin::EventEntry;
use plimsoll_brain::{Event, EventKind};
use plimsoll_config::TimeSpan;
use serde::Deserialize as _;
use serde_json::Value;

use super::{CliError, GlobalArgs};
use crate::control::format::{TextStyle, sanitize, short_number, utc_time};
use crate::control::{self, BalancerSelector, CommandOutput, ControlEndpoint, EndpointSelector as _};

/// Show the decisions of the balancer, with time and reason
///
/// Events are members that come and go, ejections, drains and reloads. The last 1000 are kept. Times are in
/// UTC. With -o json each line is a JSON document.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Keep running and print new events as they occur
    #[arg(short, long)]
    follow: bool,

    /// Only events of this period (10m), or after this sequence number (1234)
    #[arg(long, value_name = "TIME|SEQ")]
    since: Option<EventsSince>,

    #[command(flatten)]
    at: BalancerSelector,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventsSince {
    Seq(u64),
    Ago(Duration),
}

impl FromStr for EventsSince {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(seq) => Ok(Self::Seq(seq)),
            Err(_) => Ok(Self::Ago(text.parse::<TimeSpan>()?.0)),
        }
    }
}

pub(super) fn run(args: &Args, globals: &GlobalArgs) -> Result<ExitCode, CliError> {
    if !args.follow && args.at.remote_endpoints()?.is_some() {
        return control::run_each(&args.at, globals, |balancer, _| kept_events(args, balancer, globals));
    }
    let balancer = args.at.endpoint()?;
    let mut printer = EventPrinter::new(io::stdout().lock(), globals.is_json(), globals.stdout_has_color());
    let since_query = start_position(args, &mut printer);
    match print_events(&balancer, args.follow, &since_query, globals, &mut printer)? {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        // A reader that ends early (`| head`) is not an error.
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Returns the first entry to ask for, or sets the time before which entries are left out.
fn start_position(args: &Args, printer: &mut EventPrinter<impl Write>) -> String {
    match args.since {
        Some(EventsSince::Seq(seq)) => format!("&since={seq}"),
        Some(EventsSince::Ago(span)) => {
            printer.from_unix_ms = now().saturating_sub(span).as_millis() as u64;
            String::new()
        }
        None => String::new(),
    }
}

/// Returns the events that one of several hosts has kept.
fn kept_events(
    args: &Args,
    balancer: &ControlEndpoint,
    globals: &GlobalArgs,
) -> Result<CommandOutput, CliError> {
    let mut table = Vec::new();
    let mut printer = EventPrinter::new(&mut table, false, globals.stdout_has_color());
    let since_query = start_position(args, &mut printer);
    let mut entries = balancer.get::<Vec<Value>>(&format!("/events?follow=0{since_query}"))?;
    entries.retain(|entry| entry["unix_ms"].as_u64().is_none_or(|unix_ms| unix_ms >= printer.from_unix_ms));
    entries.iter().for_each(|entry| printer.widen_columns(entry));
    entries.iter().try_for_each(|entry| printer.print_entry(entry))?;
    Ok(CommandOutput::from_view(entries.into(), String::from_utf8_lossy(&table).into_owned()))
}

/// Prints the events of a balancer. The inner error is one of the printer.
fn print_events(
    balancer: &ControlEndpoint,
    is_following: bool,
    since_query: &str,
    globals: &GlobalArgs,
    printer: &mut EventPrinter<impl Write>,
) -> Result<io::Result<()>, CliError> {
    if !is_following {
        let entries = balancer.get::<Vec<Value>>(&format!("/events?follow=0{since_query}"))?;
        entries.iter().for_each(|entry| printer.widen_columns(entry));
        return Ok(entries.iter().try_for_each(|entry| printer.print_entry(entry)));
    }
    let stream = balancer.stream_lines(&format!("/events?follow=1{since_query}"))?;
    match follow(stream, printer, |missed| {
        globals
            .print_message(&format!("{missed} events were lost: they came faster than they could be read\n"));
    }) {
        Ok(EventStreamEnd::Lost(error)) => Err(balancer.stream_error(&error).into()),
        Ok(EventStreamEnd::Stopped) => Ok(Ok(())),
        Err(error) => Ok(Err(error)),
    }
}

/// The end of a stream.
enum EventStreamEnd {
    /// The balancer stopped.
    Stopped,
    /// The connection broke.
    Lost(io::Error),
}

/// Prints the entries of a stream of server-sent events; an error is one of the printer.
fn follow(
    stream: impl BufRead,
    printer: &mut EventPrinter<impl Write>,
    lagged: impl Fn(&Value),
) -> io::Result<EventStreamEnd> {
    let mut saw_stopping = false;
    let mut event_name = String::new();
    for line in stream.lines() {
        let line = match line {
            Ok(line) => line,
            Err(error) => return Ok(EventStreamEnd::Lost(error)),
        };
        if let Some(event) = line.strip_prefix("event: ") {
            event_name = event.to_owned();
        } else if let Some(data) = line.strip_prefix("data: ") {
            let data: Value = serde_json::from_str(data).unwrap_or_default();
            if event_name == "lagged" {
                lagged(&data["missed"]);
            } else {
                saw_stopping |= data["kind"] == "stopping";
                printer.print_entry(&data)?;
            }
        } else if line.is_empty() {
            event_name.clear();
        }
    }
    let unexpected_end = || io::Error::new(ErrorKind::UnexpectedEof, "the stream ended");
    Ok(if saw_stopping { EventStreamEnd::Stopped } else { EventStreamEnd::Lost(unexpected_end()) })
}

/// A printer that writes entries as lines whose columns widen as names get longer.
struct EventPrinter<W> {
    out: W,
    json: bool,
    color: bool,
    /// The moment (milliseconds since 1970) before which entries are left out.
    from_unix_ms: u64,
    widths: [usize; 3],
}

impl<W: Write> EventPrinter<W> {
    fn new(out: W, json: bool, color: bool) -> Self {
        Self { out, json, color, from_unix_ms: 0, widths: [0; 3] }
    }

    fn print_entry(&mut self, event: &Value) -> io::Result<()> {
        if event["unix_ms"].as_u64().is_some_and(|unix_ms| unix_ms < self.from_unix_ms) {
            return Ok(());
        }
        let line = match EventEntry::deserialize(event) {
            Ok(entry) if !self.json => self.line(&entry),
            // The entry is for a program, or from a newer version.
            _ => event.to_string(),
        };
        writeln!(self.out, "{line}")?;
        // A person may be watching.
        self.out.flush()
    }

    /// Widens the columns for a later entry.
    fn widen_columns(&mut self, event: &Value) {
        if let Ok(entry) = EventEntry::deserialize(event)
            && entry.unix_ms >= self.from_unix_ms
        {
            self.line(&entry);
        }
    }

    fn line(&mut self, entry: &EventEntry) -> String {
        let (kind, style) = kind_label(entry.kind, &entry.why);
        let group = if entry.group.is_empty() { "-" } else { &entry.group };
        let member = entry.member.as_deref().unwrap_or("-");
        let cells = [(group, TextStyle::Strong), (member, TextStyle::Plain), (kind, style)];
        let mut line = utc_time(entry.unix_ms);
        for ((cell, style), column) in cells.into_iter().zip(&mut self.widths) {
            let cell = sanitize(cell);
            let width = cell.chars().count();
            *column = width.max(*column);
            let pad = *column - width;
            line.push_str(&format!("  {}{:pad$}", style.paint(&cell, self.color), ""));
        }
        line.push_str("  ");
        line.push_str(&sanitize(&entry.why));
        if !entry.inputs.is_empty() {
            let inputs: Vec<_> = entry
                .inputs
                .iter()
                .map(|(name, value)| format!("{}={}", sanitize(name), short_number(*value)))
                .collect();
            line.push_str(&TextStyle::Faint.paint(&format!(" [{}]", inputs.join(" ")), self.color));
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// Returns the word and the tone of a kind of event.
pub(super) fn kind_label(kind: EventKind, reason: &str) -> (&'static str, TextStyle) {
    match kind {
        EventKind::Joined => ("joined", TextStyle::Plain),
        EventKind::Left => ("left", TextStyle::Plain),
        EventKind::Up => ("up", TextStyle::Good),
        EventKind::Down => ("down", TextStyle::Bad),
        EventKind::Ejected => ("ejected", TextStyle::Bad),
        EventKind::Readmitted if Event::is_still_out(kind, reason) => ("readmitted", TextStyle::Fair),
        EventKind::Readmitted => ("readmitted", TextStyle::Good),
        EventKind::Draining => ("draining", TextStyle::Fair),
        EventKind::Undrained => ("undrained", TextStyle::Good),
        EventKind::Disabled => ("disabled", TextStyle::Fair),
        EventKind::Enabled => ("enabled", TextStyle::Good),
        EventKind::SlowStart => ("slow start", TextStyle::Fair),
        EventKind::FullShare => ("full share", TextStyle::Good),
        EventKind::Aperture => ("aperture", TextStyle::Plain),
        EventKind::AlertRaised => ("alert", TextStyle::Fair),
        EventKind::AlertCleared => ("alert over", TextStyle::Good),
        EventKind::Moved => ("moved", TextStyle::Plain),
        EventKind::HandedOver => ("handed over", TextStyle::Plain),
        EventKind::AllDown => ("all down", TextStyle::Bad),
        EventKind::Recovered => ("recovered", TextStyle::Good),
        EventKind::Shedding => ("refuses", TextStyle::Bad),
        EventKind::ShedEnded => ("refuses none", TextStyle::Good),
        EventKind::Slow => ("slow", TextStyle::Fair),
        EventKind::SlowEnded => ("not slow", TextStyle::Good),
        EventKind::Changed => ("changed", TextStyle::Plain),
        EventKind::Flooded => ("flooded", TextStyle::Bad),
        EventKind::NoReports => ("no reports", TextStyle::Bad),
        EventKind::Refused => ("refused", TextStyle::Bad),
        EventKind::CertificateObtained => ("certificate", TextStyle::Good),
        EventKind::CertificateFailed => ("no certificate", TextStyle::Bad),
        EventKind::MembersDiscovered => ("members found", TextStyle::Plain),
        EventKind::DiscoveryFailed => ("source failed", TextStyle::Bad),
        EventKind::DiscoveryRecovered => ("source is back", TextStyle::Good),
        EventKind::BalancerJoined => ("balancer", TextStyle::Good),
        EventKind::BalancerSilent => ("balancer silent", TextStyle::Fair),
        EventKind::BalancerLost => ("balancer lost", TextStyle::Bad),
        EventKind::BalancerLeft => ("balancer left", TextStyle::Plain),
        EventKind::StoreLost => ("store lost", TextStyle::Bad),
        EventKind::StoreRecovered => ("store is back", TextStyle::Good),
        EventKind::Scaled => ("scaled", TextStyle::Plain),
        EventKind::MemberEnded => ("ended", TextStyle::Bad),
        EventKind::ScalerFailed => ("scaler failed", TextStyle::Bad),
        EventKind::ScalerRecovered => ("scaler is back", TextStyle::Good),
        EventKind::HostShared => ("host shared", TextStyle::Fair),
        EventKind::Reloaded => ("reloaded", TextStyle::Plain),
        EventKind::ReloadRefused => ("reload refused", TextStyle::Bad),
        EventKind::Upgraded => ("upgraded", TextStyle::Good),
        EventKind::UpgradeFailed => ("upgrade failed", TextStyle::Bad),
        EventKind::Stopping => ("stopping", TextStyle::Fair),
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn entry(seq: u64, kind: EventKind, member: Option<&str>, reason: &str) -> EventEntry {
        EventEntry {
            seq,
            unix_ms: 1_795_195_840_000 + seq,
            kind,
            group: if member.is_some() { "web".into() } else { String::new() },
            member: member.map(str::to_owned),
            why: reason.into(),
            inputs: BTreeMap::new(),
        }
    }

    fn log() -> [EventEntry; 3] {
        let mut ejected = entry(2, EventKind::Ejected, Some("10.0.0.3:80"), "5 failures in a row");
        ejected.inputs = BTreeMap::from([("failures".into(), 5.0), ("share".into(), 0.25)]);
        [
            entry(1, EventKind::Up, Some("b:80"), "2 checks passed"),
            ejected,
            entry(3, EventKind::Stopping, None, ""),
        ]
    }

    fn stream(entries: &[EventEntry]) -> String {
        let mut text = "retry: 2000\n\n: alive\n\n".to_owned();
        for entry in entries {
            let data = serde_json::to_string(entry).unwrap();
            text.push_str(&format!("id: {}\ndata: {data}\n\n", entry.seq));
        }
        text
    }

    fn printed(text: &str, json: bool, from_unix_ms: u64) -> (String, EventStreamEnd) {
        let mut out = Vec::new();
        let mut printer = EventPrinter::new(&mut out, json, false);
        printer.from_unix_ms = from_unix_ms;
        let end = follow(text.as_bytes(), &mut printer, |missed| panic!("{missed} lost")).unwrap();
        (String::from_utf8(out).unwrap(), end)
    }

    #[test]
    fn lines_for_people() {
        let (out, end) = printed(&stream(&log()), false, 0);
        assert!(matches!(end, EventStreamEnd::Stopped));
        insta::assert_snapshot!(out, @"
        2026-11-20 17:30:40.001Z  web  b:80  up  2 checks passed
        2026-11-20 17:30:40.002Z  web  10.0.0.3:80  ejected  5 failures in a row [failures=5 share=0.25]
        2026-11-20 17:30:40.003Z  -    -            stopping
        ");
    }

    #[test]
    fn a_list_is_aligned() {
        let (mut out, log) = (Vec::new(), log().map(|entry| serde_json::to_value(entry).unwrap()));
        let mut printer = EventPrinter::new(&mut out, false, false);
        log.iter().for_each(|entry| printer.widen_columns(entry));
        log.iter().try_for_each(|entry| printer.print_entry(entry)).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap(), @"
        2026-11-20 17:30:40.001Z  web  b:80         up        2 checks passed
        2026-11-20 17:30:40.002Z  web  10.0.0.3:80  ejected   5 failures in a row [failures=5 share=0.25]
        2026-11-20 17:30:40.003Z  -    -            stopping
        ");
    }

    #[test]
    fn lines_for_programs() {
        let (out, _) = printed(&stream(&log()), true, 0);
        let entries: Vec<EventEntry> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(entries, log());
    }

    #[test]
    fn only_those_since() {
        let (out, _) = printed(&stream(&log()), false, 1_795_195_840_002);
        assert_eq!(out.lines().count(), 2);
    }

    #[test]
    fn a_stream_that_breaks_is_not_an_end() {
        let (_, end) = printed(&stream(&log()[..2]), false, 0);
        assert!(matches!(end, EventStreamEnd::Lost(_)));
    }

    #[test]
    fn what_a_newer_version_tells_is_passed_on() {
        let (out, _) = printed("data: {\"seq\":1,\"kind\":\"moon\"}\n\n", false, 0);
        assert_eq!(out, "{\"kind\":\"moon\",\"seq\":1}\n");
    }

    #[test]
    fn since_is_a_number_or_a_while() {
        assert_eq!("12".parse(), Ok(EventsSince::Seq(12)));
        assert_eq!("10m".parse(), Ok(EventsSince::Ago(Duration::from_secs(600))));
        assert!("yesterday".parse::<EventsSince>().is_err());
    }
}
