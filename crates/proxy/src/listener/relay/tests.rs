use std::rc::Rc;
use std::time::Duration;

use plimsoll_brain::hash;
use proptest::prelude::*;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::*;
use crate::net::socket::ReactorSocket;
use crate::runtime::clock::held;
use crate::test_util::{run, trip};

impl ByteStream for DuplexStream {}

const MINUTE: Duration = Duration::from_secs(60);

/// Returns two connected sockets.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (client, accepted) =
        tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (client.unwrap(), accepted.unwrap().0)
}

/// Returns a connection that this thread's reactor watches.
fn reactor_socket(core: &ThreadContext, stream: TcpStream) -> ReactorSocket {
    let stream = stream.into_std().expect("a socket");
    ReactorSocket::new(&core.sessions.readiness, stream.into())
}

/// Returns two watched connections, for the middle of a relay.
fn both(
    core: &ThreadContext,
    client_side: TcpStream,
    member_side: TcpStream,
) -> (ReactorSocket, ReactorSocket) {
    (reactor_socket(core, client_side), reactor_socket(core, member_side))
}

/// Relays between two streams in the background. Returns the outcome, and the bytes counted in each
/// direction.
fn relay<S: ByteStream + 'static>(
    core: &Rc<ThreadContext>,
    (mut client, mut member): (S, S),
    idle: Duration,
    unread: &[u8],
) -> JoinHandle<(RelayOutcome, u64, u64)> {
    let (core, unread) = (Rc::clone(core), unread.to_vec());
    tokio::task::spawn_local(async move {
        let in_flight = trip(&core);
        let timer = poll_fn(|cx| Poll::Ready(core.wheel.timer(cx.waker()))).await;
        let outcome = copy(
            &core,
            &timer,
            IdlePolicy::end_only(idle),
            (&mut client, &mut member),
            unread,
            &in_flight.upstream,
        )
        .await;
        if outcome.reset {
            [&client, &member].into_iter().filter_map(ByteStream::socket).for_each(|socket| {
                socket.abort();
            });
        }
        let counters = in_flight.counters();
        let (bytes_out, bytes_in) = (counters.bytes_out.value(), counters.bytes_in.value());
        assert_eq!(counters.bytes_relayed.value(), bytes_out + bytes_in);
        (outcome, bytes_out, bytes_in)
    })
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 31 + index / 251) as u8).collect()
}

/// Returns the bytes that each end received from the relay.
async fn finish(mut client: TcpStream, mut member: TcpStream) -> (Vec<u8>, Vec<u8>) {
    let (mut to_client, mut to_member) = (Vec::new(), Vec::new());
    let (client_read, member_read) =
        tokio::join!(client.read_to_end(&mut to_client), member.read_to_end(&mut to_member));
    client_read.unwrap();
    member_read.unwrap();
    (to_client, to_member)
}

#[test]
fn much_goes_through_the_kernel() {
    run(|core| async move {
        let ((mut client, near), (far, mut member)) = (pair().await, pair().await);
        let relay = relay(&core, both(&core, near, far), MINUTE, &[]);
        let bytes = pattern(64 << 20);
        let send = async {
            member.write_all(&bytes).await.unwrap();
            member.shutdown().await.unwrap();
            let mut to_member = Vec::new();
            member.read_to_end(&mut to_member).await.unwrap();
            to_member
        };
        let receive = async {
            let mut received = Vec::new();
            client.read_to_end(&mut received).await.unwrap();
            // The other direction is still open.
            client.write_all(b"thanks").await.unwrap();
            client.shutdown().await.unwrap();
            received
        };
        let (to_member, received) = tokio::join!(send, receive);
        assert_eq!(to_member, b"thanks");
        assert_eq!((received.len(), hash(&received)), (bytes.len(), hash(&bytes)));
        assert!(core.pipes.open() > 0, "nothing was spliced");
        let (outcome, bytes_out, bytes_in) = relay.await.unwrap();
        assert_eq!(outcome, RelayOutcome { heard: true, ..RelayOutcome::default() });
        assert_eq!((bytes_out, bytes_in), (6, bytes.len() as u64));
    });
}

#[test]
fn little_is_copied() {
    run(|core| async move {
        let ((mut client, near), (far, mut member)) = (pair().await, pair().await);
        let relay = relay(&core, both(&core, near, far), MINUTE, b"");
        let mut buffer = vec![0; 9000];
        for round in 0..200 {
            let bytes = pattern(round * 45);
            client.write_all(&bytes).await.unwrap();
            member.read_exact(&mut buffer[..bytes.len()]).await.unwrap();
            assert_eq!(buffer[..bytes.len()], bytes);
            member.write_all(&bytes).await.unwrap();
            client.read_exact(&mut buffer[..bytes.len()]).await.unwrap();
            assert_eq!(buffer[..bytes.len()], bytes);
        }
        assert_eq!(core.pipes.open(), 0, "something was spliced");
        drop((client, member));
        assert_eq!(relay.await.unwrap().0.broken_side, None);
    });
}

#[test]
fn a_receiver_that_pauses_holds_the_sender_and_loses_nothing() {
    run(|core| async move {
        let ((mut client, near), (far, mut member)) = (pair().await, pair().await);
        let relay = relay(&core, both(&core, near, far), MINUTE, &[]);
        let bytes = pattern(48 << 20);
        let (mut sent, mut blocked_writes) = (0, 0);
        // Until nothing moves, however often the relay is polled: every buffer on the way is full.
        while blocked_writes < 200 {
            match client.try_write(&bytes[sent..]) {
                Ok(len) => (sent, blocked_writes) = (sent + len, 0),
                Err(_) => {
                    blocked_writes += 1;
                    // sleeps: polls
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
        assert!(sent < bytes.len(), "{sent} bytes were taken for a receiver that takes none");
        assert!(core.pipes.open() > 0, "nothing was spliced");
        let send = async {
            client.write_all(&bytes[sent..]).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let mut received = Vec::new();
        let receive = async {
            // Gradually, so that the pipe is often drained in part.
            let mut buffer = vec![0; 50_000];
            while let bytes @ 1.. = member.read(&mut buffer).await.unwrap() {
                received.extend_from_slice(&buffer[..bytes]);
            }
            member.shutdown().await.unwrap();
        };
        tokio::join!(send, receive);
        assert_eq!((received.len(), hash(&received)), (bytes.len(), hash(&bytes)));
        assert_eq!(relay.await.unwrap().0, RelayOutcome::default());
    });
}

#[test]
fn what_was_read_before_goes_first() {
    run(|core| async move {
        let ((mut client, near), (far, mut member)) = (pair().await, pair().await);
        let relay = relay(&core, both(&core, near, far), MINUTE, b"first, ");
        client.write_all(b"second").await.unwrap();
        client.shutdown().await.unwrap();
        member.write_all(b"answer").await.unwrap();
        member.shutdown().await.unwrap();
        let (to_client, to_member) = finish(client, member).await;
        assert_eq!((&to_client[..], &to_member[..]), (&b"answer"[..], &b"first, second"[..]));
        let (outcome, bytes_out, bytes_in) = relay.await.unwrap();
        assert_eq!((outcome.broken_side, outcome.heard, bytes_out, bytes_in), (None, true, 13, 6));
    });
}

#[test]
fn a_reset_is_passed_on() {
    run(|core| async move {
        for closing_side in [RelaySide::Client, RelaySide::Member] {
            let ((mut client, near), (far, mut member)) = (pair().await, pair().await);
            let relay = relay(&core, both(&core, near, far), MINUTE, &[]);
            let (resetting, mut surviving) = if closing_side == RelaySide::Client {
                member.write_all(b"hello").await.unwrap();
                client.read_exact(&mut [0; 5]).await.unwrap();
                (client, member)
            } else {
                client.write_all(b"hello").await.unwrap();
                member.read_exact(&mut [0; 5]).await.unwrap();
                (member, client)
            };
            resetting.set_zero_linger().unwrap();
            drop(resetting);
            let (outcome, ..) = relay.await.unwrap();
            assert_eq!(
                outcome,
                RelayOutcome {
                    broken_side: Some(closing_side),
                    reset: true,
                    heard: closing_side == RelaySide::Client,
                    should_move: false
                }
            );
            let error = surviving.read(&mut [0; 5]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
    });
}

/// A stream like a TLS peer that closes without close_notify.
struct UncleanStream(ReactorSocket);

impl ByteStream for UncleanStream {}

impl AsyncRead for UncleanStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let previous_len = buffer.filled().len();
        let result = Pin::new(&mut self.0).poll_read(cx, buffer);
        match result {
            Poll::Ready(Ok(())) if buffer.filled().len() == previous_len => {
                Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()))
            }
            other => other,
        }
    }
}

impl AsyncWrite for UncleanStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[test]
fn an_end_that_tls_was_not_told_of_is_an_end() {
    run(|core| async move {
        let ((mut client, near), (far, mut member)) = (pair().await, pair().await);
        let relay = relay(
            &core,
            (UncleanStream(reactor_socket(&core, near)), UncleanStream(reactor_socket(&core, far))),
            MINUTE,
            &[],
        );
        let bytes = pattern(3 << 20);
        let send = async {
            member.write_all(&bytes).await.unwrap();
            member.shutdown().await.unwrap();
        };
        let mut received = Vec::new();
        let receive = async {
            // sleeps: paces the client
            tokio::time::sleep(Duration::from_millis(100)).await;
            client.read_to_end(&mut received).await.unwrap();
            // The other direction is still open.
            client.write_all(b"thanks").await.unwrap();
            client.shutdown().await.unwrap();
        };
        tokio::join!(send, receive);
        let mut to_member = Vec::new();
        member.read_to_end(&mut to_member).await.unwrap();
        assert_eq!((received.len(), hash(&received)), (bytes.len(), hash(&bytes)));
        assert_eq!(to_member, b"thanks");
        assert_eq!(relay.await.unwrap().0, RelayOutcome { heard: true, ..RelayOutcome::default() });
    });
}

#[test]
fn the_last_words_of_a_member_that_takes_no_more_are_passed_on() {
    run(|core| async move {
        let ((mut client, near), (far, mut member)) = (pair().await, pair().await);
        let relay = relay(&core, both(&core, near, far), MINUTE, &[]);
        client.write_all(&pattern(100_000)).await.unwrap();
        member.read_exact(&mut [0; 10]).await.unwrap();
        member.write_all(b"too much").await.unwrap();
        // Closing with unread bytes resets the connection.
        drop(member);
        let mut received = Vec::new();
        let _ = client.read_to_end(&mut received).await;
        assert_eq!(received, b"too much");
        drop(client);
        assert_eq!(relay.await.unwrap().0.broken_side, Some(RelaySide::Member));
    });
}

#[test]
fn silence_ends_it_and_activity_does_not() {
    let _held = held::hold();
    run(|core| async move {
        let ((mut client, near), (far, mut member)) = (pair().await, pair().await);
        let relay = relay(&core, both(&core, near, far), MINUTE, &[]);
        let pass = async |time: Duration| {
            held::advance(time);
            core.wheel.turn();
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        };
        pass(Duration::ZERO).await;
        for _ in 0..6 {
            client.write_all(b"tick").await.unwrap();
            member.read_exact(&mut [0; 4]).await.unwrap();
            pass(MINUTE * 9 / 10).await;
            assert!(!relay.is_finished());
        }
        pass(MINUTE / 5).await;
        let (end, ..) = relay.await.unwrap();
        assert_eq!(end, RelayOutcome::default());
    });
}

#[test]
fn what_arrived_during_a_standstill_is_seen_to_before_any_timer() {
    let _clock = held::hold();
    run(|core| async move {
        let ((mut client, near), (far, mut member)) = (pair().await, pair().await);
        let relay = relay(&core, both(&core, near, far), MINUTE, &[]);
        let yield_to_tasks = async || {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        };
        for _ in 0..3 {
            // Both sides wait for bytes by now.
            client.write_all(b"tick").await.unwrap();
            member.read_exact(&mut [0; 4]).await.unwrap();
            yield_to_tasks().await;
            // The process is suspended, and bytes arrive meanwhile.
            client.write_all(b"tock").await.unwrap();
            held::advance(MINUTE * 10);
            core.wheel.call();
            let mut text = [0; 4];
            member.read_exact(&mut text).await.expect("the relay goes on");
            assert_eq!(&text, b"tock");
        }
        // Without pending bytes the timer fires.
        yield_to_tasks().await;
        held::advance(MINUTE * 2);
        core.wheel.call();
        assert_eq!(relay.await.unwrap().0, RelayOutcome::default());
    });
}

#[test]
fn a_direction_is_large_after_two_large_reads_and_until_it_moves_little_twice() {
    let mut gauge = TransferGauge::default();
    gauge.record_read(LARGE_READ);
    gauge.record_wait(LARGE_READ);
    assert!(!gauge.is_large);
    // A wait with few bytes ends the sequence.
    gauge.record_wait(100);
    gauge.record_read(LARGE_READ);
    gauge.record_read(200);
    gauge.record_wait(LARGE_READ + 200);
    assert!(!gauge.is_large);
    gauge.record_read(LARGE_READ);
    assert!(gauge.is_large);
    for bytes in [LARGE_READ, 100, 0, 0, SMALL_TRANSFER, 100] {
        gauge.record_wait(bytes);
        assert!(gauge.is_large, "{bytes}");
    }
    gauge.record_wait(100);
    assert!(!gauge.is_large);
    // Without a pipe it continues to copy.
    (0..1000).for_each(|_| gauge.record_read(LARGE_READ));
    assert!(gauge.is_large);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Streams that accept and deliver a limited number of bytes at a time, written and read in pieces of any
    /// size.
    #[test]
    fn bytes_arrive_whole_and_in_order(
        room in 1_usize..3000,
        (up, down) in (0_usize..20_000, 0_usize..20_000),
        piece in 1_usize..5000,
    ) {
        let (sent_up, sent_down) = (pattern(up), pattern(down));
        let (got_down, got_up) = run(|core| {
            let (sent_up, sent_down) = (sent_up.clone(), sent_down.clone());
            async move {
                let ((client, near), (far, member)) = (tokio::io::duplex(room), tokio::io::duplex(room));
                let relay = relay(&core, (near, far), MINUTE, &[]);
                let talk = |stream: DuplexStream, bytes: Vec<u8>| async move {
                    let (mut read, mut write) = tokio::io::split(stream);
                    let mut got = Vec::new();
                    let send = async {
                        for piece in bytes.chunks(piece) {
                            write.write_all(piece).await.unwrap();
                        }
                        write.shutdown().await.unwrap();
                    };
                    tokio::join!(send, async { read.read_to_end(&mut got).await.unwrap() });
                    got
                };
                let got = tokio::join!(talk(client, sent_up), talk(member, sent_down));
                assert_eq!(relay.await.unwrap().0.broken_side, None);
                got
            }
        });
        prop_assert!(got_up == sent_up && got_down == sent_down);
    }
}
