//! `plimsoll events`: the decisions of the balancer, with time and reason.

use std::io::{self, BufRead, ErrorKind, Write};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_admin::Entry;
use plimsoll_brain::{Event, EventKind};
use serde::Deserialize as _;
use serde_json::Value;

use super::{Failure, Globals};
use crate::config::TimeSpan;
use crate::control::text::{Tone, plain, short, utc};
use crate::control::{self, Balancer, Said, Target as _, Where};

/// Show what the balancer decided, when and why
///
/// Members that come and go, are ejected and drained; reloads. The last 1000 are kept. Times are UTC.
/// With -o json each line is a JSON document.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Go on and show new ones as they happen
    #[arg(short, long)]
    follow: bool,

    /// Only those of the last while (10m), or after the one of this number (1234)
    #[arg(long, value_name = "TIME|SEQ")]
    since: Option<Since>,

    #[command(flatten)]
    at: Where,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    Seq(u64),
    Ago(Duration),
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(seq) => Ok(Self::Seq(seq)),
            Err(_) => Ok(Self::Ago(text.parse::<TimeSpan>()?.0)),
        }
    }
}

pub(super) fn run(args: &Args, globals: &Globals) -> Result<ExitCode, Failure> {
    if !args.follow && args.at.hosts()?.is_some() {
        return control::each(&args.at, globals, |balancer, _| kept(args, balancer, globals));
    }
    let balancer = args.at.balancer()?;
    let mut printer = Printer::new(io::stdout().lock(), globals.json(), globals.color());
    let seq = begin(args, &mut printer);
    match show(&balancer, args.follow, &seq, globals, &mut printer)? {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        // A reader that ends early (`| head`) is not an error.
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Returns the first entry to ask for, or sets the time before which entries are left out.
fn begin(args: &Args, printer: &mut Printer<impl Write>) -> String {
    match args.since {
        Some(Since::Seq(seq)) => format!("&since={seq}"),
        Some(Since::Ago(span)) => {
            printer.from = now().saturating_sub(span).as_millis() as u64;
            String::new()
        }
        None => String::new(),
    }
}

/// Returns the events that one of several hosts has kept.
fn kept(args: &Args, balancer: &Balancer, globals: &Globals) -> Result<Said, Failure> {
    let mut table = Vec::new();
    let mut printer = Printer::new(&mut table, false, globals.color());
    let seq = begin(args, &mut printer);
    let mut entries = balancer.get::<Vec<Value>>(&format!("/events?follow=0{seq}"))?;
    entries.retain(|entry| entry["unix_ms"].as_u64().is_none_or(|unix_ms| unix_ms >= printer.from));
    entries.iter().for_each(|entry| printer.fit(entry));
    entries.iter().try_for_each(|entry| printer.entry(entry))?;
    Ok(Said::shown(entries.into(), String::from_utf8_lossy(&table).into_owned()))
}

/// Prints the events of a balancer. The inner error is one of the printer.
fn show(
    balancer: &Balancer,
    go_on: bool,
    seq: &str,
    globals: &Globals,
    printer: &mut Printer<impl Write>,
) -> Result<io::Result<()>, Failure> {
    if !go_on {
        let entries = balancer.get::<Vec<Value>>(&format!("/events?follow=0{seq}"))?;
        entries.iter().for_each(|entry| printer.fit(entry));
        return Ok(entries.iter().try_for_each(|entry| printer.entry(entry)));
    }
    let stream = balancer.follow(&format!("/events?follow=1{seq}"))?;
    match follow(stream, printer, |missed| {
        globals.say(&format!("{missed} events were lost: they came faster than they could be read\n"));
    }) {
        Ok(End::Lost(error)) => Err(balancer.lost(&error).into()),
        Ok(End::Stopped) => Ok(Ok(())),
        Err(error) => Ok(Err(error)),
    }
}

/// The end of a stream.
enum End {
    /// The balancer stopped.
    Stopped,
    /// The connection broke.
    Lost(io::Error),
}

/// Prints the entries of a stream of server-sent events; an error is one of the printer.
fn follow(
    stream: impl BufRead,
    printer: &mut Printer<impl Write>,
    lagged: impl Fn(&Value),
) -> io::Result<End> {
    let mut stopping = false;
    let mut name = String::new();
    for line in stream.lines() {
        let line = match line {
            Ok(line) => line,
            Err(error) => return Ok(End::Lost(error)),
        };
        if let Some(event) = line.strip_prefix("event: ") {
            name = event.to_owned();
        } else if let Some(data) = line.strip_prefix("data: ") {
            let data: Value = serde_json::from_str(data).unwrap_or_default();
            if name == "lagged" {
                lagged(&data["missed"]);
            } else {
                stopping |= data["kind"] == "stopping";
                printer.entry(&data)?;
            }
        } else if line.is_empty() {
            name.clear();
        }
    }
    let gone = || io::Error::new(ErrorKind::UnexpectedEof, "the stream ended");
    Ok(if stopping { End::Stopped } else { End::Lost(gone()) })
}

/// A printer that writes entries as lines whose columns widen as names get longer.
struct Printer<W> {
    out: W,
    json: bool,
    color: bool,
    /// The moment (milliseconds since 1970) before which entries are left out.
    from: u64,
    widths: [usize; 3],
}

impl<W: Write> Printer<W> {
    fn new(out: W, json: bool, color: bool) -> Self {
        Self { out, json, color, from: 0, widths: [0; 3] }
    }

    fn entry(&mut self, said: &Value) -> io::Result<()> {
        if said["unix_ms"].as_u64().is_some_and(|unix_ms| unix_ms < self.from) {
            return Ok(());
        }
        let line = match Entry::deserialize(said) {
            Ok(entry) if !self.json => self.line(&entry),
            // The entry is for a program, or from a newer version.
            _ => said.to_string(),
        };
        writeln!(self.out, "{line}")?;
        // A person may be watching.
        self.out.flush()
    }

    /// Widens the columns for a later entry.
    fn fit(&mut self, said: &Value) {
        if let Ok(entry) = Entry::deserialize(said)
            && entry.unix_ms >= self.from
        {
            self.line(&entry);
        }
    }

    fn line(&mut self, entry: &Entry) -> String {
        let (kind, tone) = kind(entry.kind, &entry.why);
        let group = if entry.group.is_empty() { "-" } else { &entry.group };
        let member = entry.member.as_deref().unwrap_or("-");
        let cells = [(group, Tone::Strong), (member, Tone::Plain), (kind, tone)];
        let mut line = utc(entry.unix_ms);
        for ((cell, tone), column) in cells.into_iter().zip(&mut self.widths) {
            let cell = plain(cell);
            let width = cell.chars().count();
            *column = width.max(*column);
            let pad = *column - width;
            line.push_str(&format!("  {}{:pad$}", tone.paint(&cell, self.color), ""));
        }
        line.push_str("  ");
        line.push_str(&plain(&entry.why));
        if !entry.inputs.is_empty() {
            let inputs: Vec<_> = entry
                .inputs
                .iter()
                .map(|(name, value)| format!("{}={}", plain(name), short(*value)))
                .collect();
            line.push_str(&Tone::Faint.paint(&format!(" [{}]", inputs.join(" ")), self.color));
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// Returns the word and the tone of a kind of event.
pub(super) fn kind(kind: EventKind, why: &str) -> (&'static str, Tone) {
    match kind {
        EventKind::Joined => ("joined", Tone::Plain),
        EventKind::Left => ("left", Tone::Plain),
        EventKind::Up => ("up", Tone::Good),
        EventKind::Down => ("down", Tone::Bad),
        EventKind::Ejected => ("ejected", Tone::Bad),
        EventKind::Readmitted if Event::in_vain(kind, why) => ("readmitted", Tone::Fair),
        EventKind::Readmitted => ("readmitted", Tone::Good),
        EventKind::Draining => ("draining", Tone::Fair),
        EventKind::Undrained => ("undrained", Tone::Good),
        EventKind::Disabled => ("disabled", Tone::Fair),
        EventKind::Enabled => ("enabled", Tone::Good),
        EventKind::SlowStart => ("slow start", Tone::Fair),
        EventKind::FullShare => ("full share", Tone::Good),
        EventKind::Aperture => ("aperture", Tone::Plain),
        EventKind::AlertRaised => ("alert", Tone::Fair),
        EventKind::AlertCleared => ("alert over", Tone::Good),
        EventKind::Moved => ("moved", Tone::Plain),
        EventKind::HandedOver => ("handed over", Tone::Plain),
        EventKind::AllDown => ("all down", Tone::Bad),
        EventKind::Recovered => ("recovered", Tone::Good),
        EventKind::Shedding => ("refuses", Tone::Bad),
        EventKind::ShedEnded => ("refuses none", Tone::Good),
        EventKind::Slow => ("slow", Tone::Fair),
        EventKind::SlowEnded => ("not slow", Tone::Good),
        EventKind::Changed => ("changed", Tone::Plain),
        EventKind::Flooded => ("flooded", Tone::Bad),
        EventKind::NoReports => ("no reports", Tone::Bad),
        EventKind::Refused => ("refused", Tone::Bad),
        EventKind::CertificateObtained => ("certificate", Tone::Good),
        EventKind::CertificateFailed => ("no certificate", Tone::Bad),
        EventKind::MembersDiscovered => ("members found", Tone::Plain),
        EventKind::DiscoveryFailed => ("source failed", Tone::Bad),
        EventKind::DiscoveryRecovered => ("source is back", Tone::Good),
        EventKind::BalancerJoined => ("balancer", Tone::Good),
        EventKind::BalancerSilent => ("balancer silent", Tone::Fair),
        EventKind::BalancerLost => ("balancer lost", Tone::Bad),
        EventKind::BalancerLeft => ("balancer left", Tone::Plain),
        EventKind::StoreLost => ("store lost", Tone::Bad),
        EventKind::StoreRecovered => ("store is back", Tone::Good),
        EventKind::Scaled => ("scaled", Tone::Plain),
        EventKind::MemberEnded => ("ended", Tone::Bad),
        EventKind::ScalerFailed => ("scaler failed", Tone::Bad),
        EventKind::ScalerRecovered => ("scaler is back", Tone::Good),
        EventKind::HostShared => ("host shared", Tone::Fair),
        EventKind::Reloaded => ("reloaded", Tone::Plain),
        EventKind::ReloadRefused => ("reload refused", Tone::Bad),
        EventKind::Upgraded => ("upgraded", Tone::Good),
        EventKind::UpgradeFailed => ("upgrade failed", Tone::Bad),
        EventKind::Stopping => ("stopping", Tone::Fair),
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn entry(seq: u64, kind: EventKind, member: Option<&str>, why: &str) -> Entry {
        Entry {
            seq,
            unix_ms: 1_795_195_840_000 + seq,
            kind,
            group: if member.is_some() { "web".into() } else { String::new() },
            member: member.map(str::to_owned),
            why: why.into(),
            inputs: BTreeMap::new(),
        }
    }

    fn log() -> [Entry; 3] {
        let mut ejected = entry(2, EventKind::Ejected, Some("10.0.0.3:80"), "5 failures in a row");
        ejected.inputs = BTreeMap::from([("failures".into(), 5.0), ("share".into(), 0.25)]);
        [
            entry(1, EventKind::Up, Some("b:80"), "2 checks passed"),
            ejected,
            entry(3, EventKind::Stopping, None, ""),
        ]
    }

    fn stream(entries: &[Entry]) -> String {
        let mut text = "retry: 2000\n\n: alive\n\n".to_owned();
        for entry in entries {
            let data = serde_json::to_string(entry).unwrap();
            text.push_str(&format!("id: {}\ndata: {data}\n\n", entry.seq));
        }
        text
    }

    fn printed(text: &str, json: bool, from: u64) -> (String, End) {
        let mut out = Vec::new();
        let mut printer = Printer::new(&mut out, json, false);
        printer.from = from;
        let end = follow(text.as_bytes(), &mut printer, |missed| panic!("{missed} lost")).unwrap();
        (String::from_utf8(out).unwrap(), end)
    }

    #[test]
    fn lines_for_people() {
        let (out, end) = printed(&stream(&log()), false, 0);
        assert!(matches!(end, End::Stopped));
        insta::assert_snapshot!(out, @"
        2026-11-20 17:30:40.001Z  web  b:80  up  2 checks passed
        2026-11-20 17:30:40.002Z  web  10.0.0.3:80  ejected  5 failures in a row [failures=5 share=0.25]
        2026-11-20 17:30:40.003Z  -    -            stopping
        ");
    }

    #[test]
    fn a_list_is_aligned() {
        let (mut out, log) = (Vec::new(), log().map(|entry| serde_json::to_value(entry).unwrap()));
        let mut printer = Printer::new(&mut out, false, false);
        log.iter().for_each(|entry| printer.fit(entry));
        log.iter().try_for_each(|entry| printer.entry(entry)).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap(), @"
        2026-11-20 17:30:40.001Z  web  b:80         up        2 checks passed
        2026-11-20 17:30:40.002Z  web  10.0.0.3:80  ejected   5 failures in a row [failures=5 share=0.25]
        2026-11-20 17:30:40.003Z  -    -            stopping
        ");
    }

    #[test]
    fn lines_for_programs() {
        let (out, _) = printed(&stream(&log()), true, 0);
        let read: Vec<Entry> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, log());
    }

    #[test]
    fn only_those_since() {
        let (out, _) = printed(&stream(&log()), false, 1_795_195_840_002);
        assert_eq!(out.lines().count(), 2);
    }

    #[test]
    fn a_stream_that_breaks_is_not_an_end() {
        let (_, end) = printed(&stream(&log()[..2]), false, 0);
        assert!(matches!(end, End::Lost(_)));
    }

    #[test]
    fn what_a_newer_version_tells_is_passed_on() {
        let (out, _) = printed("data: {\"seq\":1,\"kind\":\"moon\"}\n\n", false, 0);
        assert_eq!(out, "{\"kind\":\"moon\",\"seq\":1}\n");
    }

    #[test]
    fn since_is_a_number_or_a_while() {
        assert_eq!("12".parse(), Ok(Since::Seq(12)));
        assert_eq!("10m".parse(), Ok(Since::Ago(Duration::from_secs(600))));
        assert!("yesterday".parse::<Since>().is_err());
    }
}
