//! The output of processes on standard error: passed on line by line, and the last lines kept to explain an
//! end.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;

/// The number of lines that are kept of each process.
const KEPT: usize = 20;
/// The longest line that is passed on whole, in bytes; a longer one comes in several.
const LONGEST: usize = 8 * 1024;

/// The writer of one process's output.
#[derive(Clone)]
pub(super) struct Scribe(Arc<Mutex<Desk>>);

struct Desk {
    name: String,
    outlet: Outlet,
    last: VecDeque<String>,
}

/// The target of lines.
pub(super) enum Outlet {
    /// The Supervisor's standard error, the name before each line.
    Ours,
    /// The same as JSON.
    Json,
    /// A file of the process's own.
    File(File),
}

impl Scribe {
    /// Opens a writer. `folder` is the folder of files, if there are to be files; `json` is the form of the
    /// Supervisor's own log.
    ///
    /// # Errors
    /// Fails if the file cannot be opened.
    pub(super) fn open(name: &str, folder: Option<&Path>, json: bool) -> io::Result<Self> {
        let outlet = outlet(name, folder, json)?;
        Ok(Self(Arc::new(Mutex::new(Desk { name: name.to_owned(), outlet, last: VecDeque::new() }))))
    }

    /// Sets another target of lines.
    pub(super) fn redirect(&self, outlet: Outlet) {
        self.lock().outlet = outlet;
    }

    /// Returns the last lines, the oldest first.
    pub(super) fn last(&self) -> Vec<String> {
        self.lock().last.iter().cloned().collect()
    }

    /// Clears the last lines for a new process, as they are not its own.
    pub(super) fn begin(&self) {
        self.lock().last.clear();
    }

    fn line(&self, line: &str) {
        let mut desk = self.lock();
        let Desk { name, outlet, last } = &mut *desk;
        // A failure here has no reader.
        let _ = match outlet {
            Outlet::Ours => io::stderr().lock().write_all(format!("{name}: {line}\n").as_bytes()),
            Outlet::Json => {
                let said = json!({"process": name, "line": line});
                io::stderr().lock().write_all(format!("{said}\n").as_bytes())
            }
            Outlet::File(file) => file.write_all(format!("{line}\n").as_bytes()),
        };
        if last.len() == KEPT {
            last.pop_front();
        }
        last.push_back(line.to_owned());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Desk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the target of a process's lines: a file, if there is a folder for them.
///
/// # Errors
/// Fails if the file cannot be opened.
pub(super) fn outlet(name: &str, folder: Option<&Path>, json: bool) -> io::Result<Outlet> {
    Ok(match folder {
        Some(folder) => Outlet::File(
            OpenOptions::new().append(true).create(true).open(folder.join(format!("{name}.log")))?,
        ),
        None if json => Outlet::Json,
        None => Outlet::Ours,
    })
}

/// A splitter of bytes into lines.
#[derive(Default)]
pub(super) struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// Passes on every line that has ended.
    pub(super) fn feed(&mut self, bytes: &[u8], to: &Scribe) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            for piece in part.chunks(LONGEST) {
                if self.rest.len() + piece.len() > LONGEST {
                    self.end(to);
                }
                self.rest.extend_from_slice(piece);
            }
            if self.rest.last() == Some(&b'\n') {
                self.rest.pop();
                self.pass(to);
            }
        }
    }

    /// Passes on the rest, because nothing more comes.
    pub(super) fn end(&mut self, to: &Scribe) {
        if !self.rest.is_empty() {
            self.pass(to);
        }
    }

    fn pass(&mut self, to: &Scribe) {
        to.line(String::from_utf8_lossy(&self.rest).trim_end_matches('\r'));
        self.rest.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_wherever_they_are_cut() {
        let text = "one\n\ntwo ü\r\nthree".as_bytes();
        for at in 0..=text.len() {
            let folder = std::env::temp_dir();
            let scribe =
                Scribe::open(&format!("plimsoll-lines-{}-{at}", std::process::id()), Some(&folder), false);
            let scribe = scribe.unwrap();
            let mut lines = Lines::default();
            lines.feed(&text[..at], &scribe);
            lines.feed(&text[at..], &scribe);
            assert_eq!(scribe.last(), ["one", "", "two ü"]);
            lines.end(&scribe);
            lines.end(&scribe);
            assert_eq!(scribe.last(), ["one", "", "two ü", "three"]);
            let file = folder.join(format!("plimsoll-lines-{}-{at}.log", std::process::id()));
            assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\n\ntwo ü\nthree\n");
            std::fs::remove_file(file).unwrap();
        }
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let file = format!("plimsoll-bound-{}", std::process::id());
        let folder = std::env::temp_dir();
        let scribe = Scribe::open(&file, Some(&folder), false).unwrap();
        let mut lines = Lines::default();
        lines.feed(&vec![b'x'; 10 * LONGEST], &scribe);
        assert!(lines.rest.len() <= LONGEST);
        lines.feed("\n0\n1\n".repeat(100).as_bytes(), &scribe);
        let last = scribe.last();
        assert_eq!((last.len(), &*last[KEPT - 1]), (KEPT, "1"));
        scribe.begin();
        assert!(scribe.last().is_empty());
        std::fs::remove_file(folder.join(file + ".log")).unwrap();
    }
}
