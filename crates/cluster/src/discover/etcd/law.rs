//! The law of what a watch of etcd tells: the keys are those that the events leave, their number is bounded,
//! the revision only grows and can be continued from, and each member is listed once. The fuzz target
//! `etcd_keys` tries it on invented bytes, the test below on the committed corpus and on what is nearly in
//! it.

use plimsoll_wire::etcd::Message as _;
use plimsoll_wire::xds::Frames;

use super::*;

/// Bytes of a message, at most.
const LONGEST: usize = 1 << 16;

/// Panics if the law does not hold. Returns whether there are members in the end.
pub(crate) fn check(input: &[u8]) -> bool {
    let mut known = Known { cluster: 7, revision: 5, values: BTreeMap::new(), told: true };
    let mut frames = Frames::new(LONGEST);
    frames.push(input);
    while let Ok(Some(message)) = frames.next_message() {
        let Ok(told) = WatchResponse::decode(&message[..]) else { break };
        let (before, events) = (known.revision, told.events.clone());
        let goes_on = !told.canceled && told.compact_revision <= 0;
        match known.take(told) {
            Ok(true) => assert!(goes_on),
            Ok(false) => {
                assert!(!goes_on, "read anew without a reason");
                break;
            }
            Err(failed) => {
                assert!(!goes_on || known.values.len() > MOST, "{failed}");
                break;
            }
        }
        assert!(known.values.len() <= MOST);
        assert!(known.revision >= before && known.next_revision() >= known.revision, "{}", known.revision);
        let mut decided = BTreeMap::new();
        for event in &events {
            if let Some(kv) = &event.kv {
                decided.insert(&kv.key, (event.kind(), &kv.value));
            }
        }
        for (key, (kind, value)) in decided {
            let expected = (kind == EventType::Put).then_some(value);
            assert_eq!(known.values.get(key), expected, "{}", key.escape_ascii());
            assert!(!known.told, "a change is told");
        }
    }
    let Ok(members) = stated(Reader(read), &known.values) else { return false };
    for (index, one) in members.iter().enumerate() {
        let twice = members[..index].iter().any(|other| (&other.host, other.port) == (&one.host, one.port));
        assert!(!twice, "{one:?} is there twice");
    }
    !members.is_empty()
}

/// Reads `HOST:PORT`.
fn read(_: &str, value: &[u8]) -> Result<Vec<Stated>, String> {
    let text = std::str::from_utf8(value).map_err(|error| error.to_string())?;
    let (host, port) = text.split_once(':').ok_or("no port")?;
    let port = port.parse().map_err(|_| "no number".to_owned())?;
    Ok(vec![Stated { host: host.into(), port, capacity: 1.0, limit: None }])
}

#[test]
fn the_corpus_obeys_it_and_what_is_nearly_in_it() {
    crate::near::holds("etcd_keys", &[0, 1, 2, 0x12, 0x5a, 0x7f, 0x80, 0xff], 5_000, check);
}

#[test]
fn a_list_that_grows_without_end_is_refused() {
    let event = |number: usize| plimsoll_wire::etcd::Event {
        kind: 0,
        kv: Some(KeyValue { key: number.to_string().into(), mod_revision: 9, ..KeyValue::default() }),
    };
    let mut known = Known { cluster: 7, revision: 5, values: BTreeMap::new(), told: true };
    let told = |range: std::ops::Range<usize>| WatchResponse {
        events: range.map(event).collect(),
        ..WatchResponse::default()
    };
    assert_eq!(known.take(told(0..MOST)), Ok(true));
    assert!(matches!(known.take(told(MOST..MOST + 1)), Err(Failed::Refused(..))));
}
