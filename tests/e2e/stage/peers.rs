//! Foreign programs: nginx and HAProxy with a configuration of the test's.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Folder, PATIENCE, Process, free_port, listens};

const INSTALL: &str = "run scripts/install-test-deps (or make deps)";

/// Returns the path of a program.
///
/// # Panics
/// Panics if it is not installed.
#[track_caller]
pub(crate) fn part(name: &str) -> PathBuf {
    let path = std::env::var("PATH").unwrap_or_default();
    // Debian keeps servers in sbin, which may not be in the PATH.
    let folders = path.split(':').chain(["/usr/local/sbin", "/usr/sbin", "/sbin"]);
    let found = folders.map(|folder| Path::new(folder).join(name)).find(|file| file.is_file());
    found.unwrap_or_else(|| panic!("{name} is not installed: {INSTALL}"))
}

/// An nginx of one process.
pub(crate) struct Nginx {
    _process: Process,
    pub(crate) address: SocketAddr,
    pub(crate) folder: Folder,
}

impl Nginx {
    /// Starts a server with these directives; its root is `files` of its folder.
    #[track_caller]
    pub(crate) fn http(server: &str) -> Self {
        Self::start(|address| {
            format!(
                "http {{ access_log off; keepalive_requests 1000000; client_max_body_size 0;\n\
                 client_body_temp_path temp; proxy_temp_path temp; fastcgi_temp_path temp;\n\
                 uwsgi_temp_path temp; scgi_temp_path temp;\n\
                 server {{ listen {address} backlog=4096; root files; dav_methods PUT; ssi_types *;\n\
                 {server} }} }}"
            )
        })
    }

    /// Starts an nginx with contexts such as `http {}`, given the address to listen on.
    #[track_caller]
    pub(crate) fn start(contexts: impl Fn(SocketAddr) -> String) -> Self {
        Self::run("", contexts)
    }

    /// Starts a server of byte streams or datagrams with these directives.
    #[track_caller]
    pub(crate) fn stream(server: impl Fn(SocketAddr) -> String) -> Self {
        let module = "/usr/lib/nginx/modules/ngx_stream_module.so";
        assert!(Path::new(module).exists(), "{module} is not installed: {INSTALL}");
        let load = format!("load_module {module};");
        Self::run(&load, |address| format!("stream {{ {} }}", server(address)))
    }

    #[track_caller]
    fn run(modules: &str, contexts: impl Fn(SocketAddr) -> String) -> Self {
        let folder = Folder::new();
        for name in ["files", "temp"] {
            std::fs::create_dir(folder.join(name)).unwrap();
        }
        let (process, address) = settle(&part("nginx"), &folder, |address| {
            // As root nginx would drop its privileges and could not read the folder.
            let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
            let text = format!(
                "{modules} {user} daemon off; master_process off; pid nginx.pid; error_log stderr;\n\
                 worker_rlimit_nofile 16384; events {{ worker_connections 8192; }}\n{}\n",
                contexts(address)
            );
            folder.write("nginx.conf", text);
            let prefix = format!("{}/", folder.path().display());
            vec!["-p".into(), prefix, "-e".into(), "stderr".into(), "-c".into(), "nginx.conf".into()]
        });
        Self { _process: process, address, folder }
    }

    /// Writes a file under its root.
    pub(crate) fn file(&self, name: &str, content: &[u8]) {
        std::fs::write(self.folder.join("files").join(name), content).unwrap();
    }

    /// Reads a file under its root.
    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.folder.join("files").join(name)).unwrap()
    }
}

/// An HAProxy of one process.
pub(crate) struct Haproxy {
    _process: Process,
    pub(crate) address: SocketAddr,
    _folder: Folder,
}

impl Haproxy {
    /// Starts an HAProxy with these `sections` of its file, given the address to listen on.
    #[track_caller]
    pub(crate) fn start(sections: impl Fn(SocketAddr) -> String) -> Self {
        let folder = Folder::new();
        let (process, address) = settle(&part("haproxy"), &folder, |address| {
            let text = format!(
                "global\n  maxconn 1000\n\
                 defaults\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n{}\n",
                sections(address)
            );
            folder.write("haproxy.cfg", text);
            ["-db", "-f", "haproxy.cfg"].map(str::to_owned).to_vec()
        });
        Self { _process: process, address, _folder: folder }
    }
}

/// Starts a program that cannot choose a free port itself, with other ports until it gets one.
#[track_caller]
pub(super) fn settle(
    program: &Path,
    folder: &Folder,
    args: impl Fn(SocketAddr) -> Vec<String>,
) -> (Process, SocketAddr) {
    for _ in 0..20 {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let args = args(address);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut process = Process::start(program, &args, folder.path());
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            if process.ended() {
                let said = process.lines().join("\n").to_lowercase();
                assert!(said.contains("in use") || said.contains("cannot bind"), "{process}");
                break;
            }
            if listens(address) {
                return (process, address);
            }
            assert!(std::time::Instant::now() < end, "it does not listen: {process}");
            std::thread::sleep(Duration::from_millis(10)); // sleeps: polls
        }
    }
    panic!("no port is free for {}", program.display());
}
