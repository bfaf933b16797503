//! Programs in Go: h2spec, and grpc-go's own. `scripts/install-go-tools` builds them once for a checkout;
//! `make test` runs it before any test begins.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::peers::settle;
use super::{Folder, Process, listens, part, until};

/// Returns the path of one of the programs.
///
/// # Panics
/// Panics if it cannot be built.
#[track_caller]
pub(crate) fn go_tool(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        // Cargo's folder for tests is within its target folder.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install-go-tools");
        let built = Command::new(script).env("CARGO_TARGET_DIR", target).output().unwrap();
        let said = String::from_utf8_lossy(&[built.stdout, built.stderr].concat()).into_owned();
        assert!(built.status.success(), "scripts/install-go-tools: {said}");
        target.join("go/bin")
    });
    folder.join(name)
}

/// Runs one of the programs to its end, for two minutes at most; returns whether it succeeded, and its
/// output.
pub(crate) fn go_run(name: &str, args: &[&str]) -> (bool, String) {
    let mut command = Command::new(part("timeout"));
    let output = command.arg("120").arg(go_tool(name)).args(args).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// grpc-go's interop server.
pub(crate) struct InteropServer {
    process: Process,
    pub(crate) address: SocketAddr,
    folder: Folder,
}

impl InteropServer {
    #[track_caller]
    pub(crate) fn start() -> Self {
        let folder = Folder::new();
        let (process, address) = settle(&go_tool("grpc-interop-server"), &folder, |address| {
            vec![format!("-port={}", address.port())]
        });
        Self { process, address, folder }
    }

    /// Starts another server at the same address.
    pub(crate) fn restart(mut self) -> Self {
        self.process.kill();
        let port = format!("-port={}", self.address.port());
        self.process = Process::start(&go_tool("grpc-interop-server"), &[&port], self.folder.path());
        until("it listens", || listens(self.address));
        self
    }
}
