//! Keys for clients: the permitted and the forbidden kinds.

use super::*;

const DAEMON: &str = "5 0505050505050505050505050505050505050505050505050505050505050505";
const NEWER: &str = "6 0606060606060606060606060606060606060606060606060606060606060606";
const CLIENT: &str = "3 0303030303030303030303030303030303030303030303030303030303030303 client";
const FURTHER: &str = "9 0909090909090909090909090909090909090909090909090909090909090909 client # theirs";

fn file(lines: &[&str]) -> Keys {
    lines.join("\n").parse().unwrap()
}

/// Returns one datagram of each kind.
fn all() -> Vec<(Kind, Vec<u8>, Keys)> {
    let address = "10.0.0.1:80".parse().unwrap();
    let (id, service, room) = (7, 42, 200);
    let request = Request {
        id,
        service,
        attempt: 0,
        mode: Mode::Referral,
        generation: 0,
        client_time: 0,
        avoid: vec![],
        info: vec![],
        room,
    };
    let answer = Answer {
        id,
        service,
        status: Status::Ok,
        rank: 0,
        ttl: 0,
        member: 1,
        endpoint: Some(address),
        client_time: 0,
        generation: 0,
        info: [].into(),
        further: vec![],
        room,
    };
    let state = Standing::Up;
    let messages = [
        Message::Request(request),
        Message::Answer(answer),
        Message::Commit(Commit { member: 1, incarnation: 1, ids: vec![id] }),
        Message::Report(Report {
            member: 1,
            incarnation: 1,
            seq: 1,
            state,
            digest: 0,
            services: vec![],
            ids: vec![],
            heard: vec![],
        }),
        Message::Fetch(Fetch { id, generation: 0, part: 0 }),
        Message::Table(Table { id, generation: 1, part: 0, parts: 1, members: vec![] }),
        Message::Look(Look { id, service, part: 0 }),
        Message::Drum(Drum { id, service, part: 0, parts: 1, places: vec![] }),
    ];
    let mut sealed = Vec::new();
    for keys in [file(&[DAEMON]), file(&[CLIENT])] {
        for message in &messages {
            let mut out = Vec::new();
            message.encode(&keys, &mut out).unwrap();
            sealed.push((Kind::of(message), out, keys.clone()));
        }
        let mut out = Vec::new();
        Gossip { member: 1, incarnation: 1, seq: 1, said: vec![1] }.encode(&keys, &mut out).unwrap();
        sealed.push((Kind::Gossip, out, keys));
    }
    sealed
}

#[test]
fn with_a_key_for_clients_one_only_asks() {
    let both = file(&[DAEMON, CLIENT]);
    let all = all();
    assert_eq!(all.len(), 2 * Kind::ALL.len());
    for (kind, datagram, keys) in all {
        let opened = both.open(&datagram).unwrap();
        let asks = matches!(kind, Kind::Request | Kind::Fetch | Kind::Look);
        let may = keys.role() == Role::Daemon || asks;
        assert_eq!(opened.entitled(), if may { Ok(()) } else { Err(Refused::Misused) }, "{kind}");
        assert_eq!(opened.client(), (keys.role() == Role::Client).then_some(3), "{kind}");
        // Only a holder of a daemon key can answer a request under a daemon key.
        assert_eq!(both.open_answer(&datagram).is_ok(), keys.role() == Role::Daemon, "{kind}");
        // A holder of the client key alone accepts datagrams under that key only.
        let theirs = file(&[CLIENT]).open_answer(&datagram);
        assert_eq!(theirs.is_ok(), keys.role() == Role::Client, "{kind}");
    }
}

#[test]
fn nothing_else_that_is_sealed_with_it_is_entitled_either() {
    for bytes in [&b"gossip of others"[..], &[0; 40], b"RF"] {
        let mut datagram = bytes.to_vec();
        file(&[CLIENT]).seal(0, &mut datagram);
        // Input that is too short is not even opened.
        let opened = file(&[DAEMON, CLIENT]).open(&datagram);
        assert!(opened.and_then(|opened| opened.entitled()).is_err());
    }
}

#[test]
fn whoever_has_keys_of_both_kinds_seals_with_one_for_daemons() {
    for lines in [[CLIENT, DAEMON, FURTHER, NEWER], [DAEMON, NEWER, CLIENT, FURTHER]] {
        let keys = file(&lines);
        assert_eq!((keys.role(), keys.ids().collect::<Vec<_>>()), (Role::Daemon, vec![5, 6, 3, 9]));
        assert_eq!(keys.ids_of(Role::Daemon).collect::<Vec<_>>(), [5, 6]);
        assert_eq!(keys.ids_of(Role::Client).collect::<Vec<_>>(), [3, 9]);
        // The draw belongs to the daemons: client keys have no influence on the winner.
        assert_eq!(keys.derive(b"plimsoll draw"), file(&[DAEMON]).derive(b"plimsoll draw"));
    }
    let theirs = file(&[FURTHER, CLIENT]);
    assert_eq!((theirs.role(), theirs.ids().collect::<Vec<_>>()), (Role::Client, vec![9, 3]));
}

#[test]
fn what_is_asked_with_a_key_is_answered_with_it() {
    let keys = file(&[DAEMON, CLIENT, FURTHER]);
    assert_eq!(keys.answering(9).map(|one| one.ids().collect::<Vec<_>>()), Some(vec![9]));
    assert!(keys.answering(5).is_none() && keys.answering(4).is_none(), "only with one for clients");
    let mut out = Vec::new();
    let look = Look { id: 1, service: 2, part: 0 };
    look.encode(&keys.answering(3).unwrap(), &mut out).unwrap();
    assert!(file(&[CLIENT]).open_answer(&out).is_ok());
}

#[test]
fn there_are_three_keys_of_a_kind_at_the_most_and_none_is_both() {
    let line = |id: u32, role: &str| format!("{id} {:064x} {role}", u64::from(id) + 77);
    let lines = |daemons: u32, clients: u32| -> Result<Keys, BadKeys> {
        let daemons = (0..daemons).map(|id| line(id, ""));
        daemons.chain((0..clients).map(|id| line(100 + id, "client"))).collect::<Vec<_>>().join("\n").parse()
    };
    assert!(lines(3, 3).is_ok() && lines(0, 3).is_ok());
    assert_eq!(lines(4, 0).map(drop).unwrap_err().why, "more than three keys");
    assert_eq!(lines(1, 4).map(drop).unwrap_err().why, "more than three keys for clients");
    let why = |text: &str| text.parse::<Keys>().map(drop).unwrap_err().why;
    let same = DAEMON.replacen('5', "8", 1) + " client";
    assert_eq!(why(&format!("{DAEMON}\n{same}")), "a key for clients has the secret of one for daemons");
    assert_eq!(why(&format!("{same}\n{DAEMON}")), "a key for clients has the secret of one for daemons");
    assert_eq!(why(&format!("{DAEMON} clients")), "something follows the secret");
    assert_eq!(why(&format!("{DAEMON} client client")), "something follows the secret");
    let number = CLIENT.replacen('3', "5", 1);
    assert_eq!(why(&format!("{DAEMON}\n{number}")), "two keys have the same number");
}
