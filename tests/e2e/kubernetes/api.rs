//! An API server that knows the slices of one namespace.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use super::Slices;
use crate::stage::{found, free_port};

pub(super) struct Api {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    version: u64,
    slices: BTreeMap<String, Value>,
    /// The events with their versions; those before `oldest` are forgotten.
    events: Vec<(u64, Value)>,
    oldest: u64,
    stopped: bool,
    streams: Vec<TcpStream>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Api {
    pub(super) fn start() -> Self {
        // No other process gets the port while the server is stopped.
        let listener = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
        let mut api = Self { address: listener.local_addr().unwrap(), shared: Arc::default(), task: None };
        api.listen(listener);
        api
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the server and cuts all connections.
    pub(super) fn stop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.stopped = true;
            for stream in state.streams.drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        self.shared.changed.notify_all();
        // The connection wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        self.task.take().into_iter().for_each(|task| task.join().unwrap());
    }

    pub(super) fn again(&mut self) {
        self.shared.lock().stopped = false;
        // Old connections may still be about to end.
        let listener = found("the port is free", || TcpListener::bind(self.address).ok());
        self.listen(listener);
    }

    /// Forgets the history; the current slices stay.
    pub(super) fn forget(&self) {
        let mut state = self.shared.lock();
        state.version += 1;
        state.oldest = state.version;
        state.events.clear();
    }

    fn listen(&mut self, listener: TcpListener) {
        let shared = Arc::clone(&self.shared);
        self.task = Some(thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut state = shared.lock();
                if state.stopped {
                    return;
                }
                state.streams.push(stream.try_clone().unwrap());
                drop(state);
                let shared = Arc::clone(&shared);
                thread::spawn(move || serve(stream, &shared));
            }
        }));
    }

    fn change(&self, kind: &str, name: &str, mut object: Value) {
        let mut state = self.shared.lock();
        state.version += 1;
        let version = state.version;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        match kind {
            "DELETED" => drop(state.slices.remove(name)),
            _ => drop(state.slices.insert(name.to_owned(), object.clone())),
        }
        state.events.push((version, json!({"type": kind, "object": object})));
        drop(state);
        self.shared.changed.notify_all();
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        if self.task.is_some() {
            self.stop();
        }
    }
}

impl Slices for Api {
    fn put(&mut self, (name, object): (String, Value)) {
        let there = self.shared.lock().slices.contains_key(&name);
        self.change(if there { "MODIFIED" } else { "ADDED" }, &name, object);
    }

    fn remove(&mut self, member: SocketAddr) {
        let name = format!("web-{}", member.port());
        let object = self.shared.lock().slices[&name].clone();
        self.change("DELETED", &name, object);
    }
}

/// Serves one question.
fn serve(mut stream: TcpStream, shared: &Shared) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut target = None;
    loop {
        let mut line = String::new();
        if !reader.read_line(&mut line).is_ok_and(|read| read > 0) {
            return;
        }
        if line.trim_end().is_empty() {
            break;
        }
        target.get_or_insert_with(|| line.split(' ').nth(1).unwrap_or_default().to_owned());
    }
    let target = target.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or_default();
    assert_eq!(path, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices");
    assert!(query.contains("labelSelector=kubernetes.io%2Fservice-name%3Dweb"), "{query}");
    let _ = match query.contains("watch=true") {
        true => watch(&mut stream, query, shared),
        false => list(&mut stream, shared),
    };
}

fn list(stream: &mut TcpStream, shared: &Shared) -> std::io::Result<()> {
    let state = shared.lock();
    let items: Vec<&Value> = state.slices.values().collect();
    let version = state.version.to_string();
    answer(stream, 200, &json!({"metadata": {"resourceVersion": version}, "items": items}))
}

fn watch(stream: &mut TcpStream, query: &str, shared: &Shared) -> std::io::Result<()> {
    let version = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
    let mut version: u64 = version.and_then(|version| version.parse().ok()).expect("a version");
    let mut state = shared.lock();
    if version < state.oldest {
        let message = format!("too old resource version: {version} ({})", state.oldest);
        let gone = json!({
            "kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": message,
        });
        return answer(stream, 410, &gone);
    }
    stream.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
    )?;
    while !state.stopped {
        for (_, event) in state.events.iter().filter(|(number, _)| *number > version) {
            let line = format!("{event}\n");
            stream.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes())?;
        }
        version = version.max(state.version);
        state = shared.changed.wait_timeout(state, Duration::from_secs(1)).unwrap().0;
    }
    Ok(())
}

fn answer(stream: &mut TcpStream, status: u16, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status} Some\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: \
         {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes())
}
