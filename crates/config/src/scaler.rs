//! `[group.scaler]`: the number of members, by the load.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::autoscale::instances::InstanceTimeouts;
use plimsoll_brain::autoscale::{ScaleTarget, ScalerSettings};
use plimsoll_cluster::discover::{self as sources, ScaledSettings, SourceSettings};
use plimsoll_cluster::scaler::ProviderKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::diagnostic::ConfigDiagnostic;
use super::root::{millis, one};
use super::spans::SpanTree;
use super::{ConfigFile, GroupConfig, TimeSpan};
use provider::{
    DockerProvider, ExecProvider, KubernetesProvider, ProcessProvider, SystemdProvider, WebhookProvider,
};

mod provider;

pub(super) use provider::{HostAddress, PortRange, UnitTemplate};

/// Autoscaling: starts members when the group needs more and stops them when it needs fewer, within `min` and
/// `max`. One provider does so: `process` (or `command` for short), `systemd`, `exec`, `webhook`, `docker` or
/// `kubernetes`. With `advice = true` there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScalerConfig {
    /// Minimum number of members of the group, including those in `members` and those found by `discover`.
    #[schemars(range(min = 0, max = 4096))]
    #[serde(default = "one_member")]
    pub min: u32,

    /// Maximum number of members of the group, counted likewise.
    #[schemars(range(min = 1, max = 4096))]
    pub max: u32,

    /// Target of the scaler: one of `utilization`, `response_time` and `headroom`.
    pub target: ScalerTarget,

    /// Interval between two decisions.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1h"))]
    #[serde(default = "millis::<1000>")]
    pub interval: TimeSpan,

    /// Time from the start of a member until it serves, which is how far ahead the demand is forecast.
    /// Measured times replace it.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1h"))]
    #[serde(default = "millis::<10000>")]
    pub start_time: TimeSpan,

    /// Time after its start within which a member must pass its health checks, and for which it may fail them
    /// later. After it, the member is stopped, and another one is started.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1h"))]
    #[serde(default = "millis::<60000>")]
    pub start_deadline: TimeSpan,

    /// Maximum time for a leaving member to finish its work; then it is stopped all the same.
    #[schemars(extend("x-maximum" = "1h"))]
    #[serde(default = "millis::<30000>")]
    pub drain: TimeSpan,

    /// Stabilization window: a member is removed only if it was surplus at every decision for this time.
    #[schemars(extend("x-maximum" = "1h"))]
    #[serde(default = "millis::<60000>")]
    pub stabilize: TimeSpan,

    /// Cooldown periods.
    #[serde(default)]
    pub cool_down: CoolDownTimes,

    /// Maximum number of members started or removed at once.
    #[serde(default)]
    pub step: StepLimits,

    /// Capacity of a started member, as in `members`.
    #[schemars(range(min = 0.001, max = 1_000_000.0))]
    #[serde(default = "one")]
    pub capacity: f64,

    /// Maximum number of concurrent requests (http), connections (tcp) or flows (udp) at a started member.
    /// Default: the group's.
    #[schemars(range(min = 1, max = 1_000_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,

    /// Reports each decision and its reason, and carries none out.
    #[serde(default)]
    pub dry_run: bool,

    /// Handling of started members when the balancer stops.
    #[serde(default)]
    pub on_stop: StopPolicy,

    /// Only computes the number of members, and starts or stops nothing. The number is in
    /// `GET /v1/groups/NAME/scale` and in the metrics.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub advice: bool,

    /// Program and arguments of members that are processes of this machine: short for a table `process` with
    /// nothing but `command`.
    #[schemars(length(min = 1), extend("examples" = [["/usr/bin/web", "--listen", "{address}"]]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,

    /// Provider: members are processes of this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessProvider>,

    /// Provider: members are systemd units on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub systemd: Option<SystemdProvider>,

    /// Provider: a program starts and stops members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecProvider>,

    /// Provider: a server starts and stops members on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookProvider>,

    /// Provider: members are containers, over the Docker Engine's API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub docker: Option<DockerProvider>,

    /// Provider: members are Kubernetes pods, whose number the scaler sets; `discover` finds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesProvider>,
}

/// Target of the scaler; one of its keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScalerTarget {
    /// Target share of the members' processors in use, as agents report it; by the load line if none does.
    #[schemars(range(min = 0.05, max = 0.95))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,

    /// Target for the 95th percentile of response times.
    #[schemars(extend("x-minimum" = "1ms", "x-maximum" = "1h"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_time: Option<TimeSpan>,

    /// Target for the free share of what the members can carry, by the load line.
    #[schemars(range(min = 0.05, max = 0.95))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headroom: Option<f64>,
}

/// Cooldown periods.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CoolDownTimes {
    /// Time after a start of members before more are started.
    #[schemars(extend("x-maximum" = "1d"))]
    pub scale_out: TimeSpan,

    /// Time after a start or removal of members before one is removed.
    #[schemars(extend("x-maximum" = "1d"))]
    pub scale_in: TimeSpan,
}

impl Default for CoolDownTimes {
    fn default() -> Self {
        Self { scale_out: TimeSpan::millis(0), scale_in: TimeSpan::millis(60_000) }
    }
}

/// Maximum number of members started or removed at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StepLimits {
    /// Maximum number of members started at once.
    #[schemars(range(min = 1, max = 4096))]
    pub scale_out: u32,

    /// Maximum number of members removed at once.
    #[schemars(range(min = 1, max = 4096))]
    pub scale_in: u32,
}

impl Default for StepLimits {
    fn default() -> Self {
        Self { scale_out: 4, scale_in: 1 }
    }
}

/// Handling of started members when the balancer stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopPolicy {
    /// Members are stopped, after the last request has ended.
    #[default]
    Stop,
    /// Members keep running, and the next balancer finds them again, as far as its provider can.
    Leave,
}

/// A group with a scaler.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupScaling {
    /// The group's name.
    pub group: Arc<str>,
    /// The rules of decisions.
    pub rules: ScalerSettings,
    /// The rules for members that were started.
    pub instance_rules: InstanceTimeouts,
    /// The time between two decisions.
    pub interval: Duration,
    /// Whether decisions are only reported.
    pub dry_run: bool,
    /// Whether the members stay when the balancer stops.
    pub leaves_members: bool,
    /// The maximum in flight at a member that was started; the group's if `None`.
    pub limit: Option<u32>,
    /// The provider that starts and stops members.
    pub provider: ProviderKind,
    /// The source by which the group knows the members that were started; `None` if they are found otherwise.
    pub source: Option<Arc<SourceSettings>>,
}

impl ScalerConfig {
    /// Returns the providers that are set; none or several is an error.
    fn providers(&self) -> Vec<&'static str> {
        let provider_flags = [
            ("command", self.command.is_some()),
            ("process", self.process.is_some()),
            ("systemd", self.systemd.is_some()),
            ("exec", self.exec.is_some()),
            ("webhook", self.webhook.is_some()),
            ("docker", self.docker.is_some()),
            ("kubernetes", self.kubernetes.is_some()),
            ("advice", self.advice),
        ];
        provider_flags.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect()
    }

    /// Returns the settings of its processes, if it has any.
    fn process(&self) -> Option<Cow<'_, ProcessProvider>> {
        let configured = self.process.as_ref().map(Cow::Borrowed);
        configured.or_else(|| Some(Cow::Owned(ProcessProvider::of(self.command.clone()?))))
    }

    fn kind(&self) -> ProviderKind {
        let configured_kind = None
            .or_else(|| self.process().as_deref().map(ProcessProvider::kind))
            .or_else(|| self.systemd.as_ref().map(SystemdProvider::kind))
            .or_else(|| self.exec.as_ref().map(ExecProvider::kind))
            .or_else(|| self.webhook.as_ref().map(WebhookProvider::kind))
            .or_else(|| self.docker.as_ref().map(DockerProvider::kind))
            .or_else(|| self.kubernetes.as_ref().map(KubernetesProvider::kind));
        configured_kind.unwrap_or(ProviderKind::Advice)
    }

    /// Returns its source of members, if it starts each of them.
    pub(super) fn source(&self) -> Option<SourceSettings> {
        let provider = self.kind().name();
        let accepts_addresses = !matches!(provider, "kubernetes" | "advice");
        let kind = sources::SourceKind::Scaler(ScaledSettings { provider });
        accepts_addresses.then_some(SourceSettings { kind, allow_empty: true, hold_time: Duration::ZERO })
    }

    fn scaling(&self, group: &GroupConfig) -> GroupScaling {
        let ScalerTarget { utilization, response_time, headroom } = &self.target;
        let seconds = response_time.map(|target_time| ScaleTarget::ResponseTime(target_time.0.as_secs_f64()));
        let target = utilization
            .map(ScaleTarget::Utilization)
            .or(seconds)
            .or_else(|| headroom.map(ScaleTarget::HeadRoom));
        GroupScaling {
            group: group.name.0.as_str().into(),
            rules: ScalerSettings {
                min: self.min,
                max: self.max,
                target: target.unwrap_or(ScaleTarget::HeadRoom(0.3)),
                unit_capacity: self.capacity,
                cool_up: self.cool_down.scale_out.0,
                cool_down: self.cool_down.scale_in.0,
                step_up: self.step.scale_out,
                step_down: self.step.scale_in,
                stabilize: self.stabilize.0,
                start_time: self.start_time.0,
            },
            instance_rules: InstanceTimeouts {
                start_deadline: self.start_deadline.0,
                drain_deadline: self.drain.0,
                ..InstanceTimeouts::default()
            },
            interval: self.interval.0,
            dry_run: self.dry_run,
            leaves_members: self.on_stop == StopPolicy::Leave,
            limit: self.max_connections,
            provider: self.kind(),
            source: self.source().map(Arc::new),
        }
    }
}

impl ConfigFile {
    /// Returns the groups with scalers.
    pub fn scalings(&self) -> Vec<GroupScaling> {
        let groups = self.config.groups.iter();
        groups.filter_map(|group| Some(group.scaler.as_ref()?.scaling(group))).collect()
    }
}

/// Checks a group's scaler.
pub(super) fn check(group: &GroupConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let Some(scaler) = &group.scaler else { return };
    let scaler_span = spans.key_span("scaler");
    let group_spans = spans;
    let spans = spans.key("scaler");
    if group.lottery.is_some() {
        let problem = ConfigDiagnostic::error(scaler_span, "either `scaler` or `lottery`, not both");
        diagnostics.push(
            problem.with_related(group_spans.key_span("lottery"), "its members are those that are drawn"),
        );
        return;
    }
    if scaler.min > scaler.max && !spans.is_broken("min") && !spans.is_broken("max") {
        let message = format!("`min` ({}) must not be above `max` ({})", scaler.min, scaler.max);
        let key = if spans.has_key("min") { "min" } else { "max" };
        diagnostics.push(ConfigDiagnostic::error(spans.key(key).value_span(), message));
    }
    let ScalerTarget { utilization, response_time, headroom } = &scaler.target;
    let target_flags = [utilization.is_some(), response_time.is_some(), headroom.is_some()];
    let target_count = target_flags.iter().filter(|is_set| **is_set).count();
    let target = spans.key("target");
    let is_target_broken = spans.is_broken("target")
        || ["utilization", "response_time", "headroom"].iter().any(|key| target.is_broken(key));
    if target_count != 1 && !is_target_broken {
        let message = if target_count == 0 {
            "`target` aims at nothing"
        } else {
            "`target` aims at more than one thing"
        };
        let hint = "write { utilization = 0.7 }, { response_time = \"50ms\" } or { headroom = 0.3 }";
        diagnostics.push(ConfigDiagnostic::error(target.value_span(), message).hint(hint));
    }
    check_provider(scaler, group, (group_spans, spans), diagnostics);
}

fn check_provider(
    scaler: &ScalerConfig,
    group: &GroupConfig,
    (group_spans, spans): (&SpanTree, &SpanTree),
    diagnostics: &mut Vec<ConfigDiagnostic>,
) {
    let providers = scaler.providers();
    const ALL: [&str; 8] =
        ["command", "process", "systemd", "exec", "webhook", "docker", "kubernetes", "advice"];
    if ALL.iter().any(|key| spans.is_broken(key)) {
        return;
    }
    let provider = match providers.as_slice() {
        [only_provider] => *only_provider,
        [] => {
            let problem = ConfigDiagnostic::error(
                group_spans.key_span("scaler"),
                "a scaler without anybody who starts members",
            );
            diagnostics.push(problem.hint(
                "add command = [\"…\", \"{port}\"] for servers on this machine, or one of the tables \
                 process, systemd, exec, webhook, docker, kubernetes, or \
                 advice = true",
            ));
            return;
        }
        [first_provider, second_provider, ..] => {
            let problem = ConfigDiagnostic::error(
                spans.key_span(second_provider),
                format!("either `{first_provider}` or `{second_provider}`, not both"),
            );
            diagnostics.push(problem.with_related(spans.key_span(first_provider), "here"));
            return;
        }
    };
    let finds_members = matches!(provider, "kubernetes" | "advice");
    if finds_members
        && group.members.is_empty()
        && group.discover.is_empty()
        && !group_spans.is_broken("members")
        && !group_spans.is_broken("discover")
    {
        let message = format!("`{provider}` does not say who the members are, and nobody else does");
        let hint = "add [[group.discover]], such as the name of a headless service as dns, or members";
        diagnostics.push(ConfigDiagnostic::error(spans.key_span(provider), message).hint(hint));
    }
    if !finds_members && group.health.is_none() && !group_spans.is_broken("health") {
        let message =
            "a member that is started would get requests before it serves: there is no [group.health]";
        diagnostics.push(
            ConfigDiagnostic::error(group_spans.key_span("scaler"), message)
                .hint("add health = { http = \"/…\" }, grpc or tcp"),
        );
    }
    if finds_members {
        for key in ["max_connections", "on_stop", "drain"].into_iter().filter(|key| spans.has_key(key)) {
            let message = format!("`{key}` has no effect: `{provider}` starts no member by itself");
            diagnostics.push(ConfigDiagnostic::warning(spans.key_span(key), message));
        }
    }
    // The keys of other providers' tables are here.
    let spans = if provider == "command" { spans } else { spans.key(provider) };
    provider::check(scaler, spans, diagnostics);
}

fn one_member() -> u32 {
    1
}

#[cfg(test)]
mod tests;
