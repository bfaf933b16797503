//! Tests of the source against a scripted API server, request by request, in the wire format.

mod server;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::slice_watcher::SliceWatcher;
use super::*;
use crate::discover::{MemberList, SourceKind, SourceSettings, SourceUpdate, poll_source};
use server::{ApiRequest, ChunkedResponse, FakeApiServer};

/// A time limit that no test reaches.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the source for the service `web` in the namespace `shop`.
pub(super) fn source() -> KubernetesSource {
    KubernetesSource {
        service: "web".into(),
        namespace: Some("shop".into()),
        port: Some(ServicePort::Name("http".into())),
        family: AddressFamily::Any,
        api: KubernetesApi::Account { server: None, tls: false, folder: "/nonexistent".into() },
        timeout: PATIENCE,
    }
}

fn source_at(server: &FakeApiServer) -> KubernetesSource {
    let address = server.address();
    let server = Some((address.ip().to_string(), address.port()));
    let api = KubernetesApi::Account { server, tls: false, folder: "/nonexistent".into() };
    KubernetesSource { api, ..source() }
}

/// Returns a slice with the port 80.
fn slice(name: &str, version: u64, addresses: &[&str]) -> Value {
    let conditions = json!({"ready": true, "serving": true, "terminating": false});
    let endpoint = |address: &&str| json!({"addresses": [address], "conditions": conditions});
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
        "metadata": {
            "name": name, "namespace": "shop", "resourceVersion": version.to_string(), "generation": 1,
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
    })
}

fn list(version: u64, next: &str, items: &[Value]) -> Value {
    json!({"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"resourceVersion": version.to_string(), "continue": next}, "items": items})
}

fn event(kind: &str, object: Value) -> Value {
    json!({"type": kind, "object": object})
}

fn bookmark(version: u64) -> Value {
    event(
        "BOOKMARK",
        json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"resourceVersion": version.to_string(), "creationTimestamp": null},
        "addressType": "", "endpoints": null, "ports": null}),
    )
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

/// A source that is queried as the balancer does.
struct RunningSource {
    updates: mpsc::Receiver<SourceUpdate>,
    task: JoinHandle<()>,
}

impl Drop for RunningSource {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl RunningSource {
    fn start(source: KubernetesSource) -> Self {
        let source = SourceSettings {
            kind: SourceKind::Kubernetes(source),
            allow_empty: false,
            hold_time: Duration::ZERO,
        };
        let (to, updates) = mpsc::channel(64);
        Self { task: tokio::spawn(poll_source("web".into(), Arc::new(source), to)), updates }
    }

    async fn next(&mut self) -> Result<MemberList, String> {
        timeout(PATIENCE, self.updates.recv())
            .await
            .expect("something is heard")
            .expect("it is asked on")
            .result
    }

    /// Returns the names of the next members.
    async fn members(&mut self) -> Vec<String> {
        loop {
            let told = self.next().await.unwrap_or_else(|why| panic!("members, not: {why}"));
            if let Some(members) = told.members {
                return members.iter().map(|one| one.name.to_string()).collect();
            }
        }
    }

    /// Returns the reason of the next failure.
    async fn failure(&mut self) -> String {
        loop {
            match self.next().await {
                Err(why) => return why,
                Ok(told) => assert!(told.members.is_none(), "{told:?}"),
            }
        }
    }
}

/// Starts a server that has listed one slice, of version 7, and has received the request for a watch.
async fn start_watched(address: &str) -> (FakeApiServer, RunningSource, ApiRequest) {
    let mut server = FakeApiServer::start().await;
    let mut following = RunningSource::start(source_at(&server));
    server.next_request().await.respond_json(200, &list(7, "", &[slice("web-a", 5, &[address])])).await;
    assert_eq!(following.members().await, [format!("{address}:80")]);
    let watch = server.next_request().await;
    assert_eq!(watch.query("resourceVersion").as_deref(), Some("7"));
    (server, following, watch)
}

#[tokio::test]
async fn it_is_listed_in_pages_and_watched_from_then_on() {
    let mut server = FakeApiServer::start().await;
    let mut following = RunningSource::start(source_at(&server));
    let first = server.next_request().await;
    assert_eq!(first.path(), "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices");
    assert_eq!(first.query("labelSelector").as_deref(), Some("kubernetes.io/service-name=web"));
    assert!(
        first.query("limit").is_some() && first.query("watch").is_none() && first.query("continue").is_none()
    );
    // Without TLS no token is sent.
    assert_eq!(first.field("authorization"), None);
    first.respond_json(200, &list(6, "more", &[slice("web-a", 3, &["10.0.0.2"])])).await;
    let second = server.next_request().await;
    assert_eq!(second.query("continue").as_deref(), Some("more"));
    second.respond_json(200, &list(6, "", &[slice("web-b", 4, &["10.0.0.1"])])).await;
    assert_eq!(following.members().await, ["10.0.0.1:80", "10.0.0.2:80"]);
    let watch = server.next_request().await;
    assert_eq!(watch.path(), "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices");
    assert_eq!(watch.query("labelSelector").as_deref(), Some("kubernetes.io/service-name=web"));
    assert_eq!(watch.query("resourceVersion").as_deref(), Some("6"));
    assert_eq!(watch.query("allowWatchBookmarks").as_deref(), Some("true"));
    assert_eq!(watch.query("timeoutSeconds").as_deref(), Some("60"));
    let mut stream = watch.respond_stream().await;
    stream.event(&event("ADDED", slice("web-c", 8, &["10.0.0.3"]))).await;
    assert_eq!(following.members().await, ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]);
    stream.event(&event("MODIFIED", slice("web-a", 9, &["10.0.0.4"]))).await;
    assert_eq!(following.members().await, ["10.0.0.1:80", "10.0.0.3:80", "10.0.0.4:80"]);
    // In two parts, as it may arrive.
    let gone = event("DELETED", slice("web-b", 10, &["10.0.0.1"])).to_string();
    let (one, other) = gone.split_at(gone.len() / 2);
    stream.send_chunk(one).await;
    stream.send_chunk(&format!("{other}\n")).await;
    assert_eq!(following.members().await, ["10.0.0.3:80", "10.0.0.4:80"]);
    // The end of a watch is no failure, and the next one resumes after the bookmark.
    stream.event(&bookmark(77)).await;
    stream.finish().await;
    let watch = server.next_request().await;
    assert_eq!(watch.query("resourceVersion").as_deref(), Some("77"));
    let mut stream = watch.respond_stream().await;
    // All endpoints are gone. This is reported with the reason; the caller decides whether to accept it.
    stream.event(&event("DELETED", slice("web-a", 78, &[]))).await;
    assert_eq!(following.members().await, ["10.0.0.3:80"]);
    stream.event(&event("DELETED", slice("web-c", 79, &[]))).await;
    let told = loop {
        match following.next().await.unwrap() {
            MemberList { members: None, .. } => {}
            told => break told,
        }
    };
    assert_eq!((told.members.unwrap().len(), told.note.unwrap().contains("EndpointSlice")), (0, true));
}

#[tokio::test]
async fn what_the_server_has_forgotten_is_listed_anew() {
    let (mut server, mut following, watch) = start_watched("10.0.0.1").await;
    // As the response to a request,
    watch.respond_json(410, &status(410, "Expired", "too old resource version: 7 (9)")).await;
    let again = server.next_request().await;
    assert_eq!(again.query("watch"), None);
    again.respond_json(200, &list(20, "", &[slice("web-a", 19, &["10.0.0.2"])])).await;
    assert_eq!(following.members().await, ["10.0.0.2:80"]);
    let watch = server.next_request().await;
    assert_eq!(watch.query("resourceVersion").as_deref(), Some("20"));
    // and as an event.
    let mut stream = watch.respond_stream().await;
    stream.event(&event("ERROR", status(410, "Expired", "too old resource version: 20 (30)"))).await;
    let again = server.next_request().await;
    assert_eq!(again.query("watch"), None);
    again.respond_json(200, &list(40, "", &[slice("web-a", 39, &["10.0.0.3"])])).await;
    assert_eq!(following.members().await, ["10.0.0.3:80"]);
    assert_eq!(server.next_request().await.query("resourceVersion").as_deref(), Some("40"));
}

#[tokio::test]
async fn a_watch_that_breaks_goes_on_where_it_was() {
    let (mut server, mut following, watch) = start_watched("10.0.0.1").await;
    let mut stream = watch.respond_stream().await;
    stream.event(&event("MODIFIED", slice("web-a", 8, &["10.0.0.2"]))).await;
    assert_eq!(following.members().await, ["10.0.0.2:80"]);
    stream.send_chunk("{\"type\":\"MODI").await;
    stream.abort().await;
    let why = following.failure().await;
    assert!(why.contains("the watch broke off"), "{why}");
    let watch = server.next_request().await;
    assert_eq!(watch.query("resourceVersion").as_deref(), Some("8"));
    // A server failure does not affect the known state.
    watch.respond_json(503, &status(503, "ServiceUnavailable", "apiserver is shutting down")).await;
    assert_eq!(following.failure().await, "it answered 503: apiserver is shutting down");
    let watch = server.next_request().await;
    assert_eq!(watch.query("resourceVersion").as_deref(), Some("8"));
    let mut stream = watch.respond_stream().await;
    stream.event(&event("MODIFIED", slice("web-a", 9, &["10.0.0.3"]))).await;
    assert_eq!(following.members().await, ["10.0.0.3:80"]);
    // After unreadable input, and after errors that do not concern the version, the slices are listed again.
    for (odd, why) in [
        (
            event("ERROR", status(500, "InternalError", "etcdserver: no leader")),
            "etcdserver: no leader (500)",
        ),
        (
            event("MODIFIED", json!({"metadata": {}, "addressType": "IPv4", "endpoints": []})),
            "names no EndpointSlice",
        ),
    ] {
        stream.event(&odd).await;
        let said = following.failure().await;
        assert!(said.contains(why), "{said}");
        let again = server.next_request().await;
        assert_eq!(again.query("watch"), None);
        again.respond_json(200, &list(30, "", &[slice("web-a", 29, &["10.0.0.3"])])).await;
        assert_eq!(following.members().await, ["10.0.0.3:80"]);
        stream = server.next_request().await.respond_stream().await;
    }
    stream.send_chunk("<html>\n").await;
    assert!(following.failure().await.contains("cannot be read"));
}

#[tokio::test]
async fn what_nobody_goes_by_is_no_news() {
    let (_server, mut following, watch) = start_watched("10.0.0.1").await;
    let mut stream: ChunkedResponse = watch.respond_stream().await;
    stream.event(&event("MODIFIED", slice("web-a", 8, &["10.0.0.1"]))).await;
    assert_eq!(following.next().await, Ok(MemberList::default()));
    // A port that no endpoint has is a configuration error: it is reported until it is corrected.
    let mut other = slice("web-a", 9, &["10.0.0.1"]);
    other["ports"] = json!([{"name": "metrics", "port": 81}]);
    stream.event(&event("MODIFIED", other)).await;
    let why = following.failure().await;
    assert!(why.starts_with("its endpoints have no port http; they have metrics 81"), "{why}");
    stream.event(&bookmark(10)).await;
    assert_eq!(following.failure().await, why);
    stream.event(&event("MODIFIED", slice("web-a", 11, &["10.0.0.2"]))).await;
    assert_eq!(following.members().await, ["10.0.0.2:80"]);
}

#[tokio::test]
async fn a_server_that_is_away_is_asked_until_it_is_back() {
    let mut server = FakeApiServer::start().await;
    server.close().await;
    let mut following = RunningSource::start(source_at(&server));
    let why = following.failure().await;
    assert!(why.contains("Connection refused"), "{why}");
    following.failure().await;
    server.reopen().await;
    // Refused connections are reported as such.
    let mut asked = server.next_request().await;
    asked
        .respond_json(
            403,
            &status(403, "Forbidden", "endpointslices is forbidden: User \"system:serviceaccount:a:b\""),
        )
        .await;
    let mut why = following.failure().await;
    while why.contains("refused") {
        why = following.failure().await;
    }
    assert!(why.starts_with("it answered 403: endpointslices is forbidden"), "{why}");
    asked = server.next_request().await;
    asked.respond_json(200, &json!({"items": [], "metadata": {"resourceVersion": "3"}})).await;
    assert!(following.members().await.is_empty());
}

#[tokio::test]
async fn a_watch_of_which_nothing_is_heard_is_dead() {
    let mut server = FakeApiServer::start().await;
    let silent = Duration::from_millis(200);
    let mut watched = SliceWatcher::new(source_at(&server), Duration::from_secs(1), silent);
    let asking = |mut watched: SliceWatcher| async move {
        let said = MemberSource::query(&mut watched).await.map(|answer| answer.list);
        (watched, said)
    };
    let first = tokio::spawn(asking(watched));
    server.next_request().await.respond_json(200, &list(7, "", &[slice("web-a", 5, &["10.0.0.1"])])).await;
    let said;
    (watched, said) = first.await.unwrap();
    assert_eq!(said.unwrap().members.unwrap().len(), 1);
    let second = tokio::spawn(asking(watched));
    let watch = server.next_request().await;
    let _silent = watch.respond_stream().await;
    let (_, said) = second.await.unwrap();
    assert!(said.unwrap_err().contains("its watch sent nothing"));
}

/// A folder of a service account.
struct AccountFolder(PathBuf);

impl AccountFolder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("plimsoll-kube-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for AccountFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn a_service_account_proves_who_asks_and_its_token_is_renewed() {
    let folder = AccountFolder::new();
    let (mut server, authority) = FakeApiServer::secure().await;
    folder.write("ca.crt", &authority);
    folder.write("token", "first\n");
    folder.write("namespace", "lane\n");
    let address = Some(("localhost".to_owned(), server.address().port()));
    let api = KubernetesApi::Account { server: address, tls: true, folder: folder.0.clone() };
    let asked = KubernetesSource { namespace: None, api, ..source() };
    let mut following = RunningSource::start(asked.clone());
    let first = server.next_request().await;
    assert_eq!(first.field("authorization"), Some("Bearer first"));
    assert_eq!(first.path(), "/apis/discovery.k8s.io/v1/namespaces/lane/endpointslices");
    first.respond_json(200, &list(7, "", &[slice("web-a", 5, &["10.0.0.1"])])).await;
    following.members().await;
    // The token is read for each request.
    folder.write("token", "second");
    let watch = server.next_request().await;
    assert_eq!(watch.field("authorization"), Some("Bearer second"));
    watch.respond_json(401, &status(401, "Unauthorized", "Unauthorized")).await;
    assert_eq!(following.failure().await, "it answered 401: Unauthorized");
    folder.write("token", "third");
    let mut again = server.next_request().await;
    while again.field("authorization") == Some("Bearer second") {
        again.respond_json(401, &status(401, "Unauthorized", "Unauthorized")).await;
        again = server.next_request().await;
    }
    assert_eq!((again.field("authorization"), again.query("watch")), (Some("Bearer third"), None));
    again.respond_json(200, &list(9, "", &[slice("web-a", 8, &["10.0.0.2"])])).await;
    while following.next().await.is_err() {}
    drop(following);
    // A certificate of another authority is rejected, and the error names missing files.
    folder.write("ca.crt", &FakeApiServer::secure().await.1);
    let why = RunningSource::start(asked.clone()).failure().await;
    assert!(why.contains("certificate"), "{why}");
    std::fs::remove_file(folder.0.join("token")).unwrap();
    let why = RunningSource::start(asked.clone()).failure().await;
    assert!(why.contains("cannot read") && why.contains("token"), "{why}");
    folder.write("ca.crt", "none");
    let why = RunningSource::start(asked).failure().await;
    assert!(why.contains("ca.crt: no certificate is in it"), "{why}");
}

#[tokio::test]
async fn a_kubeconfig_says_whom_to_ask_and_by_which_context() {
    let folder = AccountFolder::new();
    let (mut server, authority) = FakeApiServer::secure().await;
    folder.write("authority.pem", &authority);
    folder.write("token", "of a file");
    let port = server.address().port();
    let file = |context: &str| {
        folder.write(
            "kubeconfig",
            &format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: {context}\nclusters:\n- name: \
                 here\n  cluster:\n    \
                 server: https://localhost:{port}\n    certificate-authority: authority.pem\nusers:\n- name: \
                 lb\n  user:\n    \
                 token: s3cret\n- name: file\n  user:\n    tokenFile: token\ncontexts:\n- name: \
                 one\n  context:\n    cluster: here\n    \
                 user: lb\n    namespace: lane\n- name: two\n  context:\n    cluster: here\n    user: file\n"
            ),
        )
    };
    let source = |context: Option<&str>| {
        let path = file("one");
        let api = KubernetesApi::Kubeconfig { path, context: context.map(str::to_owned) };
        KubernetesSource { namespace: None, api, ..source() }
    };
    let mut following = RunningSource::start(source(None));
    let asked = server.next_request().await;
    assert_eq!(asked.field("authorization"), Some("Bearer s3cret"));
    assert_eq!(asked.path(), "/apis/discovery.k8s.io/v1/namespaces/lane/endpointslices");
    asked.respond_json(200, &list(7, "", &[slice("web-a", 5, &["10.0.0.1"])])).await;
    assert_eq!(following.members().await, ["10.0.0.1:80"]);
    drop(server.next_request().await);
    drop(following);
    let following = RunningSource::start(source(Some("two")));
    let asked = server.next_request().await;
    assert_eq!(asked.field("authorization"), Some("Bearer of a file"));
    assert_eq!(asked.path(), "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices");
    drop(following);
    let why = RunningSource::start(source(Some("three"))).failure().await;
    assert!(why.contains("kubeconfig: ") && why.contains("context") && why.contains("three"), "{why}");
    let path = folder.write("kubeconfig", "clusters: [\n");
    let api = KubernetesApi::Kubeconfig { path, context: None };
    let why = RunningSource::start(KubernetesSource { api, ..self::source() }).failure().await;
    assert!(why.contains("kubeconfig: ") && !why.contains('\n'), "{why}");
}

#[test]
fn it_waits_longer_from_failure_to_failure_and_never_in_step() {
    let most = [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000, 10_000];
    for (failures, most) in (1..).zip(most) {
        let waits: Vec<Duration> = (0..50).map(|_| source().retry_delay(failures)).collect();
        let most = Duration::from_millis(most);
        assert!(waits.iter().all(|wait| *wait >= most / 2 && *wait <= most), "{failures}: {waits:?}");
        assert!(waits.iter().any(|wait| *wait != waits[0]));
    }
    assert!(source().retry_delay(0) <= MAX_RETRY_DELAY && source().retry_delay(u32::MAX) <= MAX_RETRY_DELAY);
}
