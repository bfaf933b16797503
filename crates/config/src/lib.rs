//! Configuration: from the text of `plimsoll.toml` to the settings of the data plane.
//!
//! Four steps follow each other, each of which reports every error it finds with its line and column:
//!
//! 1. The text is parsed as TOML.
//! 2. The tree is checked against the JSON Schema (`schema_check`).
//! 3. The sections are checked against one another (`check`).
//! 4. Host names are looked up (`settings`).
//!
//! Only the last touches the network, so `plimsoll config check` does the first three.

mod access;
mod acme;
mod address;
mod admin_endpoints;
mod affinity;
mod auth;
mod check;
mod corba;
mod default_paths;
mod diagnostic;
mod discover;
mod drain_hook;
mod expression;
mod fleet;
mod group;
mod health;
mod identifiers;
pub mod limits;
mod listener;
mod lottery;
mod members;
mod monitor;
mod ocsp;
mod outlier;
mod renamed;
mod root;
mod route;
mod scaler;
mod schema_check;
mod sensor;
mod settings;
mod spans;
mod store;
mod strategy;
mod suggest;
mod summary;
mod supervise;
mod text;
mod time_span;
mod tls;
mod trace;
mod xds;

#[cfg(test)]
mod tests;

/// The laws of files, for the fuzz targets: each panics if its law is broken.
#[cfg(fuzzing)]
#[expect(missing_docs, reason = "named like the targets")]
pub mod laws {
    pub fn members(input: &[u8]) {
        crate::members::law::check(input);
    }
}

use std::fs::File as Handle;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, LazyLock};

use schemars::Schema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use toml::de::DeTable;

pub use access::{AccessConfig, check_file as check_access};
pub use acme::AcmeConfig;
pub use address::{AdminListen, ControlAddress, ControlAddresses, ListenAddress, MemberAddress, Network};
pub use admin_endpoints::{ControlConfig, ControlSection};
pub use affinity::{AffinityConfig, cookie_key, restore_cookie_key};
pub use auth::{ControlTls, JwtConfig, KerberosConfig};
pub use corba::{IiopConfig, MemberLocation, ObjectKey, ObjectReference, RepositoryId};
pub use default_paths::{create_folder, default_control, default_controls, is_usable};
pub use diagnostic::{ConfigDiagnostic, ConfigDiagnostics, Severity, SourceText};
pub use discover::{DiscoverConfig, GroupDiscovery};
pub use drain_hook::DrainHookConfig;
pub use expression::ExpressionText;
pub use fleet::{FleetConfig, host};
pub use group::{
    DrainPolicy, GroupConfig, HealthConfig, LoadReportHeader, MemberConfig, MemberEntry, MemberProtocol,
    ProxyVersion, WhenAllDown,
};
pub use identifiers::{
    ConfigName, CookieName, Domain, FilePath, HashKey, HeaderName, HostName, ProbeHost, ProbePath, PublicUrl,
    ServiceName, ServiceText, UpgradeName,
};
pub use listener::{BindingMode, ForwardedHeaders, ListenerConfig, ListenerProtocol, RebindMode};
pub use lottery::{
    DEFAULT_LOTTERY_FILE, LotteryFile, ServiceConfig as LotteryService, prefix as service_prefix,
    read_lottery, read_lottery_text,
};
pub use monitor::{MonitorConfig, MonitorUrl};
pub use outlier::OutlierConfig;
pub use root::{AdminSection, Config};
pub use route::{
    ContentType, FieldMatch, FieldTestConfig, FieldText, MethodName, OneOrMany, PathPatternText,
    RedirectConfig, RespondConfig, RouteConfig, RouteHost, RoutePath, RouteRegex, SplitGroup, UrlScheme,
};
pub use scaler::{GroupScaling, ScalerConfig};
pub use sensor::{CgroupName, MetricText, PageUrl};
pub use settings::{
    AdminConfig, LotteryGroup, MachineDefaults, NamedMember, look_up, look_up_all, lottery_object,
};
pub use store::{EtcdConfig, StoreConfig, state_folder};
pub use strategy::StrategyConfig;
pub use supervise::{
    DEFAULT_SUPERVISE_CONTROL, DEFAULT_SUPERVISE_FILE, EnvironmentVariable, FolderPath, ProcessConfig,
    SuperviseFile, read_supervise,
};
pub use time_span::{TimeSpan, short_duration};
pub use tls::{ListenerTls, MemberTls};
pub use trace::TracingConfig;

/// The file that is read when no other is named.
pub const DEFAULT_FILE: &str = "plimsoll.toml";

/// The largest size of a file, in bytes; larger files are rejected as mistakes.
const MAX_FILE_SIZE: u64 = 16 << 20;

/// A file that was read and checked.
#[derive(Debug)]
pub struct ConfigFile {
    /// The configuration, defaults filled in except where they depend on the machine.
    pub config: Config,
    /// Warnings only.
    pub warnings: ConfigDiagnostics,
    source: Arc<SourceText>,
    spans: spans::SpanTree,
}

/// The reason for a missing configuration.
#[derive(Debug)]
pub enum ReadError {
    /// The file could not be read.
    Io(String),
    /// The file was read and is wrong.
    Wrong(ConfigDiagnostics),
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(reason) => writeln!(out, "error: {reason}"),
            Self::Wrong(problems) => problems.fmt(out),
        }
    }
}

impl ReadError {
    /// Returns the error on one line, for logs and banners.
    pub fn headline(&self) -> String {
        match self {
            Self::Io(reason) => reason.clone(),
            Self::Wrong(problems) => problems.headline(),
        }
    }
}

/// Reads and checks a file; `-` is standard input.
pub fn read(path: &Path) -> Result<ConfigFile, ReadError> {
    let (name, bytes) = bytes_of(path)?;
    parse(&name, bytes).map_err(ReadError::Wrong)
}

/// Reads and checks a file with groups and listeners from elsewhere, which count as if they were at its end.
pub fn read_with(path: &Path, shared_text: &str) -> Result<ConfigFile, ReadError> {
    let (name, mut bytes) = bytes_of(path)?;
    bytes.extend_from_slice(b"\n");
    bytes.extend_from_slice(shared_text.as_bytes());
    parse(&format!("{name} with the store's"), bytes).map_err(ReadError::Wrong)
}

/// Reads groups and listeners that are to be shared, and checks them with the file of a balancer that will
/// have them.
pub fn read_shared(path: &Path, shared_path: &Path) -> Result<String, ReadError> {
    let (name, bytes) = bytes_of(shared_path)?;
    let shared_config = read_checked::<Config>(schema(), &name, bytes).map_err(ReadError::Wrong)?;
    let mut problems = shared_config.problems;
    for (key, _) in DeTable::parse_recoverable(shared_config.source.text()).0.get_ref() {
        if !matches!(&**key.get_ref(), "listener" | "group") {
            let message = format!("`{}` cannot be shared", key.get_ref());
            problems.push(
                ConfigDiagnostic::error(key.span(), message).hint("only [[listener]] and [[group]] can"),
            );
        }
    }
    let text = shared_config.source.text().to_owned();
    let problems = ConfigDiagnostics::new(shared_config.source, problems);
    if problems.has_errors() {
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
        io::stdin().take(MAX_FILE_SIZE + 1).read_to_end(&mut bytes)
    } else {
        Handle::open(path).and_then(|file| file.take(MAX_FILE_SIZE + 1).read_to_end(&mut bytes))
    };
    if let Err(error) = outcome {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => ": name the file with -c, or start from one in examples/",
            _ => "",
        };
        return Err(ReadError::Io(format!("cannot read {name}: {error}{advice}")));
    }
    if bytes.len() as u64 > MAX_FILE_SIZE {
        return Err(ReadError::Io(format!("cannot read {name}: larger than {} MiB", MAX_FILE_SIZE >> 20)));
    }
    Ok((name, bytes))
}

/// Returns the name of a file in messages.
pub fn name_of(path: &Path) -> String {
    if path == Path::new("-") { "<stdin>".into() } else { path.display().to_string() }
}

/// Reads a strategy as a file would write it: `random`, `{ least_request = { choices = 3 } }`.
///
/// # Errors
/// Fails with the mistake, on one line.
pub fn parse_strategy(text: &str) -> Result<StrategyConfig, String> {
    let text = text.trim();
    let value = if text.starts_with(['{', '"', '\'']) { text.to_owned() } else { format!("{text:?}") };
    // The strategy is put into a file, so that all checks of a strategy in a file apply.
    let prefix = "group = [{ name = \"x\", members = [\"x:1\"], strategy = ";
    let file = format!("{prefix}{value} }}]\nlistener = [{{ address = \"127.0.0.1:0\", group = \"x\" }}]\n");
    let file =
        parse("strategy", file.into_bytes()).map_err(|problems| match problems.first_without_hint() {
            // An error of TOML itself has no message but its place.
            Some((error_offset, reason)) => {
                let text_before =
                    &text[..text.floor_char_boundary(error_offset.saturating_sub(prefix.len()))];
                let column = text_before.chars().count() + 1;
                format!(
                    "{text}, column {column}: {reason}; such as random, or \
                     {{ least_request = {{ choices = 3 }} }}"
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
pub fn parse(name: &str, bytes: Vec<u8>) -> Result<ConfigFile, ConfigDiagnostics> {
    let CheckedValue { value: config, spans: root_spans, problems: mut diagnostics, source } =
        read_checked(schema(), name, bytes)?;
    check::check(&config, &root_spans, source.text(), &mut diagnostics);
    let problems = ConfigDiagnostics::new(Arc::clone(&source), diagnostics);
    if problems.has_errors() {
        Err(problems)
    } else {
        Ok(ConfigFile { config, warnings: problems, source, spans: root_spans })
    }
}

/// A value after the check against its schema, with its problems and the place of each part.
struct CheckedValue<T> {
    value: T,
    spans: spans::SpanTree,
    problems: Vec<ConfigDiagnostic>,
    source: Arc<SourceText>,
}

/// Performs the first two steps: TOML, and the schema of `T`.
fn read_checked<T: DeserializeOwned>(
    schema: &Schema,
    name: &str,
    bytes: Vec<u8>,
) -> Result<CheckedValue<T>, ConfigDiagnostics> {
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let offset = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            let problem =
                ConfigDiagnostic::error(offset..offset + 1, "not UTF-8 text").hint("save the file as UTF-8");
            return Err(ConfigDiagnostics::new(Arc::new(SourceText::new(name, text)), vec![problem]));
        }
    };
    let source = Arc::new(SourceText::new(name, text));
    let to_diagnostics = |diagnostics| Err(ConfigDiagnostics::new(Arc::clone(&source), diagnostics));

    let (tree, errors) = DeTable::parse_recoverable(source.text());
    if !errors.is_empty() {
        let end = source.text().len();
        let problem = |error: toml::de::Error| {
            ConfigDiagnostic::error(error.span().unwrap_or(end..end), error.message())
        };
        return to_diagnostics(errors.into_iter().map(problem).collect());
    }
    let (tree, root_spans, mut diagnostics) = schema_check::check(schema.as_value(), tree);
    let spanned_tree = toml::Spanned::new(0..0, tree);
    match T::deserialize(toml::de::Deserializer::from(spanned_tree)) {
        Ok(value) => {
            Ok(CheckedValue { value, spans: root_spans, problems: diagnostics, source: Arc::clone(&source) })
        }
        // A required value is wrong, which is reported already.
        Err(_) if diagnostics.iter().any(|problem| problem.severity == Severity::Error) => {
            to_diagnostics(diagnostics)
        }
        Err(error) => {
            // A value that passes the schema is readable, unless the schema and the types disagree.
            diagnostics.push(ConfigDiagnostic::error(error.span().unwrap_or(0..0), error.message()));
            to_diagnostics(diagnostics)
        }
    }
}

/// Returns the JSON Schema of the file, as `plimsoll config schema` prints it.
pub fn schema() -> &'static Schema {
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
            for keyword in ["anyOf", "oneOf"] {
                if let Some(Value::Array(choices)) = map.get_mut(keyword) {
                    choices.retain(|choice| choice.get("type").is_none_or(|kind| kind != "null"));
                    if let [Value::Object(only_choice)] = choices.as_slice() {
                        let only_choice = only_choice.clone();
                        map.remove(keyword);
                        map.extend(only_choice);
                    }
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(without_null),
        _ => {}
    }
}

/// Returns a number with its noun.
pub fn pluralize(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
