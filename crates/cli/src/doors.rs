//! The doors by which a balancer, a lottery's daemon and a Supervisor are controlled, opened as their files say.

use std::path::Path;
use std::sync::Arc;

use plimsoll_admin::{Audit, Caller, Config, Deed, Rules, Secured};
use serde_json::Value;

use crate::config::{Doors, LogPath};
use crate::failure::{Exit, Failure};

/// The audit log of a section, if it has one.
///
/// # Errors
/// It cannot be opened.
pub(crate) fn audit(path: Option<&Path>, section: &str) -> Result<Option<Arc<Audit>>, Failure> {
    let open = |path: &Path| {
        Audit::open(path).map(Arc::new).map_err(|error| {
            let path = path.display();
            Failure::failed(format_args!("cannot open the audit log {path}: {error}; see [{section}] audit"))
        })
    };
    path.map(open).transpose()
}

/// The doors of a section, and the rules by which those who come are judged.
///
/// # Errors
/// The rules or the audit log are not to be had.
pub(crate) fn open(doors: Doors<'_>, log: Option<&LogPath>) -> Result<(Config, Arc<Rules>), Failure> {
    let rules = Arc::new(doors.rules().map_err(|why| Failure::new(Exit::Usage, why))?);
    let secured =
        doors.secured().map(|(tls, jwt, keytab)| Secured { tls, jwt, keytab, rules: Arc::clone(&rules) });
    let audit = audit(log.map(|LogPath(path)| path.as_path()), doors.section)?;
    warn_of_unwritten(secured.is_some(), audit.as_deref(), doors.section);
    let config = Config { control: doors.unix(), secured, audit, ..Config::default() };
    Ok((config, rules))
}

/// Says so where others than the owner of the host may act and nobody can tell who did.
pub(crate) fn warn_of_unwritten(secured: bool, audit: Option<&Audit>, section: &str) {
    if secured && audit.is_none() {
        tracing::warn!("what others do over TLS is written down nowhere: set [{section}] audit to a file");
    }
}

/// Writes down what a signal had done; whoever may send one may write the log.
pub(crate) fn note(audit: Option<&Audit>, signal: &str, verb: &'static str, outcome: Result<(), &str>) {
    let Some(audit) = audit else { return };
    let (caller, from) = (Caller::signal(signal), "signal".to_owned());
    audit.note(&Deed { caller, from, verb, target: None, arguments: Value::Null }, outcome);
}
