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

fn channel_pair() -> (HandoffChannel, HandoffChannel) {
    let (first_stream, second_stream) = UnixStream::pair().unwrap();
    (HandoffChannel::new(first_stream), HandoffChannel::new(second_stream))
}

#[test]
fn messages_come_whole_with_more_sockets_than_go_at_once() {
    let sockets: Vec<UdpSocket> = (0..450).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<u16> = sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
    let (mut sender, mut receiver) = channel_pair();
    let sender_thread = thread::spawn(move || {
        let socket_fds: Vec<BorrowedFd<'_>> = sockets.iter().map(|socket| socket.as_fd()).collect();
        let setup = SuccessorSetup { version: "x".repeat(300_000), ..SuccessorSetup::default() };
        sender.send(ESTATE, &setup, &socket_fds).unwrap();
        sender.send(READY, &ReadyMessage { version: "2".into(), fleet: true, later: true }, &[]).unwrap();
    });
    let (message, received_sockets) = receiver.receive().unwrap().unwrap();
    assert_eq!(message.is, ESTATE);
    assert_eq!(message.body::<SuccessorSetup>().version.len(), 300_000);
    let received_ports: Vec<u16> = received_sockets
        .into_iter()
        .map(|socket| UdpSocket::from(socket).local_addr().unwrap().port())
        .collect();
    assert_eq!(received_ports, ports);
    let (message, received_sockets) = receiver.receive().unwrap().unwrap();
    assert_eq!((message.body::<ReadyMessage>().version, received_sockets.len()), ("2".into(), 0));
    sender_thread.join().unwrap();
    assert!(receiver.receive().unwrap().is_none(), "it has ended");
}

#[test]
fn what_is_no_message_is_an_error() {
    for bytes in
        [&b"HTTP/1.1 400 Bad Request\r\n"[..], b"\x02\0\0\0\0\0\0\0{}", b"\x09\0\0", b"\x01\0\0\0\0\0\0\0"]
    {
        let (mut raw_stream, peer_stream) = UnixStream::pair().unwrap();
        raw_stream.write_all(bytes).unwrap();
        drop(raw_stream);
        assert!(HandoffChannel::new(peer_stream).receive().is_err(), "{bytes:?}");
    }
    let (_sender, mut receiver) = channel_pair();
    receiver.set_timeout(Some(Duration::from_millis(10))).unwrap();
    assert!(receiver.receive().is_err(), "nobody says anything");
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
    let handoff = FinalHandoff::read(body);
    assert_eq!((&*handoff.crews[0].provider, handoff.crews[0].members[0].instance.index), ("exec", 3));
    assert_eq!(handoff.fleet, None, "of another kind");
    assert_eq!((handoff.facts.len(), handoff.facts[0].value), (1, 0.5));
    assert!(FinalHandoff::read(json!(null)).facts.is_empty());
    let message: HandoffMessage =
        serde_json::from_value(json!({"is": "estate", "body": {"colour": 1}, "of": 3})).unwrap();
    assert_eq!(message.body::<SuccessorSetup>().begin, 0);
    let body = json!({"begin": 7, "found": [{"group": 1, "sources": "none"}]});
    let setup: SuccessorSetup = HandoffMessage { is: ESTATE.into(), body }.body();
    assert_eq!((setup.begin, setup.found), (7, Vec::new()), "what is of another kind is left out alone");
    let description: SocketDescription = serde_json::from_value(json!({"is": "quic", "count": 2})).unwrap();
    assert_eq!((description.count, description.disabled), (2, false));
}

#[test]
fn what_a_store_in_memory_has_goes_on_and_what_is_there_stays() {
    let open_store = |path: Option<&Path>| LocalStore::open(path).unwrap().0;
    let (old_store, new_store) = (open_store(None), open_store(None));
    let ttl = Some(Duration::from_millis(3_600_500));
    old_store
        .commit(&StoreChange::put("drain/web/a:1", "{}").and_put("members/web/b:1", "{1}", ttl))
        .unwrap();
    new_store.commit(&StoreChange::put("drain/web/a:1", "{2}")).unwrap();
    let content = StoreContent::of(&old_store);
    let restored_content: StoreContent =
        serde_json::from_value(serde_json::to_value(&content).unwrap()).unwrap();
    assert_eq!(restored_content, content);
    let (new_store, old_store): (&dyn Store, &dyn Store) = (&new_store, &old_store);
    restored_content.put_into(new_store).unwrap();
    let store_view = new_store.snapshot();
    assert_eq!(&*store_view.entries["drain/web/a:1"].value, "{2}");
    assert_eq!(
        store_view.entries["members/web/b:1"].lease,
        old_store.snapshot().entries["members/web/b:1"].lease
    );
    // State that outlives the process is not carried.
    let path = std::env::temp_dir().join(format!("plimsoll-kept-{}", std::process::id()));
    let file = open_store(Some(&path));
    file.commit(&StoreChange::put("drain/web/a:1", "{}")).unwrap();
    assert_eq!(StoreContent::of(&file), StoreContent::default());
    drop(file);
    for suffix in ["", ".lock", ".new"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", path.display()));
    }
}

#[test]
fn what_was_seen_of_a_store_is_of_its_prefix_alone() {
    let view_json =
        json!({"prefix": "/a/", "revision": 9, "colour": 1, "entries": [["drain/web/a:1", "{}", 7, 5]]});
    let read_view = || serde_json::from_value::<SharedStoreView>(view_json.clone()).unwrap();
    let view = read_view().into_view("/a/").unwrap();
    let entry = &view.entries["drain/web/a:1"];
    assert_eq!((view.revision, &*entry.value, entry.revision, entry.lease), (9, "{}", 7, 5));
    assert_eq!(read_view().into_view("/b/"), None);
    assert_eq!(SharedStoreView::default().into_view(""), None, "nothing was seen");
    // The view of a store that is not shared is not passed on: its content is in its file, or is kept.
    let local_store = LocalStore::open(None).unwrap().0;
    local_store.commit(&StoreChange::put("drain/web/a:1", "{}")).unwrap();
    assert_eq!(serde_json::to_value(SharedStoreView::of(&local_store)).unwrap()["revision"], 0);
}

/// Returns a data plane with one listener, without a server behind it.
fn engine(name: &str) -> Engine {
    let path = std::env::temp_dir().join(format!("plimsoll-{name}-{}.toml", std::process::id()));
    let text = "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n[[group]]\nname = \"web\"\nmembers \
        = [\"127.0.0.1:9\"]\n";
    std::fs::write(&path, text).unwrap();
    let file = config::read(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    let machine_defaults = MachineDefaults {
        threads: 1,
        max_connections: 9,
        max_descriptors: 1000,
        max_memory: 1 << 30,
        max_flows: 16384,
    };
    let settings = file.settings(machine_defaults, config::look_up).unwrap();
    Engine::start(settings).unwrap()
}

/// A record of the calls, in place of the parts beside a data plane.
#[derive(Default)]
struct CallRecorder {
    calls: Mutex<Vec<&'static str>>,
    predecessor: OnceLock<Arc<HandoffSource>>,
}

impl CallRecorder {
    fn note(&self, call: &'static str) {
        self.calls.lock().unwrap().push(call);
    }

    fn take_calls(&self) -> Vec<&'static str> {
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
    let source = Arc::new(HandoffSource::new(CurrentProgram::current().unwrap(), Vec::new(), false));
    let participant = CallRecorder::default();
    assert!(participant.predecessor.set(Arc::clone(&source)).is_ok());
    for _ in 0..2 {
        let error = source
            .hand_over(&engine, &participant, Some(Path::new("/bin/false")), READY_TIMEOUT)
            .unwrap_err();
        assert!(error.contains("goes on as before"), "{error}");
        assert_eq!(participant.take_calls(), ["goes on", "catches up, in charge"]);
    }
}

#[test]
fn other_balancers_hear_nothing_only_once_all_else_is_taken() {
    let engine = engine("pauses");
    let participant = CallRecorder::default();
    let (mut own_channel, mut peer_channel) = channel_pair();
    thread::scope(|scope| {
        let mut transfer = |is_later| {
            let ready_message = ReadyMessage { version: "2".into(), fleet: true, later: is_later };
            transfer_state(&mut own_channel, &engine, &participant, &ready_message, &mut || "ended".into())
        };
        let peer_thread = scope.spawn(|| {
            let (message, _) = peer_channel.receive().unwrap().unwrap();
            assert_eq!(message.is, LEGACY);
            let handoff = FinalHandoff::read(message.body);
            assert_eq!((handoff.later, handoff.fleet), (true, None));
            // The order holds, however long that takes.
            assert_eq!(participant.take_calls(), ["left"]);
            peer_channel.send(TAKEN, &json!({}), &[]).unwrap();
            let (message, _) = peer_channel.receive().unwrap().unwrap();
            assert_eq!((&*message.is, participant.take_calls()), (PAST, vec!["pause"]));
            assert_eq!(message.body::<Option<FleetHandoff>>().unwrap().life, 7);
            peer_channel.send(SERVING, &json!({}), &[]).unwrap();
            // A predecessor of an older version gets everything at once.
            let (message, _) = peer_channel.receive().unwrap().unwrap();
            let handoff = FinalHandoff::read(message.body);
            assert_eq!((handoff.later, handoff.fleet.unwrap().life), (false, 7));
            peer_channel.send(SERVING, &json!({}), &[]).unwrap();
        });
        transfer(true).unwrap();
        transfer(false).unwrap();
        peer_thread.join().unwrap();
    });
    assert_eq!(participant.take_calls(), ["left", "pause"]);
}
