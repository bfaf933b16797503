//! What processes say on standard error: passed on line by line, and the last lines kept for whoever asks why one ended.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;

/// Lines that are kept of each process.
const KEPT: usize = 20;
/// Longest line that is passed on whole, bytes; a longer one comes in several.
const LONGEST: usize = 8 * 1024;

/// One process's way to whoever reads.
#[derive(Clone)]
pub(super) struct Scribe(Arc<Mutex<Desk>>);

struct Desk {
    name: String,
    outlet: Outlet,
    last: VecDeque<String>,
}

/// Where lines go.
pub(super) enum Outlet {
    /// The Supervisor's standard error, the name before each line.
    Ours,
    /// The same as JSON.
    Json,
    /// A file of the process's own.
    File(File),
}

impl Scribe {
    /// `folder` is where files are, if there are to be files; `json` is the form of the Supervisor's own log.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(super) fn open(name: &str, folder: Option<&Path>, json: bool) -> io::Result<Self> {
        let outlet = outlet(name, folder, json)?;
        Ok(Self(Arc::new(Mutex::new(Desk { name: name.to_owned(), outlet, last: VecDeque::new() }))))
    }

    /// Lines go there from now on.
    pub(super) fn redirect(&self, outlet: Outlet) {
        self.lock().outlet = outlet;
    }

    /// The last lines, the oldest first.
    pub(super) fn last(&self) -> Vec<String> {
        self.lock().last.iter().cloned().collect()
    }

    /// A new process: what the one before it said is not its own.
    pub(super) fn begin(&self) {
        self.lock().last.clear();
    }

    fn line(&self, line: &str) {
        let mut desk = self.lock();
        let Desk { name, outlet, last } = &mut *desk;
        // Where nobody can be told there is nothing to be done.
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

/// Where the lines of a process go: to a file, if there is a folder for them.
///
/// # Errors
/// The file cannot be opened.
pub(super) fn outlet(name: &str, folder: Option<&Path>, json: bool) -> io::Result<Outlet> {
    Ok(match folder {
        Some(folder) => Outlet::File(
            OpenOptions::new().append(true).create(true).open(folder.join(format!("{name}.log")))?,
        ),
        None if json => Outlet::Json,
        None => Outlet::Ours,
    })
}

/// Bytes as they come, made lines.
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

    /// Passes on what has not ended, because nothing more comes.
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
