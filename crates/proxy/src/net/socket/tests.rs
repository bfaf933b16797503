use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Wake, Waker};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::runtime::reactor::MAX_EVENTS;
use crate::test_util::run;

/// Counts its wake-ups.
#[derive(Default)]
struct CountingWaker(AtomicUsize);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl CountingWaker {
    fn take_count(&self) -> usize {
        self.0.swap(0, Relaxed)
    }
}

/// Returns a watched socket and its other end.
fn connected_pair(readiness: &Rc<Reactor>) -> (ReactorSocket, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    (ReactorSocket::new(readiness, stream.into()), peer)
}

/// Polls until an event is found: loopback takes no time, but a machine may.
fn wait_for_event(readiness: &Reactor) {
    for _ in 0..60_000 {
        if readiness.poll_events() > 0 {
            return;
        }
        // sleeps: polls
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("nothing comes");
}

#[test]
fn who_waits_is_woken_once_for_what_comes() {
    let readiness = Reactor::new().unwrap();
    let (mut socket, mut peer) = connected_pair(&readiness);
    let (wake_counter, mut registered, mut buffer) = (Arc::new(CountingWaker::default()), false, [0; 100]);
    let waker = Waker::from(Arc::clone(&wake_counter));
    let mut cx = Context::from_waker(&waker);
    for round in 0..3 {
        assert!(
            socket.poll_recv(&mut cx, &mut buffer, &mut registered).is_pending() && registered,
            "{round}"
        );
        assert!(socket.is_idle());
        registered = false;
        assert!(socket.poll_recv(&mut cx, &mut buffer, &mut registered).is_pending());
        peer.write_all(b"more").unwrap();
        wait_for_event(&readiness);
        assert_eq!(
            (wake_counter.take_count(), readiness.poll_events(), wake_counter.take_count()),
            (1, 0, 0)
        );
        let received = socket.poll_recv(&mut cx, &mut buffer, &mut registered);
        assert!(matches!(received, Poll::Ready(Ok(4))) && !registered, "{received:?}");
    }
}

#[test]
fn the_end_is_not_missed_that_comes_with_the_last_bytes() {
    let readiness = Reactor::new().unwrap();
    let (socket, mut peer) = connected_pair(&readiness);
    let (mut cx, mut buffer) = (Context::from_waker(Waker::noop()), [0; 100]);
    assert!(socket.poll_recv(&mut cx, &mut buffer, &mut false).is_pending());
    peer.write_all(b"last").unwrap();
    drop(peer);
    // The end has arrived, too, before the socket is polled.
    let one_minute = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&socket, PollFlags::RDHUP)], Some(&one_minute)), Ok(1));
    wait_for_event(&readiness);
    assert!(matches!(socket.poll_recv(&mut cx, &mut buffer, &mut false), Poll::Ready(Ok(4))));
    for _ in 0..3 {
        assert!(matches!(socket.poll_recv(&mut cx, &mut buffer, &mut false), Poll::Ready(Ok(0))));
    }
}

#[test]
fn a_reset_is_an_error_and_wakes_both_sides() {
    let readiness = Reactor::new().unwrap();
    let (socket, peer) = connected_pair(&readiness);
    let wake_counter = Arc::new(CountingWaker::default());
    let waker = Waker::from(Arc::clone(&wake_counter));
    let mut cx = Context::from_waker(&waker);
    assert!(socket.poll_recv(&mut cx, &mut [0; 8], &mut false).is_pending());
    let large_buffer = vec![1; 1 << 20];
    while socket.send(&large_buffer).is_some() {}
    assert!(socket.poll_ready(IoDirection::Write, &cx).is_pending());
    SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
    drop(peer);
    wait_for_event(&readiness);
    assert_eq!(wake_counter.take_count(), 2);
    let received = socket.poll_recv(&mut cx, &mut [0; 8], &mut false);
    assert!(
        matches!(&received, Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset),
        "{received:?}"
    );
}

#[test]
fn who_sends_more_than_is_taken_is_woken_when_more_is() {
    let readiness = Reactor::new().unwrap();
    let (socket, mut peer) = connected_pair(&readiness);
    let wake_counter = Arc::new(CountingWaker::default());
    let waker = Waker::from(Arc::clone(&wake_counter));
    let cx = Context::from_waker(&waker);
    let (head, body) = ([7; 10], vec![1; 1 << 20]);
    let parts = [IoSlice::new(&head), IoSlice::new(&body)];
    let mut sent = 0;
    while let Some(result) = socket.send_parts(&parts) {
        sent += result.unwrap();
    }
    assert!(sent > 10 && socket.poll_ready(IoDirection::Write, &cx).is_pending());
    let mut received = vec![0; sent];
    peer.read_exact(&mut received).unwrap();
    assert_eq!(received[..11], [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 1]);
    wait_for_event(&readiness);
    assert_eq!(wake_counter.take_count(), 1);
    assert!(socket.send(&head).is_some());
}

#[test]
fn nothing_is_told_of_one_that_is_gone_whoever_holds_it_open() {
    let readiness = Reactor::new().unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    let (socket, mut peer) = connected_pair(&readiness);
    assert!(socket.poll_recv(&mut cx, &mut [0; 8], &mut false).is_pending());
    wait_for_event(&readiness);
    // As a process does that is about to execute another program.
    let mut duplicate = socket.stream.try_clone().unwrap();
    drop(socket);
    peer.write_all(b"late").unwrap();
    duplicate.set_nonblocking(false).unwrap();
    duplicate.read_exact(&mut [0; 4]).unwrap();
    drop(peer);
    assert_eq!(duplicate.read(&mut [0; 4]).unwrap(), 0, "it has come");
    assert_eq!(readiness.poll_events(), 0);
}

#[test]
fn one_that_never_waited_is_not_watched_and_misses_no_end() {
    let readiness = Reactor::new().unwrap();
    let (mut socket, mut peer) = connected_pair(&readiness);
    let mut cx = Context::from_waker(Waker::noop());
    peer.write_all(b"asks").unwrap();
    // It has arrived: the other end shows it.
    while socket.stream.peek(&mut [0; 4]).is_err() {}
    let received = socket.poll_recv(&mut cx, &mut [0; 8], &mut false);
    assert!(matches!(received, Poll::Ready(Ok(4))) && !socket.slot.is_registered(), "{received:?}");
    assert!(matches!(socket.send(b"answer"), Some(Ok(6))) && socket.is_idle());
    drop(peer);
    socket.stream.set_nonblocking(false).unwrap();
    assert_eq!(socket.stream.peek(&mut [0; 4]).unwrap_or(0), 0);
    assert!(!socket.is_idle() && !socket.slot.is_registered() && readiness.poll_events() == 0);
}

#[tokio::test]
async fn connections_are_made_and_taken_or_refused() {
    let readiness = Reactor::new().unwrap();
    let poll_loop = async {
        loop {
            readiness.poll_events();
            tokio::task::yield_now().await;
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let listen_socket = ListenSocket::new(&readiness, listener.into());
    let exchange = async {
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(ReactorSocket::connect(&readiness, address, None).await.unwrap());
        }
        for mut client in clients {
            let (member, peer) = poll_fn(|cx| listen_socket.poll_accept(cx)).await.unwrap();
            assert_eq!((peer, member.local_addr().unwrap()), (client.local_addr().unwrap(), address));
            assert!(matches!(client.send(b"hello"), Some(Ok(5))));
            let mut buffer = [0; 8];
            let len = poll_fn(|cx| member.poll_recv(cx, &mut buffer, &mut false)).await.unwrap();
            assert!(buffer[..len] == *b"hello" && client.is_idle());
        }
        assert!(listen_socket.accept().is_none());
        // It continues in another process, without events here.
        let duplicate = listen_socket.socket.try_clone().unwrap();
        drop(listen_socket);
        let client = TcpStream::connect(address).unwrap();
        assert!(rustix::net::acceptfrom_with(&duplicate, FLAGS).is_ok());
        assert_eq!(readiness.poll_events(), 0);
        drop((client, duplicate));
        let error = ReactorSocket::connect(&readiness, address, None).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    };
    tokio::select! {
        () = exchange => {}
        () = poll_loop => {}
    }
}

#[test]
fn more_than_are_told_of_at_once_are_all_woken_and_others_between() {
    run(|core| async move {
        let (finished_sender, mut finished_receiver) = tokio::sync::mpsc::channel(1000);
        let mut peers = Vec::new();
        for index in 0..6 * MAX_EVENTS {
            let (socket, peer) = connected_pair(&core.sessions.readiness);
            peers.push(peer);
            let finished_sender = finished_sender.clone();
            let echo = async move {
                let mut buffer = [0; 8];
                for _ in 0..2 {
                    let len = poll_fn(|cx| socket.poll_recv(cx, &mut buffer, &mut false)).await.unwrap();
                    assert!(matches!(socket.send(&buffer[..len]), Some(Ok(2))));
                }
                finished_sender.send(()).await.unwrap();
            };
            // Sessions that are driven here, and tasks of tokio.
            if index < 2 * MAX_EVENTS {
                core.sessions.spawn(echo);
            } else {
                tokio::task::spawn_local(echo);
            }
        }
        for _ in 0..2 {
            peers.iter_mut().for_each(|peer| peer.write_all(b"hi").unwrap());
            for peer in &mut peers {
                tokio::task::yield_now().await;
                peer.set_nonblocking(true).unwrap();
                while peer.peek(&mut [0; 2]).is_err() {
                    tokio::task::yield_now().await;
                }
                peer.read_exact(&mut [0; 2]).unwrap();
            }
        }
        for _ in &peers {
            finished_receiver.recv().await.unwrap();
        }
    });
}
