use std::io::Write as _;
use std::net::UdpSocket;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use plimsoll_cluster::fleet::FleetHandoff;
use plimsoll_cluster::store::{LocalStore, Store, StoreChange};
use plimsoll_config::{self as config, MachineDefaults};
use plimsoll_proxy::Engine;
use serde_json::json;

use super::channel::HandoffChannel;
use super::predecessor::transfer_state;
use super::{
    CurrentProgram, ESTATE, FinalHandoff, HandoffMessage, HandoffParticipant, HandoffSource, LEGACY, PAST,
    READY, READY_TIMEOUT, ReadyMessage, SERVING, SharedStoreView, SocketDescription, StoreContent,
    SuccessorSetup, TAKEN,
};
use crate::runtime::discovery_state::SourceAnswers;

fn pair() -> (HandoffChannel, HandoffChannel) {
    let (one, other) = UnixStream::pair().unwrap();
    (HandoffChannel::new(one), HandoffChannel::new(other))
}

#[test]
fn messages_come_whole_with_more_sockets_than_go_at_once() {
    let sockets: Vec<UdpSocket> = (0..450).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<u16> = sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
    let (mut from, mut to) = pair();
    let says = thread::spawn(move || {
        let borrowed: Vec<BorrowedFd<'_>> = sockets.iter().map(|socket| socket.as_fd()).collect();
        let estate = SuccessorSetup { version: "x".repeat(300_000), ..SuccessorSetup::default() };
        from.send(ESTATE, &estate, &borrowed).unwrap();
        from.send(READY, &ReadyMessage { version: "2".into(), fleet: true, later: true }, &[]).unwrap();
    });
    let (message, came) = to.receive().unwrap().unwrap();
    assert_eq!(message.is, ESTATE);
    assert_eq!(message.body::<SuccessorSetup>().version.len(), 300_000);
    let came: Vec<u16> =
        came.into_iter().map(|socket| UdpSocket::from(socket).local_addr().unwrap().port()).collect();
    assert_eq!(came, ports);
    let (message, came) = to.receive().unwrap().unwrap();
    assert_eq!((message.body::<ReadyMessage>().version, came.len()), ("2".into(), 0));
    says.join().unwrap();
    assert!(to.receive().unwrap().is_none(), "it has ended");
}

#[test]
fn what_is_no_message_is_an_error() {
    for bytes in
        [&b"HTTP/1.1 400 Bad Request\r\n"[..], b"\x02\0\0\0\0\0\0\0{}", b"\x09\0\0", b"\x01\0\0\0\0\0\0\0"]
    {
        let (mut raw, other) = UnixStream::pair().unwrap();
        raw.write_all(bytes).unwrap();
        drop(raw);
        assert!(HandoffChannel::new(other).receive().is_err(), "{bytes:?}");
    }
    let (_quiet, mut to) = pair();
    to.set_timeout(Some(Duration::from_millis(10))).unwrap();
    assert!(to.receive().is_err(), "nobody says anything");
}

#[test]
fn other_versions_are_understood_as_far_as_they_are_known() {
    let body = json!({
        "engine": "of another kind",
        "crews": [{"group": "web", "provider": "exec", "members": [
            {"instance": {"index": 3, "id": "a", "address": "127.0.0.1:9"}, "stage": "serving"},
        ]}],
        "fleet": {"life": 7, "seqs": "none"},
        "weather": {"rain": true},
        "facts": [{
            "group": "web", "member": "a:1", "name": "cpu", "value": 0.5, "age_seconds": 1.5, "unit": "share",
        }],
    });
    let left = FinalHandoff::read(body);
    assert_eq!((&*left.crews[0].provider, left.crews[0].members[0].instance.index), ("exec", 3));
    assert_eq!(left.fleet, None, "of another kind");
    assert_eq!((left.facts.len(), left.facts[0].value), (1, 0.5));
    assert!(FinalHandoff::read(json!(null)).facts.is_empty());
    let message: HandoffMessage =
        serde_json::from_value(json!({"is": "estate", "body": {"colour": 1}, "of": 3})).unwrap();
    assert_eq!(message.body::<SuccessorSetup>().begin, 0);
    let body = json!({"begin": 7, "found": [{"group": 1, "sources": "none"}]});
    let estate: SuccessorSetup = HandoffMessage { is: ESTATE.into(), body }.body();
    assert_eq!((estate.begin, estate.found), (7, Vec::new()), "what is of another kind is left out alone");
    let passed: SocketDescription = serde_json::from_value(json!({"is": "quic", "count": 2})).unwrap();
    assert_eq!((passed.count, passed.disabled), (2, false));
}

#[test]
fn what_a_store_in_memory_has_goes_on_and_what_is_there_stays() {
    let open = |path: Option<&Path>| LocalStore::open(path).unwrap().0;
    let (before, after) = (open(None), open(None));
    let ttl = Some(Duration::from_millis(3_600_500));
    before.commit(&StoreChange::put("drain/web/a:1", "{}").and_put("members/web/b:1", "{1}", ttl)).unwrap();
    after.commit(&StoreChange::put("drain/web/a:1", "{2}")).unwrap();
    let kept = StoreContent::of(&before);
    let told: StoreContent = serde_json::from_value(serde_json::to_value(&kept).unwrap()).unwrap();
    assert_eq!(told, kept);
    let (after, before): (&dyn Store, &dyn Store) = (&after, &before);
    told.put_into(after).unwrap();
    let view = after.snapshot();
    assert_eq!(&*view.entries["drain/web/a:1"].value, "{2}");
    assert_eq!(view.entries["members/web/b:1"].lease, before.snapshot().entries["members/web/b:1"].lease);
    // State that outlives the process is not carried.
    let path = std::env::temp_dir().join(format!("plimsoll-kept-{}", std::process::id()));
    let file = open(Some(&path));
    file.commit(&StoreChange::put("drain/web/a:1", "{}")).unwrap();
    assert_eq!(StoreContent::of(&file), StoreContent::default());
    drop(file);
    for beside in ["", ".lock", ".new"] {
        let _ = std::fs::remove_file(format!("{}{beside}", path.display()));
    }
}

#[test]
fn what_was_seen_of_a_store_is_of_its_prefix_alone() {
    let told =
        json!({"prefix": "/a/", "revision": 9, "colour": 1, "entries": [["drain/web/a:1", "{}", 7, 5]]});
    let seen = || serde_json::from_value::<SharedStoreView>(told.clone()).unwrap();
    let view = seen().into_view("/a/").unwrap();
    let entry = &view.entries["drain/web/a:1"];
    assert_eq!((view.revision, &*entry.value, entry.revision, entry.lease), (9, "{}", 7, 5));
    assert_eq!(seen().into_view("/b/"), None);
    assert_eq!(SharedStoreView::default().into_view(""), None, "nothing was seen");
    // The view of a store that is not shared is not passed on: its content is in its file, or is kept.
    let local = LocalStore::open(None).unwrap().0;
    local.commit(&StoreChange::put("drain/web/a:1", "{}")).unwrap();
    assert_eq!(serde_json::to_value(SharedStoreView::of(&local)).unwrap()["revision"], 0);
}

/// Returns a data plane with one listener, without a server behind it.
fn engine(name: &str) -> Engine {
    let path = std::env::temp_dir().join(format!("plimsoll-{name}-{}.toml", std::process::id()));
    let text = "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n[[group]]\nname = \"web\"\nmembers \
        = [\"127.0.0.1:9\"]\n";
    std::fs::write(&path, text).unwrap();
    let file = config::read(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    let machine = MachineDefaults {
        threads: 1,
        max_connections: 9,
        max_descriptors: 1000,
        max_memory: 1 << 30,
        max_flows: 16384,
    };
    let settings = file.settings(machine, config::look_up).unwrap();
    Engine::start(settings).unwrap()
}

/// A record of the calls, in place of the parts beside a data plane.
#[derive(Default)]
struct CallRecorder {
    calls: Mutex<Vec<&'static str>>,
    predecessor: OnceLock<Arc<HandoffSource>>,
}

impl CallRecorder {
    fn note(&self, what: &'static str) {
        self.calls.lock().unwrap().push(what);
    }

    fn taken(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    fn in_charge(&self) -> bool {
        self.predecessor.get().unwrap().check_in_charge().is_ok()
    }
}

impl HandoffParticipant for CallRecorder {
    fn halt_changes(&self) -> Result<(), String> {
        Ok(())
    }

    fn store_content(&self) -> StoreContent {
        StoreContent::default()
    }

    fn store_view(&self) -> SharedStoreView {
        SharedStoreView::default()
    }

    fn source_answers(&self) -> Vec<SourceAnswers> {
        Vec::new()
    }

    fn final_handoff(&self) -> FinalHandoff {
        self.note("left");
        FinalHandoff::default()
    }

    fn pause(&self) -> Option<FleetHandoff> {
        self.note("pause");
        Some(FleetHandoff { life: 7, ..FleetHandoff::default() })
    }

    fn resume(&self) {
        self.note(if self.in_charge() { "goes on, in charge" } else { "goes on" });
    }

    fn catch_up(&self) {
        self.note(if self.in_charge() { "catches up, in charge" } else { "catches up" });
    }

    fn leave(&self, _: bool) {
        self.note("leave");
    }
}

#[test]
fn nothing_can_begin_before_all_goes_on() {
    let engine = engine("goes-on");
    let elder = Arc::new(HandoffSource::new(CurrentProgram::current().unwrap(), Vec::new(), false));
    let house = CallRecorder::default();
    assert!(house.predecessor.set(Arc::clone(&elder)).is_ok());
    for _ in 0..2 {
        let refused =
            elder.hand_over(&engine, &house, Some(Path::new("/bin/false")), READY_TIMEOUT).unwrap_err();
        assert!(refused.contains("goes on as before"), "{refused}");
        assert_eq!(house.taken(), ["goes on", "catches up, in charge"]);
    }
}

#[test]
fn other_balancers_hear_nothing_only_once_all_else_is_taken() {
    let engine = engine("pauses");
    let house = CallRecorder::default();
    let (mut ours, mut theirs) = pair();
    thread::scope(|scope| {
        let mut tell = |later| {
            let ready = ReadyMessage { version: "2".into(), fleet: true, later };
            transfer_state(&mut ours, &engine, &house, &ready, &mut || "ended".into())
        };
        let heir = scope.spawn(|| {
            let (message, _) = theirs.receive().unwrap().unwrap();
            assert_eq!(message.is, LEGACY);
            let left = FinalHandoff::read(message.body);
            assert_eq!((left.later, left.fleet), (true, None));
            // The order holds, however long that takes.
            assert_eq!(house.taken(), ["left"]);
            theirs.send(TAKEN, &json!({}), &[]).unwrap();
            let (message, _) = theirs.receive().unwrap().unwrap();
            assert_eq!((&*message.is, house.taken()), (PAST, vec!["pause"]));
            assert_eq!(message.body::<Option<FleetHandoff>>().unwrap().life, 7);
            theirs.send(SERVING, &json!({}), &[]).unwrap();
            // A predecessor of an older version gets everything at once.
            let (message, _) = theirs.receive().unwrap().unwrap();
            let left = FinalHandoff::read(message.body);
            assert_eq!((left.later, left.fleet.unwrap().life), (false, 7));
            theirs.send(SERVING, &json!({}), &[]).unwrap();
        });
        tell(true).unwrap();
        tell(false).unwrap();
        heir.join().unwrap();
    });
    assert_eq!(house.taken(), ["left", "pause"]);
}
