//! Tests of daemons and clients in one process, on loopback.

use std::collections::BTreeSet;

use plimsoll_client::{AsyncClient as Client, KeySource, Settings as ClientSettings, Unserved};
use plimsoll_wire::rfs::Key;
use tokio::time::timeout;

use super::*;

const SERVICE: u32 = 80;

/// A time limit that no test reaches on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn keys() -> Keys {
    Keys::new(Key::new(1, &[7; 32]))
}

fn daemon(member: u16, peers: Vec<SocketAddr>) -> Lottery {
    rated(member, peers, 0)
}

/// Starts a daemon with a limit on requests per second from one source.
fn rated(member: u16, peers: Vec<SocketAddr>, rate: u32) -> Lottery {
    let service = Service {
        name: "web".into(),
        id: SERVICE,
        server: ([127, 0, 0, 1], member).into(),
        capacity: 1,
        info: format!("member {member}").into_bytes().into(),
        check: None,
    };
    let settings = Settings {
        member,
        incarnation: incarnation(),
        listen: ([127, 0, 0, 1], 0).into(),
        address: None,
        peers,
        multicast: None,
        keys: keys(),
        services: vec![service],
        ttl: Duration::from_secs(60),
        slow_start: Duration::ZERO,
        rate,
    };
    Lottery::start(settings).unwrap()
}

/// Creates a client that does not give up on a busy machine.
fn client(daemons: Vec<SocketAddr>) -> Client {
    asking(daemons, u8::MAX)
}

fn asking(daemons: Vec<SocketAddr>, attempts: u8) -> Client {
    Client::open(ClientSettings { attempts, ..ClientSettings::new(daemons, KeySource::Fixed(keys())) })
        .unwrap()
}

#[tokio::test]
async fn a_client_keeps_a_member_until_it_fails_and_then_has_another() {
    let one = daemon(1, Vec::new());
    let two = daemon(2, vec![one.address()]);
    let both = async {
        let mut seen = BTreeSet::new();
        while seen.len() < 2 {
            // Each new client's first answer is drawn.
            seen.extend(client(vec![two.address()]).pick(SERVICE, b"").await.map(|pick| pick.member));
        }
    };
    timeout(PATIENCE, both).await.unwrap();
    let client = client(vec![two.address()]);
    let first = client.pick(SERVICE, b"").await.unwrap();
    assert_eq!(first.address, SocketAddr::from(([127, 0, 0, 1], first.member)));
    assert_eq!(first.info, format!("member {}", first.member).as_bytes());
    for _ in 0..50 {
        // The probability of this by chance is 2^-50.
        assert_eq!(client.pick(SERVICE, b"").await.as_ref(), Ok(&first));
    }
    client.failed(first.member);
    let next = client.pick(SERVICE, b"").await.unwrap();
    assert_ne!(next.member, first.member);
    assert_eq!(client.pick(SERVICE + 1, b"").await, Err(Unserved::Unknown));
    let answered = two.statistics().await.unwrap();
    // The first pick of each client goes there, and there were three clients or more.
    assert!(answered.lots.referred >= 3 && answered.forged == 0 && answered.unsent == 0, "{answered:?}");
}

#[tokio::test]
async fn many_picks_at_once_have_an_answer_each() {
    let one = daemon(1, Vec::new());
    let client = Arc::new(client(vec![one.address()]));
    timeout(PATIENCE, async { while client.pick(SERVICE, b"").await.is_err() {} }).await.unwrap();
    client.failed(1);
    let mut picks = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let client = Arc::clone(&client);
        picks.spawn(async move { client.pick(SERVICE, b"").await.map(|pick| pick.member) });
    }
    // There are no other members, so the failed one is used.
    assert_eq!(picks.join_all().await, vec![Ok(1); 200]);
}

#[tokio::test]
async fn where_nobody_is_nobody_is_found() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = asking(vec![silent.local_addr().unwrap()], 8);
    assert_eq!(client.pick(SERVICE, b"").await, Err(Unserved::Silence));
}

#[test]
fn who_reads_late_lets_others_answer_first() {
    use plimsoll_brain::lottery::{Message, Mode, Request};
    use plimsoll_wire::rfs::Encode as _;
    let mut desk = trust::desk();
    let now = plimsoll_brain::Time(703_000_000);
    let ask = |desk: &mut Desk, ids: std::ops::Range<u64>| {
        for id in ids {
            let id = plimsoll_brain::mix(id);
            let request = Request {
                id,
                service: SERVICE,
                attempt: 0,
                mode: Mode::Lottery,
                generation: 0,
                client_time: 0,
                avoid: vec![],
                info: vec![],
                room: 200,
            };
            let mut bytes = Vec::new();
            Message::Request(request).encode(&keys(), &mut bytes).unwrap();
            desk.take(now, ([10, 0, 9, 9], 9).into(), &bytes);
        }
        desk.letters();
        trust::statistics(desk).lots
    };
    // Two members are equal: about half of fifty requests are its own, fewer than eight with a probability of
    // 1e-7.
    let lots = ask(&mut desk, 0..50);
    assert!(lots.won >= 8 && lots.doubted == 0, "{lots:?}");
    // The others wait for the second.
    let before = lots;
    desk.late(now, Duration::from_secs(2));
    let lots = ask(&mut desk, 50..100);
    assert_eq!((lots.won, lots.doubted, lots.waiting), (before.won, 50, before.waiting), "{lots:?}");
}

#[tokio::test]
async fn daemons_that_answer_little_know_one_another_still() {
    let one = rated(1, Vec::new(), 1);
    let two = rated(2, vec![one.address()], 1);
    let both = async {
        let mut seen = BTreeSet::new();
        while seen.len() < 2 {
            // The client asks rarely; after a rejection it asks again.
            seen.extend(client(vec![two.address()]).pick(SERVICE, b"").await.map(|pick| pick.member));
        }
    };
    timeout(PATIENCE, both).await.unwrap();
}

#[test]
fn the_longest_infos_fit_into_what_carries_them() {
    use plimsoll_wire::rfs::{Answer, Encode as _, LEAST_ROOM, Listed, Offer, Status, Table};
    let six = SocketAddr::from(([1; 8], 1));
    let info: Arc<[u8]> = vec![b'x'; INFO].into();
    let (none, endpoint, room) = (Vec::new(), Some(six), LEAST_ROOM);
    let answer = Answer {
        id: 1,
        service: SERVICE,
        status: Status::Ok,
        rank: 0,
        ttl: 0,
        member: 1,
        endpoint,
        client_time: 0,
        generation: 0,
        info: Arc::clone(&info),
        further: none,
        room,
    };
    assert_eq!(answer.encode(&keys(), &mut Vec::new()), Ok(()));
    // The stated number fits, and one more byte does not.
    let other = SocketAddr::from(([2; 8], 1));
    let offer = |info: Arc<[u8]>| Offer { service: SERVICE, capacity: 1, endpoint: other, info };
    let listed = |offers| Listed { member: 1, incarnation: 1, address: six, offers };
    for services in [0, 1, 15, SERVICES] {
        let infos = || std::iter::repeat_n(INFO.min(services), services);
        let offers = infos().map(|len| offer(vec![b'x'; len].into())).collect();
        assert_eq!(listed(offers).bytes(), table_bytes(infos()).0);
    }
    let most = table_bytes(std::iter::repeat_n(0, SERVICES));
    assert!(most.0 <= most.1, "without infos any number that is allowed fits");
    let member = listed(vec![offer(info); 15]);
    let (bytes, room) = table_bytes(std::iter::repeat_n(INFO, 15));
    assert_eq!((member.bytes(), bytes <= room), (bytes, true));
    let table = Table { id: 1, generation: 1, part: 0, parts: 1, members: vec![member] };
    assert_eq!(table.encode(&keys(), &mut Vec::new()), Ok(()));
    let (bytes, room) = table_bytes(std::iter::repeat_n(INFO, 16));
    assert!(bytes > room);
}
