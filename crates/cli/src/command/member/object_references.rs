//! The references of CORBA members, written once all of them listen: into a file, which appears whole, or to
//! standard output.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use plimsoll_bench::member;
use tokio::sync::Notify;

use super::CliError;
use crate::output;

/// The references so far, and the result of writing them.
pub(super) struct MemberReferences {
    /// The number of references that are still to come.
    missing_count: Cell<usize>,
    text: RefCell<String>,
    file: Option<PathBuf>,
    failure: RefCell<Option<CliError>>,
    failed: Notify,
}

impl MemberReferences {
    /// Returns those of so many members, none if they are not of CORBA.
    pub(super) fn new(count: usize, file: Option<&Path>) -> Self {
        Self {
            missing_count: Cell::new(count),
            text: RefCell::default(),
            file: file.map(Path::to_path_buf),
            failure: RefCell::default(),
            failed: Notify::new(),
        }
    }

    /// Adds the reference of the next member that listens.
    pub(super) fn add(&self, address: SocketAddr) {
        let Some(remaining) = self.missing_count.get().checked_sub(1) else { return };
        self.missing_count.set(remaining);
        let mut text = self.text.borrow_mut();
        text.push_str(&member::reference(address).to_string());
        text.push('\n');
        if remaining > 0 {
            return;
        }
        let result = match &self.file {
            None => output::write_stdout(&text),
            Some(file) => write(file, &text),
        };
        if let Err(failure) = result {
            *self.failure.borrow_mut() = Some(failure);
            self.failed.notify_one();
        }
    }

    /// Waits until they could not be written: no client would find the members.
    pub(super) async fn wait_for_failure(&self) {
        self.failed.notified().await;
    }

    /// Returns the result of writing them.
    pub(super) fn result(&self) -> Result<(), CliError> {
        self.failure.borrow_mut().take().map_or(Ok(()), Err)
    }
}

/// Writes the file atomically: a reader that waits for it finds it complete.
fn write(file: &Path, text: &str) -> Result<(), CliError> {
    let mut temporary_path = file.as_os_str().to_owned();
    temporary_path.push(".new");
    let result = std::fs::write(&temporary_path, text).and_then(|()| std::fs::rename(&temporary_path, file));
    result.map_err(|error| {
        CliError::failed(format_args!("cannot write {}: {error}; choose another --ior-file", file.display()))
    })
}
