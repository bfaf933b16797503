//! The interfaces and data of the lottery daemon behind the admin plane.

mod metrics;
mod status;

use std::fmt;
use std::sync::Arc;

use hyper::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::access::GrantedScope;
use crate::api::Operation;
use crate::commands::{AdminCommand, CommandOutcome, rejection};
use crate::endpoint::AdminEndpoint;
use crate::integers::whole;
use crate::json_body;
use crate::reply::{ResponseBody, error, to_json};
use crate::{LoadReport, ReportRejection, queries};

pub use status::{DaemonCounters, DaemonStatus, ObservedDaemon, ObservedService, OwnService};

/// The running daemon behind the admin plane.
///
/// [`DaemonBackend::is_stopping`] and [`DaemonBackend::report`] are called on the admin thread and must not
/// block. All other methods run on a thread that may block, commands one at a time. Operators see the text of
/// an error unchanged.
pub trait DaemonBackend: Send + Sync + 'static {
    /// Returns `true` during the shutdown.
    fn is_stopping(&self) -> bool;

    /// Returns the status.
    ///
    /// # Errors
    /// The daemon has ended.
    fn status(&self) -> Result<DaemonStatus, String>;

    /// Drains the daemon, or undrains it.
    ///
    /// # Errors
    /// The daemon has ended.
    fn set_drained(&self, drain: bool) -> Result<(), String>;

    /// Enables or disables one service. Returns one line for each difference.
    ///
    /// # Errors
    /// There is no such service, or the daemon has ended.
    fn set_service_enabled(&self, service: &str, on: bool) -> Result<Vec<String>, String>;

    /// Changes a setting of one service or of the daemon until the next reload. Returns one line for each
    /// difference.
    ///
    /// # Errors
    /// There is no such service or setting, the value is invalid, or the daemon has ended.
    fn set(&self, service: Option<&str>, key: &str, value: &str) -> Result<Vec<String>, String>;

    /// Reloads the configuration and the keys. Returns one line for each difference.
    ///
    /// # Errors
    /// They are invalid; nothing has changed.
    fn reload(&self) -> Result<Vec<String>, String>;

    /// Begins the shutdown; returns at once.
    fn stop(&self);

    /// Records a load report of the server.
    ///
    /// # Errors
    /// The report is rejected.
    fn report(&self, report: LoadReport) -> Result<(), ReportRejection>;

    /// Returns the numbers of its keys.
    ///
    /// # Errors
    /// The daemon has ended.
    fn keys(&self) -> Result<KeyRing, String>;

    /// Performs a step of a key rotation, in memory and in the key file. Returns the resulting keys.
    /// Repeating a step is no error.
    ///
    /// # Errors
    /// The step is impossible; nothing has changed.
    fn rotate_key(&self, step: KeyStep) -> Result<KeyRing, String>;
}

/// The keys of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRing {
    /// The daemon's number.
    pub member: u16,
    /// The number of the key that it seals with.
    pub sealing: u32,
    /// The numbers of all valid keys, the sealing one first, without those for clients.
    pub keys: Vec<u32>,
    /// The numbers of the valid keys for clients.
    #[serde(default)]
    pub client_keys: Vec<u32>,
    /// The numbers of the other daemons that are alive.
    pub others: Vec<u16>,
}

/// A step of a key rotation.
#[derive(Clone, PartialEq, Eq)]
pub enum KeyStep {
    /// Adds a key.
    Accept(u32, KeySecret, KeyHolder),
    /// Seals with this key.
    Seal(u32),
    /// Removes this key.
    Retire(u32),
}

/// The holders that a key is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyHolder {
    /// Daemons, and equally trusted clients.
    #[default]
    Daemon,
    /// Clients, which may only send requests with it.
    Client,
}

/// 64 hexadecimal digits that are never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct KeySecret(String);

impl KeySecret {
    /// Returns the digits, for the key file.
    pub fn digits(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for KeySecret {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_valid = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_valid {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err("the secret is not 64 hexadecimal digits")
        }
    }
}

/// Omits the digits.
impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl fmt::Debug for KeyStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = match self {
            Self::Accept(..) => "Accept",
            Self::Seal(_) => "Seal",
            Self::Retire(_) => "Retire",
        };
        f.debug_tuple(step).field(&self.id()).finish()
    }
}

impl KeyStep {
    /// Returns the number of the key.
    pub fn id(&self) -> u32 {
        match self {
            Self::Accept(id, ..) | Self::Seal(id) | Self::Retire(id) => *id,
        }
    }
}

/// Parses the body of a new key. Errors do not quote it: it may contain the secret.
pub(crate) fn parse_new_key(body: &[u8]) -> Result<KeyStep, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct NewKeyBody {
        #[serde(deserialize_with = "whole")]
        id: u32,
        secret: String,
        #[serde(default)]
        role: KeyHolder,
    }
    let parse_error = || {
        "the body: give {\"id\": NUMBER, \"secret\": 64 hexadecimal digits}, and \"role\": \"client\" if it \
         is for clients"
            .to_owned()
    };
    let key: NewKeyBody = serde_json::from_slice(body).map_err(|_| parse_error())?;
    Ok(KeyStep::Accept(key.id, key.secret.parse().map_err(|_| parse_error())?, key.role))
}

/// Parses the body of a disable or enable: the service, or nothing for the daemon as a whole.
pub(crate) fn parse_service(body: &[u8]) -> Result<Option<String>, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct ServiceSwitchBody {
        balancing: Option<String>,
    }
    if matches!(body.trim_ascii(), b"" | b"null") {
        return Ok(None);
    }
    let switch: ServiceSwitchBody =
        json_body::parse(body, "give {\"balancing\": SERVICE}, or nothing for all of them")?;
    Ok(switch.balancing)
}

/// The body of a set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DaemonSettingBody {
    /// The service; `None` for settings of the daemon.
    pub(crate) group: Option<String>,
    pub(crate) key: String,
    /// The value, as in the configuration.
    pub(crate) value: String,
}

pub(crate) fn parse_setting(body: &[u8]) -> Result<DaemonSettingBody, String> {
    json_body::parse(
        body,
        "give {\"key\": …, \"value\": …}, and \"group\": SERVICE where the key is of a service",
    )
}

/// Parses the body with a key's number.
pub(crate) fn parse_key_id(body: &[u8]) -> Result<u32, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct KeyIdBody {
        #[serde(deserialize_with = "whole")]
        id: u32,
    }
    // Errors do not quote this body either: the sender may have included a secret.
    let key: KeyIdBody =
        serde_json::from_slice(body).map_err(|_| "the body: give {\"id\": NUMBER}".to_owned())?;
    Ok(key.id)
}

/// Responds to a query about a daemon; `permit` admits some of its services.
pub(crate) async fn respond(
    endpoint: &AdminEndpoint,
    daemon: &Arc<dyn DaemonBackend>,
    operation: Operation,
    scope: &GrantedScope,
) -> Response<ResponseBody> {
    if operation == Operation::Health {
        return queries::health(daemon.is_stopping());
    }
    let _guard = endpoint.locks.slow_query.lock().await;
    let (daemon, scope) = (Arc::clone(daemon), scope.clone());
    let result = tokio::task::spawn_blocking(move || match operation {
        Operation::Keys => Ok(to_json(StatusCode::OK, &daemon.keys()?)),
        Operation::Metrics => {
            Ok(queries::metrics_response(metrics::metrics_page(&redact(daemon.status()?, &scope))))
        }
        _ => Ok::<_, String>(to_json(StatusCode::OK, &redact(daemon.status()?, &scope))),
    });
    match result.await {
        Ok(Ok(response)) => response,
        Ok(Err(reason)) => error(StatusCode::SERVICE_UNAVAILABLE, reason),
        Err(reason) => error(StatusCode::INTERNAL_SERVER_ERROR, reason.to_string()),
    }
}

/// Reduces a status to what the caller may see.
pub(crate) fn redact(mut status: DaemonStatus, scope: &GrantedScope) -> DaemonStatus {
    status.services.retain(|service| scope.covers(&service.name));
    if *scope != GrantedScope::All {
        let ids: Vec<u32> = status.services.iter().map(|service| service.id).collect();
        for member in &mut status.members {
            member.services.retain(|service| ids.contains(&service.service));
        }
        // The error quotes the file.
        status.reload_error = status.reload_error.map(|_| "refused".into());
    }
    status
}

/// Executes a command on a daemon.
pub(crate) fn execute(daemon: &dyn DaemonBackend, command: AdminCommand) -> CommandOutcome {
    let ok_response = |value: Value| Ok((StatusCode::OK, value));
    match command {
        AdminCommand::DrainDaemon(drain) => {
            daemon.set_drained(drain).map_err(rejection)?;
            let state = if drain { "draining" } else { "undrained" };
            ok_response(json!({state: "daemon"}))
        }
        AdminCommand::SetServiceEnabled { service, on } => {
            ok_response(json!({"changes": daemon.set_service_enabled(&service, on).map_err(rejection)?}))
        }
        AdminCommand::SetDaemonEnabled(on) => {
            daemon.set_drained(!on).map_err(rejection)?;
            ok_response(
                json!({"changes": [format!("~ daemon: {}", if on { "enabled" } else { "disabled" })]}),
            )
        }
        AdminCommand::SetDaemon(DaemonSettingBody { group, key, value }) => {
            ok_response(json!({"changes": daemon.set(group.as_deref(), &key, &value).map_err(rejection)?}))
        }
        AdminCommand::RotateKey(step) => ok_response(json!(daemon.rotate_key(step).map_err(rejection)?)),
        AdminCommand::Reload => ok_response(json!({"changes": daemon.reload().map_err(rejection)?})),
        AdminCommand::Stop => {
            daemon.stop();
            Ok((StatusCode::ACCEPTED, json!({"stopping": true})))
        }
        // The path belongs to a daemon, so the command is one of those above.
        _ => Err(rejection("a lottery daemon does nothing of the kind".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_shown() {
        let digits = "5A".repeat(32);
        let step = parse_new_key(format!("{{\"id\":7,\"secret\":\"{digits}\"}}").as_bytes()).unwrap();
        assert_eq!(format!("{step:?}"), "Accept(7)");
        let KeyStep::Accept(7, secret, KeyHolder::Daemon) = step else { panic!() };
        assert_eq!((secret.digits(), format!("{secret:?}")), ("5a".repeat(32).as_str(), "Secret".into()));
        let client_key = format!("{{\"id\":7,\"secret\":\"{digits}\",\"role\":\"client\"}}");
        assert!(matches!(parse_new_key(client_key.as_bytes()), Ok(KeyStep::Accept(7, _, KeyHolder::Client))));
        for body in [
            format!("{{\"id\":7,\"secret\":\"{digits}\",\"role\":\"admin\"}}"),
            format!("{{\"id\":\"{digits}\"}}"),
            format!("{{\"id\":7,\"secret\":\"{digits}0\"}}"),
            format!("{{\"id\":7,\"secret\":[\"{digits}\"]}}"),
            digits.clone(),
        ] {
            let errors =
                parse_new_key(body.as_bytes()).unwrap_err() + &parse_key_id(body.as_bytes()).unwrap_err();
            assert!(!errors.contains("5A"), "{errors}");
        }
    }
}
