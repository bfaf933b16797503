//! The addresses at which a balancer, a lottery's daemon and a Supervisor are controlled, opened as in their
//! files.

use std::path::Path;
use std::sync::Arc;

use plimsoll_admin::{ActiveRules, AuditLog, AuditedRequest, Caller, Config, SecuredConfig};
use plimsoll_config::{ControlSection, FilePath};
use serde_json::Value;

use crate::error::BalancerError;

/// Opens the audit log of a section, if it has one.
///
/// # Errors
/// Fails if it cannot be opened.
pub fn open_audit_log(path: Option<&Path>, section: &str) -> Result<Option<Arc<AuditLog>>, BalancerError> {
    let open_log = |path: &Path| {
        AuditLog::open(path).map(Arc::new).map_err(|error| {
            let path = path.display();
            BalancerError::failed(format_args!(
                "cannot open the audit log {path}: {error}; see [{section}] audit"
            ))
        })
    };
    path.map(open_log).transpose()
}

/// Returns the control addresses of a section, and the rules for their clients.
///
/// # Errors
/// Fails if the rules or the audit log cannot be read.
pub fn control_config(
    control_section: ControlSection<'_>,
    log: Option<&FilePath>,
) -> Result<(Config, Arc<ActiveRules>), BalancerError> {
    let rules = Arc::new(control_section.rules().map_err(BalancerError::Setup)?);
    let secured_config = control_section.tls_control().map(|(tls, jwt, keytab)| SecuredConfig {
        tls,
        jwt,
        keytab,
        rules: Arc::clone(&rules),
    });
    let audit = open_audit_log(log.map(|FilePath(path)| path.as_path()), control_section.section)?;
    warn_if_unaudited(secured_config.is_some(), audit.as_deref(), control_section.section);
    let config =
        Config { control: control_section.unix(), secured: secured_config, audit, ..Config::default() };
    Ok((config, rules))
}

/// Warns if other persons than the owner of the host may act, and no log records it.
pub fn warn_if_unaudited(is_secured: bool, audit: Option<&AuditLog>, section: &str) {
    if is_secured && audit.is_none() {
        tracing::warn!("what others do over TLS is written down nowhere: set [{section}] audit to a file");
    }
}

/// Records the effect of a signal; a process that may send one may write the log.
pub fn audit_signal(audit: Option<&AuditLog>, signal: &str, verb: &'static str, outcome: Result<(), &str>) {
    let Some(audit) = audit else { return };
    let (caller, source) = (Caller::signal(signal), "signal".to_owned());
    audit.log_change(
        &AuditedRequest { caller, from: source, verb, target: None, arguments: Value::Null },
        outcome,
    );
}
