//! `plimsoll config push` and `pull`: groups and listeners in the store, for all balancers that have it
//! together.

use std::path::Path;
use std::sync::Arc;

use plimsoll_balancer::SHARED_CONFIG_KEY;
use plimsoll_cluster::store::{Store, StoreChange};
use plimsoll_config::{self as config, ConfigFile};

use super::super::{CliError, CliExitCode, GlobalArgs};

/// Opens the file and its store, which must be there.
fn open(path: &Path) -> Result<(ConfigFile, Arc<dyn Store>), CliError> {
    let file = config::read(path).map_err(|error| CliError::rendered(CliExitCode::Usage, error))?;
    if !file.config.shares_config() {
        let message = format!("{}: no store for groups and listeners", config::name_of(path));
        return Err(CliError::new(CliExitCode::Usage, format!("{message}: add config = true to [store]")));
    }
    let (store, store_error) = file.config.open_store(None, |_| None).map_err(CliError::failed)?;
    match store_error {
        Some(error) => Err(CliError::new(CliExitCode::Unreachable, error)),
        None => Ok((file, store)),
    }
}

/// Writes the content of a file into the store, if it is valid together with the balancers' own file.
pub(super) fn push(path: &Path, shared: &Path, globals: &GlobalArgs) -> Result<(), CliError> {
    let (_, store) = open(path)?;
    let view = store.snapshot();
    let text =
        config::read_shared(path, shared).map_err(|error| CliError::rendered(CliExitCode::Usage, error))?;
    // Entries that etcd lost, and that only the copy still has, must be written.
    let previous = view.entries.get(SHARED_CONFIG_KEY).filter(|entry| entry.revision != 0);
    if previous.is_some_and(|entry| *entry.value == *text) {
        globals.print_message("nothing is new\n");
        return Ok(());
    }
    store
        .commit(&StoreChange::put(SHARED_CONFIG_KEY, text).if_unchanged_since(&view))
        .map_err(CliError::failed)?;
    let revision = store.snapshot().revision_of(SHARED_CONFIG_KEY);
    let location = store.location();
    globals.print_message(&format!(
        "revision {revision} in {location}: balancers take it now; plimsoll status says how that went\n"
    ));
    Ok(())
}

/// Prints the content of the store.
pub(super) fn pull(path: &Path, globals: &GlobalArgs) -> Result<(), CliError> {
    let (_, store) = open(path)?;
    let view = store.snapshot();
    match view.entries.get(SHARED_CONFIG_KEY) {
        Some(entry) => globals.print_result(&entry.value, || entry.value.to_string()),
        None => {
            Err(CliError::failed(format_args!("{} has no groups and listeners: push some", store.location())))
        }
    }
}
