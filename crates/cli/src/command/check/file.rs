//! The file: the result of `plimsoll config check`.

use std::path::Path;

use plimsoll_config::{self as config, ConfigDiagnostics, ConfigFile, ReadError, Severity};

use super::diagnostic::{CheckSection, GuidePage};

/// Returns the problems of the file, and the file if it can be used.
pub(super) fn check_config(path: &Path) -> (CheckSection, Option<ConfigFile>) {
    let mut section = CheckSection::new("configuration");
    let result = config::read(path).and_then(|file| {
        if let Some(rules) = &file.config.admin.access.file {
            config::check_access(&rules.0)?;
        }
        let warnings = file.check_files().map_err(ReadError::Wrong)?;
        Ok((file, warnings))
    });
    match result {
        Ok((file, warnings)) => {
            add_problems(&mut section, &warnings);
            let (unread_problems, found_members) = file.read_member_files();
            add_problems(&mut section, &unread_problems);
            if section.is_clean() {
                section.ok(format!("{}: {}", config::name_of(path), file.config.summary(found_members)));
            }
            (section, Some(file))
        }
        Err(ReadError::Io(error)) => {
            section.fail(error, "name the file with -c", GuidePage::Config);
            (section, None)
        }
        Err(ReadError::Wrong(problems)) => {
            add_problems(&mut section, &problems);
            (section, None)
        }
    }
}

fn add_problems(section: &mut CheckSection, problems: &ConfigDiagnostics) {
    for (problem, line) in problems.list().iter().zip(problems.lines()) {
        let hint = problem.hint.clone().unwrap_or_else(|| "plimsoll config check shows the place".to_owned());
        match problem.severity {
            Severity::Error => section.fail(line, hint, GuidePage::Config),
            Severity::Warning => section.warn(line, hint, GuidePage::Config),
        }
    }
}
