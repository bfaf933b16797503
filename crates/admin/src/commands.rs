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
pub(crate) fn rejection(why: String) -> (StatusCode, String) {
    (StatusCode::UNPROCESSABLE_ENTITY, why)
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
        by: ProcessKind,
        verb: Operation,
        named: PathNames<'_>,
        query: &str,
        body: &[u8],
    ) -> Result<Self, String> {
        if by == ProcessKind::Supervisor && verb != Operation::Shutdown && !query.is_empty() {
            return Err(format!("{query}: there is nothing to be said here"));
        }
        let name = || named.object.unwrap_or_default().to_owned();
        let process = |act| Self::Process { name: name(), act };
        let target = || json_body::parse::<DrainBody>(body, "give {\"group\": …, \"member\": …}");
        let setting =
            || json_body::parse::<SettingBody>(body, "give {\"group\": …, \"key\": …, \"value\": …}");
        Ok(match verb {
            Operation::Drain | Operation::Undrain if by == ProcessKind::Lottery => {
                if body.iter().any(|byte| !b"{} \t\r\n".contains(byte)) && body.trim_ascii() != b"null" {
                    return Err("a lottery daemon is drained as a whole: send no body".into());
                }
                Self::DrainDaemon(verb == Operation::Drain)
            }
            Operation::Disable | Operation::Enable if by == ProcessKind::Lottery => {
                let on = verb == Operation::Enable;
                match parse_service(body)? {
                    Some(service) => Self::SetServiceEnabled { service, on },
                    None => Self::SetDaemonEnabled(on),
                }
            }
            Operation::Set if by == ProcessKind::Lottery => Self::SetDaemon(parse_setting(body)?),
            Operation::KeyAccept => Self::RotateKey(parse_new_key(body)?),
            Operation::KeySeal => Self::RotateKey(KeyStep::Seal(parse_key_id(body)?)),
            Operation::KeyRetire => Self::RotateKey(KeyStep::Retire(parse_key_id(body)?)),
            Operation::ProcessStart => process(ProcessCommand::Start),
            Operation::ProcessStop => process(ProcessCommand::Stop),
            Operation::ProcessRestart => process(ProcessCommand::Restart),
            Operation::ProcessReload => process(ProcessCommand::Reload),
            Operation::Shutdown => Self::Shutdown(parse_shutdown_mode(query)?),
            Operation::Bind | Operation::Renew | Operation::Release => {
                Self::Lease { group: name(), operation: lease::parse(verb, named.lease, body)? }
            }
            Operation::Register | Operation::Deregister => {
                let member = named.member.unwrap_or_default().to_owned();
                Self::Member { group: name(), member, operation: member::parse(verb, body)? }
            }
            Operation::EndLeases => {
                Self::EndLeases { group: name(), filter: lease::EndLeasesBody::parse(body)? }
            }
            Operation::Report => Self::Report(report::parse(body, by == ProcessKind::Balancer)?),
            Operation::Drain => Self::Drain(target()?),
            Operation::Undrain => Self::Undrain(target()?),
            Operation::Disable => Self::SetEnabled { target: SwitchBody::parse(body)?, on: false },
            Operation::Enable => Self::SetEnabled { target: SwitchBody::parse(body)?, on: true },
            Operation::Set => Self::Set(setting()?),
            Operation::Reload => Self::Reload,
            Operation::Upgrade => Self::Upgrade(parse_upgrade(body)?),
            Operation::Stop => Self::Stop,
            looks => return Err(format!("{looks} does nothing")),
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
            Self::EndLeases { filter: whose, .. } => whose.member.clone(),
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
        let parts: Vec<String> = self.group().map(str::to_owned).into_iter().chain(member).collect();
        (!parts.is_empty()).then(|| parts.join(" "))
    }

    /// Returns the other arguments for the audit log, without secrets.
    pub(crate) fn arguments(&self) -> Value {
        match self {
            Self::Set(SettingBody { key, value, .. })
            | Self::SetDaemon(lottery::DaemonSettingBody { key, value, .. }) => {
                json!({"key": key, "value": value.chars().take(400).collect::<String>()})
            }
            Self::Upgrade(wish) => json!({"binary": wish.binary}),
            Self::Shutdown(children) => json!({"children": children.response_text()}),
            Self::EndLeases { filter: whose, .. } => json!({"from": whose.from}),
            Self::Member { operation: ask, .. } => ask.arguments(),
            _ => Value::Null,
        }
    }
}

/// Parses the body of an upgrade, which may be empty.
fn parse_upgrade(body: &[u8]) -> Result<UpgradeRequest, String> {
    let wish = match body.trim_ascii() {
        b"" | b"null" => UpgradeRequest::default(),
        body => json_body::parse(body, "give {\"binary\": …, \"timeout_seconds\": …}, or nothing")?,
    };
    if let Some(seconds) = wish.timeout_seconds.filter(|seconds| !UPGRADE_SECONDS.contains(seconds)) {
        return Err(format!(
            "timeout_seconds: {seconds} is not between {} and {}",
            UPGRADE_SECONDS.start(),
            UPGRADE_SECONDS.end()
        ));
    }
    Ok(wish)
}

/// Executes a command and returns its outcome as JSON.
pub(crate) async fn respond(
    plane: &Arc<AdminEndpoint>,
    order: AdminCommand,
    deed: AuditedRequest,
) -> Response<ResponseBody> {
    let order = match order {
        // These are frequent and take microseconds: they do not wait for others, and are not logged.
        AdminCommand::Report(report) => return record_report(&plane.backend, report),
        AdminCommand::Lease { group, operation: ask } => {
            let from = deed.from.parse::<SocketAddr>().ok().map(|from| from.ip().to_canonical());
            return lease::respond(&plane.backend, &group, ask, from);
        }
        AdminCommand::Member { group, member, operation: ask } => {
            if let Some(answer) = member::renew_unchanged(&plane.backend, &group, &member, &ask) {
                return answer;
            }
            AdminCommand::Member { group, member, operation: ask }
        }
        order => order,
    };
    match execute_logged(plane, order, deed).await {
        Ok((status, value)) => to_json(status, &value),
        Err((status, why)) => error(status, why),
    }
}

/// Executes a command in its turn, logs it, and returns its outcome.
pub(crate) async fn execute_logged(
    plane: &Arc<AdminEndpoint>,
    order: AdminCommand,
    deed: AuditedRequest,
) -> CommandOutcome {
    // A named program would run with this process' rights: that requires more than a role.
    if let AdminCommand::Upgrade(UpgradeRequest { binary: Some(_), .. }) = &order
        && deed.caller.kind != CredentialKind::Unix
    {
        let why = "a binary can be named by the control socket only: put the new one in the place of the one \
                   that runs, \
                   and name none";
        plane.log_rejection(&deed, why);
        return Err((StatusCode::FORBIDDEN, why.to_owned()));
    }
    let turn = match &order {
        AdminCommand::Upgrade(_) => plane.locks.lock_upgrade(),
        AdminCommand::Member { .. } => Ok(plane.locks.lock_member().await),
        _ => plane.locks.lock_operator().await,
    }
    .map_err(|(status, why)| (status, why.to_owned()))?;
    let (behind, audit) = (plane.backend.clone(), plane.audit().cloned());
    let verb = deed.verb;
    let done = tokio::task::spawn_blocking(move || {
        // The task ends with the operation, not when the client disconnects.
        let _turn = turn;
        let id = match audit.as_ref().map(|audit| audit.begin_change(&deed)).transpose() {
            Ok(id) => id,
            Err(why) => {
                return Err((StatusCode::SERVICE_UNAVAILABLE, format!("audit: {why}; nothing was changed")));
            }
        };
        let outcome = match &behind {
            AdminBackend::Balancer(subject) => order.execute(&**subject),
            AdminBackend::Lottery(daemon) => lottery::execute(&**daemon, order),
            AdminBackend::Supervisor(supervisor) => supervisor::execute(&**supervisor, order),
        };
        if let (Some(audit), Some(id)) = (&audit, id) {
            audit.end_change(id, &deed, outcome.as_ref().map(drop).map_err(|(_, why)| why.as_str()));
        }
        let who = format!("{} from {}", deed.caller, deed.from);
        match &outcome {
            Ok((_, value)) => tracing::info!("{verb} by {who}: {value}"),
            Err((_, why)) => tracing::warn!("{verb} by {who} failed: {why}"),
        }
        outcome
    });
    done.await.unwrap_or_else(|why| Err((StatusCode::INTERNAL_SERVER_ERROR, format!("{verb}: {why}"))))
}

impl AdminCommand {
    fn execute(self, subject: &dyn BalancerBackend) -> CommandOutcome {
        match self {
            Self::Drain(DrainBody { group, member }) => {
                subject.drain(group.as_deref(), &member).map_err(rejection)?;
                Ok((StatusCode::OK, json!({"draining": member})))
            }
            Self::Undrain(DrainBody { group, member }) => {
                subject.undrain(group.as_deref(), &member).map_err(rejection)?;
                Ok((StatusCode::OK, json!({"undrained": member})))
            }
            Self::SetEnabled { target: what, on } => {
                let changes = subject.set_enabled(&what, on).map_err(rejection)?;
                Ok((StatusCode::OK, json!({"changes": changes})))
            }
            Self::Set(SettingBody { group, key, value }) => {
                let changes = subject.set(&group, &key, &value).map_err(rejection)?;
                Ok((StatusCode::OK, json!({"changes": changes})))
            }
            Self::EndLeases { group, filter: whose } => {
                let ended =
                    subject.end_leases(&group, whose.member.as_deref(), whose.from).map_err(rejection)?;
                Ok((StatusCode::OK, json!({"ended": ended})))
            }
            Self::Member { group, member, operation: ask } => ask.execute(subject, &group, &member),
            Self::Reload => {
                let changes = subject.reload().map_err(rejection)?;
                Ok((StatusCode::OK, json!({"changes": changes})))
            }
            Self::Upgrade(wish) => {
                let upgraded = subject.upgrade(&wish).map_err(rejection)?;
                Ok((StatusCode::OK, json!(upgraded)))
            }
            Self::Stop => {
                subject.stop();
                Ok((StatusCode::ACCEPTED, json!({"stopping": true})))
            }
            // The path belongs to a balancer, so the operation is one of those above.
            _ => Err(rejection("a balancer does nothing of the kind".into())),
        }
    }
}

fn record_report(behind: &AdminBackend, report: LoadReport) -> Response<ResponseBody> {
    let taken = match behind {
        AdminBackend::Balancer(subject) => subject.report(report),
        AdminBackend::Lottery(daemon) => daemon.report(report).map(|()| None),
        AdminBackend::Supervisor(_) => Err(ReportRejection::Unknown("a Supervisor takes no reports".into())),
    };
    match taken {
        Ok(None) => response(StatusCode::NO_CONTENT, "text/plain", Either::Left(Full::default())),
        Ok(Some(shed)) => {
            let shed = json!({"share": shed.share, "epoch": shed.epoch});
            to_json(StatusCode::OK, &json!({"shed": shed}))
        }
        Err(ReportRejection::Unknown(why)) => error(StatusCode::NOT_FOUND, why),
        Err(ReportRejection::Invalid(why)) => error(StatusCode::UNPROCESSABLE_ENTITY, why),
        Err(ReportRejection::RateLimited(why)) => error(StatusCode::TOO_MANY_REQUESTS, why),
    }
}
