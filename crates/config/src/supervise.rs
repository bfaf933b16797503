//! The file of the Supervisor, `supervise.toml`: its processes and their settings. It is read like the
//! balancer's.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::LazyLock;

use plimsoll_brain::supervision::RestartPolicy;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::spans::SpanTree;
use super::text::{TextValue, text};
use super::{
    AccessConfig, AdminListen, CheckedValue, ConfigDiagnostic, ConfigDiagnostics, ConfigName, ControlAddress,
    ControlAddresses, ControlSection, ControlTls, Domain, FilePath, JwtConfig, KerberosConfig, ReadError,
    TimeSpan, admin_endpoints, bytes_of, read_checked, suggest, titled,
};

/// The file that is read when no other is named.
pub const DEFAULT_SUPERVISE_FILE: &str = "supervise.toml";

/// The default control socket of the Supervisor.
pub const DEFAULT_SUPERVISE_CONTROL: &str = "/run/plimsoll-supervise.sock";

/// The commands of this binary that a Supervisor runs: those that run until they are stopped.
pub(crate) const SUPERVISED: &[&str] = &["agent", "lottery", "up"];

/// Configuration of a Supervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SuperviseConfig {
    /// Settings of the Supervisor itself.
    #[serde(default)]
    pub supervise: SupervisorSection,

    /// Processes that the Supervisor runs.
    #[schemars(length(min = 1))]
    #[serde(rename = "process")]
    pub processes: Vec<ProcessConfig>,
}

/// Settings of the Supervisor itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SupervisorSection {
    /// Addresses that accept control commands: a unix socket (mode 0600), or a list of one and of an address
    /// with TLS (`tls://0.0.0.0:9906`) whose clients must authenticate.
    pub control: ControlAddresses,

    /// Address of metrics and states: read-only. `off` for none, which is the default.
    pub listen: AdminListen,

    /// Host names accepted by `listen`, such as `lb1.example.org`, in addition to IP addresses, `localhost`
    /// and the name of this machine. Requests with any other `Host` are refused, except health checks
    /// (`/healthz`). This stops requests from foreign web pages (DNS rebinding).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<Domain>,

    /// File to which the Supervisor appends each change and each refused attempt, one JSON object per line.
    /// While it cannot be written, changes over the control addresses are refused. Default: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<FilePath>,

    /// TLS certificates of the control address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ControlTls>,

    /// Bearer tokens (JWT) accepted for control over TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtConfig>,

    /// Kerberos tickets accepted for control over TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kerberos: Option<KerberosConfig>,

    /// Authorization of clients over TLS.
    pub access: AccessConfig,

    /// File by which a restarted Supervisor finds the processes of its predecessor. Default: beside
    /// `control`, with the extension `.state`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<FilePath>,

    /// Folder for the standard error of processes, one file `NAME.log` each. Default: the Supervisor's own
    /// standard error, with the name before each line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_dir: Option<FolderPath>,

    /// Time for which the listening sockets of a failed balancer are held while no process serves them.
    /// Clients that connect wait for the next process; after this time they are refused. `0s` holds none.
    #[schemars(extend("x-maximum" = "1h"))]
    pub hold_sockets: TimeSpan,

    /// Delay before a process is restarted after its second consecutive failure; after the first there is
    /// none. It doubles with each failure, and up to half of it is subtracted at random.
    #[schemars(extend("x-minimum" = "1ms", "x-maximum" = "1h"))]
    pub restart_delay: TimeSpan,

    /// Maximum restart delay.
    #[schemars(extend("x-minimum" = "1ms", "x-maximum" = "1d"))]
    pub restart_delay_max: TimeSpan,

    /// Running time after which the next failure of a process counts as its first.
    #[schemars(extend("x-minimum" = "1ms", "x-maximum" = "1d"))]
    pub settled_after: TimeSpan,
}

impl SupervisorSection {
    /// Returns its part about control.
    pub fn control_section(&self) -> ControlSection<'_> {
        ControlSection {
            section: "supervise",
            control: &self.control,
            tls: self.tls.as_ref(),
            jwt: self.jwt.as_ref(),
            kerberos: self.kerberos.as_ref(),
            access: &self.access,
        }
    }
}

impl Default for SupervisorSection {
    fn default() -> Self {
        Self {
            control: ControlAddresses::One(ControlAddress::Unix(DEFAULT_SUPERVISE_CONTROL.into())),
            listen: AdminListen(None),
            names: Vec::new(),
            audit: None,
            tls: None,
            jwt: None,
            kerberos: None,
            access: AccessConfig::default(),
            state: None,
            log_dir: None,
            hold_sockets: TimeSpan::millis(10_000),
            restart_delay: TimeSpan::millis(1_000),
            restart_delay_max: TimeSpan::millis(60_000),
            settled_after: TimeSpan::millis(60_000),
        }
    }
}

/// A process that the Supervisor runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessConfig {
    /// Name of the process.
    pub name: ConfigName,

    /// Plimsoll command and its arguments: `["lottery", "--config", "/etc/plimsoll/lottery.toml"]`. The
    /// commands are `up`, `agent` and `lottery`.
    #[schemars(length(min = 1))]
    pub command: Vec<String>,

    /// Starts the process with the Supervisor. If `false`, it starts only on command.
    #[serde(default = "yes")]
    pub start: bool,

    /// Maximum time for the process to end before it is killed.
    #[schemars(extend("x-maximum" = "1d"))]
    #[serde(default = "patience")]
    pub stop_timeout: TimeSpan,

    /// Environment variables in addition to those of the Supervisor: `["RUST_LOG=debug"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<EnvironmentVariable>,
}

fn yes() -> bool {
    true
}

fn patience() -> TimeSpan {
    TimeSpan::millis(30_000)
}

/// A folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderPath(pub PathBuf);

text! {
    FolderPath,
    format: "plimsoll-folder",
    what: "the path of a folder",
    example: "/var/lib/plimsoll",
}

impl FromStr for FolderPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("is empty".into()),
            _ if text.contains('\0') => Err("contains a NUL byte".into()),
            _ => Ok(Self(text.into())),
        }
    }
}

impl fmt::Display for FolderPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(out)
    }
}

/// A variable of an environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvironmentVariable {
    /// The name, which has no `=`.
    pub name: String,
    /// The value.
    pub value: String,
}

text! {
    EnvironmentVariable,
    format: "plimsoll-environment",
    what: "NAME=VALUE",
    example: "RUST_LOG=debug",
    pattern: "^[A-Za-z_][A-Za-z0-9_]*=",
}

impl FromStr for EnvironmentVariable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("has no `=`: write NAME=VALUE")?;
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if name.is_empty() || !name.bytes().all(is_allowed) || name.as_bytes()[0].is_ascii_digit() {
            return Err("does not begin with the name of a variable: letters, digits and `_`".into());
        }
        if value.contains('\0') {
            return Err("contains a NUL byte".into());
        }
        Ok(Self { name: name.into(), value: value.into() })
    }
}

impl fmt::Display for EnvironmentVariable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}={}", self.name, self.value)
    }
}

/// A file that was read and checked.
#[derive(Debug)]
pub struct SuperviseFile {
    /// The configuration, defaults filled in.
    pub supervise: SuperviseConfig,
}

/// Reads and checks a file; `-` is standard input.
pub fn read_supervise(path: &Path) -> Result<SuperviseFile, ReadError> {
    let (name, bytes) = bytes_of(path)?;
    read_text(&name, bytes).map_err(ReadError::Wrong)
}

fn read_text(name: &str, bytes: Vec<u8>) -> Result<SuperviseFile, ConfigDiagnostics> {
    let CheckedValue { value: supervise, spans: root_spans, problems: mut diagnostics, source } =
        read_checked(schema(), name, bytes)?;
    check_parts(&supervise, &root_spans, &mut diagnostics);
    let problems = ConfigDiagnostics::new(source, diagnostics);
    if problems.has_errors() { Err(problems) } else { Ok(SuperviseFile { supervise }) }
}

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> =
        LazyLock::new(|| titled(schemars::schema_for!(SuperviseConfig), DEFAULT_SUPERVISE_FILE));
    &SCHEMA
}

/// Checks the parts against one another.
fn check_parts(file: &SuperviseConfig, root_spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let supervise_spans = root_spans.key("supervise");
    if file.supervise.control.unix().is_none() && !supervise_spans.is_broken("control") {
        // The next Supervisor finds a running one by this socket.
        let reason = match file.supervise.control.tls() {
            None => "a Supervisor without a control socket can be told nothing",
            Some(_) => "a Supervisor needs a unix socket beside the address for TLS",
        };
        let hint = match file.supervise.control.tls() {
            None => format!("write \"unix:{DEFAULT_SUPERVISE_CONTROL}\""),
            Some(address) => format!("write [\"unix:{DEFAULT_SUPERVISE_CONTROL}\", \"tls://{address}\"]"),
        };
        diagnostics
            .push(ConfigDiagnostic::error(supervise_spans.key("control").value_span(), reason).hint(hint));
    }
    admin_endpoints::check(&file.supervise.control_section(), supervise_spans, diagnostics);
    if file.supervise.restart_delay > file.supervise.restart_delay_max
        && !supervise_spans.is_broken("restart_delay_max")
    {
        let message = format!(
            "`restart_delay_max` is {}, which is shorter than `restart_delay`, {}",
            file.supervise.restart_delay_max, file.supervise.restart_delay
        );
        let key = ["restart_delay_max", "restart_delay"].into_iter().find(|key| supervise_spans.has_key(key));
        let span =
            key.map_or_else(|| supervise_spans.value_span(), |key| supervise_spans.key(key).value_span());
        diagnostics.push(ConfigDiagnostic::error(span, message));
    }
    for (index, process) in file.processes.iter().enumerate() {
        let spans = root_spans.key("process").item(index);
        if let Some(first) = file.processes[..index].iter().position(|other| other.name == process.name) {
            let first_span = root_spans.key("process").item(first).key("name").value_span();
            let message = format!("a second process `{}`", process.name);
            diagnostics.push(
                ConfigDiagnostic::error(spans.key("name").value_span(), message)
                    .with_related(first_span, "the first is here"),
            );
        }
        let Some(command) = process.command.first() else { continue };
        if !SUPERVISED.contains(&&**command) {
            let message = format!("`{command}` is not a command that a Supervisor runs");
            let span = spans.key("command").item(0).value_span();
            diagnostics.push(ConfigDiagnostic::error(span, message).hint(suggest::hint(command, SUPERVISED)));
        }
    }
}

impl SuperviseFile {
    /// Returns the path of the control socket.
    pub fn control(&self) -> PathBuf {
        // A checked file has one.
        let unix_path = self.supervise.supervise.control.unix();
        unix_path.map_or_else(|| DEFAULT_SUPERVISE_CONTROL.into(), PathBuf::clone)
    }

    /// Returns the file that records the running processes.
    pub fn state(&self) -> PathBuf {
        let configured = self.supervise.supervise.state.as_ref().map(|path| path.0.clone());
        configured.unwrap_or_else(|| self.control().with_extension("state"))
    }

    /// Returns the socket to which balancers bring their listening sockets.
    pub fn holder_path(&self) -> PathBuf {
        self.control().with_extension("sockets")
    }

    /// Returns the rules for a process.
    pub fn rules(&self, process: &ProcessConfig) -> RestartPolicy {
        let supervise_section = &self.supervise.supervise;
        RestartPolicy {
            first: supervise_section.restart_delay.0,
            max_backoff: supervise_section.restart_delay_max.0,
            reset_after: supervise_section.settled_after.0,
            kill_timeout: process.stop_timeout.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(text: &str) -> Result<SuperviseFile, String> {
        read_text("supervise.toml", text.as_bytes().to_vec()).map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_short_file_says_all() {
        let file = read("[[process]]\nname = \"web\"\ncommand = [\"up\"]\n").expect("it is right");
        let process = &file.supervise.processes[0];
        assert!(process.start && process.environment.is_empty());
        assert_eq!(file.rules(process), RestartPolicy::default());
        assert_eq!(file.state(), Path::new("/run/plimsoll-supervise.state"));
        assert_eq!(file.holder_path(), Path::new("/run/plimsoll-supervise.sockets"));
        assert_eq!(file.supervise.supervise.hold_sockets.0, Duration::from_secs(10));
        let full_text = "[supervise]\ncontrol = \"unix:/x/y.sock\"\nlisten = \"127.0.0.1:0\"\nlog_dir = \
                    \"/var/log/\"\n\
                    hold_sockets = \"0s\"\nrestart_delay = \"10ms\"\nrestart_delay_max = \
                    \"50ms\"\nsettled_after = \"2s\"\n\
                    [[process]]\nname = \"web\"\ncommand = [\"up\", \"-c\", \"web.toml\"]\nstart = false\n\
                    stop_timeout = \"5s\"\nenvironment = [\"RUST_LOG=a=b\"]\n";
        let file = read(full_text).expect("it is right");
        assert_eq!(file.state(), Path::new("/x/y.state"));
        assert_eq!(file.supervise.supervise.hold_sockets.0, Duration::ZERO);
        let process = &file.supervise.processes[0];
        assert_eq!(file.rules(process).kill_timeout, Duration::from_secs(5));
        assert_eq!((&*process.environment[0].name, &*process.environment[0].value), ("RUST_LOG", "a=b"));
    }

    #[test]
    fn its_doors_are_those_of_a_balancer() {
        let read_keytab = |extra_keys: &str| {
            let text = format!(
                "[supervise]\ncontrol = [\"unix:/x.sock\", \"tls://127.0.0.1:9906\"]\n\
                 tls = {{ certificate = \"/a.pem\", key = \"/a.key\" }}\n{extra_keys}\
                 [[supervise.access.grant]]\nidentity = \"krb5:a@B\"\nrole = \"viewer\"\n\
                 [[process]]\nname = \"a\"\ncommand = [\"up\"]\n"
            );
            read(&text).map(|file| {
                file.supervise.supervise.control_section().tls_control().and_then(|(.., keytab)| keytab)
            })
        };
        assert!(
            read_keytab("").expect_err("it is wrong").contains("[supervise.jwt] or [supervise.kerberos]")
        );
        match read_keytab("kerberos = { keytab = \"/k\" }\n") {
            Ok(keytab) => assert_eq!(keytab, Some(PathBuf::from("/k"))),
            Err(error) => assert!(error.contains("built without Kerberos"), "{error}"),
        }
    }

    #[test]
    fn what_is_wrong_is_shown_where_it_is() {
        let invalid_text = "[supervise]\ncontrol = \"off\"\nrestart_delay = \"2m\"\n\
                     [[process]]\nname = \"a\"\ncommand = [\"lotery\", \"-c\", \"x\"]\nenvironment = \
                     [\"1=2\"]\n\
                     [[process]]\nname = \"a\"\ncommand = []\n\
                     [[process]]\nname = \"a\"\ncommand = [\"up\"]\nrestart = true\n";
        insta::assert_snapshot!(read(invalid_text).expect_err("it is wrong"), @r#"
        error: supervise.toml:2:11: a Supervisor without a control socket can be told nothing
            2 | control = "off"
              |           ^^^^^ write "unix:/run/plimsoll-supervise.sock"
        error: supervise.toml:3:17: `restart_delay_max` is 1m, which is shorter than `restart_delay`, 2m
            3 | restart_delay = "2m"
              |                 ^^^^
        error: supervise.toml:6:12: `lotery` is not a command that a Supervisor runs
            6 | command = ["lotery", "-c", "x"]
              |            ^^^^^^^^ did you mean `lottery`?   allowed: agent, lottery, up
        error: supervise.toml:7:16: `environment`: `1=2` does not begin with the name of a variable: letters, digits and `_`
            7 | environment = ["1=2"]
              |                ^^^^^ NAME=VALUE, such as "RUST_LOG=debug"
        error: supervise.toml:10:11: `command` must not be empty
           10 | command = []
              |           ^^
        error: supervise.toml:12:8: a second process `a`
           12 | name = "a"
              |        ^^^
            5 | name = "a"
              |        ^^^ the first is here
        error: supervise.toml:14:1: unknown key `restart` in [[process]]
           14 | restart = true
              | ^^^^^^^ did you mean `start`?   allowed: command, environment, name, start, stop_timeout
        7 errors
        "#);
        let empty_error = read("").expect_err("it is wrong");
        assert!(empty_error.contains("missing key `process`"), "{empty_error}");
    }
}
