//! A client's connection, over which it calls and waits for the answer.
//!
//! A [`RequestTarget`], the same as for the load generator, defines the requests and their answers. This
//! module carries its bytes on a blocking thread.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::super::LabError;
use super::super::load_driver::LoadDestination;
use crate::record::FailureKind;
use crate::target::{AnswerProgress, HttpRequest, HttpTarget, IiopTarget, RequestTarget, TargetAnswer};

/// The time-out of a connection, and the time between two checks for the end of the run.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(900);
const READ_TIMEOUT: Duration = Duration::from_millis(100);

/// The purpose of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionPurpose {
    /// To ask for a server.
    Bind,
    /// To deliver a message of this many bytes to a server.
    Deliver(usize),
    /// To call with this many bytes.
    Call(usize),
}

/// A connection that is established on demand.
pub(super) struct AppCaller {
    target: CallerTarget,
    address: SocketAddr,
    stream: Option<TcpStream>,
    /// Whether each call takes a new connection.
    reconnects_per_call: bool,
}

enum CallerTarget {
    Http(Box<HttpTarget>),
    Iiop(Box<IiopTarget>),
}

impl AppCaller {
    /// Creates a caller for this destination.
    pub(super) fn new(destination: &LoadDestination, purpose: ConnectionPurpose) -> Result<Self, LabError> {
        let failed = |error: &dyn std::fmt::Display| {
            LabError::failed(format!("no client of the application: {error}"))
        };
        let caller_target = match destination {
            LoadDestination::Http(address) => {
                // HTTP has no operation that only names the server: the cheapest request of a member is used.
                let (method, path, length) = match purpose {
                    ConnectionPurpose::Bind => ("GET", "/_plimsoll/count", 0),
                    ConnectionPurpose::Deliver(length) => ("POST", "/receive", length),
                    ConnectionPurpose::Call(length) => ("POST", "/", length),
                };
                let body: Vec<u8> = (0..length).map(|n| n as u8).collect();
                let request = HttpRequest::new(method, &format!("http://{address}{path}"), &[], &body);
                let target = request.and_then(|request| HttpTarget::sequence(vec![request]));
                CallerTarget::Http(Box::new(target.map_err(|error| failed(&error))?))
            }
            LoadDestination::Iiop(reference) => {
                let (follows_forwards, length) = match purpose {
                    ConnectionPurpose::Bind => (false, 0),
                    ConnectionPurpose::Deliver(length) | ConnectionPurpose::Call(length) => (true, length),
                };
                let target = IiopTarget::new(reference, follows_forwards).map_err(|error| failed(&error))?;
                CallerTarget::Iiop(Box::new(target.padded(length)))
            }
            LoadDestination::Lottery(_) => return Err(failed(&"a lottery forwards nothing")),
        };
        let first_address = match &caller_target {
            CallerTarget::Http(target) => target.addresses().first(),
            CallerTarget::Iiop(target) => target.addresses().first(),
        };
        let address = *first_address.ok_or_else(|| failed(&"no address"))?;
        // An ORB that returns over the same connection is not redirected again: each bind needs a new one.
        let reconnects_per_call =
            matches!((&caller_target, purpose), (CallerTarget::Iiop(_), ConnectionPurpose::Bind));
        Ok(Self { target: caller_target, address, stream: None, reconnects_per_call })
    }

    /// Calls, and returns the name of the member that answered.
    ///
    /// # Errors
    /// Returns the fault; `None` if the call was abandoned because `stop` became `true`.
    pub(super) fn call(
        &mut self,
        timeout: Duration,
        stop: &AtomicBool,
    ) -> Result<Option<Arc<str>>, Option<FailureKind>> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => connect(self.address).ok_or(Some(FailureKind::Connect))?,
        };
        let deadline = Instant::now() + timeout;
        let answer = match &mut self.target {
            CallerTarget::Http(target) => exchange(&mut **target, &mut stream, deadline, stop),
            CallerTarget::Iiop(target) => exchange(&mut **target, &mut stream, deadline, stop),
        }?;
        if answer.reusable && !self.reconnects_per_call {
            self.stream = Some(stream);
        }
        match answer.failure {
            Some(failure) => Err(Some(failure)),
            None => Ok(answer.member),
        }
    }
}

fn connect(address: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(READ_TIMEOUT)).ok()?;
    Some(stream)
}

/// Sends one request and reads its answer.
fn exchange<T: RequestTarget>(
    target: &mut T,
    stream: &mut TcpStream,
    deadline: Instant,
    stop: &AtomicBool,
) -> Result<TargetAnswer, Option<FailureKind>> {
    let mut request = target.next_request();
    stream.write_all(&request.bytes).map_err(|_| Some(FailureKind::Closed))?;
    let mut buffer = [0; 16 * 1024];
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(0) => return target.connection_ended(&mut request.state).ok_or(Some(FailureKind::Closed)),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if stop.load(Relaxed) {
                    return Err(None);
                }
                if Instant::now() >= deadline {
                    return Err(Some(FailureKind::Timeout));
                }
                continue;
            }
            Err(_) => return Err(Some(FailureKind::Closed)),
        };
        match target.consume_answer(&mut request.state, &buffer[..count]) {
            AnswerProgress::Incomplete => {}
            AnswerProgress::Complete(answer) => return Ok(answer),
            // These clients are never redirected: each server is final.
            AnswerProgress::Malformed | AnswerProgress::Redirected(_) | AnswerProgress::ReturnedToOrigin => {
                return Err(Some(FailureKind::Malformed));
            }
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
            let mut requests = Vec::new();
            for _ in 0..2 {
                let mut buffer = [0; 4096];
                let mut request = Vec::new();
                while !request.ends_with(&[0, 1, 2]) {
                    let count = stream.read(&mut buffer).unwrap();
                    request.extend_from_slice(&buffer[..count]);
                }
                requests.push(request);
                stream.write_all(b"HTTP/1.1 200 OK\r\nx-member: m2\r\ncontent-length: 0\r\n\r\n").unwrap();
            }
            requests
        });
        let mut caller =
            AppCaller::new(&LoadDestination::Http(address), ConnectionPurpose::Deliver(3)).unwrap();
        let stop = AtomicBool::new(false);
        for _ in 0..2 {
            let member = caller.call(Duration::from_secs(60), &stop).unwrap();
            assert_eq!(member.as_deref(), Some("m2"));
        }
        let requests = server.join().unwrap();
        assert!(requests[0].starts_with(b"POST /receive HTTP/1.1\r\n") && requests[0] == requests[1]);
    }

    #[test]
    fn a_call_that_is_not_answered_ends_with_the_run_or_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let destination = LoadDestination::Http(listener.local_addr().unwrap());
        let mut caller = AppCaller::new(&destination, ConnectionPurpose::Call(0)).unwrap();
        let call = |caller: &mut AppCaller, run_ended| {
            caller.call(Duration::from_millis(150), &AtomicBool::new(run_ended)).unwrap_err()
        };
        assert_eq!(call(&mut caller, false), Some(FailureKind::Timeout));
        assert_eq!(call(&mut caller, true), None);
    }
}
