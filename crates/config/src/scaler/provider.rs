//! The tables of providers, which start and stop members.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use plimsoll_cluster::scaler::{
    AddressRange, DockerSettings, ExecSettings, KubernetesSettings, ProcessSettings, ProviderKind,
    SystemdSettings, WebhookSettings,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ScalerConfig;
use crate::diagnostic::ConfigDiagnostic;
use crate::root::millis;
use crate::spans::SpanTree;
use crate::text::{TextValue, text};
use crate::{ConfigName, EnvironmentVariable, FilePath, FolderPath, MonitorUrl, TimeSpan};

/// Processes of this machine, created from a template. In its strings, `{port}`, `{host}`, `{address}`,
/// `{index}` and `{group}` are placeholders for the values of the member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessProvider {
    /// Program and arguments, run without a shell.
    #[schemars(length(min = 1), extend("examples" = [["/usr/bin/web", "--listen", "{address}"]]))]
    pub command: Vec<String>,

    /// Environment variables in addition to those of the balancer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<EnvironmentVariable>,

    /// Working directory. Default: that of the balancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<FolderPath>,

    /// File to which the process's output is appended. Its name may have the same placeholders. Default: the
    /// output is discarded.
    #[schemars(extend("examples" = ["/var/log/web-{index}.log"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<FilePath>,

    /// IP address on which the process listens.
    #[serde(default = "here")]
    pub host: HostAddress,

    /// First and last port. Default: any free port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortRange>,

    /// Maximum time for the process to end after SIGTERM; then it is killed.
    #[schemars(extend("x-maximum" = "1h"))]
    #[serde(default = "millis::<10000>")]
    pub patience: TimeSpan,

    /// File that records the running processes, so that a balancer that was killed, or left them running,
    /// finds them again.
    #[schemars(extend("examples" = ["/var/lib/plimsoll/web.processes"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<FilePath>,
}

/// Units of one systemd template, numbered from 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SystemdProvider {
    /// Unit template: `web@.service`.
    pub unit: UnitTemplate,

    /// Uses the service manager of the user that the balancer runs as (`systemctl --user`).
    #[serde(default)]
    pub user: bool,

    /// IP address on which the units listen.
    #[serde(default = "here")]
    pub host: HostAddress,

    /// Port of unit 0; unit 1 listens on the next port.
    #[schemars(range(min = 1, max = 65_535))]
    pub first_port: u16,

    /// Program that controls the units.
    #[serde(default = "systemctl")]
    pub systemctl: FilePath,

    /// Timeout of one call of `systemctl`.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1h"))]
    #[serde(default = "millis::<30000>")]
    pub timeout: TimeSpan,
}

/// A program that starts and stops members. It gets `{"action": "start", "group", "index", "why"}` or
/// `{"action": "stop", "group", "index", "id", "address", "why"}` on its standard input, and answers a start
/// with `{"address": "10.0.0.3:80", "id": "…"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecProvider {
    /// Program and arguments, run without a shell.
    #[schemars(length(min = 1), extend("examples" = [["/usr/local/bin/members"]]))]
    pub command: Vec<String>,

    /// Timeout of one run.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1h"))]
    #[serde(default = "millis::<60000>")]
    pub timeout: TimeSpan,
}

/// A server that starts and stops members. It gets the JSON of an `exec` program by POST, and answers
/// likewise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookProvider {
    /// URL of the server.
    pub url: MonitorUrl,

    /// Timeout of one request.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1h"))]
    #[serde(default = "millis::<60000>")]
    pub timeout: TimeSpan,
}

/// Containers of one image, whose port is published at a free port of this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DockerProvider {
    /// Image, which must be present: nothing is pulled.
    #[schemars(length(min = 1), extend("examples" = ["web:1.2"]))]
    pub image: String,

    /// Port on which the server in the container listens.
    #[schemars(range(min = 1, max = 65_535))]
    pub port: u16,

    /// Command instead of the image's own; `{index}` and `{group}` are placeholders for the values of the
    /// member.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,

    /// Environment variables of the container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<EnvironmentVariable>,

    /// IP address of this machine at which the port is published.
    #[serde(default = "here")]
    pub host: HostAddress,

    /// First and last port at which it is published. Default: any free port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortRange>,

    /// Maximum time for a container to end; then it is killed.
    #[schemars(extend("x-maximum" = "1h"))]
    #[serde(default = "millis::<10000>")]
    pub patience: TimeSpan,

    /// Socket of the Docker Engine.
    #[serde(default = "socket")]
    pub socket: FilePath,

    /// Timeout of one request to the Engine.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1h"))]
    #[serde(default = "millis::<30000>")]
    pub timeout: TimeSpan,
}

/// A Kubernetes workload whose number of replicas the scaler sets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KubernetesProvider {
    /// Name of the workload.
    pub name: ConfigName,

    /// Kind of the workload.
    #[serde(default)]
    pub resource: ReplicatedKind,

    /// Namespace of the workload. Default: the content of `namespace` in the folder `account`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<ConfigName>,

    /// Host and port of the API server.
    #[serde(default = "api")]
    pub server: crate::MemberAddress,

    /// Uses TLS; `false` is for `kubectl proxy`.
    #[serde(default = "crate::root::yes")]
    pub tls: bool,

    /// Folder with `token`, `ca.crt` and `namespace`, as the cluster mounts it into each pod.
    #[serde(default = "account")]
    pub account: FolderPath,

    /// Timeout of one request.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1h"))]
    #[serde(default = "millis::<10000>")]
    pub timeout: TimeSpan,
}

/// Kind of a workload with replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplicatedKind {
    /// A Deployment.
    #[default]
    Deployment,
    /// A StatefulSet.
    StatefulSet,
    /// A ReplicaSet.
    ReplicaSet,
}

/// An IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostAddress(pub IpAddr);

text! {
    HostAddress,
    format: "plimsoll-ip-address",
    what: "an IP address",
    example: "127.0.0.1",
}

impl FromStr for HostAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ip: IpAddr = text.parse().map_err(|_| "is no IP address")?;
        if ip.is_unspecified() {
            Err("is no address that a member could be reached at".into())
        } else {
            Ok(Self(ip))
        }
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// The first and the last of a range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange(pub u16, pub u16);

text! {
    PortRange,
    format: "plimsoll-ports",
    what: "a range of ports",
    example: "20000-20099",
    pattern: "^[0-9]+-[0-9]+$",
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first_port, last_port) =
            text.split_once('-').ok_or("is no range of ports: write \"20000-20099\"")?;
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
        match (port(first_port), port(last_port)) {
            (Some(first_port), Some(last_port)) if first_port <= last_port => Ok(Self(first_port, last_port)),
            (Some(_), Some(_)) => Err("has its last port before its first".into()),
            _ => Err("has a port that is none: they are from 1 to 65535".into()),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.0, self.1)
    }
}

/// A template of units: `web@.service`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitTemplate(pub String);

text! {
    UnitTemplate,
    format: "plimsoll-unit-template",
    what: "the template of units",
    example: "web@.service",
    pattern: "^[A-Za-z0-9:_.-]+@\\.service$",
}

impl FromStr for UnitTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name =
            text.strip_suffix("@.service").ok_or("is no template of services: write \"web@.service\"")?;
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b":_.-".contains(&byte);
        if name.is_empty() || name.len() > 200 || !name.bytes().all(is_allowed) || name.starts_with('-') {
            return Err("is no name of a unit: letters, digits, `:`, `_`, `.` and `-`".into());
        }
        Ok(Self(name.into()))
    }
}

impl fmt::Display for UnitTemplate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}@.service", self.0)
    }
}

fn address_range(host: HostAddress, ports: Option<PortRange>) -> AddressRange {
    AddressRange { ip: host.0, ports: ports.map(|PortRange(first_port, last_port)| (first_port, last_port)) }
}

impl ProcessProvider {
    /// Returns a process with all defaults but the command.
    pub(super) fn of(command: Vec<String>) -> Self {
        Self {
            command,
            environment: Vec::new(),
            folder: None,
            log: None,
            host: here(),
            ports: None,
            patience: millis::<10000>(),
            state: None,
        }
    }

    pub(super) fn kind(&self) -> ProviderKind {
        let to_pair = |variable: &EnvironmentVariable| (variable.name.clone(), variable.value.clone());
        ProviderKind::Process(ProcessSettings {
            command: self.command.clone(),
            environment: self.environment.iter().map(to_pair).collect(),
            folder: self.folder.as_ref().map(|folder| folder.0.clone()),
            log: self.log.as_ref().map(|log| log.0.clone()),
            listen: address_range(self.host, self.ports),
            stop_timeout: self.patience.0,
            state_file: self.state.as_ref().map(|state| state.0.clone()),
        })
    }
}

impl SystemdProvider {
    pub(super) fn kind(&self) -> ProviderKind {
        ProviderKind::Systemd(SystemdSettings {
            systemctl: self.systemctl.to_string(),
            template: self.unit.0.clone(),
            user: self.user,
            ip: self.host.0,
            first_port: self.first_port,
            timeout: self.timeout.0,
        })
    }
}

impl ExecProvider {
    pub(super) fn kind(&self) -> ProviderKind {
        ProviderKind::Exec(ExecSettings { command: self.command.clone(), timeout: self.timeout.0 })
    }
}

impl WebhookProvider {
    pub(super) fn kind(&self) -> ProviderKind {
        let MonitorUrl { host, port, path } = self.url.clone();
        ProviderKind::Webhook(WebhookSettings { host, port, path, timeout: self.timeout.0 })
    }
}

impl DockerProvider {
    pub(super) fn kind(&self) -> ProviderKind {
        ProviderKind::Docker(DockerSettings {
            socket: self.socket.0.clone(),
            image: self.image.clone(),
            command: self.command.clone(),
            environment: self.environment.iter().map(ToString::to_string).collect(),
            port: self.port,
            publish: address_range(self.host, self.ports),
            stop_timeout: self.patience.0,
            timeout: self.timeout.0,
        })
    }
}

impl KubernetesProvider {
    pub(super) fn kind(&self) -> ProviderKind {
        let resource = match self.resource {
            ReplicatedKind::Deployment => "deployments",
            ReplicatedKind::StatefulSet => "statefulsets",
            ReplicatedKind::ReplicaSet => "replicasets",
        };
        ProviderKind::Kubernetes(KubernetesSettings {
            host: self.server.host.clone(),
            port: self.server.port,
            tls: self.tls,
            resource: resource.into(),
            name: self.name.0.clone(),
            namespace: self.namespace.as_ref().map(|namespace| namespace.0.clone()),
            account: self.account.0.clone(),
            timeout: self.timeout.0,
        })
    }
}

/// Checks the provider.
pub(super) fn check(scaler: &ScalerConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let process = scaler.process();
    let process = process.as_deref();
    let commands =
        [process.map(|provider| &provider.command), scaler.exec.as_ref().map(|provider| &provider.command)];
    for command in commands.into_iter().flatten() {
        if command.first().is_some_and(String::is_empty) {
            diagnostics.push(ConfigDiagnostic::error(
                spans.key("command").item(0).value_span(),
                "`command` has no program",
            ));
        }
    }
    if let Some(process) = process
        && process
            .command
            .iter()
            .all(|argument| !argument.contains("{port}") && !argument.contains("{address}"))
        && process
            .environment
            .iter()
            .all(|variable| !variable.value.contains("{port}") && !variable.value.contains("{address}"))
        && scaler.max > 1
        && !spans.is_broken("command")
    {
        let message =
            "`command` has neither `{port}` nor `{address}`: all processes would listen at one port";
        diagnostics.push(
            ConfigDiagnostic::error(spans.key("command").value_span(), message)
                .hint("write where it is to listen, such as \"--port={port}\""),
        );
    }
    let ports = [
        process.and_then(|provider| provider.ports),
        scaler.docker.as_ref().and_then(|provider| provider.ports),
    ];
    for PortRange(first_port, last_port) in ports.into_iter().flatten() {
        let count = u32::from(last_port - first_port) + 1;
        if count < scaler.max {
            let members = crate::pluralize(scaler.max as usize, "member");
            let message = format!("`ports` are {count}, fewer than the {members} that there may be");
            diagnostics.push(ConfigDiagnostic::warning(spans.key("ports").value_span(), message));
        }
    }
    if let Some(systemd) = &scaler.systemd
        && u32::from(systemd.first_port) + scaler.max > 65_536
    {
        let members = crate::pluralize(scaler.max as usize, "member");
        let message = format!("from `first_port` there are fewer ports than the {members} that there may be");
        diagnostics.push(ConfigDiagnostic::error(spans.key("first_port").value_span(), message));
    }
    if let Some(process) = &scaler.process()
        && scaler.on_stop == super::StopPolicy::Leave
        && process.state.is_none()
    {
        let message = "processes that are left would be found by nobody: there is no `state`";
        let hint = match scaler.process {
            Some(_) => "add state = \"/var/lib/plimsoll/web.processes\"",
            None => "write process = { command = [\"…\"], state = \"/var/lib/plimsoll/web.processes\" }",
        };
        diagnostics.push(ConfigDiagnostic::error(spans.value_span(), message).hint(hint));
    }
}

fn here() -> HostAddress {
    HostAddress(IpAddr::from([127, 0, 0, 1]))
}

fn systemctl() -> FilePath {
    FilePath("systemctl".into())
}

fn socket() -> FilePath {
    FilePath("/var/run/docker.sock".into())
}

fn api() -> crate::MemberAddress {
    crate::MemberAddress { host: "kubernetes.default.svc".into(), port: 443 }
}

fn account() -> FolderPath {
    FolderPath("/var/run/secrets/kubernetes.io/serviceaccount".into())
}
