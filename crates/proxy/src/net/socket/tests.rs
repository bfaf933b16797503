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
    fn since(&self) -> usize {
        self.0.swap(0, Relaxed)
    }
}

/// Returns a watched socket and its other end.
fn pair(readiness: &Rc<Reactor>) -> (ReactorSocket, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    (ReactorSocket::new(readiness, stream.into()), other)
}

/// Polls until an event is found: loopback takes no time, but a machine may.
fn look(readiness: &Reactor) {
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
    let (mut socket, mut other) = pair(&readiness);
    let (count, mut watched, mut buffer) = (Arc::new(CountingWaker::default()), false, [0; 100]);
    let waker = Waker::from(Arc::clone(&count));
    let mut cx = Context::from_waker(&waker);
    for round in 0..3 {
        assert!(socket.poll_recv(&mut cx, &mut buffer, &mut watched).is_pending() && watched, "{round}");
        assert!(socket.is_idle());
        watched = false;
        assert!(socket.poll_recv(&mut cx, &mut buffer, &mut watched).is_pending());
        other.write_all(b"more").unwrap();
        look(&readiness);
        assert_eq!((count.since(), readiness.poll_events(), count.since()), (1, 0, 0));
        let came = socket.poll_recv(&mut cx, &mut buffer, &mut watched);
        assert!(matches!(came, Poll::Ready(Ok(4))) && !watched, "{came:?}");
    }
}

#[test]
fn the_end_is_not_missed_that_comes_with_the_last_bytes() {
    let readiness = Reactor::new().unwrap();
    let (socket, mut other) = pair(&readiness);
    let (mut cx, mut buffer) = (Context::from_waker(Waker::noop()), [0; 100]);
    assert!(socket.poll_recv(&mut cx, &mut buffer, &mut false).is_pending());
    other.write_all(b"last").unwrap();
    drop(other);
    // The end has arrived, too, before the socket is polled.
    let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&socket, PollFlags::RDHUP)], Some(&minute)), Ok(1));
    look(&readiness);
    assert!(matches!(socket.poll_recv(&mut cx, &mut buffer, &mut false), Poll::Ready(Ok(4))));
    for _ in 0..3 {
        assert!(matches!(socket.poll_recv(&mut cx, &mut buffer, &mut false), Poll::Ready(Ok(0))));
    }
}

#[test]
fn a_reset_is_an_error_and_wakes_both_sides() {
    let readiness = Reactor::new().unwrap();
    let (socket, other) = pair(&readiness);
    let count = Arc::new(CountingWaker::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut cx = Context::from_waker(&waker);
    assert!(socket.poll_recv(&mut cx, &mut [0; 8], &mut false).is_pending());
    let full = vec![1; 1 << 20];
    while socket.send(&full).is_some() {}
    assert!(socket.poll_ready(IoDirection::Write, &cx).is_pending());
    SockRef::from(&other).set_linger(Some(Duration::ZERO)).unwrap();
    drop(other);
    look(&readiness);
    assert_eq!(count.since(), 2);
    let came = socket.poll_recv(&mut cx, &mut [0; 8], &mut false);
    assert!(
        matches!(&came, Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset),
        "{came:?}"
    );
}

#[test]
fn who_sends_more_than_is_taken_is_woken_when_more_is() {
    let readiness = Reactor::new().unwrap();
    let (socket, mut other) = pair(&readiness);
    let count = Arc::new(CountingWaker::default());
    let waker = Waker::from(Arc::clone(&count));
    let cx = Context::from_waker(&waker);
    let (head, full) = ([7; 10], vec![1; 1 << 20]);
    let parts = [IoSlice::new(&head), IoSlice::new(&full)];
    let mut sent = 0;
    while let Some(more) = socket.send_parts(&parts) {
        sent += more.unwrap();
    }
    assert!(sent > 10 && socket.poll_ready(IoDirection::Write, &cx).is_pending());
    let mut received = vec![0; sent];
    other.read_exact(&mut received).unwrap();
    assert_eq!(received[..11], [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 1]);
    look(&readiness);
    assert_eq!(count.since(), 1);
    assert!(socket.send(&head).is_some());
}

#[test]
fn nothing_is_told_of_one_that_is_gone_whoever_holds_it_open() {
    let readiness = Reactor::new().unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    let (socket, mut other) = pair(&readiness);
    assert!(socket.poll_recv(&mut cx, &mut [0; 8], &mut false).is_pending());
    look(&readiness);
    // As a process does that is about to execute another program.
    let mut held = socket.stream.try_clone().unwrap();
    drop(socket);
    other.write_all(b"late").unwrap();
    held.set_nonblocking(false).unwrap();
    held.read_exact(&mut [0; 4]).unwrap();
    drop(other);
    assert_eq!(held.read(&mut [0; 4]).unwrap(), 0, "it has come");
    assert_eq!(readiness.poll_events(), 0);
}

#[test]
fn one_that_never_waited_is_not_watched_and_misses_no_end() {
    let readiness = Reactor::new().unwrap();
    let (mut socket, mut other) = pair(&readiness);
    let mut cx = Context::from_waker(Waker::noop());
    other.write_all(b"asks").unwrap();
    // It has arrived: the other end shows it.
    while socket.stream.peek(&mut [0; 4]).is_err() {}
    let came = socket.poll_recv(&mut cx, &mut [0; 8], &mut false);
    assert!(matches!(came, Poll::Ready(Ok(4))) && !socket.slot.is_watched(), "{came:?}");
    assert!(matches!(socket.send(b"answer"), Some(Ok(6))) && socket.is_idle());
    drop(other);
    socket.stream.set_nonblocking(false).unwrap();
    assert_eq!(socket.stream.peek(&mut [0; 4]).unwrap_or(0), 0);
    assert!(!socket.is_idle() && !socket.slot.is_watched() && readiness.poll_events() == 0);
}

#[tokio::test]
async fn connections_are_made_and_taken_or_refused() {
    let readiness = Reactor::new().unwrap();
    let looks = async {
        loop {
            readiness.poll_events();
            tokio::task::yield_now().await;
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let entrance = ListenSocket::new(&readiness, listener.into());
    let talk = async {
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(ReactorSocket::connect(&readiness, address, None).await.unwrap());
        }
        for mut client in clients {
            let (member, peer) = poll_fn(|cx| entrance.poll_accept(cx)).await.unwrap();
            assert_eq!((peer, member.local_addr().unwrap()), (client.local_addr().unwrap(), address));
            assert!(matches!(client.send(b"hello"), Some(Ok(5))));
            let mut buffer = [0; 8];
            let came = poll_fn(|cx| member.poll_recv(cx, &mut buffer, &mut false)).await.unwrap();
            assert!(buffer[..came] == *b"hello" && client.is_idle());
        }
        assert!(entrance.accept().is_none());
        // It continues in another process, without events here.
        let heir = entrance.socket.try_clone().unwrap();
        drop(entrance);
        let client = TcpStream::connect(address).unwrap();
        assert!(rustix::net::acceptfrom_with(&heir, FLAGS).is_ok());
        assert_eq!(readiness.poll_events(), 0);
        drop((client, heir));
        let refused = ReactorSocket::connect(&readiness, address, None).await.err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    };
    tokio::select! {
        () = talk => {}
        () = looks => {}
    }
}

#[test]
fn more_than_are_told_of_at_once_are_all_woken_and_others_between() {
    run(|core| async move {
        let (done, mut ends) = tokio::sync::mpsc::channel(1000);
        let mut others = Vec::new();
        for nth in 0..6 * MAX_EVENTS {
            let (socket, other) = pair(&core.sessions.readiness);
            others.push(other);
            let done = done.clone();
            let serves = async move {
                let mut buffer = [0; 8];
                for _ in 0..2 {
                    let came = poll_fn(|cx| socket.poll_recv(cx, &mut buffer, &mut false)).await.unwrap();
                    assert!(matches!(socket.send(&buffer[..came]), Some(Ok(2))));
                }
                done.send(()).await.unwrap();
            };
            // Sessions that are driven here, and tasks of tokio.
            if nth < 2 * MAX_EVENTS {
                core.sessions.spawn(serves);
            } else {
                tokio::task::spawn_local(serves);
            }
        }
        for _ in 0..2 {
            others.iter_mut().for_each(|other| other.write_all(b"hi").unwrap());
            for other in &mut others {
                tokio::task::yield_now().await;
                other.set_nonblocking(true).unwrap();
                while other.peek(&mut [0; 2]).is_err() {
                    tokio::task::yield_now().await;
                }
                other.read_exact(&mut [0; 2]).unwrap();
            }
        }
        for _ in &others {
            ends.recv().await.unwrap();
        }
    });
}
