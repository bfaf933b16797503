//! What changes something: read, written down, done, written down again, answered.

use std::sync::Arc;

use http_body_util::{Either, Full};
use hyper::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::audit::Deed;
use crate::plane::Plane;
use crate::reply::{Body, error, response, to_json};
use crate::verb::Verb;
use crate::{Refused, Report, Subject, Switch, report};

/// What is to be done.
pub(crate) enum Order {
    Report(Report),
    Drain(Target),
    Undrain(Target),
    Switch { what: Switch, on: bool },
    Set(Setting),
    Reload,
    Stop,
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
        let wrong = |why: String| {
            format!(
                "the body: {why}; give {{\"member\": …, \"group\": …}}, {{\"listener\": …}} or {{\"balancing\": …}}"
            )
        };
        let read: Self = serde_json::from_slice(body).map_err(|why| wrong(why.to_string()))?;
        match read {
            Self { group, member: Some(name), listener: None, balancing: None } => {
                Ok(Switch::Member { group, name })
            }
            Self { group: None, member: None, listener: Some(address), balancing: None } => {
                Ok(Switch::Listener(address))
            }
            Self { group: None, member: None, listener: None, balancing: Some(group) } => {
                Ok(Switch::Balancing(group))
            }
            _ => Err(wrong("it names more than one thing, or none".into())),
        }
    }
}

/// The body of a set.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setting {
    group: String,
    key: String,
    /// As in the configuration.
    value: String,
}

impl Order {
    /// # Errors
    /// The body is not one of that verb.
    pub(crate) fn read(verb: Verb, body: &[u8]) -> Result<Self, String> {
        let target = || {
            serde_json::from_slice::<Target>(body)
                .map_err(|why| format!("the body: {why}; give {{\"group\": …, \"member\": …}}"))
        };
        let setting = || {
            serde_json::from_slice::<Setting>(body)
                .map_err(|why| format!("the body: {why}; give {{\"group\": …, \"key\": …, \"value\": …}}"))
        };
        Ok(match verb {
            Verb::Report => Self::Report(report::read(body)?),
            Verb::Drain => Self::Drain(target()?),
            Verb::Undrain => Self::Undrain(target()?),
            Verb::Disable => Self::Switch { what: Switched::read(body)?, on: false },
            Verb::Enable => Self::Switch { what: Switched::read(body)?, on: true },
            Verb::Set => Self::Set(setting()?),
            Verb::Reload => Self::Reload,
            Verb::Stop => Self::Stop,
            looks => return Err(format!("{looks} does nothing")),
        })
    }

    /// The group that it names.
    pub(crate) fn group(&self) -> Option<&str> {
        match self {
            Self::Report(Report { group, .. }) | Self::Drain(Target { group, .. }) => group.as_deref(),
            Self::Undrain(Target { group, .. }) => group.as_deref(),
            Self::Switch { what: Switch::Member { group, .. }, .. } => group.as_deref(),
            Self::Set(Setting { group, .. }) | Self::Switch { what: Switch::Balancing(group), .. } => {
                Some(group)
            }
            Self::Switch { what: Switch::Listener(_), .. } | Self::Reload | Self::Stop => None,
        }
    }

    /// What it is done to, for the audit log.
    pub(crate) fn target(&self) -> Option<String> {
        let member = match self {
            Self::Report(Report { member, .. })
            | Self::Drain(Target { member, .. })
            | Self::Undrain(Target { member, .. })
            | Self::Switch { what: Switch::Member { name: member, .. } | Switch::Listener(member), .. } => {
                Some(member.as_str())
            }
            Self::Switch { what: Switch::Balancing(_), .. } => Some("balancing"),
            Self::Set(_) | Self::Reload | Self::Stop => None,
        };
        let parts: Vec<&str> = self.group().into_iter().chain(member).collect();
        (!parts.is_empty()).then(|| parts.join(" "))
    }

    /// What else was said, for the audit log; none of it is secret.
    pub(crate) fn arguments(&self) -> Value {
        match self {
            Self::Set(Setting { key, value, .. }) => {
                json!({"key": key, "value": value.chars().take(400).collect::<String>()})
            }
            _ => Value::Null,
        }
    }
}

/// Does it.
pub(crate) async fn answer(plane: &Arc<Plane>, order: Order, deed: Deed) -> Response<Body> {
    let order = match order {
        // Many come, and each is done in microseconds: none waits for its turn, none is logged.
        Order::Report(report) => return take(&*plane.subject, report),
        order => order,
    };
    let turn = Arc::clone(&plane.turn).lock_owned().await;
    let (subject, audit) = (Arc::clone(&plane.subject), plane.audit().cloned());
    let verb = deed.verb;
    let done = tokio::task::spawn_blocking(move || {
        // It ends with what is done, and not when whoever asked hangs up.
        let _turn = turn;
        let id = match audit.as_ref().map(|audit| audit.begin(&deed)).transpose() {
            Ok(id) => id,
            Err(why) => {
                return Err((StatusCode::SERVICE_UNAVAILABLE, format!("audit: {why}; nothing was changed")));
            }
        };
        let outcome = order.done(&*subject);
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
    match done.await {
        Ok(Ok((status, value))) => to_json(status, &value),
        Ok(Err((status, why))) => error(status, why),
        Err(why) => error(StatusCode::INTERNAL_SERVER_ERROR, format!("{verb}: {why}")),
    }
}

impl Order {
    fn done(self, subject: &dyn Subject) -> Result<(StatusCode, Value), (StatusCode, String)> {
        let refused = |why| (StatusCode::UNPROCESSABLE_ENTITY, why);
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
            Self::Reload => {
                let changes = subject.reload().map_err(refused)?;
                Ok((StatusCode::OK, json!({"changes": changes})))
            }
            Self::Stop => {
                subject.stop();
                Ok((StatusCode::ACCEPTED, json!({"stopping": true})))
            }
            Self::Report(_) => Err(refused("a report waits for nobody".into())),
        }
    }
}

fn take(subject: &dyn Subject, report: Report) -> Response<Body> {
    match subject.report(report) {
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
