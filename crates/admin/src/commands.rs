//! Commands: parsed, logged, executed, logged again, answered.

use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::{Either, Full};
use hyper::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::access::CredentialKind;
use crate::api::{Operation, PathNames, ProcessKind};
use crate::audit::AuditedRequest;
use crate::endpoint::{AdminBackend, AdminEndpoint};
use crate::json_body;
use crate::lottery::{KeyStep, parse_key_id, parse_new_key, parse_service, parse_setting};
use crate::reply::{ResponseBody, error, response, to_json};
use crate::supervisor::{ProcessCommand, ShutdownMode, parse_shutdown_mode};
use crate::{
    BalancerBackend, LoadReport, ReportRejection, SwitchTarget, UPGRADE_SECONDS, UpgradeRequest, lease,
    lottery, member, report, supervisor,
};

/// A command.
pub(crate) enum AdminCommand {
    Report(LoadReport),
    /// A client requests a member, or renews or ends its lease.
    Lease {
        group: String,
        operation: lease::LeaseOperation,
    },
    /// An operator ends leases of a group.
    EndLeases {
        group: String,
        filter: lease::EndLeasesBody,
    },
    /// A member joins a group, or leaves it.
    Member {
        group: String,
        member: String,
        operation: member::MemberOperation,
    },
    Drain(DrainBody),
    Undrain(DrainBody),
    SetEnabled {
        target: SwitchTarget,
        on: bool,
    },
    Set(SettingBody),
    Reload,
    Upgrade(UpgradeRequest),
    Stop,
    /// Drains a lottery daemon, or undrains it.
    DrainDaemon(bool),
    /// Enables or disables one service of a daemon.
    SetServiceEnabled {
        service: String,
        on: bool,
    },
    /// Enables or disables all services of a daemon: it is undrained or drained.
    SetDaemonEnabled(bool),
    /// Changes a setting of a daemon, or of one of its services.
    SetDaemon(lottery::DaemonSettingBody),
    /// Performs a step of a daemon's key rotation.
    RotateKey(KeyStep),
    /// Performs an operation on a process of a Supervisor.
    Process {
        name: String,
        act: ProcessCommand,
    },
    Shutdown(ShutdownMode),
}

/// The outcome: status and body, or status and reason.
pub(crate) type CommandOutcome = Result<(StatusCode, Value), (StatusCode, String)>;

/// Returns the outcome of an impossible command.
pub(crate) fn rejection(reason: String) -> (StatusCode, String) {
    (StatusCode::UNPROCESSABLE_ENTITY, reason)
}

/// The body of a drain or undrain.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DrainBody {
    group: Option<String>,
    member: String,
}

/// The body of a disable or enable: one of the three.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SwitchBody {
    group: Option<String>,
    member: Option<String>,
    listener: Option<String>,
    balancing: Option<String>,
}

impl SwitchBody {
    fn parse(body: &[u8]) -> Result<SwitchTarget, String> {
        const GIVE: &str = "give {\"member\": …, \"group\": …}, {\"listener\": …} or {\"balancing\": …}";
        match json_body::parse(body, GIVE)? {
            Self { group, member: Some(name), listener: None, balancing: None } => {
                Ok(SwitchTarget::Member { group, name })
            }
            Self { group: None, member: None, listener: Some(address), balancing: None } => {
                Ok(SwitchTarget::Listener(address))
            }
            Self { group: None, member: None, listener: None, balancing: Some(group) } => {
                Ok(SwitchTarget::Balancing(group))
            }
            _ => Err(format!("the body: it names more than one thing, or none; {GIVE}")),
        }
    }
}

/// The body of a set.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettingBody {
    group: String,
    key: String,
    /// The value, as in the configuration.
    value: String,
}

impl AdminCommand {
    /// Parses a command; `named` are the names in the path.
    ///
    /// # Errors
    /// The body or the query is invalid for this operation.
    pub(crate) fn parse(
        process_kind: ProcessKind,
        operation: Operation,
        path_names: PathNames<'_>,
        query: &str,
        body: &[u8],
    ) -> Result<Self, String> {
        if process_kind == ProcessKind::Supervisor && operation != Operation::Shutdown && !query.is_empty() {
            return Err(format!("{query}: there is nothing to be said here"));
        }
        let object_name = || path_names.object.unwrap_or_default().to_owned();
        let process = |act| Self::Process { name: object_name(), act };
        let target = || json_body::parse::<DrainBody>(body, "give {\"group\": …, \"member\": …}");
        let setting =
            || json_body::parse::<SettingBody>(body, "give {\"group\": …, \"key\": …, \"value\": …}");
        Ok(match operation {
            Operation::Drain | Operation::Undrain if process_kind == ProcessKind::Lottery => {
                if body.iter().any(|byte| !b"{} \t\r\n".contains(byte)) && body.trim_ascii() != b"null" {
                    return Err("a lottery daemon is drained as a whole: send no body".into());
                }
                Self::DrainDaemon(operation == Operation::Drain)
            }
            Operation::Disable | Operation::Enable if process_kind == ProcessKind::Lottery => {
                let on = operation == Operation::Enable;
                match parse_service(body)? {
                    Some(service) => Self::SetServiceEnabled { service, on },
                    None => Self::SetDaemonEnabled(on),
                }
            }
            Operation::Set if process_kind == ProcessKind::Lottery => Self::SetDaemon(parse_setting(body)?),
            Operation::KeyAccept => Self::RotateKey(parse_new_key(body)?),
            Operation::KeySeal => Self::RotateKey(KeyStep::Seal(parse_key_id(body)?)),
            Operation::KeyRetire => Self::RotateKey(KeyStep::Retire(parse_key_id(body)?)),
            Operation::ProcessStart => process(ProcessCommand::Start),
            Operation::ProcessStop => process(ProcessCommand::Stop),
            Operation::ProcessRestart => process(ProcessCommand::Restart),
            Operation::ProcessReload => process(ProcessCommand::Reload),
            Operation::Shutdown => Self::Shutdown(parse_shutdown_mode(query)?),
            Operation::Bind | Operation::Renew | Operation::Release => Self::Lease {
                group: object_name(),
                operation: lease::parse(operation, path_names.lease, body)?,
            },
            Operation::Register | Operation::Deregister => {
                let member = path_names.member.unwrap_or_default().to_owned();
                Self::Member { group: object_name(), member, operation: member::parse(operation, body)? }
            }
            Operation::EndLeases => {
                Self::EndLeases { group: object_name(), filter: lease::EndLeasesBody::parse(body)? }
            }
            Operation::Report => Self::Report(report::parse(body, process_kind == ProcessKind::Balancer)?),
            Operation::Drain => Self::Drain(target()?),
            Operation::Undrain => Self::Undrain(target()?),
            Operation::Disable => Self::SetEnabled { target: SwitchBody::parse(body)?, on: false },
            Operation::Enable => Self::SetEnabled { target: SwitchBody::parse(body)?, on: true },
            Operation::Set => Self::Set(setting()?),
            Operation::Reload => Self::Reload,
            Operation::Upgrade => Self::Upgrade(parse_upgrade(body)?),
            Operation::Stop => Self::Stop,
            query_operation => return Err(format!("{query_operation} does nothing")),
        })
    }

    /// Returns the group that the command names; for a Supervisor the process.
    pub(crate) fn group(&self) -> Option<&str> {
        match self {
            Self::Report(LoadReport { group, .. }) | Self::Drain(DrainBody { group, .. }) => group.as_deref(),
            Self::Undrain(DrainBody { group, .. }) => group.as_deref(),
            Self::SetEnabled { target: SwitchTarget::Member { group, .. }, .. } => group.as_deref(),
            Self::Set(SettingBody { group, .. })
            | Self::SetEnabled { target: SwitchTarget::Balancing(group), .. } => Some(group),
            Self::SetDaemon(setting) => setting.group.as_deref(),
            Self::SetServiceEnabled { service: name, .. }
            | Self::Process { name, .. }
            | Self::Lease { group: name, .. }
            | Self::Member { group: name, .. }
            | Self::EndLeases { group: name, .. } => Some(name),
            Self::SetEnabled { target: SwitchTarget::Listener(_), .. }
            | Self::Reload
            | Self::Upgrade(_)
            | Self::Stop
            | Self::DrainDaemon(_)
            | Self::SetDaemonEnabled(_)
            | Self::RotateKey(_)
            | Self::Shutdown(_) => None,
        }
    }

    /// Returns the object of a command that concerns no group.
    pub(crate) fn object_without_group(&self) -> Option<&'static str> {
        match self {
            Self::SetEnabled { target: SwitchTarget::Listener(_), .. } => Some("a listener"),
            Self::DrainDaemon(_) | Self::SetDaemonEnabled(_) | Self::SetDaemon(_) => Some("a daemon"),
            Self::Reload | Self::Upgrade(_) | Self::Stop | Self::RotateKey(_) | Self::Shutdown(_) => {
                Some("the process")
            }
            _ => None,
        }
    }

    /// Returns the target for the audit log.
    pub(crate) fn target(&self) -> Option<String> {
        let member = match self {
            Self::Report(LoadReport { member, .. })
            | Self::Drain(DrainBody { member, .. })
            | Self::Undrain(DrainBody { member, .. })
            | Self::SetEnabled {
                target: SwitchTarget::Member { name: member, .. } | SwitchTarget::Listener(member),
                ..
            } => {
                Some(member.clone())
            }
            Self::SetEnabled { target: SwitchTarget::Balancing(_), .. } => Some("balancing".to_owned()),
            Self::RotateKey(step) => Some(format!("key {}", step.id())),
            Self::EndLeases { filter, .. } => filter.member.clone(),
            Self::Member { member, .. } => Some(member.clone()),
            Self::Set(_)
            | Self::Reload
            | Self::Upgrade(_)
            | Self::Stop
            | Self::DrainDaemon(_)
            | Self::SetDaemonEnabled(_)
            | Self::SetServiceEnabled { .. }
            | Self::SetDaemon(_)
            | Self::Process { .. }
            // A lease's number is as sensitive as a key.
            | Self::Lease { .. }
            | Self::Shutdown(_) => None,
        };
        let target_parts: Vec<String> = self.group().map(str::to_owned).into_iter().chain(member).collect();
        (!target_parts.is_empty()).then(|| target_parts.join(" "))
    }

    /// Returns the other arguments for the audit log, without secrets.
    pub(crate) fn arguments(&self) -> Value {
        match self {
            Self::Set(SettingBody { key, value, .. })
            | Self::SetDaemon(lottery::DaemonSettingBody { key, value, .. }) => {
                json!({"key": key, "value": value.chars().take(400).collect::<String>()})
            }
            Self::Upgrade(request) => json!({"binary": request.binary}),
            Self::Shutdown(children) => json!({"children": children.response_text()}),
            Self::EndLeases { filter, .. } => json!({"from": filter.from}),
            Self::Member { operation, .. } => operation.arguments(),
            _ => Value::Null,
        }
    }
}

/// Parses the body of an upgrade, which may be empty.
fn parse_upgrade(body: &[u8]) -> Result<UpgradeRequest, String> {
    let request = match body.trim_ascii() {
        b"" | b"null" => UpgradeRequest::default(),
        body => json_body::parse(body, "give {\"binary\": …, \"timeout_seconds\": …}, or nothing")?,
    };
    if let Some(seconds) = request.timeout_seconds.filter(|seconds| !UPGRADE_SECONDS.contains(seconds)) {
        return Err(format!(
            "timeout_seconds: {seconds} is not between {} and {}",
            UPGRADE_SECONDS.start(),
            UPGRADE_SECONDS.end()
        ));
    }
    Ok(request)
}

/// Executes a command and returns its outcome as JSON.
pub(crate) async fn respond(
    endpoint: &Arc<AdminEndpoint>,
    command: AdminCommand,
    request: AuditedRequest,
) -> Response<ResponseBody> {
    let command = match command {
        // These are frequent and take microseconds: they do not wait for others, and are not logged.
        AdminCommand::Report(report) => return record_report(&endpoint.backend, report),
        AdminCommand::Lease { group, operation } => {
            let from = request.from.parse::<SocketAddr>().ok().map(|from| from.ip().to_canonical());
            return lease::respond(&endpoint.backend, &group, operation, from);
        }
        AdminCommand::Member { group, member, operation } => {
            if let Some(answer) = member::renew_unchanged(&endpoint.backend, &group, &member, &operation) {
                return answer;
            }
            AdminCommand::Member { group, member, operation }
        }
        command => command,
    };
    match execute_logged(endpoint, command, request).await {
        Ok((status, value)) => to_json(status, &value),
        Err((status, reason)) => error(status, reason),
    }
}

/// Executes a command in its turn, logs it, and returns its outcome.
pub(crate) async fn execute_logged(
    endpoint: &Arc<AdminEndpoint>,
    command: AdminCommand,
    request: AuditedRequest,
) -> CommandOutcome {
    // A named program would run with this process' rights: that requires more than a role.
    if let AdminCommand::Upgrade(UpgradeRequest { binary: Some(_), .. }) = &command
        && request.caller.kind != CredentialKind::Unix
    {
        let reason = "a binary can be named by the control socket only: put the new one in the place of \
                   the one that runs, \
                   and name none";
        endpoint.log_rejection(&request, reason);
        return Err((StatusCode::FORBIDDEN, reason.to_owned()));
    }
    let guard = match &command {
        AdminCommand::Upgrade(_) => endpoint.locks.lock_upgrade(),
        AdminCommand::Member { .. } => Ok(endpoint.locks.lock_member().await),
        _ => endpoint.locks.lock_operator().await,
    }
    .map_err(|(status, reason)| (status, reason.to_owned()))?;
    let (backend, audit) = (endpoint.backend.clone(), endpoint.audit().cloned());
    let operation = request.verb;
    let task_result = tokio::task::spawn_blocking(move || {
        // The task ends with the operation, not when the client disconnects.
        let _guard = guard;
        let id = match audit.as_ref().map(|audit| audit.begin_change(&request)).transpose() {
            Ok(id) => id,
            Err(reason) => {
                return Err((
                    StatusCode::SERVICE_UNAVAILABLE,
                    format!("audit: {reason}; nothing was changed"),
                ));
            }
        };
        let outcome = match &backend {
            AdminBackend::Balancer(balancer) => command.execute(&**balancer),
            AdminBackend::Lottery(daemon) => lottery::execute(&**daemon, command),
            AdminBackend::Supervisor(supervisor) => supervisor::execute(&**supervisor, command),
        };
        if let (Some(audit), Some(id)) = (&audit, id) {
            audit.end_change(id, &request, outcome.as_ref().map(drop).map_err(|(_, reason)| reason.as_str()));
        }
        let caller_description = format!("{} from {}", request.caller, request.from);
        match &outcome {
            Ok((_, value)) => tracing::info!("{operation} by {caller_description}: {value}"),
            Err((_, reason)) => tracing::warn!("{operation} by {caller_description} failed: {reason}"),
        }
        outcome
    });
    task_result
        .await
        .unwrap_or_else(|reason| Err((StatusCode::INTERNAL_SERVER_ERROR, format!("{operation}: {reason}"))))
}

impl AdminCommand {
    fn execute(self, balancer: &dyn BalancerBackend) -> CommandOutcome {
        match self {
            Self::Drain(DrainBody { group, member }) => {
                balancer.drain(group.as_deref(), &member).map_err(rejection)?;
                Ok((StatusCode::OK, json!({"draining": member})))
            }
            Self::Undrain(DrainBody { group, member }) => {
                balancer.undrain(group.as_deref(), &member).map_err(rejection)?;
                Ok((StatusCode::OK, json!({"undrained": member})))
            }
            Self::SetEnabled { target, on } => {
                let changes = balancer.set_enabled(&target, on).map_err(rejection)?;
                Ok((StatusCode::OK, json!({"changes": changes})))
            }
            Self::Set(SettingBody { group, key, value }) => {
                let changes = balancer.set(&group, &key, &value).map_err(rejection)?;
                Ok((StatusCode::OK, json!({"changes": changes})))
            }
            Self::EndLeases { group, filter } => {
                let ended =
                    balancer.end_leases(&group, filter.member.as_deref(), filter.from).map_err(rejection)?;
                Ok((StatusCode::OK, json!({"ended": ended})))
            }
            Self::Member { group, member, operation: member_operation } => {
                member_operation.execute(balancer, &group, &member)
            }
            Self::Reload => {
                let changes = balancer.reload().map_err(rejection)?;
                Ok((StatusCode::OK, json!({"changes": changes})))
            }
            Self::Upgrade(request) => {
                let upgraded = balancer.upgrade(&request).map_err(rejection)?;
                Ok((StatusCode::OK, json!(upgraded)))
            }
            Self::Stop => {
                balancer.stop().map_err(rejection)?;
                Ok((StatusCode::ACCEPTED, json!({"stopping": true})))
            }
            // The path belongs to a balancer, so the operation is one of those above.
            _ => Err(rejection("a balancer does nothing of the kind".into())),
        }
    }
}

fn record_report(backend: &AdminBackend, report: LoadReport) -> Response<ResponseBody> {
    let result = match backend {
        AdminBackend::Balancer(balancer) => balancer.report(report),
        AdminBackend::Lottery(daemon) => daemon.report(report).map(|()| None),
        AdminBackend::Supervisor(_) => Err(ReportRejection::Unknown("a Supervisor takes no reports".into())),
    };
    match result {
        Ok(None) => response(StatusCode::NO_CONTENT, "text/plain", Either::Left(Full::default())),
        Ok(Some(shed_decision)) => {
            let shed_json = json!({"share": shed_decision.share, "epoch": shed_decision.epoch});
            to_json(StatusCode::OK, &json!({"shed": shed_json}))
        }
        Err(ReportRejection::Unknown(reason)) => error(StatusCode::NOT_FOUND, reason),
        Err(ReportRejection::Invalid(reason)) => error(StatusCode::UNPROCESSABLE_ENTITY, reason),
        Err(ReportRejection::RateLimited(reason)) => error(StatusCode::TOO_MANY_REQUESTS, reason),
    }
}
