//! Clients of the load manager on omniORB, and the monitors and alerts that they register.

use super::orb::parts;
use super::{Balancer, Folder, Process, Run, part};

/// A client of the load manager that serves a monitor or an alert until it is killed.
pub(crate) struct Manager {
    pub(crate) process: Process,
    _folder: Folder,
}

impl Manager {
    /// Runs commands (see `tests/corba/manager.cc`) to their end; returns the line of each.
    #[track_caller]
    pub(crate) fn run(balancer: &Balancer, commands: &[&str]) -> Vec<String> {
        let reference = reference(balancer);
        let args: Vec<&str> = std::iter::once(&*reference).chain(commands.iter().copied()).collect();
        let run = Run::of(&parts().join("omniorb/omniorb-manager"), &args, balancer.folder().path());
        assert_eq!(run.code, Some(0), "{commands:?}: {}{}", run.out, run.err);
        run.out.lines().filter(|line| *line != "done").map(str::to_owned).collect()
    }

    /// Starts a client that registers the objects of the commands, and waits until it serves them.
    #[track_caller]
    pub(crate) fn serve(balancer: &Balancer, commands: &[&str]) -> Self {
        let folder = Folder::new();
        let program = parts().join("omniorb/omniorb-manager").display().to_string();
        let reference = reference(balancer);
        // Its output is collected with its errors; the shell's process becomes the client.
        let mut all = vec!["-c", "exec \"$0\" \"$@\" >&2", &program, &reference];
        all.extend_from_slice(commands);
        all.push("serve");
        let process = Process::start(&part("sh"), &all, folder.path());
        process.line("serving");
        assert!(!process.lines().iter().any(|line| line.contains("exception=")), "{process}");
        Self { process, _folder: folder }
    }

    /// Counts how often it has printed a line.
    pub(crate) fn count(&self, line: &str) -> usize {
        self.process.lines().iter().filter(|said| *said == line).count()
    }
}

fn reference(balancer: &Balancer) -> String {
    format!("corbaloc:iiop:1.2@{}/LoadManager", balancer.load_manager())
}
