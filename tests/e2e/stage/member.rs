//! Members: `plimsoll member` processes, which can be killed and stopped, and threads that follow a script.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::{Folder, Process, Wire, found, free_port};

/// A test server of Plimsoll in a process of its own.
pub(crate) struct Member {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    args: Vec<String>,
    folder: Folder,
}

impl Member {
    /// Starts a member on a free port with arguments such as `["--service", "const:2ms"]`. The port stays
    /// this test's while the member is away.
    #[track_caller]
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_at(([127, 0, 0, 1], free_port()).into(), args)
    }

    /// Starts a member at an address.
    #[track_caller]
    pub(crate) fn start_at(address: SocketAddr, args: &[&str]) -> Self {
        let folder = Folder::new();
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let (process, address) = run(&folder, &args, address);
        Self { process, address, args, folder }
    }

    /// Starts `count` members of the same kind.
    #[track_caller]
    pub(crate) fn several(count: usize, args: &[&str]) -> Vec<Self> {
        (0..count).map(|_| Self::start(args)).collect()
    }

    /// Starts it again at its address, after it ended.
    #[track_caller]
    pub(crate) fn restart(&mut self) {
        self.process = run(&self.folder, &self.args, self.address).0;
    }
}

#[track_caller]
fn run(folder: &Folder, args: &[String], address: SocketAddr) -> (Process, SocketAddr) {
    let listen = address.to_string();
    let mut all = vec!["member", "--listen", &listen];
    all.extend(args.iter().map(String::as_str));
    let mut process = Process::start(&super::binary(), &all, folder.path());
    let address = found("a member that listens", || {
        assert!(!process.ended(), "the member did not start: {process}");
        let lines = process.lines();
        lines.iter().find_map(|line| line.strip_prefix("listening ")?.split(' ').nth(1)?.parse().ok())
    });
    (process, address)
}

/// A member that handles each connection by its script, on a thread of its own.
pub(crate) struct Script {
    pub(crate) address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Script {
    /// Runs `play` for each connection to a port of this test only, so that no balancer of another test
    /// connects. Errors of `play` are ignored: the peer sees them.
    pub(crate) fn start<R>(play: impl Fn(&mut Wire) -> R + Send + Sync + 'static) -> Self {
        Self::start_at(([127, 0, 0, 1], free_port()).into(), play)
    }

    /// Runs `play` for each connection to this address.
    pub(crate) fn start_at<R>(
        address: SocketAddr,
        play: impl Fn(&mut Wire) -> R + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let (play, count) = (Arc::new(play), Arc::clone(&accepted));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::SeqCst);
                let play = Arc::clone(&play);
                thread::spawn(move || {
                    let _ = play(&mut Wire::over(stream));
                });
            }
        });
        Self { address, accepted }
    }

    /// Answers each request, whatever it is, with these bytes, until the peer closes.
    pub(crate) fn answering(answer: impl Into<Vec<u8>>) -> Self {
        Self::answering_at(([127, 0, 0, 1], free_port()).into(), answer)
    }

    /// Answers the same at an address.
    pub(crate) fn answering_at(address: SocketAddr, answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::start_at(address, move |wire| {
            while let Some(head) = wire.head()? {
                wire.body(&head, false)?;
                wire.try_send(&answer)?;
            }
            std::io::Result::Ok(())
        })
    }

    /// Returns the number of connections so far.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// Returns an address that refuses connections for as long as the socket is kept.
pub(crate) fn refusing() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// Returns an address that does not answer to connections at all, for as long as the values beside it are
/// kept. Its queue is full, and no process accepts from it.
pub(crate) fn deaf() -> (Socket, Vec<TcpStream>, SocketAddr) {
    let (socket, address) = refusing();
    socket.listen(0).unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        waiting.push(stream);
    }
    (socket, waiting, address)
}
