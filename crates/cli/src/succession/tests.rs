use std::io::Write as _;
use std::net::UdpSocket;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use plimsoll_cluster::store::{Change, Local, Store};
use serde_json::json;

use super::channel::Channel;
use super::{ESTATE, Estate, Kept, Left, Message, Passed, READY, Ready};
use crate::running::scaled::Wish;

fn pair() -> (Channel, Channel) {
    let (one, other) = UnixStream::pair().unwrap();
    (Channel::new(one), Channel::new(other))
}

#[test]
fn messages_come_whole_with_more_sockets_than_go_at_once() {
    let sockets: Vec<UdpSocket> = (0..450).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<u16> = sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
    let (mut from, mut to) = pair();
    let says = thread::spawn(move || {
        let borrowed: Vec<BorrowedFd<'_>> = sockets.iter().map(|socket| socket.as_fd()).collect();
        let estate = Estate { version: "x".repeat(300_000), ..Estate::default() };
        from.say(ESTATE, &estate, &borrowed).unwrap();
        from.say(READY, &Ready { version: "2".into(), fleet: true }, &[]).unwrap();
    });
    let (message, came) = to.receive().unwrap().unwrap();
    assert_eq!(message.is, ESTATE);
    assert_eq!(message.body::<Estate>().version.len(), 300_000);
    let came: Vec<u16> =
        came.into_iter().map(|socket| UdpSocket::from(socket).local_addr().unwrap().port()).collect();
    assert_eq!(came, ports);
    let (message, came) = to.receive().unwrap().unwrap();
    assert_eq!((message.body::<Ready>().version, came.len()), ("2".into(), 0));
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
        assert!(Channel::new(other).receive().is_err(), "{bytes:?}");
    }
    let (_quiet, mut to) = pair();
    to.patience(Some(Duration::from_millis(10))).unwrap();
    assert!(to.receive().is_err(), "nobody says anything");
}

#[test]
fn other_versions_are_understood_as_far_as_they_are_known() {
    let body = json!({
        "engine": "of another kind",
        "crews": [{"group": "web", "provider": "exec", "members": [{"instance": {"index": 3, "id": "a", "address": "127.0.0.1:9"}, "stage": "serving"}]}],
        "fleet": {"life": 7, "seqs": "none"},
        "weather": {"rain": true},
        "facts": [{"group": "web", "member": "a:1", "name": "cpu", "value": 0.5, "age_seconds": 1.5, "unit": "share"}],
    });
    let left = Left::read(body);
    assert_eq!((&*left.crews[0].provider, left.crews[0].members[0].instance.index), ("exec", 3));
    assert_eq!(left.crews[0].wish, Wish::default());
    assert_eq!(left.fleet, None, "of another kind");
    assert_eq!((left.facts.len(), left.facts[0].value), (1, 0.5));
    assert!(Left::read(json!(null)).facts.is_empty());
    let message: Message =
        serde_json::from_value(json!({"is": "estate", "body": {"colour": 1}, "of": 3})).unwrap();
    assert_eq!(message.body::<Estate>().begin, 0);
    let passed: Passed = serde_json::from_value(json!({"is": "quic", "count": 2})).unwrap();
    assert_eq!((passed.count, passed.disabled), (2, false));
}

#[test]
fn what_a_store_in_memory_has_goes_on_and_what_is_there_stays() {
    let open = |path: Option<&Path>| Local::open(path).unwrap().0;
    let (before, after) = (open(None), open(None));
    let ttl = Some(Duration::from_millis(2500));
    before.commit(&Change::put("drain/web/a:1", "{}").and_put("members/web/b:1", "{1}", ttl)).unwrap();
    after.commit(&Change::put("drain/web/a:1", "{2}")).unwrap();
    let kept = Kept::of(&before);
    let told: Kept = serde_json::from_value(serde_json::to_value(&kept).unwrap()).unwrap();
    assert_eq!(told, kept);
    let (after, before): (&dyn Store, &dyn Store) = (&after, &before);
    told.put_into(after).unwrap();
    let view = after.view();
    assert_eq!(&*view.entries["drain/web/a:1"].value, "{2}");
    assert_eq!(view.entries["members/web/b:1"].lease, before.view().entries["members/web/b:1"].lease);
    // What outlives the process is not carried.
    let path = std::env::temp_dir().join(format!("plimsoll-kept-{}", std::process::id()));
    let file = open(Some(&path));
    file.commit(&Change::put("drain/web/a:1", "{}")).unwrap();
    assert_eq!(Kept::of(&file), Kept::default());
    drop(file);
    for beside in ["", ".lock", ".new"] {
        let _ = std::fs::remove_file(format!("{}{beside}", path.display()));
    }
}
