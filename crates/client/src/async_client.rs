//! A client for tasks: the event loop's form, with tokio as the loop. One task of its own looks after the sockets.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::{Client, OpenError, Pick, Settings, Unserved};

/// A client of a cluster, for any number of tasks. Its own task ends with it.
#[derive(Debug)]
pub struct AsyncClient {
    inner: Arc<Inner>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    waiting: Mutex<Waiting>,
    /// There is another time to wait for.
    stirred: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    turns: u64,
    tasks: HashMap<u64, oneshot::Sender<Result<Pick, Unserved>>>,
}

impl AsyncClient {
    /// Opens one. To be called in a tokio runtime with time and I/O. Reads a file of keys, as it does when that has changed.
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

    /// The member that is to serve; `info` is for the daemons' applications (at most 1000 bytes go).
    ///
    /// # Errors
    /// There is nobody, or nobody answers.
    pub async fn pick(&self, service: u32, info: &[u8]) -> Result<Pick, Unserved> {
        let (tell, told) = oneshot::channel();
        {
            let mut waiting = self.inner.lock();
            waiting.turns += 1;
            let tag = waiting.turns;
            self.inner.client.ask(tag, service, info)?;
            waiting.tasks.insert(tag, tell);
        }
        // It may be there.
        self.inner.tell();
        self.inner.stirred.notify_one();
        // The task lives as long as this.
        told.await.unwrap_or(Err(Unserved::Silence))
    }

    /// A member that was picked failed: not that one again for five seconds.
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
    /// Tells those who wait what came of it.
    fn tell(&self) {
        let mut waiting = self.lock();
        while let Some((tag, outcome)) = self.client.next() {
            if let Some(tell) = waiting.tasks.remove(&tag) {
                // Whoever asked may have gone.
                let _ = tell.send(outcome);
            }
        }
    }

    /// Takes what has come at any socket, because it has at this one.
    fn take(&self, socket: Option<&UdpSocket>) {
        let Some(socket) = socket else { return };
        // That nothing is left is what makes it wait for the next.
        let _ = socket.try_io(Interest::READABLE, || match self.client.process() {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        });
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A thread that panicked while it held the lock left nothing half done that matters more than going on.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes what comes and does what is due, for ever. The sockets only say when something has come.
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
        // The runtime ends, and with it this task.
        std::future::pending().await
    }
}
