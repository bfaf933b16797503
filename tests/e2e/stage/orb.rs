//! Real ORBs: on each of them a server and a client of the object in `tests/corba/latency.idl`.
//!
//! `scripts/build-corba-parts` builds them once for a checkout, when the first test asks for one. omniORB
//! comes from Debian and is always there. JacORB and GlassFish ORB are there if Java is and
//! `scripts/install-corba-java` has run. Elsewhere their tests are left out, and the output reports that.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::{Folder, Process, found, free_port, part};

/// A foreign ORB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orb {
    Omni,
    Jacorb,
    Glassfish,
}

impl Orb {
    /// Returns those that are installed.
    pub(crate) fn here() -> Vec<Self> {
        [&[Self::Omni], Self::java()].concat()
    }

    /// Returns those on Java, if they are installed.
    pub(crate) fn java() -> &'static [Self] {
        const ORBS: &[Orb] = &[Orb::Jacorb, Orb::Glassfish];
        if ORBS.iter().all(|orb| orb.home().join("classes").is_dir()) {
            return ORBS;
        }
        // The line is not printed by a macro: cargo would keep the output of a passing test to itself.
        let _ = std::io::stderr().write_all(
            b"SKIPPED: JacORB and GlassFish ORB are not here (scripts/install-corba-java): \
              not tested with them\n",
        );
        &[]
    }

    /// Runs one client's commands (see `tests/corba/client.cc`), with a new ORB, to their end.
    ///
    /// # Panics
    /// Panics if an answer is wrong, or an exception was not asked for.
    #[track_caller]
    pub(crate) fn calls(self, reference: &str, commands: &str) -> Vec<Call> {
        let mut client = OrbClient::start(self, reference, commands);
        assert_eq!(client.end(), Some(0), "{self:?} {commands}: {}", client.process);
        client.calls()
    }

    fn home(self) -> PathBuf {
        parts().join(match self {
            Self::Omni => "omniorb",
            Self::Jacorb => "jacorb",
            Self::Glassfish => "glassfish",
        })
    }

    /// Returns the program and the arguments before its own; for a server, with its port.
    fn command(self, name: &str, port: Option<u16>) -> (PathBuf, Vec<String>) {
        let class = match self {
            Self::Omni => {
                let program = self.home().join(format!("omniorb-{}", name.to_lowercase()));
                // The default maximum is 2 MB.
                let mut args = ["-ORBgiopMaxMsgSize", "16777216"].map(str::to_owned).to_vec();
                args.extend(port.into_iter().flat_map(|port| ["--port".to_owned(), port.to_string()]));
                return (program, args);
            }
            Self::Jacorb => "org.jacorb.orb.ORB",
            Self::Glassfish => "com.sun.corba.ee.impl.orb.ORB",
        };
        let home = self.home().display().to_string();
        // The options make the virtual machine start fast; the ORB's address is the test's.
        let mut args = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-cp"]
            .map(str::to_owned)
            .to_vec();
        args.push(format!("{home}/classes:{home}/lib/*"));
        args.push(format!("-Dorg.omg.CORBA.ORBSingletonClass={class}Singleton"));
        match self {
            Self::Jacorb => {
                args.push(format!("-Dorg.omg.CORBA.ORBClass={class}"));
                args.extend(["-DOAIAddr=127.0.0.1", "-Djacorb.implname=tests"].map(str::to_owned));
                args.extend(port.map(|port| format!("-DOAPort={port}")));
            }
            _ => {
                args.push(format!("-Dorg.omg.CORBA.ORBClass={class}Impl"));
                // Its management of beans does not start on current JDKs.
                args.push("-Dorg.omg.CORBA.SkipGmbalInit=true".to_owned());
                args.push("-Dcom.sun.corba.ee.ORBServerHost=127.0.0.1".to_owned());
                args.push("-Dorg.omg.CORBA.ORBServerId=1".to_owned());
                // The default maximum of a message, or of a fragment, is 256 kB.
                args.push("-Dcom.sun.corba.ee.transport.ORBMaximumReadByteBufferSize=16777216".to_owned());
                // The option limits how long a client tries to reach a server that is gone; the default is a
                // minute.
                args.push("-Dcom.sun.corba.ee.transport.ORBTCPConnectTimeouts=100:1000:100:500".to_owned());
                args.extend(
                    port.map(|port| format!("-Dcom.sun.corba.ee.POA.ORBPersistentServerPort={port}")),
                );
            }
        }
        args.push(name.to_owned());
        (part("java"), args)
    }
}

/// A server on an ORB.
pub(crate) struct OrbMember {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    /// The reference of its object, `IOR:...`.
    pub(crate) ior: String,
    orb: Orb,
    folder: Folder,
}

impl OrbMember {
    /// Starts a server named `name`; `args` are those of `tests/corba/server.cc` and `Server.java`.
    #[track_caller]
    pub(crate) fn start(orb: Orb, name: &str, args: &[&str]) -> Self {
        let folder = Folder::new();
        let all = [&["--name", name], args].concat();
        for _ in 0..20 {
            let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
            if let Ok((process, ior)) = run(orb, &folder, address.port(), &all) {
                return Self { process, address, ior, orb, folder };
            }
        }
        panic!("no port is free for {orb:?}");
    }

    /// Starts `count` servers on omniORB, called `m0`, `m1` and so on.
    #[track_caller]
    pub(crate) fn several(count: usize, args: &[&str]) -> Vec<Self> {
        (0..count).map(|number| Self::start(Orb::Omni, &format!("m{number}"), args)).collect()
    }

    /// Starts it at its address, after it ended.
    #[track_caller]
    pub(crate) fn restart(&mut self, name: &str, args: &[&str]) {
        let all = [&["--name", name], args].concat();
        let run = run(self.orb, &self.folder, self.address.port(), &all);
        (self.process, self.ior) = run.unwrap_or_else(|process| panic!("the port is taken: {process}"));
    }
}

/// Starts a server; returns it with its reference.
///
/// # Errors
/// Fails with the process and its output if it ended.
fn run(orb: Orb, folder: &Folder, port: u16, args: &[&str]) -> Result<(Process, String), Box<Process>> {
    let (program, mut all) = orb.command("Server", Some(port));
    all.extend(args.iter().map(|arg| (*arg).to_owned()));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let mut process = Process::start(&program, &all, folder.path());
    let ior = found("an ORB's server that is ready", || {
        if process.ended() {
            return Some(None);
        }
        process.lines().iter().find_map(|line| line.strip_prefix("ready ").map(|ior| Some(ior.to_owned())))
    });
    match ior {
        Some(ior) => Ok((process, ior)),
        None => Err(Box::new(process)),
    }
}

/// A client on an ORB.
pub(crate) struct OrbClient {
    pub(crate) process: Process,
    _folder: Folder,
}

impl OrbClient {
    /// Starts a client on a reference; `commands` are those of `tests/corba/client.cc`, its ORB's options
    /// among them.
    #[track_caller]
    pub(crate) fn start(orb: Orb, reference: &str, commands: &str) -> Self {
        let folder = Folder::new();
        let (program, args) = orb.command("Client", None);
        let program = program.display().to_string();
        // Its output is collected with its errors; the shell's process becomes the client.
        let mut all = vec!["-c", "exec \"$0\" \"$@\" >&2", &program];
        // Options of the virtual machine come before the class.
        let (properties, commands): (Vec<&str>, Vec<&str>) =
            commands.split_whitespace().partition(|word| word.starts_with("-D"));
        let before = args.len().saturating_sub(1);
        all.extend(args[..before].iter().map(String::as_str));
        all.extend(properties);
        all.extend(args[before..].iter().map(String::as_str));
        all.push(reference);
        all.extend(commands);
        Self { process: Process::start(&part("sh"), &all, folder.path()), _folder: folder }
    }

    /// Waits until all output has come; returns the exit code.
    #[track_caller]
    pub(crate) fn end(&mut self) -> Option<i32> {
        let code = self.process.end();
        self.process.line("done");
        code
    }

    /// Returns the calls so far.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.process.lines().iter().filter_map(|line| Call::read(line)).collect()
    }

    /// Waits for a call that `wanted` accepts, after the first `skip`; returns the number of calls up to it.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, skip: usize, wanted: impl Fn(&Call) -> bool) -> usize {
        found(&format!("{what}: {}", self.process), || {
            self.calls().iter().skip(skip).position(&wanted).map(|at| skip + at + 1)
        })
    }
}

/// A call that has ended, or a run of calls of one command.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) command: String,
    fields: BTreeMap<String, String>,
}

impl Call {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("thread=")?.split(' ').skip(1);
        let command = words.next()?.to_owned();
        let fields = words.filter_map(|word| word.split_once('='));
        Some(Self { command, fields: fields.map(|(name, value)| (name.into(), value.into())).collect() })
    }

    /// Returns a field of its line.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    /// Returns the name of the server that answered; empty if an exception came.
    pub(crate) fn who(&self) -> &str {
        self.field("who").unwrap_or_default()
    }

    pub(crate) fn exception(&self) -> Option<&str> {
        self.field("exception")
    }

    /// Returns whether it was in flight at a server that died: such a call may not be made again, as the
    /// server may have carried it out.
    pub(crate) fn was_in_flight(&self) -> bool {
        self.exception() == Some("COMM_FAILURE") && self.field("completed") == Some("MAYBE")
    }
}

/// Returns the folder of the programs, built from the current sources.
pub(super) fn parts() -> &'static Path {
    static PARTS: OnceLock<PathBuf> = OnceLock::new();
    PARTS.get_or_init(|| {
        // Cargo's folder for tests is within its target folder.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/build-corba-parts");
        let built = Command::new(script).env("CARGO_TARGET_DIR", target).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        target.join("corba")
    })
}
