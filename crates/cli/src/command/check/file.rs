//! The file: the result of `plimsoll config check`.

use std::path::Path;

use plimsoll_config::{self as config, ConfigDiagnostics, ConfigFile, ReadError, Severity};

use super::diagnostic::{CheckSection, GuidePage};

/// Returns the problems of the file, and the file if it can be used.
pub(super) fn configuration(path: &Path) -> (CheckSection, Option<ConfigFile>) {
    let mut part = CheckSection::new("configuration");
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
            let (unread, found) = file.read_member_files();
            add(&mut part, &unread);
            if part.is_clean() {
                part.ok(format!("{}: {}", config::name_of(path), file.config.summary(found)));
            }
            (part, Some(file))
        }
        Err(ReadError::Io(why)) => {
            part.fail(why, "name the file with -c", GuidePage::Config);
            (part, None)
        }
        Err(ReadError::Wrong(problems)) => {
            add(&mut part, &problems);
            (part, None)
        }
    }
}

fn add(part: &mut CheckSection, problems: &ConfigDiagnostics) {
    for (problem, line) in problems.list().iter().zip(problems.lines()) {
        let hint = problem.hint.clone().unwrap_or_else(|| "plimsoll config check shows the place".to_owned());
        match problem.severity {
            Severity::Error => part.fail(line, hint, GuidePage::Config),
            Severity::Warning => part.warn(line, hint, GuidePage::Config),
        }
    }
}
