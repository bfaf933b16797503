//! The addresses at which a balancer, a lottery's daemon and a Supervisor are controlled, opened as in their
//! files.

use std::path::Path;
use std::sync::Arc;

use plimsoll_admin::{Audit, Caller, Config, Deed, Rules, Secured};
use serde_json::Value;

use crate::config::{Doors, LogPath};
use crate::failure::{Exit, Failure};

/// Opens the audit log of a section, if it has one.
///
/// # Errors
/// Fails if it cannot be opened.
pub(crate) fn audit(path: Option<&Path>, section: &str) -> Result<Option<Arc<Audit>>, Failure> {
    let open = |path: &Path| {
        Audit::open(path).map(Arc::new).map_err(|error| {
            let path = path.display();
            Failure::failed(format_args!("cannot open the audit log {path}: {error}; see [{section}] audit"))
        })
    };
    path.map(open).transpose()
}

/// Returns the control addresses of a section, and the rules for their clients.
///
/// # Errors
/// Fails if the rules or the audit log cannot be read.
pub(crate) fn open(doors: Doors<'_>, log: Option<&LogPath>) -> Result<(Config, Arc<Rules>), Failure> {
    let rules = Arc::new(doors.rules().map_err(|why| Failure::new(Exit::Usage, why))?);
    let secured =
        doors.secured().map(|(tls, jwt, keytab)| Secured { tls, jwt, keytab, rules: Arc::clone(&rules) });
    let audit = audit(log.map(|LogPath(path)| path.as_path()), doors.section)?;
    warn_of_unwritten(secured.is_some(), audit.as_deref(), doors.section);
    let config = Config { control: doors.unix(), secured, audit, ..Config::default() };
    Ok((config, rules))
}

/// Warns if other persons than the owner of the host may act, and no log records it.
pub(crate) fn warn_of_unwritten(secured: bool, audit: Option<&Audit>, section: &str) {
    if secured && audit.is_none() {
        tracing::warn!("what others do over TLS is written down nowhere: set [{section}] audit to a file");
    }
}

/// Records the effect of a signal; a process that may send one may write the log.
pub(crate) fn note(audit: Option<&Audit>, signal: &str, verb: &'static str, outcome: Result<(), &str>) {
    let Some(audit) = audit else { return };
    let (caller, from) = (Caller::signal(signal), "signal".to_owned());
    audit.note(&Deed { caller, from, verb, target: None, arguments: Value::Null }, outcome);
}
