//! A program that follows commands, line by line, and answers each line with one.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running program, killed when it is dropped.
pub(crate) struct Told {
    child: Child,
    out: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Told {
    /// Starts the program. Its first line has the ports of its servers.
    pub(crate) fn start(program: &mut Command) -> (Self, Vec<u16>) {
        let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (out, lines) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut told = Self { child, out, lines };
        let ports = told.line().split_whitespace().map(|port| port.parse().unwrap()).collect();
        (told, ports)
    }

    /// Sends a command; returns its answer.
    #[track_caller]
    pub(crate) fn tell(&mut self, line: &str) -> String {
        writeln!(self.out, "{line}").unwrap();
        let answer = self.line();
        assert!(!answer.is_empty(), "it ended at: {line}");
        answer.trim().to_owned()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
