//! Tests of daemons and clients in one process, on loopback.

use std::collections::BTreeSet;

use plimsoll_client::{AsyncClient as Client, ClientSettings, KeySource, PickError};
use plimsoll_wire::rfs::DatagramKey;
use tokio::time::timeout;

use super::*;

const SERVICE: u32 = 80;

/// A time limit that no test reaches on the slowest machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn keys() -> KeyRing {
    KeyRing::new(DatagramKey::new(1, &[7; 32]))
}

fn daemon(member: u16, peers: Vec<SocketAddr>) -> LotteryDaemon {
    daemon_with_rate(member, peers, 0)
}

/// Starts a daemon with a limit on requests per second from one source.
fn daemon_with_rate(member: u16, peers: Vec<SocketAddr>, rate: u32) -> LotteryDaemon {
    let service = LotteryService {
        name: "web".into(),
        id: SERVICE,
        server: ([127, 0, 0, 1], member).into(),
        capacity: 1,
        info: format!("member {member}").into_bytes().into(),
        check: None,
    };
    let settings = DaemonSettings {
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
    LotteryDaemon::start(settings).unwrap()
}

/// Creates a client that does not give up on a busy machine.
fn client(daemons: Vec<SocketAddr>) -> Client {
    client_with_attempts(daemons, u8::MAX)
}

fn client_with_attempts(daemons: Vec<SocketAddr>, attempts: u8) -> Client {
    Client::open(ClientSettings { attempts, ..ClientSettings::new(daemons, KeySource::Fixed(keys())) })
        .unwrap()
}

#[tokio::test]
async fn a_client_keeps_a_member_until_it_fails_and_then_has_another() {
    let first_daemon = daemon(1, Vec::new());
    let second_daemon = daemon(2, vec![first_daemon.address()]);
    let see_both = async {
        let mut members_seen = BTreeSet::new();
        while members_seen.len() < 2 {
            // Each new client's first answer is drawn.
            members_seen.extend(
                client(vec![second_daemon.address()]).pick(SERVICE, b"").await.map(|pick| pick.member),
            );
        }
    };
    timeout(TEST_TIMEOUT, see_both).await.unwrap();
    let client = client(vec![second_daemon.address()]);
    let first = client.pick(SERVICE, b"").await.unwrap();
    assert_eq!(first.address, SocketAddr::from(([127, 0, 0, 1], first.member)));
    assert_eq!(first.info, format!("member {}", first.member).as_bytes());
    for _ in 0..50 {
        // The probability of this by chance is 2^-50.
        assert_eq!(client.pick(SERVICE, b"").await.as_ref(), Ok(&first));
    }
    client.record_failure(first.member);
    let next = client.pick(SERVICE, b"").await.unwrap();
    assert_ne!(next.member, first.member);
    assert_eq!(client.pick(SERVICE + 1, b"").await, Err(PickError::UnknownService));
    let statistics = second_daemon.statistics().await.unwrap();
    // The first pick of each client goes there, and there were three clients or more.
    assert!(
        statistics.protocol.referred >= 3 && statistics.forged == 0 && statistics.unsent == 0,
        "{statistics:?}"
    );
}

#[tokio::test]
async fn many_picks_at_once_have_an_answer_each() {
    let first_daemon = daemon(1, Vec::new());
    let client = Arc::new(client(vec![first_daemon.address()]));
    timeout(TEST_TIMEOUT, async { while client.pick(SERVICE, b"").await.is_err() {} }).await.unwrap();
    client.record_failure(1);
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
    let silent_socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = client_with_attempts(vec![silent_socket.local_addr().unwrap()], 8);
    assert_eq!(client.pick(SERVICE, b"").await, Err(PickError::NoResponse));
}

#[test]
fn who_reads_late_lets_others_answer_first() {
    use plimsoll_brain::lottery::{AnswerMode, LotteryMessage, LotteryRequest};
    use plimsoll_wire::rfs::EncodeDatagram as _;
    let mut node = threat_tests::daemon_node();
    let now = plimsoll_brain::Time(703_000_000);
    let send_requests = |node: &mut DaemonNode, ids: std::ops::Range<u64>| {
        for id in ids {
            let id = plimsoll_brain::mix(id);
            let request = LotteryRequest {
                id,
                service: SERVICE,
                attempt: 0,
                mode: AnswerMode::Lottery,
                generation: 0,
                client_time: 0,
                avoid: vec![],
                info: vec![],
                max_answer_bytes: 200,
            };
            let mut bytes = Vec::new();
            LotteryMessage::Request(request).encode(&keys(), &mut bytes).unwrap();
            node.receive(now, ([10, 0, 9, 9], 9).into(), &bytes);
        }
        node.take_datagrams();
        threat_tests::statistics(node).protocol
    };
    // Two members are equal: about half of fifty requests are its own, fewer than eight with a probability of
    // 1e-7.
    let statistics = send_requests(&mut node, 0..50);
    assert!(statistics.won >= 8 && statistics.deferred_by_lag == 0, "{statistics:?}");
    // The others wait for the second.
    let previous_statistics = statistics;
    node.record_delay(now, Duration::from_secs(2));
    let statistics = send_requests(&mut node, 50..100);
    assert_eq!(
        (statistics.won, statistics.deferred_by_lag, statistics.waiting),
        (previous_statistics.won, 50, previous_statistics.waiting),
        "{statistics:?}"
    );
}

#[tokio::test]
async fn daemons_that_answer_little_know_one_another_still() {
    let first_daemon = daemon_with_rate(1, Vec::new(), 1);
    let second_daemon = daemon_with_rate(2, vec![first_daemon.address()], 1);
    let see_both = async {
        let mut members_seen = BTreeSet::new();
        while members_seen.len() < 2 {
            // The client asks rarely; after a rejection it asks again.
            members_seen.extend(
                client(vec![second_daemon.address()]).pick(SERVICE, b"").await.map(|pick| pick.member),
            );
        }
    };
    timeout(TEST_TIMEOUT, see_both).await.unwrap();
}

#[test]
fn the_longest_infos_fit_into_what_carries_them() {
    use plimsoll_wire::rfs::{
        AnswerStatus, EncodeDatagram as _, LotteryAnswer, MIN_ROOM, NodeDescription, ServiceOffer, TablePart,
    };
    let ipv6_address = SocketAddr::from(([1; 8], 1));
    let info: Arc<[u8]> = vec![b'x'; MAX_INFO_LENGTH].into();
    let (no_fallbacks, endpoint, max_bytes) = (Vec::new(), Some(ipv6_address), MIN_ROOM);
    let answer = LotteryAnswer {
        id: 1,
        service: SERVICE,
        status: AnswerStatus::Ok,
        rank: 0,
        ttl: 0,
        member: 1,
        endpoint,
        client_time: 0,
        generation: 0,
        info: Arc::clone(&info),
        fallbacks: no_fallbacks,
        max_bytes,
    };
    assert_eq!(answer.encode(&keys(), &mut Vec::new()), Ok(()));
    // The stated number fits, and one more byte does not.
    let other = SocketAddr::from(([2; 8], 1));
    let offer = |info: Arc<[u8]>| ServiceOffer { service: SERVICE, capacity: 1, endpoint: other, info };
    let node_description =
        |offers| NodeDescription { member: 1, incarnation: 1, address: ipv6_address, offers };
    for services in [0, 1, 15, MAX_SERVICES] {
        let infos = || std::iter::repeat_n(MAX_INFO_LENGTH.min(services), services);
        let offers = infos().map(|len| offer(vec![b'x'; len].into())).collect();
        assert_eq!(node_description(offers).encoded_size(), table_bytes(infos()).0);
    }
    let max_table = table_bytes(std::iter::repeat_n(0, MAX_SERVICES));
    assert!(max_table.0 <= max_table.1, "without infos any number that is allowed fits");
    let member = node_description(vec![offer(info); 15]);
    let (bytes, max_bytes) = table_bytes(std::iter::repeat_n(MAX_INFO_LENGTH, 15));
    assert_eq!((member.encoded_size(), bytes <= max_bytes), (bytes, true));
    let table = TablePart { id: 1, generation: 1, part: 0, parts: 1, members: vec![member] };
    assert_eq!(table.encode(&keys(), &mut Vec::new()), Ok(()));
    let (bytes, max_bytes) = table_bytes(std::iter::repeat_n(MAX_INFO_LENGTH, 16));
    assert!(bytes > max_bytes);
}
