//! A client for async tasks: the event-loop interface driven by tokio. A background task serves the sockets.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::{Client, OpenError, Pick, Settings, Unserved};

/// A client of a cluster, shared by any number of tasks. Its background task ends when it is dropped.
#[derive(Debug)]
pub struct AsyncClient {
    inner: Arc<Inner>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    waiting: Mutex<Waiting>,
    /// Notified when the next timeout may have changed.
    stirred: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    turns: u64,
    tasks: HashMap<u64, oneshot::Sender<Result<Pick, Unserved>>>,
}

impl AsyncClient {
    /// Opens a client; must be called within a tokio runtime with time and I/O enabled. Reads the key file,
    /// now and whenever it changes, by blocking calls.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(settings: Settings) -> Result<Self, OpenError> {
        let client = Client::open(settings)?;
        let mut sockets = Vec::new();
        for socket in client.sockets().clones()? {
            sockets.push(UdpSocket::from_std(socket)?);
        }
        let inner = Arc::new(Inner { client, waiting: Mutex::default(), stirred: Notify::new() });
        let task = tokio::spawn(look_after(Arc::clone(&inner), sockets));
        Ok(Self { inner, task })
    }

    /// Returns the member to send a request to. `info` is passed to the daemons' applications (at most 1000
    /// bytes).
    ///
    /// # Errors
    /// Returns an error if no member is available or no daemon answers.
    pub async fn pick(&self, service: u32, info: &[u8]) -> Result<Pick, Unserved> {
        let (tell, told) = oneshot::channel();
        {
            let mut waiting = self.inner.lock();
            waiting.turns += 1;
            let tag = waiting.turns;
            self.inner.client.ask(tag, service, info)?;
            waiting.tasks.insert(tag, tell);
        }
        // A cached answer is available at once.
        self.inner.tell();
        self.inner.stirred.notify_one();
        // The background task lives as long as `self`.
        told.await.unwrap_or(Err(Unserved::Silence))
    }

    /// Records a failure of a picked member, so that it is not picked for five seconds.
    pub fn failed(&self, member: u16) {
        self.inner.client.failed(member);
    }
}

impl Drop for AsyncClient {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Inner {
    /// Passes the outcomes to the tasks that wait for them.
    fn tell(&self) {
        let mut waiting = self.lock();
        while let Some((tag, outcome)) = self.client.next() {
            if let Some(tell) = waiting.tasks.remove(&tag) {
                // The waiting task may have been cancelled.
                let _ = tell.send(outcome);
            }
        }
    }

    /// Receives from all sockets after one has become readable.
    fn take(&self, socket: Option<&UdpSocket>) {
        let Some(socket) = socket else { return };
        // `WouldBlock` clears the socket's readiness, so that the task waits for the next datagram.
        let _ = socket.try_io(Interest::READABLE, || match self.client.process() {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        });
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // After a panic of another holder, the state is consistent enough to go on.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives datagrams and handles timeouts until it is aborted. The sockets are used for readiness only.
async fn look_after(inner: Arc<Inner>, sockets: Vec<UdpSocket>) {
    let mut sockets = sockets.iter();
    let (one, other) = (sockets.next(), sockets.next());
    loop {
        let due = async {
            match inner.client.timeout() {
                Some(time) => sleep(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = readable(one) => inner.take(one),
            () = readable(other) => inner.take(other),
            () = due => drop(inner.client.process()),
            () = inner.stirred.notified() => {}
        }
        inner.tell();
    }
}

async fn readable(socket: Option<&UdpSocket>) {
    let ready = match socket {
        Some(socket) => socket.readable().await,
        None => std::future::pending().await,
    };
    if ready.is_err() {
        // The runtime is shutting down, and this task with it.
        std::future::pending().await
    }
}
