//! `plimsoll config push` and `pull`: groups and listeners in the store, for all balancers that have it
//! together.

use std::path::Path;
use std::sync::Arc;

use plimsoll_cluster::store::{Change, Store};

use super::super::{Exit, Failure, Globals};
use crate::config::{self, File};
use crate::running::document::DOCUMENT;

/// Opens the file and its store, which must be there.
fn open(path: &Path) -> Result<(File, Arc<dyn Store>), Failure> {
    let file = config::read(path).map_err(|error| Failure::rendered(Exit::Usage, error))?;
    if !file.config.shares() {
        let what = format!("{}: no store for groups and listeners", config::name_of(path));
        return Err(Failure::new(Exit::Usage, format!("{what}: add config = true to [store]")));
    }
    let (store, said) = file.config.open_store(None, |_| None).map_err(Failure::failed)?;
    match said {
        Some(said) => Err(Failure::new(Exit::Unreachable, said)),
        None => Ok((file, store)),
    }
}

/// Writes the content of a file into the store, if it is valid together with the balancers' own file.
pub(super) fn push(path: &Path, shared: &Path, globals: &Globals) -> Result<(), Failure> {
    let (_, store) = open(path)?;
    let view = store.view();
    let text = config::read_shared(path, shared).map_err(|error| Failure::rendered(Exit::Usage, error))?;
    // Entries that etcd lost, and that only the copy still has, must be written.
    let before = view.entries.get(DOCUMENT).filter(|entry| entry.revision != 0);
    if before.is_some_and(|before| *before.value == *text) {
        globals.say("nothing is new\n");
        return Ok(());
    }
    store.commit(&Change::put(DOCUMENT, text).as_seen(&view)).map_err(Failure::failed)?;
    let revision = store.view().revision_of(DOCUMENT);
    let place = store.place();
    globals.say(&format!(
        "revision {revision} in {place}: balancers take it now; plimsoll status says how that went\n"
    ));
    Ok(())
}

/// Prints the content of the store.
pub(super) fn pull(path: &Path, globals: &Globals) -> Result<(), Failure> {
    let (_, store) = open(path)?;
    let view = store.view();
    match view.entries.get(DOCUMENT) {
        Some(entry) => globals.show(&entry.value, || entry.value.to_string()),
        None => {
            Err(Failure::failed(format_args!("{} has no groups and listeners: push some", store.place())))
        }
    }
}
