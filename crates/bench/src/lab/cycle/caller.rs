//! A client's connection, over which it calls and waits for the answer.
//!
//! A [`Target`], the same as for the load generator, defines the requests and their answers. This module
//! carries its bytes on a blocking thread.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::super::Trouble;
use super::super::drive::Door;
use crate::record::Fault;
use crate::target::{Answer, Http, Iiop, Request, Step, Target};

/// The time-out of a connection, and the time between two checks for the end of the run.
const CONNECT: Duration = Duration::from_millis(900);
const LOOK: Duration = Duration::from_millis(100);

/// The purpose of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Plug {
    /// To ask for a server.
    Bind,
    /// To deliver a message of this many bytes to a server.
    Bring(usize),
    /// To call with this many bytes.
    Call(usize),
}

/// A connection that is established on demand.
pub(super) struct Caller {
    kind: Kind,
    address: SocketAddr,
    stream: Option<TcpStream>,
    /// Whether each call takes a new connection.
    once: bool,
}

enum Kind {
    Http(Box<Http>),
    Iiop(Box<Iiop>),
}

impl Caller {
    /// Creates a caller for this destination.
    pub(super) fn new(door: &Door, plug: Plug) -> Result<Self, Trouble> {
        let failed =
            |error: &dyn std::fmt::Display| Trouble::failed(format!("no client of the application: {error}"));
        let kind = match door {
            Door::Http(address) => {
                // HTTP has no operation that only names the server: the cheapest request of a member is used.
                let (method, path, length) = match plug {
                    Plug::Bind => ("GET", "/_plimsoll/count", 0),
                    Plug::Bring(length) => ("POST", "/receive", length),
                    Plug::Call(length) => ("POST", "/", length),
                };
                let body: Vec<u8> = (0..length).map(|n| n as u8).collect();
                let request = Request::new(method, &format!("http://{address}{path}"), &[], &body);
                let target = request.and_then(|request| Http::sequence(vec![request]));
                Kind::Http(Box::new(target.map_err(|error| failed(&error))?))
            }
            Door::Iiop(reference) => {
                let (follow, length) = match plug {
                    Plug::Bind => (false, 0),
                    Plug::Bring(length) | Plug::Call(length) => (true, length),
                };
                let target = Iiop::new(reference, follow).map_err(|error| failed(&error))?;
                Kind::Iiop(Box::new(target.padded(length)))
            }
            Door::Pick(_) => return Err(failed(&"a lottery forwards nothing")),
        };
        let first = match &kind {
            Kind::Http(target) => target.addresses().first(),
            Kind::Iiop(target) => target.addresses().first(),
        };
        let address = *first.ok_or_else(|| failed(&"no address"))?;
        // An ORB that returns over the same connection is not redirected again: each bind needs a new one.
        let once = matches!((&kind, plug), (Kind::Iiop(_), Plug::Bind));
        Ok(Self { kind, address, stream: None, once })
    }

    /// Calls, and returns the name of the member that answered.
    ///
    /// # Errors
    /// Returns the fault; `None` if the call was abandoned because `stop` became `true`.
    pub(super) fn call(
        &mut self,
        timeout: Duration,
        stop: &AtomicBool,
    ) -> Result<Option<Arc<str>>, Option<Fault>> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => connect(self.address).ok_or(Some(Fault::Connect))?,
        };
        let end = Instant::now() + timeout;
        let answer = match &mut self.kind {
            Kind::Http(target) => exchange(&mut **target, &mut stream, end, stop),
            Kind::Iiop(target) => exchange(&mut **target, &mut stream, end, stop),
        }?;
        if answer.reusable && !self.once {
            self.stream = Some(stream);
        }
        match answer.fault {
            Some(fault) => Err(Some(fault)),
            None => Ok(answer.member),
        }
    }
}

fn connect(address: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, CONNECT).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(LOOK)).ok()?;
    Some(stream)
}

/// Sends one request and reads its answer.
fn exchange<T: Target>(
    target: &mut T,
    stream: &mut TcpStream,
    end: Instant,
    stop: &AtomicBool,
) -> Result<Answer, Option<Fault>> {
    let mut ask = target.request();
    stream.write_all(&ask.bytes).map_err(|_| Some(Fault::Closed))?;
    let mut buffer = [0; 16 * 1024];
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(0) => return target.end(&mut ask.state).ok_or(Some(Fault::Closed)),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if stop.load(Relaxed) {
                    return Err(None);
                }
                if Instant::now() >= end {
                    return Err(Some(Fault::Timeout));
                }
                continue;
            }
            Err(_) => return Err(Some(Fault::Closed)),
        };
        match target.answer(&mut ask.state, &buffer[..count]) {
            Step::More => {}
            Step::Done(answer) => return Ok(answer),
            // These clients are never redirected: each server is final.
            Step::Malformed | Step::Elsewhere(_) | Step::Back => return Err(Some(Fault::Malformed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn who_answers_is_told_and_the_connection_is_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = Vec::new();
            for _ in 0..2 {
                let mut buffer = [0; 4096];
                let mut request = Vec::new();
                while !request.ends_with(&[0, 1, 2]) {
                    let count = stream.read(&mut buffer).unwrap();
                    request.extend_from_slice(&buffer[..count]);
                }
                seen.push(request);
                stream.write_all(b"HTTP/1.1 200 OK\r\nx-member: m2\r\ncontent-length: 0\r\n\r\n").unwrap();
            }
            seen
        });
        let mut caller = Caller::new(&Door::Http(address), Plug::Bring(3)).unwrap();
        let stop = AtomicBool::new(false);
        for _ in 0..2 {
            let said = caller.call(Duration::from_secs(60), &stop).unwrap();
            assert_eq!(said.as_deref(), Some("m2"));
        }
        let seen = server.join().unwrap();
        assert!(seen[0].starts_with(b"POST /receive HTTP/1.1\r\n") && seen[0] == seen[1]);
    }

    #[test]
    fn a_call_that_is_not_answered_ends_with_the_run_or_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let door = Door::Http(listener.local_addr().unwrap());
        let mut caller = Caller::new(&door, Plug::Call(0)).unwrap();
        let call = |caller: &mut Caller, over| {
            caller.call(Duration::from_millis(150), &AtomicBool::new(over)).unwrap_err()
        };
        assert_eq!(call(&mut caller, false), Some(Fault::Timeout));
        assert_eq!(call(&mut caller, true), None);
    }
}
