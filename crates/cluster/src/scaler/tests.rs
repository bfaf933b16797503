//! Tests of the providers with programs and servers that record their requests: method, path, fields and
//! body.

mod server;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use server::{ListenKind, RecordingServer};

use super::*;

/// A temporary folder, removed after its test.
struct ScalerTempDir(PathBuf);

impl ScalerTempDir {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("plimsoll-scaler-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Creates an executable script.
    fn script(&self, name: &str, text: &str) -> String {
        let source = self.write(&format!("{name}.source"), &format!("#!/bin/sh\n{text}\n"));
        let path = self.0.join(name);
        // Another process writes it: the kernel runs no file that is open for writing, and concurrent tests'
        // children would inherit this process's descriptor.
        let made = std::process::Command::new("install").args(["-m", "755"]).args([&source, &path]).status();
        assert!(made.unwrap().success(), "install {}", path.display());
        path.display().to_string()
    }
}

impl Drop for ScalerTempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn wish(index: u32) -> InstanceSpec {
    InstanceSpec { group: "web".into(), index, why: "2 more".into() }
}

fn stop(one: Instance) -> StopRequest {
    StopRequest { group: "web".into(), instance: one, why: "1 fewer".into() }
}

fn instance(index: u32, id: &str, address: &str) -> Instance {
    Instance { index, id: id.into(), address: address.parse().unwrap() }
}

fn place() -> AddressRange {
    AddressRange { ip: [127, 0, 0, 1].into(), ports: None }
}

const SECOND: Duration = Duration::from_secs(1);
/// The limit of every wait: longer than any operation on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Polls until a condition holds.
async fn wait_until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !so().await {
        assert!(tokio::time::Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await; // sleeps: polls
    }
}

fn processes(command: &[&str], state: Option<PathBuf>) -> ProcessSettings {
    ProcessSettings {
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        environment: vec![("WHO".into(), "{group}-{index}".into())],
        folder: None,
        log: None,
        listen: place(),
        stop_timeout: Duration::from_millis(300),
        state_file: state,
    }
}

fn open_provider(kind: ProviderKind) -> Arc<dyn InstanceProvider> {
    match kind.open("web") {
        ProviderHandle::PerInstance(provider) => provider,
        other => panic!("{other:?}"),
    }
}

async fn running(provider: &dyn InstanceProvider) -> Vec<Instance> {
    provider.running_instances().await.unwrap().unwrap()
}

#[tokio::test]
async fn a_process_is_started_with_its_port_and_stopped() {
    let folder = ScalerTempDir::new();
    let told = folder.0.join("told");
    let script = folder.script("serve", &format!("echo \"$WHO $*\" >> {}; exec sleep 600", told.display()));
    let provider = open_provider(ProviderKind::Process(processes(
        &[&script, "--listen", "{host}:{port}", "{index}"],
        None,
    )));
    let one = provider.start(wish(3)).await.unwrap();
    let other = provider.start(wish(4)).await.unwrap();
    assert!(one.address != other.address && one.index == 3);
    let wanted = format!("web-3 --listen {} 3", one.address);
    wait_until("it says what it was told", async || {
        std::fs::read_to_string(&told).unwrap_or_default().lines().any(|line| line == wanted)
    })
    .await;
    assert_eq!(running(&*provider).await.len(), 2);
    provider.stop(stop(one.clone())).await.unwrap();
    assert_eq!(running(&*provider).await, std::slice::from_ref(&other));
    // A repeated stop does no harm.
    provider.stop(stop(one)).await.unwrap();
    provider.stop(stop(other)).await.unwrap();
    assert!(running(&*provider).await.is_empty());
}

#[tokio::test]
async fn one_that_ends_by_itself_is_gone_and_says_why() {
    let provider = open_provider(ProviderKind::Process(processes(&["sh", "-c", "exit 7"], None)));
    let one = provider.start(wish(0)).await.unwrap();
    wait_until("it has ended", async || running(&*provider).await.is_empty()).await;
    let why = provider.exit_reason(&one.id).unwrap();
    assert!(why.starts_with("it ended with exit code 7"), "{why}");
    let missing = open_provider(ProviderKind::Process(processes(&["/nowhere/serve"], None)));
    let why = missing.start(wish(0)).await.unwrap_err();
    assert!(why.starts_with("cannot start `/nowhere/serve`"), "{why}");
}

#[tokio::test]
async fn one_that_does_not_listen_to_sigterm_is_killed_with_what_it_started() {
    let folder = ScalerTempDir::new();
    let told = folder.0.join("child");
    let text = format!("trap '' TERM; sleep 600 & echo $! > {}; while :; do sleep 1; done", told.display());
    let script = folder.script("stubborn", &text);
    let provider = open_provider(ProviderKind::Process(processes(&[&script], None)));
    let one = provider.start(wish(0)).await.unwrap();
    wait_until("it listens to nobody", async || {
        std::fs::read_to_string(&told).is_ok_and(|pid| pid.ends_with('\n'))
    })
    .await;
    provider.stop(stop(one)).await.unwrap();
    ends(&told).await;
}

/// Waits until the process with the PID in this file has ended.
async fn ends(told: &Path) {
    let child = std::fs::read_to_string(told).unwrap();
    let stat = PathBuf::from(format!("/proc/{}/stat", child.trim()));
    wait_until("what it started is gone", async || {
        let stat = std::fs::read_to_string(&stat).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    })
    .await;
}

#[tokio::test]
async fn one_that_was_found_again_is_stopped_with_what_it_started() {
    let folder = ScalerTempDir::new();
    let told = folder.0.join("child");
    let script = folder.script("parent", &format!("sleep 600 & echo $! > {}; wait", told.display()));
    let settings = processes(&[&script], Some(folder.0.join("state")));
    let first = open_provider(ProviderKind::Process(settings.clone()));
    let one = first.start(wish(0)).await.unwrap();
    wait_until("it has a child", async || {
        std::fs::read_to_string(&told).is_ok_and(|pid| pid.ends_with('\n'))
    })
    .await;
    let second = open_provider(ProviderKind::Process(settings));
    first.release_all();
    second.stop(stop(one)).await.unwrap();
    ends(&told).await;
}

#[tokio::test]
async fn a_program_that_takes_too_long_ends_with_what_it_started() {
    let folder = ScalerTempDir::new();
    let told = folder.0.join("child");
    let script = folder.script("hangs", &format!("sleep 600 & echo $! > {}; wait", told.display()));
    let exec = open_provider(ProviderKind::Exec(ExecSettings { command: vec![script], timeout: SECOND }));
    wait_until("it comes as far as to start something", async || {
        let why = exec.start(wish(0)).await.unwrap_err();
        assert!(why.contains("did not end within 1 s"), "{why}");
        std::fs::read_to_string(&told).is_ok_and(|pid| pid.ends_with('\n'))
    })
    .await;
    ends(&told).await;
}

#[tokio::test]
async fn processes_are_found_again_by_their_file() {
    let folder = ScalerTempDir::new();
    let state = folder.0.join("state");
    let settings = processes(&["sleep", "600"], Some(state.clone()));
    let first = open_provider(ProviderKind::Process(settings.clone()));
    let one = first.start(wish(0)).await.unwrap();
    let gone = first.start(wish(1)).await.unwrap();
    first.stop(stop(gone)).await.unwrap();
    // The file contains a PID that another process has now.
    let text = std::fs::read_to_string(&state).unwrap();
    let mut known: Value = serde_json::from_str(&text).unwrap();
    let other = json!({"index": 5, "address": "127.0.0.1:5", "pid": std::process::id(), "start": 1});
    known["processes"].as_array_mut().unwrap().push(other);
    std::fs::write(&state, known.to_string()).unwrap();
    let second = open_provider(ProviderKind::Process(settings));
    assert_eq!(running(&*second).await, std::slice::from_ref(&one));
    // The first provider has the child, and must wait for it.
    let (stopped, _) = tokio::join!(second.stop(stop(one)), async {
        wait_until("it is gone", async || running(&*first).await.is_empty()).await;
    });
    stopped.unwrap();
    assert!(running(&*second).await.is_empty());
}

/// Reserves a port of 127.0.0.1 without a listener while the socket exists.
fn reserve_port() -> (socket2::Socket, u16) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let port = socket.local_addr().unwrap().as_socket().unwrap().port();
    (socket, port)
}

#[test]
fn ports_are_those_that_are_free() {
    let (_held, port) = reserve_port();
    let kept = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let only = AddressRange { ports: Some((port, port)), ..place() };
    assert!(only.find_free(&BTreeSet::new()).unwrap_err().contains("is free"));
    drop(kept);
    let free = only.find_free(&BTreeSet::new()).unwrap();
    assert_eq!(free.port(), port);
    assert!(only.find_free(&BTreeSet::from([free])).is_err(), "it is somebody's");
}

#[tokio::test]
async fn a_program_is_told_on_its_standard_input() {
    let folder = ScalerTempDir::new();
    let told = folder.0.join("told");
    let text = format!(
        "cat >> {}; echo >> {0}; echo '{{\"address\": \"10.0.0.3:80\", \"id\": \"i-07\"}}'",
        told.display()
    );
    let exec = ExecSettings { command: vec![folder.script("cloud", &text)], timeout: PATIENCE };
    let one = exec.start(wish(2)).await.unwrap();
    assert_eq!(one, instance(2, "i-07", "10.0.0.3:80"));
    exec.stop(stop(one)).await.unwrap();
    let told = std::fs::read_to_string(told).unwrap();
    let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let start = json!({"action": "start", "group": "web", "index": 2, "why": "2 more"});
    let stop = json!({
        "action": "stop", "group": "web", "index": 2,
        "id": "i-07", "address": "10.0.0.3:80", "why": "1 fewer",
    });
    assert_eq!(told, [start, stop]);
    assert_eq!(exec.running_instances().await, Ok(None));
}

#[tokio::test]
async fn a_program_that_fails_hangs_or_talks_nonsense_is_a_failure() {
    let folder = ScalerTempDir::new();
    let exec =
        |name: &str, text: &str, timeout| ExecSettings { command: vec![folder.script(name, text)], timeout };
    let why = exec("fails", "echo first >&2; echo 'no quota' >&2; exit 3", PATIENCE)
        .start(wish(0))
        .await
        .unwrap_err();
    assert!(why.contains("exit status: 3") && why.ends_with("no quota"), "{why}");
    let why = exec("hangs", "exec sleep 600", SECOND / 5).start(wish(0)).await.unwrap_err();
    assert!(why.contains("did not end within 0.2 s"), "{why}");
    let told = folder.0.join("child");
    let text = format!("sleep 600 & echo $! > {}", told.display());
    let why = exec("open", &text, PATIENCE).start(wish(0)).await.unwrap_err();
    let child = std::fs::read_to_string(&told).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
    assert!(why.contains("left its output open"), "{why}");
    for (place, answer) in
        ["", "[]", "{\"address\": \"web\"}", "{\"address\": \"10.0.0.1:80\", \"id\": 7}"].iter().enumerate()
    {
        let why = exec(&format!("odd{place}"), &format!("echo '{answer}'"), PATIENCE)
            .start(wish(0))
            .await
            .unwrap_err();
        assert!(why.starts_with("the answer "), "{why}");
    }
}

#[tokio::test]
async fn units_of_systemd_are_named_after_their_numbers() {
    let folder = ScalerTempDir::new();
    let told = folder.0.join("told");
    let list = "web@2.service loaded active running Web\\nweb@x.service loaded active running \
        Odd\\nweb@0.service loaded active running Web";
    let text = format!(
        "echo \"$*\" >> {}; case \"$*\" in *list-units*) printf '{list}\\n';; *@9*) echo 'Unit web@9.service \
         not found.' >&2; exit 5;; esac",
        told.display()
    );
    let systemd = SystemdSettings {
        systemctl: folder.script("systemctl", &text),
        template: "web".into(),
        user: true,
        ip: [127, 0, 0, 1].into(),
        first_port: 9000,
        timeout: PATIENCE,
    };
    let one = systemd.start(wish(2)).await.unwrap();
    assert_eq!(one, instance(2, "web@2.service", "127.0.0.1:9002"));
    let present = systemd.running_instances().await.unwrap().unwrap();
    assert_eq!(present, [one.clone(), instance(0, "web@0.service", "127.0.0.1:9000")]);
    systemd.stop(stop(one)).await.unwrap();
    let why = systemd.start(wish(9)).await.unwrap_err();
    assert!(why.contains("not found"), "{why}");
    let far = SystemdSettings { first_port: 65_535, ..systemd };
    assert!(far.start(wish(1)).await.unwrap_err().contains("no port"));
    let told = std::fs::read_to_string(told).unwrap();
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[0], "--user start --no-ask-password web@2.service");
    assert!(
        lines[1].starts_with("--user list-units --plain --no-legend --full --state=active")
            && lines[1].ends_with("web@*.service")
    );
    assert_eq!(lines[2], "--user stop --no-ask-password web@2.service");
}

#[tokio::test]
async fn a_server_is_told_by_post() {
    let server = RecordingServer::start(ListenKind::Tcp, |asked| match asked.body["action"].as_str() {
        Some("start") if asked.body["index"] == 1 => (503, json!({"message": "no\nquota"})),
        Some("start") => (200, json!({"address": "[2001:db8::1]:80"})),
        _ => (204, Value::Null),
    });
    let SocketAddr::V4(at) = server.address() else { panic!() };
    let webhook = WebhookSettings {
        host: at.ip().to_string(),
        port: at.port(),
        path: "/scale?a=b".into(),
        timeout: PATIENCE,
    };
    let one = webhook.start(wish(0)).await.unwrap();
    assert_eq!(one, instance(0, "[2001:db8::1]:80", "[2001:db8::1]:80"));
    webhook.stop(stop(one)).await.unwrap();
    let why = webhook.start(wish(1)).await.unwrap_err();
    assert_eq!(why, "it answered 503: no\u{fffd}quota");
    let asked = server.requests();
    assert_eq!((&*asked[0].method, &*asked[0].path), ("POST", "/scale?a=b"));
    assert_eq!(asked[0].field("content-type"), Some("application/json"));
    assert_eq!(asked[0].field("host"), Some(at.to_string().as_str()));
    assert_eq!(asked[0].body, json!({"action": "start", "group": "web", "index": 0, "why": "2 more"}));
    assert_eq!(asked[1].body["action"], "stop");
    // No server is there.
    let (_held, port) = reserve_port();
    let gone = WebhookSettings { port, ..webhook };
    assert!(gone.start(wish(0)).await.unwrap_err().starts_with("cannot connect"));
}

fn docker(socket: &Path) -> DockerSettings {
    DockerSettings {
        socket: socket.to_owned(),
        image: "web:1".into(),
        command: vec!["serve".into(), "--name={group}-{index}".into()],
        environment: vec!["PORT=8080".into()],
        port: 8080,
        publish: place(),
        stop_timeout: 2 * SECOND,
        timeout: PATIENCE,
    }
}

#[tokio::test]
async fn containers_are_made_started_stopped_and_removed() {
    let folder = ScalerTempDir::new();
    let socket = folder.0.join("docker.sock");
    let server = RecordingServer::start(ListenKind::Unix(socket.clone()), |asked| {
        match (&*asked.method, &*asked.path) {
            ("POST", "/v1.41/containers/create") => (201, json!({"Id": "c0ffee", "Warnings": []})),
            ("GET", _) => {
                let labels = |index: &str, address: &str| {
                    json!({
                        "plimsoll.group": "web", "plimsoll.index": index, "plimsoll.address": address,
                    })
                };
                let odd = json!({"Id": "../x", "Labels": labels("1", "127.0.0.1:1")});
                (
                    200,
                    json!([
                        {"Id": "c0ffee", "State": "running", "Labels": labels("6", "127.0.0.1:20006")},
                        odd,
                        {"Id": "bare", "Labels": {}},
                        {"Id": "crashed", "State": "exited", "Labels": labels("2", "127.0.0.1:20002")},
                    ]),
                )
            }
            ("POST", path) if path.ends_with("/stop?t=2") => (304, Value::Null),
            _ => (204, Value::Null),
        }
    });
    let provider = open_provider(ProviderKind::Docker(docker(&socket)));
    let one = provider.start(wish(6)).await.unwrap();
    assert_eq!((&*one.id, one.index), ("c0ffee", 6));
    assert_eq!(running(&*provider).await, [instance(6, "c0ffee", "127.0.0.1:20006")]);
    provider.stop(stop(one.clone())).await.unwrap();
    let asked = server.requests();
    let lines: Vec<String> = asked.iter().map(|one| format!("{} {}", one.method, one.path)).collect();
    assert_eq!(
        lines,
        [
            "POST /v1.41/containers/create",
            "POST /v1.41/containers/c0ffee/start",
            concat!(
                "GET /v1.41/containers/json?filters=%7B%22label%22%3A%5B%22plimsoll.group%3Dweb%22%5D%2C",
                "%22status%22%3A%5B%22running%22%2C%22exited%22%2C%22dead%22%5D%7D"
            ),
            "DELETE /v1.41/containers/crashed?force=true",
            "POST /v1.41/containers/c0ffee/stop?t=2",
            "DELETE /v1.41/containers/c0ffee?force=true",
        ]
    );
    assert_eq!(asked[0].field("content-type"), Some("application/json"));
    assert_eq!(asked[0].field("host"), Some("localhost"));
    assert_eq!(
        asked[0].body,
        json!({
            "Image": "web:1",
            "Cmd": ["serve", "--name=web-6"],
            "Env": ["PORT=8080"],
            "Labels": {
                "plimsoll.group": "web", "plimsoll.index": "6", "plimsoll.address": one.address.to_string(),
            },
            "ExposedPorts": {"8080/tcp": {}},
            "HostConfig": {"PortBindings": {"8080/tcp": [
                {"HostIp": "127.0.0.1", "HostPort": one.address.port().to_string()},
            ]}},
        })
    );
}

#[tokio::test]
async fn a_container_that_cannot_be_started_is_removed() {
    let folder = ScalerTempDir::new();
    let socket = folder.0.join("docker.sock");
    let server = RecordingServer::start(ListenKind::Unix(socket.clone()), |asked| {
        match (&*asked.method, &*asked.path) {
            ("POST", "/v1.41/containers/create") => (201, json!({"Id": "c0ffee"})),
            ("DELETE", _) => (204, Value::Null),
            ("POST", path) if path.contains("/stop") => {
                (404, json!({"message": "No such container: c0ffee"}))
            }
            _ => (500, json!({"message": "port is already allocated"})),
        }
    });
    let provider = open_provider(ProviderKind::Docker(docker(&socket)));
    assert_eq!(provider.start(wish(0)).await.unwrap_err(), "it answered 500: port is already allocated");
    assert_eq!(server.requests().last().map(|one| one.method.clone()).as_deref(), Some("DELETE"));
    // A missing container counts as stopped.
    provider.stop(stop(instance(0, "c0ffee", "127.0.0.1:1"))).await.unwrap();
    let nobody = open_provider(ProviderKind::Docker(docker(&folder.0.join("none.sock"))));
    assert!(nobody.start(wish(0)).await.unwrap_err().contains("none.sock"));
}

#[tokio::test]
async fn replicas_are_patched_over_tls_with_the_accounts_token() {
    let folder = ScalerTempDir::new();
    let (server, authority) = RecordingServer::secure(|asked| match asked.field("authorization") {
        Some("Bearer t0ken") => {
            let spec =
                if asked.method == "GET" { json!({"replicas": 4}) } else { asked.body["spec"].clone() };
            (200, json!({"kind": "Scale", "spec": spec, "status": {"replicas": 2}}))
        }
        _ => (403, json!({"kind": "Status", "message": "deployments.apps \"web\" is forbidden"})),
    });
    folder.write("ca.crt", &authority);
    folder.write("token", "t0ken\n");
    folder.write("namespace", "shop");
    let settings = KubernetesSettings {
        host: "localhost".into(),
        port: server.address().port(),
        tls: true,
        resource: "deployments".into(),
        name: "web".into(),
        namespace: None,
        account: folder.0.clone(),
        timeout: PATIENCE,
    };
    assert_eq!(settings.set_replicas(5).await, Ok(5));
    let asked = server.requests().remove(0);
    assert_eq!(
        (&*asked.method, &*asked.path),
        ("PATCH", "/apis/apps/v1/namespaces/shop/deployments/web/scale")
    );
    assert_eq!(asked.field("content-type"), Some("application/merge-patch+json"));
    assert_eq!(asked.field("accept"), Some("application/json"));
    assert_eq!(asked.body, json!({"spec": {"replicas": 5}}));
    assert_eq!(settings.replicas().await, Ok(4), "what was asked for, not what there is");
    // The token is read for each request.
    folder.write("token", "other");
    let why = settings.set_replicas(5).await.unwrap_err();
    assert_eq!(why, "it answered 403: deployments.apps \"web\" is forbidden");
    // A certificate of another authority is rejected.
    let (stranger, _) = RecordingServer::secure(|_| (200, Value::Null));
    let why = KubernetesSettings { port: stranger.address().port(), ..settings.clone() }
        .set_replicas(5)
        .await
        .unwrap_err();
    assert!(why.starts_with("TLS: "), "{why}");
    assert!(stranger.requests().is_empty());
    std::fs::remove_file(folder.0.join("token")).unwrap();
    assert!(settings.set_replicas(1).await.unwrap_err().contains("token"));
}
