//! Configuration: from the text of `plimsoll.toml` to the settings of the data plane.
//!
//! Four steps follow each other, each of which reports every error it finds with its line and column:
//!
//! 1. The text is parsed as TOML.
//! 2. The tree is checked against the JSON Schema ([`shape`]).
//! 3. The sections are checked against one another ([`check`]).
//! 4. Host names are looked up ([`settings`]).
//!
//! Only the last touches the network, so `plimsoll config check` does the first three.

mod access;
mod acme;
mod address;
mod affinity;
mod check;
mod contents;
mod corba;
mod credential;
mod discover;
mod door;
mod fleet;
mod formula;
mod group;
mod hand_over;
mod health;
mod listener;
mod lottery;
mod members;
mod monitor;
mod name;
mod ocsp;
mod outlier;
mod place;
mod problem;
mod root;
mod scaler;
mod sense;
mod settings;
mod shape;
mod store;
mod strategy;
mod suggest;
mod supervise;
mod text;
mod time_span;
mod tls;
mod trace;
mod usual;
mod xds;

#[cfg(test)]
mod tests;

use std::fs::File as Handle;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, LazyLock};

use schemars::Schema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use toml::de::DeTable;

pub(crate) use access::{AccessTable, check_file as check_access};
pub(crate) use acme::Acme;
pub(crate) use address::{AdminListen, Control, Controls, ListenAddress, MemberAddress, Network};
pub(crate) use affinity::{Affinity, cookie_key, recall_cookie_key};
pub(crate) use corba::{Iiop, MemberLocation, ObjectKey, Reference, TypeId};
pub(crate) use credential::{JwtTable, KerberosTable, TlsTable};
pub(crate) use discover::{Discover, Discovery};
pub(crate) use door::{ControlTable, Doors};
pub(crate) use fleet::{Fleet, host};
pub(crate) use formula::Formula;
pub(crate) use group::{
    DrainedSessions, Group, Health, Member, MemberProtocol, MemberTable, ProxyVersion, ReportHeader,
    WhenAllDown,
};
pub(crate) use hand_over::HandOver;
pub(crate) use listener::{Binding, Forwarded, Listener, Protocol, Rebind};
pub(crate) use lottery::{
    DEFAULT_LOTTERY_FILE, LotteryFile, Service as LotteryService, prefix as service_prefix, read_lottery,
    read_lottery_text,
};
pub(crate) use monitor::{Monitor, MonitorUrl};
pub(crate) use name::{
    CookieName, Domain, HeaderName, HostName, Info, Key, LogPath, Name, ProbeHost, ProbePath, PublicUrl,
    ServiceName, UpgradeName,
};
pub(crate) use outlier::Outlier;
pub(crate) use problem::{Problem, Problems, Severity, Source};
pub(crate) use root::{Admin, Config};
pub(crate) use scaler::{Scaler, Scaling};
pub(crate) use sense::{CgroupName, MetricText, PageUrl};
pub(crate) use settings::{AdminConfig, Lottery, Machine, NamedMember, drawn_object, look_up, look_up_all};
pub(crate) use store::{EtcdTable, StoreTable, state_folder};
pub(crate) use strategy::Strategy;
pub(crate) use supervise::{
    DEFAULT_SUPERVISE_CONTROL, DEFAULT_SUPERVISE_FILE, Folder, Process, SuperviseFile, Variable,
    read_supervise,
};
pub(crate) use time_span::TimeSpan;
pub(crate) use tls::{ListenerTls, MemberTls};
pub(crate) use trace::Tracing;
pub(crate) use usual::{make_room, room, usual_control, usual_controls};

/// The file that is read when no other is named.
pub(crate) const DEFAULT_FILE: &str = "plimsoll.toml";

/// The largest size of a file, in bytes; larger files are rejected as mistakes.
const LARGEST: u64 = 16 << 20;

/// A file that was read and checked.
#[derive(Debug)]
pub(crate) struct File {
    /// The configuration, defaults filled in except where they depend on the machine.
    pub(crate) config: Config,
    /// Warnings only.
    pub(crate) warnings: Problems,
    source: Arc<Source>,
    spots: place::Spot,
}

/// The reason for a missing configuration.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The file could not be read.
    Io(String),
    /// The file was read and is wrong.
    Wrong(Problems),
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(why) => writeln!(out, "error: {why}"),
            Self::Wrong(problems) => problems.fmt(out),
        }
    }
}

impl ReadError {
    /// Returns the error on one line, for logs and banners.
    pub(crate) fn headline(&self) -> String {
        match self {
            Self::Io(why) => why.clone(),
            Self::Wrong(problems) => problems.headline(),
        }
    }
}

/// Reads and checks a file; `-` is standard input.
pub(crate) fn read(path: &Path) -> Result<File, ReadError> {
    let (name, bytes) = bytes_of(path)?;
    parse(&name, bytes).map_err(ReadError::Wrong)
}

/// Reads and checks a file with groups and listeners from elsewhere, which count as if they were at its end.
pub(crate) fn read_with(path: &Path, shared: &str) -> Result<File, ReadError> {
    let (name, mut bytes) = bytes_of(path)?;
    bytes.extend_from_slice(b"\n");
    bytes.extend_from_slice(shared.as_bytes());
    parse(&format!("{name} with the store's"), bytes).map_err(ReadError::Wrong)
}

/// Reads groups and listeners that are to be shared, and checks them with the file of a balancer that will
/// have them.
pub(crate) fn read_shared(path: &Path, shared: &Path) -> Result<String, ReadError> {
    let (name, bytes) = bytes_of(shared)?;
    let held = hold::<Config>(schema(), &name, bytes).map_err(ReadError::Wrong)?;
    let mut problems = held.problems;
    for (key, _) in DeTable::parse_recoverable(held.source.text()).0.get_ref() {
        if !matches!(&**key.get_ref(), "listener" | "group") {
            let message = format!("`{}` cannot be shared", key.get_ref());
            problems.push(Problem::error(key.span(), message).hint("only [[listener]] and [[group]] can"));
        }
    }
    let text = held.source.text().to_owned();
    let problems = Problems::new(held.source, problems);
    if problems.fatal() {
        return Err(ReadError::Wrong(problems));
    }
    read_with(path, &text)?;
    Ok(text)
}

/// Returns the name of a file and its content.
fn bytes_of(path: &Path) -> Result<(String, Vec<u8>), ReadError> {
    let name = name_of(path);
    let mut bytes = Vec::new();
    let outcome = if path == Path::new("-") {
        io::stdin().take(LARGEST + 1).read_to_end(&mut bytes)
    } else {
        Handle::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes))
    };
    if let Err(error) = outcome {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => ": name the file with -c, or start from one in examples/",
            _ => "",
        };
        return Err(ReadError::Io(format!("cannot read {name}: {error}{advice}")));
    }
    if bytes.len() as u64 > LARGEST {
        return Err(ReadError::Io(format!("cannot read {name}: larger than {} MiB", LARGEST >> 20)));
    }
    Ok((name, bytes))
}

/// Returns the name of a file in messages.
pub(crate) fn name_of(path: &Path) -> String {
    if path == Path::new("-") { "<stdin>".into() } else { path.display().to_string() }
}

/// Reads a strategy as a file would write it: `random`, `{ least_request = { choices = 3 } }`.
///
/// # Errors
/// Fails with the mistake, on one line.
pub(crate) fn strategy(text: &str) -> Result<Strategy, String> {
    let text = text.trim();
    let value = if text.starts_with(['{', '"', '\'']) { text.to_owned() } else { format!("{text:?}") };
    // The strategy is put into a file, so that all checks of a strategy in a file apply.
    let before = "group = [{ name = \"x\", members = [\"x:1\"], strategy = ";
    let file = format!("{before}{value} }}]\nlistener = [{{ address = \"127.0.0.1:0\", group = \"x\" }}]\n");
    let file = parse("strategy", file.into_bytes()).map_err(|problems| match problems.broken() {
        // An error of TOML itself has no message but its place.
        Some((at, why)) => {
            let written = &text[..text.floor_char_boundary(at.saturating_sub(before.len()))];
            let column = written.chars().count() + 1;
            format!(
                "{text}, column {column}: {why}; such as random, or {{ least_request = {{ choices = 3 }} }}"
            )
        }
        None => problems.first(),
    })?;
    match file.config.groups.into_iter().next() {
        Some(group) => Ok(group.strategy),
        None => Err(format!("{text} is not a strategy")),
    }
}

/// Checks the contents of a file; `name` is its name in errors.
pub(crate) fn parse(name: &str, bytes: Vec<u8>) -> Result<File, Problems> {
    let Held { value: config, spots, problems: mut list, source } = hold(schema(), name, bytes)?;
    check::check(&config, &spots, source.text(), &mut list);
    let problems = Problems::new(Arc::clone(&source), list);
    if problems.fatal() { Err(problems) } else { Ok(File { config, warnings: problems, source, spots }) }
}

/// A value after the check against its schema, with its problems and the place of each part.
struct Held<T> {
    value: T,
    spots: place::Spot,
    problems: Vec<Problem>,
    source: Arc<Source>,
}

/// Performs the first two steps: TOML, and the schema of `T`.
fn hold<T: DeserializeOwned>(schema: &Schema, name: &str, bytes: Vec<u8>) -> Result<Held<T>, Problems> {
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            let problem = Problem::error(at..at + 1, "not UTF-8 text").hint("save the file as UTF-8");
            return Err(Problems::new(Arc::new(Source::new(name, text)), vec![problem]));
        }
    };
    let source = Arc::new(Source::new(name, text));
    let fail = |list| Err(Problems::new(Arc::clone(&source), list));

    let (tree, errors) = DeTable::parse_recoverable(source.text());
    if !errors.is_empty() {
        let end = source.text().len();
        let problem =
            |error: toml::de::Error| Problem::error(error.span().unwrap_or(end..end), error.message());
        return fail(errors.into_iter().map(problem).collect());
    }
    let (tree, spots, mut list) = shape::check(schema.as_value(), tree);
    let whole = toml::Spanned::new(0..0, tree);
    match T::deserialize(toml::de::Deserializer::from(whole)) {
        Ok(value) => Ok(Held { value, spots, problems: list, source: Arc::clone(&source) }),
        // A required value is wrong, which is reported already.
        Err(_) if list.iter().any(|problem| problem.severity == Severity::Error) => fail(list),
        Err(error) => {
            // A value that passes the schema is readable, unless the schema and the types disagree.
            list.push(Problem::error(error.span().unwrap_or(0..0), error.message()));
            fail(list)
        }
    }
}

/// Returns the JSON Schema of the file, as `plimsoll config schema` prints it.
pub(crate) fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> =
        LazyLock::new(|| titled(schemars::schema_for!(Config), "plimsoll.toml"));
    &SCHEMA
}

/// Returns a schema for files of that name.
fn titled(mut schema: Schema, title: &str) -> Schema {
    schema.insert("title".into(), title.into());
    if let Some(object) = schema.as_object_mut() {
        object.values_mut().for_each(without_null);
    }
    schema
}

/// Removes null from a schema: TOML has no null, and optional keys are left out.
fn without_null(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.values_mut().for_each(without_null);
            if let Some(Value::Array(kinds)) = map.get_mut("type") {
                kinds.retain(|kind| kind != "null");
                if let [kind] = kinds.as_slice() {
                    let kind = kind.clone();
                    map.insert("type".into(), kind);
                }
            }
            for word in ["anyOf", "oneOf"] {
                if let Some(Value::Array(choices)) = map.get_mut(word) {
                    choices.retain(|choice| choice.get("type").is_none_or(|kind| kind != "null"));
                    if let [Value::Object(only)] = choices.as_slice() {
                        let only = only.clone();
                        map.remove(word);
                        map.extend(only);
                    }
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(without_null),
        _ => {}
    }
}

/// Returns a number with its noun.
pub(crate) fn count(number: usize, word: &str) -> String {
    if number == 1 { format!("1 {word}") } else { format!("{number} {word}s") }
}
