//! Debian's etcd, with as many nodes as a test wants, each in a process of its own.

use super::{Folder, Process, Run, free_port, part, until};

/// A cluster.
pub(crate) struct Etcd {
    nodes: Vec<Node>,
    folder: Folder,
    /// Whether the nodes use TLS with client certificates.
    secure: bool,
    /// The user for etcdctl, once authentication is on.
    user: Option<String>,
}

struct Node {
    process: Process,
    args: Vec<String>,
    client: u16,
}

impl Etcd {
    /// Starts `count` nodes.
    #[track_caller]
    pub(crate) fn start(count: usize) -> Self {
        Self::run(Folder::new(), count, false)
    }

    /// Starts a node that asks for client certificates; `ca.pem`, `etcd.pem`, `etcd.key`, `client.pem` and
    /// `client.key` are in the folder.
    #[track_caller]
    pub(crate) fn secure(folder: Folder) -> Self {
        Self::run(folder, 1, true)
    }

    #[track_caller]
    fn run(folder: Folder, count: usize, secure: bool) -> Self {
        let ports: Vec<(u16, u16)> = (0..count).map(|_| (free_port(), free_port())).collect();
        let peers: Vec<String> = ports
            .iter()
            .enumerate()
            .map(|(index, (_, peer))| format!("n{index}=http://127.0.0.1:{peer}"))
            .collect();
        let scheme = if secure { "https" } else { "http" };
        let nodes = ports.iter().enumerate().map(|(index, (client, peer))| {
            let client_url = format!("{scheme}://127.0.0.1:{client}");
            let peer_url = format!("http://127.0.0.1:{peer}");
            let mut args: Vec<String> = [
                ("name", format!("n{index}")),
                ("data-dir", folder.join(&format!("n{index}")).display().to_string()),
                ("listen-client-urls", client_url.clone()),
                ("advertise-client-urls", client_url),
                ("listen-peer-urls", peer_url.clone()),
                ("initial-advertise-peer-urls", peer_url),
                ("initial-cluster", peers.join(",")),
                ("initial-cluster-state", "new".into()),
                ("heartbeat-interval", "100".into()),
                ("election-timeout", "1000".into()),
                ("logger", "zap".into()),
                ("log-level", "warn".into()),
            ]
            .into_iter()
            .map(|(name, value)| format!("--{name}={value}"))
            .collect();
            if secure {
                let file = |name: &str| folder.join(name).display().to_string();
                args.push(format!("--cert-file={}", file("etcd.pem")));
                args.push(format!("--key-file={}", file("etcd.key")));
                args.push(format!("--trusted-ca-file={}", file("ca.pem")));
                args.push("--client-cert-auth".into());
            }
            Node { process: launch(&args, &folder), args, client: *client }
        });
        let etcd = Self { nodes: nodes.collect(), folder, secure, user: None };
        etcd.healthy();
        etcd
    }

    /// Waits until it takes changes.
    #[track_caller]
    pub(crate) fn healthy(&self) {
        until("etcd takes changes", || self.try_ctl(&["put", "probe", "x"]).code == Some(0));
    }

    /// Returns the value of the key `endpoints` of a configuration.
    pub(crate) fn endpoints(&self) -> String {
        let quoted: Vec<String> = self.nodes.iter().map(|node| format!("\"{}\"", self.url(node))).collect();
        format!("[{}]", quoted.join(", "))
    }

    /// Returns the port of the first node's clients.
    pub(crate) fn port(&self) -> u16 {
        self.nodes[0].client
    }

    fn url(&self, node: &Node) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", node.client)
    }

    /// Kills one node by SIGKILL.
    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node].process.kill();
    }

    /// Starts a node again with its old data.
    pub(crate) fn restart(&mut self, node: usize) {
        self.nodes[node].process = launch(&self.nodes[node].args, &self.folder);
    }

    /// Kills one node by SIGKILL; it begins anew without data.
    pub(crate) fn wipe(&mut self, node: usize) {
        self.kill(node);
        std::fs::remove_dir_all(self.folder.join(&format!("n{node}"))).unwrap();
        self.restart(node);
        self.healthy();
    }

    /// Makes etcdctl log in as this user from now on.
    pub(crate) fn login(&mut self, user: &str) {
        self.user = Some(user.to_owned());
    }

    /// Runs etcdctl.
    pub(crate) fn try_ctl(&self, args: &[&str]) -> Run {
        let urls: Vec<String> = self.nodes.iter().map(|node| self.url(node)).collect();
        let mut all = vec![format!("--endpoints={}", urls.join(",")), "--command-timeout=30s".into()];
        if self.secure {
            let file = |name: &str| self.folder.join(name).display().to_string();
            all.push(format!("--cacert={}", file("ca.pem")));
            all.push(format!("--cert={}", file("client.pem")));
            all.push(format!("--key={}", file("client.key")));
        }
        all.extend(self.user.iter().map(|user| format!("--user={user}")));
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        Run::of(&part("etcdctl"), &all, self.folder.path())
    }

    /// Runs etcdctl, which must succeed; returns its output.
    #[track_caller]
    pub(crate) fn ctl(&self, args: &[&str]) -> String {
        let run = self.try_ctl(args);
        assert_eq!(run.code, Some(0), "etcdctl {args:?}: {}{}", run.out, run.err);
        run.out
    }

    /// Compacts the history, so that only the current state is left.
    #[track_caller]
    pub(crate) fn compact(&self) {
        let said = self.ctl(&["get", "probe", "-w", "json"]);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        let revision = said["header"]["revision"].to_string();
        self.ctl(&["compact", &revision, "--physical"]);
    }
}

fn launch(args: &[String], folder: &Folder) -> Process {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Process::start(&part("etcd"), &args, folder.path())
}
