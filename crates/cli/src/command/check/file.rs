//! The file: the result of `plimsoll config check`.

use std::path::Path;

use super::finding::{Part, See};
use crate::config::{self, File, Problems, ReadError, Severity};

/// Returns the problems of the file, and the file if it can be used.
pub(super) fn configuration(path: &Path) -> (Part, Option<File>) {
    let mut part = Part::new("configuration");
    let read = config::read(path).and_then(|file| {
        if let Some(rules) = &file.config.admin.access.file {
            config::check_access(&rules.0)?;
        }
        let warnings = file.check_files().map_err(ReadError::Wrong)?;
        Ok((file, warnings))
    });
    match read {
        Ok((file, warnings)) => {
            add(&mut part, &warnings);
            let (unread, found) = file.look_at_members();
            add(&mut part, &unread);
            if part.good() {
                part.ok(format!("{}: {}", config::name_of(path), file.config.contents(found)));
            }
            (part, Some(file))
        }
        Err(ReadError::Io(why)) => {
            part.fail(why, "name the file with -c", See::Config);
            (part, None)
        }
        Err(ReadError::Wrong(problems)) => {
            add(&mut part, &problems);
            (part, None)
        }
    }
}

fn add(part: &mut Part, problems: &Problems) {
    for (problem, line) in problems.list().iter().zip(problems.lines()) {
        let hint = problem.hint.clone().unwrap_or_else(|| "plimsoll config check shows the place".to_owned());
        match problem.severity {
            Severity::Error => part.fail(line, hint, See::Config),
            Severity::Warning => part.warn(line, hint, See::Config),
        }
    }
}
