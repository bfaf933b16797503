//! A client for async tasks: the event-loop interface driven by tokio. A background task serves the sockets.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::{Client, ClientSettings, OpenError, PickError, PickedMember};

/// A client of a cluster, shared by any number of tasks. Its background task ends when it is dropped.
#[derive(Debug)]
pub struct AsyncClient {
    inner: Arc<AsyncState>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct AsyncState {
    client: Client,
    waiting: Mutex<WaitingTasks>,
    /// Notified when the next timeout may have changed.
    timeout_changed: Notify,
}

#[derive(Debug, Default)]
struct WaitingTasks {
    next_id: u64,
    tasks: HashMap<u64, oneshot::Sender<Result<PickedMember, PickError>>>,
}

impl AsyncClient {
    /// Opens a client; must be called within a tokio runtime with time and I/O enabled. Reads the key file,
    /// now and whenever it changes, by blocking calls.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(settings: ClientSettings) -> Result<Self, OpenError> {
        let client = Client::open(settings)?;
        let mut sockets = Vec::new();
        for socket in client.sockets().duplicates()? {
            sockets.push(UdpSocket::from_std(socket)?);
        }
        let state =
            Arc::new(AsyncState { client, waiting: Mutex::default(), timeout_changed: Notify::new() });
        let task = tokio::spawn(serve_sockets(Arc::clone(&state), sockets));
        Ok(Self { inner: state, task })
    }

    /// Returns the member to send a request to. `info` is passed to the daemons' applications (at most 1000
    /// bytes).
    ///
    /// # Errors
    /// Returns an error if no member is available or no daemon answers.
    pub async fn pick(&self, service: u32, info: &[u8]) -> Result<PickedMember, PickError> {
        let (outcome_sender, outcome_receiver) = oneshot::channel();
        {
            let mut waiting = self.inner.lock();
            waiting.next_id += 1;
            let request_id = waiting.next_id;
            self.inner.client.start_request(request_id, service, info)?;
            waiting.tasks.insert(request_id, outcome_sender);
        }
        // A cached answer is available at once.
        self.inner.deliver_outcomes();
        self.inner.timeout_changed.notify_one();
        // The background task lives as long as `self`.
        outcome_receiver.await.unwrap_or(Err(PickError::NoResponse))
    }

    /// Records a failure of a picked member, so that it is not picked for five seconds.
    pub fn record_failure(&self, member: u16) {
        self.inner.client.record_failure(member);
    }
}

impl Drop for AsyncClient {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AsyncState {
    /// Passes the outcomes to the tasks that wait for them.
    fn deliver_outcomes(&self) {
        let mut waiting = self.lock();
        while let Some((request_id, outcome)) = self.client.next_outcome() {
            if let Some(outcome_sender) = waiting.tasks.remove(&request_id) {
                // The waiting task may have been cancelled.
                let _ = outcome_sender.send(outcome);
            }
        }
    }

    /// Receives from all sockets after one has become readable.
    fn receive(&self, socket: Option<&UdpSocket>) {
        let Some(socket) = socket else { return };
        // `WouldBlock` clears the socket's readiness, so that the task waits for the next datagram.
        let _ = socket.try_io(Interest::READABLE, || match self.client.process() {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        });
    }

    fn lock(&self) -> MutexGuard<'_, WaitingTasks> {
        // After a panic of another holder, the state is consistent enough to go on.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives datagrams and handles timeouts until it is aborted. The sockets are used for readiness only.
async fn serve_sockets(state: Arc<AsyncState>, sockets: Vec<UdpSocket>) {
    let mut sockets = sockets.iter();
    let (first_socket, second_socket) = (sockets.next(), sockets.next());
    loop {
        let timeout = async {
            match state.client.timeout() {
                Some(time) => sleep(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = readable(first_socket) => state.receive(first_socket),
            () = readable(second_socket) => state.receive(second_socket),
            () = timeout => drop(state.client.process()),
            () = state.timeout_changed.notified() => {}
        }
        state.deliver_outcomes();
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
