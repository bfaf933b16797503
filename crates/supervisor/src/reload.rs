//! The reload of the Supervisor's file. The steps that can fail come first: the file, the access rules, the
//! logs of all processes. Only then is everything put in force.

use std::io;
use std::path::Path;

use plimsoll_balancer::notify_systemd;
use plimsoll_config::{self as config, ProcessConfig, SuperviseFile};
use sd_notify::NotifyState;

use super::Supervisor;
use super::clock::now;
use super::log_capture::{LogTarget, ProcessLog, open_target};
use super::process::SupervisedProcess;

/// The prepared parts for a process of the new file.
enum PreparedProcess {
    /// The target of lines of a known process.
    Existing(LogTarget),
    New(ProcessLog),
}

impl Supervisor {
    /// Reads the file again; returns one line for each difference.
    ///
    /// # Errors
    /// Fails if something is wrong with it; all that was in force stays so.
    pub(super) fn reload(&mut self) -> Result<Vec<String>, String> {
        let mut states = vec![NotifyState::Reloading];
        states.extend(NotifyState::monotonic_usec_now().ok());
        notify_systemd(&states);
        let outcome = self.apply();
        match &outcome {
            Ok(changes) if changes.is_empty() => tracing::info!("reloaded: nothing is different"),
            Ok(changes) => tracing::info!("reloaded: {}", changes.join("; ")),
            Err(error) => tracing::warn!("reload refused, the file before stays in force: {error}"),
        }
        self.reload_error = outcome.as_ref().err().cloned();
        notify_systemd(&[NotifyState::Ready]);
        outcome
    }

    fn apply(&mut self) -> Result<Vec<String>, String> {
        if self.shutdown_mode.is_some() {
            return Err("the Supervisor is ending".into());
        }
        let file = config::read_supervise(&self.path).map_err(|error| error.headline())?;
        self.check_fixed_settings(&file)?;
        let rules = file.supervise.supervise.control_section().rules()?;
        let prepared_logs = self.prepare_logs(&file)?;
        // From here on nothing can fail.
        let mut changes = Vec::new();
        if self.file.supervise.supervise.access != file.supervise.supervise.access {
            changes.push("~ access".to_owned());
        }
        self.rules.replace(rules);
        self.file = file;
        for (process, prepared) in prepared_logs {
            let (name, rules) = (&process.name.0, self.file.rules(&process));
            let existing = self.processes.iter_mut().find(|supervised| supervised.name == *name);
            match (prepared, existing) {
                (PreparedProcess::Existing(target), Some(supervised)) => {
                    supervised.log.redirect(target);
                    changes.extend(supervised.update(&process, rules, now()));
                }
                (PreparedProcess::New(process_log), _) => {
                    let mut charge = SupervisedProcess::new(
                        &process,
                        rules,
                        process_log,
                        now(),
                        self.admin.command_lines(),
                    );
                    charge.start_if_enabled(now());
                    changes.push(format!("+ process {name}"));
                    self.processes.push(charge);
                }
                // A known process is among the supervised ones.
                (PreparedProcess::Existing(_), None) => {}
            }
        }
        let names: Vec<&str> = self.file.supervise.processes.iter().map(|process| &*process.name.0).collect();
        for supervised in &mut self.processes {
            if !names.contains(&&*supervised.name) && supervised.mark_removed(now()) {
                changes.push(format!("- process {}", supervised.name));
            }
        }
        let position = |supervised: &SupervisedProcess| {
            names.iter().position(|name| *name == supervised.name).unwrap_or(names.len())
        };
        self.processes.sort_by_key(position);
        Ok(changes)
    }

    /// Checks the settings that cannot change while it runs.
    fn check_fixed_settings(&self, file: &SuperviseFile) -> Result<(), String> {
        let (previous, current) = (&self.file.supervise.supervise, &file.supervise.supervise);
        let is_same = self.file.state() == file.state()
            && (&previous.control, previous.listen, &previous.names, &previous.audit)
                == (&current.control, current.listen, &current.names, &current.audit)
            && (&previous.tls, &previous.jwt, &previous.kerberos)
                == (&current.tls, &current.jwt, &current.kerberos);
        if is_same {
            return Ok(());
        }
        Err("control, listen, names, state, audit, tls, jwt and kerberos of [supervise] are fixed at start: \
             put them back, or \
             start the Supervisor again (plimsoll supervise shutdown --children leave)"
            .into())
    }

    /// Opens the logs of all processes: anew even without a difference, as the file may have been renamed.
    fn prepare_logs(&self, file: &SuperviseFile) -> Result<Vec<(ProcessConfig, PreparedProcess)>, String> {
        let folder = file.supervise.supervise.log_dir.as_ref().map(|folder| folder.0.as_path());
        let prepare = |process: &ProcessConfig| {
            let name = &process.name.0;
            let prepared = match self.processes.iter().any(|supervised| supervised.name == *name) {
                true => open_target(name, folder, self.json).map(PreparedProcess::Existing),
                false => ProcessLog::open(name, folder, self.json).map(PreparedProcess::New),
            };
            prepared
                .map(|prepared| (process.clone(), prepared))
                .map_err(|error| cannot_open(name, folder, &error))
        };
        file.supervise.processes.iter().map(prepare).collect()
    }
}

fn cannot_open(name: &str, folder: Option<&Path>, error: &io::Error) -> String {
    let folder = folder.map_or_else(String::new, |folder| format!(" in {}", folder.display()));
    format!("cannot open the log of {name}{folder}: {error}; see log_dir of [supervise]")
}
