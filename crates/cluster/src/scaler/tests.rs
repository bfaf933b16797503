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
        let status =
            std::process::Command::new("install").args(["-m", "755"]).args([&source, &path]).status();
        assert!(status.unwrap().success(), "install {}", path.display());
        path.display().to_string()
    }
}

impl Drop for ScalerTempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn instance_spec(index: u32) -> InstanceSpec {
    InstanceSpec { group: "web".into(), index, why: "2 more".into() }
}

fn stop_spec(instance: Instance) -> StopRequest {
    StopRequest { group: "web".into(), instance, why: "1 fewer".into() }
}

fn instance(index: u32, id: &str, address: &str) -> Instance {
    Instance { index, id: id.into(), address: address.parse().unwrap() }
}

fn address_range() -> AddressRange {
    AddressRange { ip: [127, 0, 0, 1].into(), ports: None }
}

const SECOND: Duration = Duration::from_secs(1);
/// The limit of every wait: longer than any operation on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Polls until a condition holds.
async fn wait_until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "not within {TEST_TIMEOUT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await; // sleeps: polls
    }
}

fn processes(command: &[&str], state: Option<PathBuf>) -> ProcessSettings {
    ProcessSettings {
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        environment: vec![("WHO".into(), "{group}-{index}".into())],
        folder: None,
        log: None,
        listen: address_range(),
        stop_timeout: Duration::from_millis(300),
        state_file: state,
    }
}

fn open_provider(kind: ProviderKind) -> Arc<dyn InstanceProvider> {
    match kind.open("web") {
        ProviderHandle::PerInstance(provider) => provider,
        second_instance => panic!("{second_instance:?}"),
    }
}

async fn running(provider: &dyn InstanceProvider) -> Vec<Instance> {
    provider.running_instances().await.unwrap().unwrap()
}

#[tokio::test]
async fn a_process_is_started_with_its_port_and_stopped() {
    let temp_dir = ScalerTempDir::new();
    let output_path = temp_dir.0.join("told");
    let script =
        temp_dir.script("serve", &format!("echo \"$WHO $*\" >> {}; exec sleep 600", output_path.display()));
    let provider = open_provider(ProviderKind::Process(processes(
        &[&script, "--listen", "{host}:{port}", "{index}"],
        None,
    )));
    let first_instance = provider.start(instance_spec(3)).await.unwrap();
    let second_instance = provider.start(instance_spec(4)).await.unwrap();
    assert!(first_instance.address != second_instance.address && first_instance.index == 3);
    let expected_line = format!("web-3 --listen {} 3", first_instance.address);
    wait_until("it says what it was told", async || {
        std::fs::read_to_string(&output_path).unwrap_or_default().lines().any(|line| line == expected_line)
    })
    .await;
    assert_eq!(running(&*provider).await.len(), 2);
    provider.stop(stop_spec(first_instance.clone())).await.unwrap();
    assert_eq!(running(&*provider).await, std::slice::from_ref(&second_instance));
    // A repeated stop does no harm.
    provider.stop(stop_spec(first_instance)).await.unwrap();
    provider.stop(stop_spec(second_instance)).await.unwrap();
    assert!(running(&*provider).await.is_empty());
}

#[tokio::test]
async fn one_that_ends_by_itself_is_gone_and_says_why() {
    let provider = open_provider(ProviderKind::Process(processes(&["sh", "-c", "exit 7"], None)));
    let first_instance = provider.start(instance_spec(0)).await.unwrap();
    wait_until("it has ended", async || running(&*provider).await.is_empty()).await;
    let error = provider.exit_reason(&first_instance.id).unwrap();
    assert!(error.starts_with("it ended with exit code 7"), "{error}");
    let missing_program = open_provider(ProviderKind::Process(processes(&["/nowhere/serve"], None)));
    let error = missing_program.start(instance_spec(0)).await.unwrap_err();
    assert!(error.starts_with("cannot start `/nowhere/serve`"), "{error}");
}

#[tokio::test]
async fn one_that_does_not_listen_to_sigterm_is_killed_with_what_it_started() {
    let temp_dir = ScalerTempDir::new();
    let output_path = temp_dir.0.join("child");
    let script_text =
        format!("trap '' TERM; sleep 600 & echo $! > {}; while :; do sleep 1; done", output_path.display());
    let script = temp_dir.script("stubborn", &script_text);
    let provider = open_provider(ProviderKind::Process(processes(&[&script], None)));
    let first_instance = provider.start(instance_spec(0)).await.unwrap();
    wait_until("it listens to nobody", async || {
        std::fs::read_to_string(&output_path).is_ok_and(|pid| pid.ends_with('\n'))
    })
    .await;
    provider.stop(stop_spec(first_instance)).await.unwrap();
    wait_until_ended(&output_path).await;
}

/// Waits until the process with the PID in this file has ended.
async fn wait_until_ended(output_path: &Path) {
    let child = std::fs::read_to_string(output_path).unwrap();
    let stat = PathBuf::from(format!("/proc/{}/stat", child.trim()));
    wait_until("what it started is gone", async || {
        let stat = std::fs::read_to_string(&stat).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    })
    .await;
}

#[tokio::test]
async fn one_that_was_found_again_is_stopped_with_what_it_started() {
    let temp_dir = ScalerTempDir::new();
    let output_path = temp_dir.0.join("child");
    let script = temp_dir.script("parent", &format!("sleep 600 & echo $! > {}; wait", output_path.display()));
    let settings = processes(&[&script], Some(temp_dir.0.join("state")));
    let first = open_provider(ProviderKind::Process(settings.clone()));
    let one = first.start(instance_spec(0)).await.unwrap();
    wait_until("it has a child", async || {
        std::fs::read_to_string(&output_path).is_ok_and(|pid| pid.ends_with('\n'))
    })
    .await;
    let second = open_provider(ProviderKind::Process(settings));
    first.release_all();
    second.stop(stop_spec(one)).await.unwrap();
    wait_until_ended(&output_path).await;
}

#[tokio::test]
async fn a_program_that_takes_too_long_ends_with_what_it_started() {
    let temp_dir = ScalerTempDir::new();
    let output_path = temp_dir.0.join("child");
    let script = temp_dir.script("hangs", &format!("sleep 600 & echo $! > {}; wait", output_path.display()));
    let exec = open_provider(ProviderKind::Exec(ExecSettings { command: vec![script], timeout: SECOND }));
    wait_until("it comes as far as to start something", async || {
        let error = exec.start(instance_spec(0)).await.unwrap_err();
        assert!(error.contains("did not end within 1 s"), "{error}");
        std::fs::read_to_string(&output_path).is_ok_and(|pid| pid.ends_with('\n'))
    })
    .await;
    wait_until_ended(&output_path).await;
}

#[tokio::test]
async fn processes_are_found_again_by_their_file() {
    let temp_dir = ScalerTempDir::new();
    let state = temp_dir.0.join("state");
    let settings = processes(&["sleep", "600"], Some(state.clone()));
    let first = open_provider(ProviderKind::Process(settings.clone()));
    let one = first.start(instance_spec(0)).await.unwrap();
    let unreachable = first.start(instance_spec(1)).await.unwrap();
    first.stop(stop_spec(unreachable)).await.unwrap();
    // The file contains a PID that another process has now.
    let text = std::fs::read_to_string(&state).unwrap();
    let mut saved_state: Value = serde_json::from_str(&text).unwrap();
    let second_instance =
        json!({"index": 5, "address": "127.0.0.1:5", "pid": std::process::id(), "start": 1});
    saved_state["processes"].as_array_mut().unwrap().push(second_instance);
    std::fs::write(&state, saved_state.to_string()).unwrap();
    let second = open_provider(ProviderKind::Process(settings));
    assert_eq!(running(&*second).await, std::slice::from_ref(&one));
    // The first provider has the child, and must wait for it.
    let (stopped, _) = tokio::join!(second.stop(stop_spec(one)), async {
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
    let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let single_port = AddressRange { ports: Some((port, port)), ..address_range() };
    assert!(single_port.find_free(&BTreeSet::new()).unwrap_err().contains("is free"));
    drop(listener);
    let address = single_port.find_free(&BTreeSet::new()).unwrap();
    assert_eq!(address.port(), port);
    assert!(single_port.find_free(&BTreeSet::from([address])).is_err(), "it is somebody's");
}

#[tokio::test]
async fn a_program_is_told_on_its_standard_input() {
    let temp_dir = ScalerTempDir::new();
    let output_path = temp_dir.0.join("told");
    let script_text = format!(
        "cat >> {}; echo >> {0}; echo '{{\"address\": \"10.0.0.3:80\", \"id\": \"i-07\"}}'",
        output_path.display()
    );
    let exec = ExecSettings { command: vec![temp_dir.script("cloud", &script_text)], timeout: TEST_TIMEOUT };
    let first_instance = exec.start(instance_spec(2)).await.unwrap();
    assert_eq!(first_instance, instance(2, "i-07", "10.0.0.3:80"));
    exec.stop(stop_spec(first_instance)).await.unwrap();
    let output = std::fs::read_to_string(output_path).unwrap();
    let output: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let start = json!({"action": "start", "group": "web", "index": 2, "why": "2 more"});
    let stop = json!({
        "action": "stop", "group": "web", "index": 2,
        "id": "i-07", "address": "10.0.0.3:80", "why": "1 fewer",
    });
    assert_eq!(output, [start, stop]);
    assert_eq!(exec.running_instances().await, Ok(None));
}

#[tokio::test]
async fn a_program_that_fails_hangs_or_talks_nonsense_is_a_failure() {
    let temp_dir = ScalerTempDir::new();
    let exec = |name: &str, text: &str, timeout| ExecSettings {
        command: vec![temp_dir.script(name, text)],
        timeout,
    };
    let error = exec("fails", "echo first >&2; echo 'no quota' >&2; exit 3", TEST_TIMEOUT)
        .start(instance_spec(0))
        .await
        .unwrap_err();
    assert!(error.contains("exit status: 3") && error.ends_with("no quota"), "{error}");
    let error = exec("hangs", "exec sleep 600", SECOND / 5).start(instance_spec(0)).await.unwrap_err();
    assert!(error.contains("did not end within 0.2 s"), "{error}");
    let output_path = temp_dir.0.join("child");
    let script_text = format!("sleep 600 & echo $! > {}", output_path.display());
    let error = exec("open", &script_text, TEST_TIMEOUT).start(instance_spec(0)).await.unwrap_err();
    let child = std::fs::read_to_string(&output_path).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
    assert!(error.contains("left its output open"), "{error}");
    for (index, response) in
        ["", "[]", "{\"address\": \"web\"}", "{\"address\": \"10.0.0.1:80\", \"id\": 7}"].iter().enumerate()
    {
        let error = exec(&format!("odd{index}"), &format!("echo '{response}'"), TEST_TIMEOUT)
            .start(instance_spec(0))
            .await
            .unwrap_err();
        assert!(error.starts_with("the answer "), "{error}");
    }
}

#[tokio::test]
async fn units_of_systemd_are_named_after_their_numbers() {
    let temp_dir = ScalerTempDir::new();
    let output_path = temp_dir.0.join("told");
    let list = "web@2.service loaded active running Web\\nweb@x.service loaded active running \
        Odd\\nweb@0.service loaded active running Web";
    let script_text = format!(
        "echo \"$*\" >> {}; case \"$*\" in *list-units*) printf '{list}\\n';; *@9*) echo 'Unit web@9.service \
         not found.' >&2; exit 5;; esac",
        output_path.display()
    );
    let systemd = SystemdSettings {
        systemctl: temp_dir.script("systemctl", &script_text),
        template: "web".into(),
        user: true,
        ip: [127, 0, 0, 1].into(),
        first_port: 9000,
        timeout: TEST_TIMEOUT,
    };
    let first_instance = systemd.start(instance_spec(2)).await.unwrap();
    assert_eq!(first_instance, instance(2, "web@2.service", "127.0.0.1:9002"));
    let present = systemd.running_instances().await.unwrap().unwrap();
    assert_eq!(present, [first_instance.clone(), instance(0, "web@0.service", "127.0.0.1:9000")]);
    systemd.stop(stop_spec(first_instance)).await.unwrap();
    let error = systemd.start(instance_spec(9)).await.unwrap_err();
    assert!(error.contains("not found"), "{error}");
    let out_of_range = SystemdSettings { first_port: 65_535, ..systemd };
    assert!(out_of_range.start(instance_spec(1)).await.unwrap_err().contains("no port"));
    let output_path = std::fs::read_to_string(output_path).unwrap();
    let lines: Vec<&str> = output_path.lines().collect();
    assert_eq!(lines[0], "--user start --no-ask-password web@2.service");
    assert!(
        lines[1].starts_with("--user list-units --plain --no-legend --full --state=active")
            && lines[1].ends_with("web@*.service")
    );
    assert_eq!(lines[2], "--user stop --no-ask-password web@2.service");
}

#[tokio::test]
async fn a_server_is_told_by_post() {
    let server = RecordingServer::start(ListenKind::Tcp, |request| match request.body["action"].as_str() {
        Some("start") if request.body["index"] == 1 => (503, json!({"message": "no\nquota"})),
        Some("start") => (200, json!({"address": "[2001:db8::1]:80"})),
        _ => (204, Value::Null),
    });
    let SocketAddr::V4(server_address) = server.address() else { panic!() };
    let webhook = WebhookSettings {
        host: server_address.ip().to_string(),
        port: server_address.port(),
        path: "/scale?a=b".into(),
        timeout: TEST_TIMEOUT,
    };
    let first_instance = webhook.start(instance_spec(0)).await.unwrap();
    assert_eq!(first_instance, instance(0, "[2001:db8::1]:80", "[2001:db8::1]:80"));
    webhook.stop(stop_spec(first_instance)).await.unwrap();
    let error = webhook.start(instance_spec(1)).await.unwrap_err();
    assert_eq!(error, "it answered 503: no\u{fffd}quota");
    let requests = server.requests();
    assert_eq!((&*requests[0].method, &*requests[0].path), ("POST", "/scale?a=b"));
    assert_eq!(requests[0].field("content-type"), Some("application/json"));
    assert_eq!(requests[0].field("host"), Some(server_address.to_string().as_str()));
    assert_eq!(requests[0].body, json!({"action": "start", "group": "web", "index": 0, "why": "2 more"}));
    assert_eq!(requests[1].body["action"], "stop");
    // No server is there.
    let (_held, port) = reserve_port();
    let unreachable = WebhookSettings { port, ..webhook };
    assert!(unreachable.start(instance_spec(0)).await.unwrap_err().starts_with("cannot connect"));
}

fn docker(socket: &Path) -> DockerSettings {
    DockerSettings {
        socket: socket.to_owned(),
        image: "web:1".into(),
        command: vec!["serve".into(), "--name={group}-{index}".into()],
        environment: vec!["PORT=8080".into()],
        port: 8080,
        publish: address_range(),
        stop_timeout: 2 * SECOND,
        timeout: TEST_TIMEOUT,
    }
}

#[tokio::test]
async fn containers_are_made_started_stopped_and_removed() {
    let temp_dir = ScalerTempDir::new();
    let socket = temp_dir.0.join("docker.sock");
    let server = RecordingServer::start(ListenKind::Unix(socket.clone()), |request| {
        match (&*request.method, &*request.path) {
            ("POST", "/v1.41/containers/create") => (201, json!({"Id": "c0ffee", "Warnings": []})),
            ("GET", _) => {
                let labels = |index: &str, address: &str| {
                    json!({
                        "plimsoll.group": "web", "plimsoll.index": index, "plimsoll.address": address,
                    })
                };
                let invalid_container = json!({"Id": "../x", "Labels": labels("1", "127.0.0.1:1")});
                (
                    200,
                    json!([
                        {"Id": "c0ffee", "State": "running", "Labels": labels("6", "127.0.0.1:20006")},
                        invalid_container,
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
    let first_instance = provider.start(instance_spec(6)).await.unwrap();
    assert_eq!((&*first_instance.id, first_instance.index), ("c0ffee", 6));
    assert_eq!(running(&*provider).await, [instance(6, "c0ffee", "127.0.0.1:20006")]);
    provider.stop(stop_spec(first_instance.clone())).await.unwrap();
    let requests = server.requests();
    let lines: Vec<String> =
        requests.iter().map(|request| format!("{} {}", request.method, request.path)).collect();
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
    assert_eq!(requests[0].field("content-type"), Some("application/json"));
    assert_eq!(requests[0].field("host"), Some("localhost"));
    assert_eq!(
        requests[0].body,
        json!({
            "Image": "web:1",
            "Cmd": ["serve", "--name=web-6"],
            "Env": ["PORT=8080"],
            "Labels": {
                "plimsoll.group": "web", "plimsoll.index": "6",
                "plimsoll.address": first_instance.address.to_string(),
            },
            "ExposedPorts": {"8080/tcp": {}},
            "HostConfig": {"PortBindings": {"8080/tcp": [
                {"HostIp": "127.0.0.1", "HostPort": first_instance.address.port().to_string()},
            ]}},
        })
    );
}

#[tokio::test]
async fn a_container_that_cannot_be_started_is_removed() {
    let temp_dir = ScalerTempDir::new();
    let socket = temp_dir.0.join("docker.sock");
    let server = RecordingServer::start(ListenKind::Unix(socket.clone()), |request| {
        match (&*request.method, &*request.path) {
            ("POST", "/v1.41/containers/create") => (201, json!({"Id": "c0ffee"})),
            ("DELETE", _) => (204, Value::Null),
            ("POST", path) if path.contains("/stop") => {
                (404, json!({"message": "No such container: c0ffee"}))
            }
            _ => (500, json!({"message": "port is already allocated"})),
        }
    });
    let provider = open_provider(ProviderKind::Docker(docker(&socket)));
    assert_eq!(
        provider.start(instance_spec(0)).await.unwrap_err(),
        "it answered 500: port is already allocated"
    );
    assert_eq!(server.requests().last().map(|one| one.method.clone()).as_deref(), Some("DELETE"));
    // A missing container counts as stopped.
    provider.stop(stop_spec(instance(0, "c0ffee", "127.0.0.1:1"))).await.unwrap();
    let missing_daemon = open_provider(ProviderKind::Docker(docker(&temp_dir.0.join("none.sock"))));
    assert!(missing_daemon.start(instance_spec(0)).await.unwrap_err().contains("none.sock"));
}

#[tokio::test]
async fn replicas_are_patched_over_tls_with_the_accounts_token() {
    let temp_dir = ScalerTempDir::new();
    let (server, authority) = RecordingServer::secure(|request| match request.field("authorization") {
        Some("Bearer t0ken") => {
            let spec =
                if request.method == "GET" { json!({"replicas": 4}) } else { request.body["spec"].clone() };
            (200, json!({"kind": "Scale", "spec": spec, "status": {"replicas": 2}}))
        }
        _ => (403, json!({"kind": "Status", "message": "deployments.apps \"web\" is forbidden"})),
    });
    temp_dir.write("ca.crt", &authority);
    temp_dir.write("token", "t0ken\n");
    temp_dir.write("namespace", "shop");
    let settings = KubernetesSettings {
        host: "localhost".into(),
        port: server.address().port(),
        tls: true,
        resource: "deployments".into(),
        name: "web".into(),
        namespace: None,
        account: temp_dir.0.clone(),
        timeout: TEST_TIMEOUT,
    };
    assert_eq!(settings.set_replicas(5).await, Ok(5));
    let request = server.requests().remove(0);
    assert_eq!(
        (&*request.method, &*request.path),
        ("PATCH", "/apis/apps/v1/namespaces/shop/deployments/web/scale")
    );
    assert_eq!(request.field("content-type"), Some("application/merge-patch+json"));
    assert_eq!(request.field("accept"), Some("application/json"));
    assert_eq!(request.body, json!({"spec": {"replicas": 5}}));
    assert_eq!(settings.replicas().await, Ok(4), "what was asked for, not what there is");
    // The token is read for each request.
    temp_dir.write("token", "other");
    let error = settings.set_replicas(5).await.unwrap_err();
    assert_eq!(error, "it answered 403: deployments.apps \"web\" is forbidden");
    // A certificate of another authority is rejected.
    let (untrusted_server, _) = RecordingServer::secure(|_| (200, Value::Null));
    let error = KubernetesSettings { port: untrusted_server.address().port(), ..settings.clone() }
        .set_replicas(5)
        .await
        .unwrap_err();
    assert!(error.starts_with("TLS: "), "{error}");
    assert!(untrusted_server.requests().is_empty());
    std::fs::remove_file(temp_dir.0.join("token")).unwrap();
    assert!(settings.set_replicas(1).await.unwrap_err().contains("token"));
}
