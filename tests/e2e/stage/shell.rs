//! A shell into which a test types, line by line. All that it started ends with it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use super::{Folder, PATIENCE, Run, binary, part};

/// A bash with job control, in which `plimsoll` is the binary under test.
pub(crate) struct Shell {
    child: Child,
    input: ChildStdin,
    ended: Receiver<String>,
    /// The folder of programs and outputs; not the working folder.
    own: Folder,
    lines: usize,
}

impl Shell {
    /// Starts a shell in a folder.
    pub(crate) fn start(folder: &Path) -> Self {
        let own = Folder::new();
        // The kernel ends the shell's children when the shell ends.
        let setpriv = part("setpriv");
        let program = format!(
            "#!/bin/sh\nexec {} --pdeathsig KILL -- {} \"$@\"\n",
            setpriv.display(),
            binary().display()
        );
        own.script("plimsoll", &program);
        // An answer with an error status is an error of curl.
        own.write(".curlrc", "silent\nshow-error\nfail-with-body\nnoproxy = \"*\"\n");
        let paths = format!("{}:{}", own.path().display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new(setpriv);
        command.args(["--pdeathsig", "KILL", "--", "bash", "--noprofile", "--norc"]).current_dir(folder);
        command.env("PATH", paths).env("CURL_HOME", own.path());
        for name in ["RUST_LOG", "NOTIFY_SOCKET", "JOURNAL_STREAM", "PLIMSOLL_CONTROL", "NO_COLOR"] {
            command.env_remove(name);
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let (tell, ended) = channel();
        let output = child.stdout.take().unwrap();
        thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
        });
        let mut shell = Self { child, input, ended, own, lines: 0 };
        shell.run("set -m");
        shell
    }

    /// Types a line and waits until its command has ended, or runs in the background.
    #[track_caller]
    pub(crate) fn run(&mut self, line: &str) -> Run {
        self.lines += 1;
        let file = |kind: &str| self.own.join(&format!("{kind}.{}", self.lines));
        let (out, err) = (file("out"), file("err"));
        let text = format!("{{ {line}\n}} </dev/null >{} 2>{}; echo $?\n", out.display(), err.display());
        self.input.write_all(text.as_bytes()).unwrap();
        self.input.flush().unwrap();
        let code = self.ended.recv_timeout(PATIENCE);
        let read = |path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        let (out, err) = (read(out), read(err));
        let code = code.unwrap_or_else(|_| panic!("in {PATIENCE:?}: `{line}` has not ended\n{out}{err}"));
        Run { code: code.trim().parse().ok(), out, err }
    }

    /// Returns all output on standard error, that of background jobs included.
    pub(crate) fn said(&self) -> String {
        let files = (1..=self.lines).map(|line| self.own.join(&format!("err.{line}")));
        files.map(|file| std::fs::read_to_string(file).unwrap_or_default()).collect()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("{}", self.said());
        }
    }
}
