//! Keys for clients: the permitted and the forbidden kinds.

use super::*;

const DAEMON: &str = "5 0505050505050505050505050505050505050505050505050505050505050505";
const NEWER: &str = "6 0606060606060606060606060606060606060606060606060606060606060606";
const CLIENT: &str = "3 0303030303030303030303030303030303030303030303030303030303030303 client";
const FURTHER: &str = "9 0909090909090909090909090909090909090909090909090909090909090909 client # theirs";

fn file(lines: &[&str]) -> KeyRing {
    lines.join("\n").parse().unwrap()
}

/// Returns one datagram of each kind.
fn all() -> Vec<(DatagramKind, Vec<u8>, KeyRing)> {
    let address = "10.0.0.1:80".parse().unwrap();
    let (id, service, max_bytes) = (7, 42, 200);
    let request = LotteryRequest {
        id,
        service,
        attempt: 0,
        mode: AnswerMode::Referral,
        generation: 0,
        client_time: 0,
        avoid: vec![],
        info: vec![],
        max_answer_bytes: max_bytes,
    };
    let answer = LotteryAnswer {
        id,
        service,
        status: AnswerStatus::Ok,
        rank: 0,
        ttl: 0,
        member: 1,
        endpoint: Some(address),
        client_time: 0,
        generation: 0,
        info: [].into(),
        fallbacks: vec![],
        max_bytes,
    };
    let state = NodeState::Up;
    let messages = [
        LotteryMessage::Request(request),
        LotteryMessage::Answer(answer),
        LotteryMessage::Commit(AnswerCommit { member: 1, incarnation: 1, ids: vec![id] }),
        LotteryMessage::Report(NodeReport {
            member: 1,
            incarnation: 1,
            seq: 1,
            state,
            digest: 0,
            services: vec![],
            ids: vec![],
            heard: vec![],
        }),
        LotteryMessage::Fetch(TableFetch { id, generation: 0, part: 0 }),
        LotteryMessage::Table(TablePart { id, generation: 1, part: 0, parts: 1, members: vec![] }),
        LotteryMessage::CandidateQuery(CandidateQuery { id, service, part: 0 }),
        LotteryMessage::CandidateSet(CandidateSet { id, service, part: 0, parts: 1, candidates: vec![] }),
    ];
    let mut sealed = Vec::new();
    for keys in [file(&[DAEMON]), file(&[CLIENT])] {
        for message in &messages {
            let mut out = Vec::new();
            message.encode(&keys, &mut out).unwrap();
            sealed.push((DatagramKind::of_message(message), out, keys.clone()));
        }
        let mut out = Vec::new();
        GossipDatagram { member: 1, incarnation: 1, seq: 1, payload: vec![1] }
            .encode(&keys, &mut out)
            .unwrap();
        sealed.push((DatagramKind::Gossip, out, keys));
    }
    sealed
}

#[test]
fn with_a_key_for_clients_one_only_asks() {
    let key_ring = file(&[DAEMON, CLIENT]);
    let datagrams = all();
    assert_eq!(datagrams.len(), 2 * DatagramKind::ALL.len());
    for (kind, datagram, keys) in datagrams {
        let opened = key_ring.open(&datagram).unwrap();
        let is_query = matches!(kind, DatagramKind::Request | DatagramKind::Fetch | DatagramKind::Look);
        let is_permitted = keys.role() == KeyRole::Daemon || is_query;
        assert_eq!(
            opened.check_permission(),
            if is_permitted { Ok(()) } else { Err(DatagramDecodeError::NotPermitted) },
            "{kind}"
        );
        assert_eq!(opened.client(), (keys.role() == KeyRole::Client).then_some(3), "{kind}");
        // Only a holder of a daemon key can answer a request under a daemon key.
        assert_eq!(key_ring.open_answer(&datagram).is_ok(), keys.role() == KeyRole::Daemon, "{kind}");
        // A holder of the client key alone accepts datagrams under that key only.
        let result = file(&[CLIENT]).open_answer(&datagram);
        assert_eq!(result.is_ok(), keys.role() == KeyRole::Client, "{kind}");
    }
}

#[test]
fn nothing_else_that_is_sealed_with_it_is_entitled_either() {
    for bytes in [&b"gossip of others"[..], &[0; 40], b"RF"] {
        let mut datagram = bytes.to_vec();
        file(&[CLIENT]).seal(0, &mut datagram);
        // Input that is too short is not even opened.
        let opened = file(&[DAEMON, CLIENT]).open(&datagram);
        assert!(opened.and_then(|opened| opened.check_permission()).is_err());
    }
}

#[test]
fn whoever_has_keys_of_both_kinds_seals_with_one_for_daemons() {
    for lines in [[CLIENT, DAEMON, FURTHER, NEWER], [DAEMON, NEWER, CLIENT, FURTHER]] {
        let keys = file(&lines);
        assert_eq!((keys.role(), keys.ids().collect::<Vec<_>>()), (KeyRole::Daemon, vec![5, 6, 3, 9]));
        assert_eq!(keys.ids_for_role(KeyRole::Daemon).collect::<Vec<_>>(), [5, 6]);
        assert_eq!(keys.ids_for_role(KeyRole::Client).collect::<Vec<_>>(), [3, 9]);
        // The draw belongs to the daemons: client keys have no influence on the winner.
        assert_eq!(keys.derive(b"plimsoll draw"), file(&[DAEMON]).derive(b"plimsoll draw"));
    }
    let client_keys = file(&[FURTHER, CLIENT]);
    assert_eq!((client_keys.role(), client_keys.ids().collect::<Vec<_>>()), (KeyRole::Client, vec![9, 3]));
}

#[test]
fn what_is_asked_with_a_key_is_answered_with_it() {
    let keys = file(&[DAEMON, CLIENT, FURTHER]);
    assert_eq!(keys.client_key(9).map(|ring| ring.ids().collect::<Vec<_>>()), Some(vec![9]));
    assert!(keys.client_key(5).is_none() && keys.client_key(4).is_none(), "only with one for clients");
    let mut out = Vec::new();
    let query = CandidateQuery { id: 1, service: 2, part: 0 };
    query.encode(&keys.client_key(3).unwrap(), &mut out).unwrap();
    assert!(file(&[CLIENT]).open_answer(&out).is_ok());
}

#[test]
fn there_are_three_keys_of_a_kind_at_the_most_and_none_is_both() {
    let line = |id: u32, role: &str| format!("{id} {:064x} {role}", u64::from(id) + 77);
    let lines = |daemons: u32, clients: u32| -> Result<KeyRing, KeyFileError> {
        let daemons = (0..daemons).map(|id| line(id, ""));
        daemons.chain((0..clients).map(|id| line(100 + id, "client"))).collect::<Vec<_>>().join("\n").parse()
    };
    assert!(lines(3, 3).is_ok() && lines(0, 3).is_ok());
    assert_eq!(lines(4, 0).map(drop).unwrap_err().why, "more than three keys");
    assert_eq!(lines(1, 4).map(drop).unwrap_err().why, "more than three keys for clients");
    let reason = |text: &str| text.parse::<KeyRing>().map(drop).unwrap_err().why;
    let same_secret = DAEMON.replacen('5', "8", 1) + " client";
    assert_eq!(
        reason(&format!("{DAEMON}\n{same_secret}")),
        "a key for clients has the secret of one for daemons"
    );
    assert_eq!(
        reason(&format!("{same_secret}\n{DAEMON}")),
        "a key for clients has the secret of one for daemons"
    );
    assert_eq!(reason(&format!("{DAEMON} clients")), "something follows the secret");
    assert_eq!(reason(&format!("{DAEMON} client client")), "something follows the secret");
    let same_id = CLIENT.replacen('3', "5", 1);
    assert_eq!(reason(&format!("{DAEMON}\n{same_id}")), "two keys have the same number");
}
