//! Commands: parsed, logged, executed, logged again, answered.

use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::{Either, Full};
use hyper::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::access::Kind;
use crate::audit::Deed;
use crate::lottery::{KeyStep, read_id, read_secret, read_setting, read_switch};
use crate::plane::{Behind, Plane};
use crate::reply::{Body, error, response, to_json};
use crate::sent;
use crate::supervisor::{Act, Children, read_children};
use crate::verb::{By, Named, Verb};
use crate::{
    Refused, Report, Subject, Switch, UPGRADE_SECONDS, UpgradeWish, lease, lottery, member, report,
    supervisor,
};

/// A command.
pub(crate) enum Order {
    Report(Report),
    /// A client requests a member, or renews or ends its lease.
    Lease {
        group: String,
        ask: lease::Ask,
    },
    /// An operator ends leases of a group.
    EndLeases {
        group: String,
        whose: lease::Lessees,
    },
    /// A member joins a group, or leaves it.
    Member {
        group: String,
        member: String,
        ask: member::Ask,
    },
    Drain(Target),
    Undrain(Target),
    Switch {
        what: Switch,
        on: bool,
    },
    Set(Setting),
    Reload,
    Upgrade(UpgradeWish),
    Stop,
    /// Drains a lottery daemon, or undrains it.
    Rest(bool),
    /// Enables or disables one service of a daemon.
    Hold {
        service: String,
        on: bool,
    },
    /// Enables or disables all services of a daemon: it is undrained or drained.
    Whole(bool),
    /// Changes a setting of a daemon, or of one of its services.
    Tune(lottery::Setting),
    /// Performs a step of a daemon's key rotation.
    Key(KeyStep),
    /// Performs an operation on a process of a Supervisor.
    Process {
        name: String,
        act: Act,
    },
    Shutdown(Children),
}

/// The outcome: status and body, or status and reason.
pub(crate) type Outcome = Result<(StatusCode, Value), (StatusCode, String)>;

/// Returns the outcome of an impossible command.
pub(crate) fn refused(why: String) -> (StatusCode, String) {
    (StatusCode::UNPROCESSABLE_ENTITY, why)
}

/// The body of a drain or undrain.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    group: Option<String>,
    member: String,
}

/// The body of a disable or enable: one of the three.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Switched {
    group: Option<String>,
    member: Option<String>,
    listener: Option<String>,
    balancing: Option<String>,
}

impl Switched {
    fn read(body: &[u8]) -> Result<Switch, String> {
        const GIVE: &str = "give {\"member\": …, \"group\": …}, {\"listener\": …} or {\"balancing\": …}";
        match sent::read(body, GIVE)? {
            Self { group, member: Some(name), listener: None, balancing: None } => {
                Ok(Switch::Member { group, name })
            }
            Self { group: None, member: None, listener: Some(address), balancing: None } => {
                Ok(Switch::Listener(address))
            }
            Self { group: None, member: None, listener: None, balancing: Some(group) } => {
                Ok(Switch::Balancing(group))
            }
            _ => Err(format!("the body: it names more than one thing, or none; {GIVE}")),
        }
    }
}

/// The body of a set.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setting {
    group: String,
    key: String,
    /// The value, as in the configuration.
    value: String,
}

impl Order {
    /// Parses a command; `named` are the names in the path.
    ///
    /// # Errors
    /// The body or the query is invalid for this operation.
    pub(crate) fn read(
        by: By,
        verb: Verb,
        named: Named<'_>,
        query: &str,
        body: &[u8],
    ) -> Result<Self, String> {
        if by == By::Supervisor && verb != Verb::Shutdown && !query.is_empty() {
            return Err(format!("{query}: there is nothing to be said here"));
        }
        let name = || named.of.unwrap_or_default().to_owned();
        let process = |act| Self::Process { name: name(), act };
        let target = || sent::read::<Target>(body, "give {\"group\": …, \"member\": …}");
        let setting = || sent::read::<Setting>(body, "give {\"group\": …, \"key\": …, \"value\": …}");
        Ok(match verb {
            Verb::Drain | Verb::Undrain if by == By::Lottery => {
                if body.iter().any(|byte| !b"{} \t\r\n".contains(byte)) && body.trim_ascii() != b"null" {
                    return Err("a lottery daemon is drained as a whole: send no body".into());
                }
                Self::Rest(verb == Verb::Drain)
            }
            Verb::Disable | Verb::Enable if by == By::Lottery => {
                let on = verb == Verb::Enable;
                match read_switch(body)? {
                    Some(service) => Self::Hold { service, on },
                    None => Self::Whole(on),
                }
            }
            Verb::Set if by == By::Lottery => Self::Tune(read_setting(body)?),
            Verb::KeyAccept => Self::Key(read_secret(body)?),
            Verb::KeySeal => Self::Key(KeyStep::Seal(read_id(body)?)),
            Verb::KeyRetire => Self::Key(KeyStep::Retire(read_id(body)?)),
            Verb::ProcessStart => process(Act::Start),
            Verb::ProcessStop => process(Act::Stop),
            Verb::ProcessRestart => process(Act::Restart),
            Verb::ProcessReload => process(Act::Reload),
            Verb::Shutdown => Self::Shutdown(read_children(query)?),
            Verb::Bind | Verb::Renew | Verb::Release => {
                Self::Lease { group: name(), ask: lease::read(verb, named.lease, body)? }
            }
            Verb::Register | Verb::Deregister => {
                let member = named.member.unwrap_or_default().to_owned();
                Self::Member { group: name(), member, ask: member::read(verb, body)? }
            }
            Verb::EndLeases => Self::EndLeases { group: name(), whose: lease::Lessees::read(body)? },
            Verb::Report => Self::Report(report::read(body, by == By::Balancer)?),
            Verb::Drain => Self::Drain(target()?),
            Verb::Undrain => Self::Undrain(target()?),
            Verb::Disable => Self::Switch { what: Switched::read(body)?, on: false },
            Verb::Enable => Self::Switch { what: Switched::read(body)?, on: true },
            Verb::Set => Self::Set(setting()?),
            Verb::Reload => Self::Reload,
            Verb::Upgrade => Self::Upgrade(upgrade(body)?),
            Verb::Stop => Self::Stop,
            looks => return Err(format!("{looks} does nothing")),
        })
    }

    /// Returns the group that the command names; for a Supervisor the process.
    pub(crate) fn group(&self) -> Option<&str> {
        match self {
            Self::Report(Report { group, .. }) | Self::Drain(Target { group, .. }) => group.as_deref(),
            Self::Undrain(Target { group, .. }) => group.as_deref(),
            Self::Switch { what: Switch::Member { group, .. }, .. } => group.as_deref(),
            Self::Set(Setting { group, .. }) | Self::Switch { what: Switch::Balancing(group), .. } => {
                Some(group)
            }
            Self::Tune(setting) => setting.group.as_deref(),
            Self::Hold { service: name, .. }
            | Self::Process { name, .. }
            | Self::Lease { group: name, .. }
            | Self::Member { group: name, .. }
            | Self::EndLeases { group: name, .. } => Some(name),
            Self::Switch { what: Switch::Listener(_), .. }
            | Self::Reload
            | Self::Upgrade(_)
            | Self::Stop
            | Self::Rest(_)
            | Self::Whole(_)
            | Self::Key(_)
            | Self::Shutdown(_) => None,
        }
    }

    /// Returns the object of a command that concerns no group.
    pub(crate) fn of_no_group(&self) -> Option<&'static str> {
        match self {
            Self::Switch { what: Switch::Listener(_), .. } => Some("a listener"),
            Self::Rest(_) | Self::Whole(_) | Self::Tune(_) => Some("a daemon"),
            Self::Reload | Self::Upgrade(_) | Self::Stop | Self::Key(_) | Self::Shutdown(_) => {
                Some("the process")
            }
            _ => None,
        }
    }

    /// Returns the target for the audit log.
    pub(crate) fn target(&self) -> Option<String> {
        let member = match self {
            Self::Report(Report { member, .. })
            | Self::Drain(Target { member, .. })
            | Self::Undrain(Target { member, .. })
            | Self::Switch { what: Switch::Member { name: member, .. } | Switch::Listener(member), .. } => {
                Some(member.clone())
            }
            Self::Switch { what: Switch::Balancing(_), .. } => Some("balancing".to_owned()),
            Self::Key(step) => Some(format!("key {}", step.id())),
            Self::EndLeases { whose, .. } => whose.member.clone(),
            Self::Member { member, .. } => Some(member.clone()),
            Self::Set(_)
            | Self::Reload
            | Self::Upgrade(_)
            | Self::Stop
            | Self::Rest(_)
            | Self::Whole(_)
            | Self::Hold { .. }
            | Self::Tune(_)
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
            Self::Set(Setting { key, value, .. }) | Self::Tune(lottery::Setting { key, value, .. }) => {
                json!({"key": key, "value": value.chars().take(400).collect::<String>()})
            }
            Self::Upgrade(wish) => json!({"binary": wish.binary}),
            Self::Shutdown(children) => json!({"children": children.word()}),
            Self::EndLeases { whose, .. } => json!({"from": whose.from}),
            Self::Member { ask, .. } => ask.arguments(),
            _ => Value::Null,
        }
    }
}

/// Parses the body of an upgrade, which may be empty.
fn upgrade(body: &[u8]) -> Result<UpgradeWish, String> {
    let wish = match body.trim_ascii() {
        b"" | b"null" => UpgradeWish::default(),
        body => sent::read(body, "give {\"binary\": …, \"timeout_seconds\": …}, or nothing")?,
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
pub(crate) async fn answer(plane: &Arc<Plane>, order: Order, deed: Deed) -> Response<Body> {
    let order = match order {
        // These are frequent and take microseconds: they do not wait for others, and are not logged.
        Order::Report(report) => return take(&plane.behind, report),
        Order::Lease { group, ask } => {
            let from = deed.from.parse::<SocketAddr>().ok().map(|from| from.ip().to_canonical());
            return lease::answer(&plane.behind, &group, ask, from);
        }
        Order::Member { group, member, ask } => {
            if let Some(answer) = member::renewed(&plane.behind, &group, &member, &ask) {
                return answer;
            }
            Order::Member { group, member, ask }
        }
        order => order,
    };
    match outcome(plane, order, deed).await {
        Ok((status, value)) => to_json(status, &value),
        Err((status, why)) => error(status, why),
    }
}

/// Executes a command in its turn, logs it, and returns its outcome.
pub(crate) async fn outcome(plane: &Arc<Plane>, order: Order, deed: Deed) -> Outcome {
    // A named program would run with this process' rights: that requires more than a role.
    if let Order::Upgrade(UpgradeWish { binary: Some(_), .. }) = &order
        && deed.caller.kind != Kind::Unix
    {
        let why = "a binary can be named by the control socket only: put the new one in the place of the one that runs, \
                   and name none";
        plane.refused(&deed, why);
        return Err((StatusCode::FORBIDDEN, why.to_owned()));
    }
    let turn = match &order {
        Order::Upgrade(_) => plane.turns.upgrade(),
        Order::Member { .. } => Ok(plane.turns.member().await),
        _ => plane.turns.order().await,
    }
    .map_err(|(status, why)| (status, why.to_owned()))?;
    let (behind, audit) = (plane.behind.clone(), plane.audit().cloned());
    let verb = deed.verb;
    let done = tokio::task::spawn_blocking(move || {
        // The task ends with the operation, not when the client disconnects.
        let _turn = turn;
        let id = match audit.as_ref().map(|audit| audit.begin(&deed)).transpose() {
            Ok(id) => id,
            Err(why) => {
                return Err((StatusCode::SERVICE_UNAVAILABLE, format!("audit: {why}; nothing was changed")));
            }
        };
        let outcome = match &behind {
            Behind::Balancer(subject) => order.done(&**subject),
            Behind::Lottery(daemon) => lottery::done(&**daemon, order),
            Behind::Supervisor(supervisor) => supervisor::done(&**supervisor, order),
        };
        if let (Some(audit), Some(id)) = (&audit, id) {
            audit.end(id, &deed, outcome.as_ref().map(drop).map_err(|(_, why)| why.as_str()));
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

impl Order {
    fn done(self, subject: &dyn Subject) -> Outcome {
        match self {
            Self::Drain(Target { group, member }) => {
                subject.drain(group.as_deref(), &member).map_err(refused)?;
                Ok((StatusCode::OK, json!({"draining": member})))
            }
            Self::Undrain(Target { group, member }) => {
                subject.undrain(group.as_deref(), &member).map_err(refused)?;
                Ok((StatusCode::OK, json!({"undrained": member})))
            }
            Self::Switch { what, on } => {
                let changes = subject.switch(&what, on).map_err(refused)?;
                Ok((StatusCode::OK, json!({"changes": changes})))
            }
            Self::Set(Setting { group, key, value }) => {
                let changes = subject.set(&group, &key, &value).map_err(refused)?;
                Ok((StatusCode::OK, json!({"changes": changes})))
            }
            Self::EndLeases { group, whose } => {
                let ended =
                    subject.end_leases(&group, whose.member.as_deref(), whose.from).map_err(refused)?;
                Ok((StatusCode::OK, json!({"ended": ended})))
            }
            Self::Member { group, member, ask } => ask.done(subject, &group, &member),
            Self::Reload => {
                let changes = subject.reload().map_err(refused)?;
                Ok((StatusCode::OK, json!({"changes": changes})))
            }
            Self::Upgrade(wish) => {
                let upgraded = subject.upgrade(&wish).map_err(refused)?;
                Ok((StatusCode::OK, json!(upgraded)))
            }
            Self::Stop => {
                subject.stop();
                Ok((StatusCode::ACCEPTED, json!({"stopping": true})))
            }
            // The path belongs to a balancer, so the operation is one of those above.
            _ => Err(refused("a balancer does nothing of the kind".into())),
        }
    }
}

fn take(behind: &Behind, report: Report) -> Response<Body> {
    let taken = match behind {
        Behind::Balancer(subject) => subject.report(report),
        Behind::Lottery(daemon) => daemon.report(report).map(|()| None),
        Behind::Supervisor(_) => Err(Refused::Unknown("a Supervisor takes no reports".into())),
    };
    match taken {
        Ok(None) => response(StatusCode::NO_CONTENT, "text/plain", Either::Left(Full::default())),
        Ok(Some(shed)) => {
            let shed = json!({"share": shed.share, "epoch": shed.epoch});
            to_json(StatusCode::OK, &json!({"shed": shed}))
        }
        Err(Refused::Unknown(why)) => error(StatusCode::NOT_FOUND, why),
        Err(Refused::Wrong(why)) => error(StatusCode::UNPROCESSABLE_ENTITY, why),
        Err(Refused::TooFast(why)) => error(StatusCode::TOO_MANY_REQUESTS, why),
    }
}
