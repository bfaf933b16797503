//! The output of processes on standard error: passed on line by line, and the last lines kept to explain an
//! end.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;

/// The number of lines that are kept of each process.
const KEPT_LINES: usize = 20;
/// The longest line that is passed on whole, in bytes; a longer one comes in several.
const MAX_LINE: usize = 8 * 1024;

/// The writer of one process's output.
#[derive(Clone)]
pub(super) struct ProcessLog(Arc<Mutex<ProcessLogState>>);

struct ProcessLogState {
    name: String,
    target: LogTarget,
    last_lines: VecDeque<String>,
}

/// The target of lines.
pub(super) enum LogTarget {
    /// The Supervisor's standard error, the name before each line.
    Stderr,
    /// The same as JSON.
    StderrJson,
    /// A file of the process's own.
    File(File),
}

impl ProcessLog {
    /// Opens a writer. `folder` is the folder of files, if there are to be files; `json` is the form of the
    /// Supervisor's own log.
    ///
    /// # Errors
    /// Fails if the file cannot be opened.
    pub(super) fn open(name: &str, folder: Option<&Path>, json: bool) -> io::Result<Self> {
        let target = open_target(name, folder, json)?;
        Ok(Self(Arc::new(Mutex::new(ProcessLogState {
            name: name.to_owned(),
            target,
            last_lines: VecDeque::new(),
        }))))
    }

    /// Sets another target of lines.
    pub(super) fn redirect(&self, target: LogTarget) {
        self.lock().target = target;
    }

    /// Returns the last lines, the oldest first.
    pub(super) fn last_lines(&self) -> Vec<String> {
        self.lock().last_lines.iter().cloned().collect()
    }

    /// Clears the last lines for a new process, as they are not its own.
    pub(super) fn clear_last_lines(&self) {
        self.lock().last_lines.clear();
    }

    fn line(&self, line: &str) {
        let mut log_state = self.lock();
        let ProcessLogState { name, target, last_lines } = &mut *log_state;
        // A failure here has no reader.
        let _ = match target {
            LogTarget::Stderr => io::stderr().lock().write_all(format!("{name}: {line}\n").as_bytes()),
            LogTarget::StderrJson => {
                let entry = json!({"process": name, "line": line});
                io::stderr().lock().write_all(format!("{entry}\n").as_bytes())
            }
            LogTarget::File(file) => file.write_all(format!("{line}\n").as_bytes()),
        };
        if last_lines.len() == KEPT_LINES {
            last_lines.pop_front();
        }
        last_lines.push_back(line.to_owned());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ProcessLogState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the target of a process's lines: a file, if there is a folder for them.
///
/// # Errors
/// Fails if the file cannot be opened.
pub(super) fn open_target(name: &str, folder: Option<&Path>, json: bool) -> io::Result<LogTarget> {
    Ok(match folder {
        Some(folder) => LogTarget::File(
            OpenOptions::new().append(true).create(true).open(folder.join(format!("{name}.log")))?,
        ),
        None if json => LogTarget::StderrJson,
        None => LogTarget::Stderr,
    })
}

/// A splitter of bytes into lines.
#[derive(Default)]
pub(super) struct LineSplitter {
    rest: Vec<u8>,
}

impl LineSplitter {
    /// Passes on every line that has ended.
    pub(super) fn feed(&mut self, bytes: &[u8], log: &ProcessLog) {
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            for chunk in line.chunks(MAX_LINE) {
                if self.rest.len() + chunk.len() > MAX_LINE {
                    self.finish(log);
                }
                self.rest.extend_from_slice(chunk);
            }
            if self.rest.last() == Some(&b'\n') {
                self.rest.pop();
                self.flush_line(log);
            }
        }
    }

    /// Passes on the rest, because nothing more comes.
    pub(super) fn finish(&mut self, log: &ProcessLog) {
        if !self.rest.is_empty() {
            self.flush_line(log);
        }
    }

    fn flush_line(&mut self, log: &ProcessLog) {
        log.line(String::from_utf8_lossy(&self.rest).trim_end_matches('\r'));
        self.rest.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_wherever_they_are_cut() {
        let text = "one\n\ntwo ü\r\nthree".as_bytes();
        for split_index in 0..=text.len() {
            let folder = std::env::temp_dir();
            let process_log = ProcessLog::open(
                &format!("plimsoll-lines-{}-{split_index}", std::process::id()),
                Some(&folder),
                false,
            );
            let process_log = process_log.unwrap();
            let mut splitter = LineSplitter::default();
            splitter.feed(&text[..split_index], &process_log);
            splitter.feed(&text[split_index..], &process_log);
            assert_eq!(process_log.last_lines(), ["one", "", "two ü"]);
            splitter.finish(&process_log);
            splitter.finish(&process_log);
            assert_eq!(process_log.last_lines(), ["one", "", "two ü", "three"]);
            let file = folder.join(format!("plimsoll-lines-{}-{split_index}.log", std::process::id()));
            assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\n\ntwo ü\nthree\n");
            std::fs::remove_file(file).unwrap();
        }
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let file = format!("plimsoll-bound-{}", std::process::id());
        let folder = std::env::temp_dir();
        let process_log = ProcessLog::open(&file, Some(&folder), false).unwrap();
        let mut splitter = LineSplitter::default();
        splitter.feed(&vec![b'x'; 10 * MAX_LINE], &process_log);
        assert!(splitter.rest.len() <= MAX_LINE);
        splitter.feed("\n0\n1\n".repeat(100).as_bytes(), &process_log);
        let kept_lines = process_log.last_lines();
        assert_eq!((kept_lines.len(), &*kept_lines[KEPT_LINES - 1]), (KEPT_LINES, "1"));
        process_log.clear_last_lines();
        assert!(process_log.last_lines().is_empty());
        std::fs::remove_file(folder.join(file + ".log")).unwrap();
    }
}
