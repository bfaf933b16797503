//! One probe: a connection, and for http and iiop one request and (the head of) its answer.

use std::io;

use plimsoll_wire::http1::{self, Marks};
use plimsoll_wire::proxy_protocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Target;
use crate::iiop::question::{self, Answer};
use crate::{ProbeKind, preface};

/// Bytes of an answer's head that are read before it is given up.
const MAX_HEAD: usize = 16 * 1024;

/// What is sent to ask for `path`. A member that expects to be told who the client is, is told that this is no
/// client.
pub(super) fn request(path: &str, host: &str, send_proxy: Option<u8>) -> Vec<u8> {
    let mut request = Vec::new();
    if let Some(version) = send_proxy {
        proxy_protocol::write(preface::version(version), None, &mut request);
    }
    let version = env!("CARGO_PKG_VERSION");
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: plimsoll/{version}\r\nAccept: */*\r\n\
         Connection: close\r\n\r\n"
    );
    request.extend_from_slice(head.as_bytes());
    request
}

/// Probes once; why it failed, for people. Takes as long as it takes.
pub(super) async fn ask(target: &Target) -> Result<(), String> {
    let stream = TcpStream::connect(target.address).await.map_err(|error| told(&error))?;
    // However this ends, and if it is given up: with a reset.
    let _ = stream.set_zero_linger();
    match &target.settings.kind {
        ProbeKind::Tcp => Ok(()),
        ProbeKind::Iiop => match question::ask(stream, &target.request).await {
            Answer::Here | Answer::Elsewhere => Ok(()),
            Answer::Not(why) => Err(why),
        },
        ProbeKind::Http { expect, .. } => {
            let status = get(stream, &target.request).await?;
            match expect {
                Some(expected) if status == *expected => Ok(()),
                Some(expected) => Err(format!("answered {status} rather than {expected}")),
                None if (200..400).contains(&status) => Ok(()),
                None => Err(format!("answered {status}")),
            }
        }
    }
}

/// The status of the answer to a request.
async fn get(mut stream: TcpStream, request: &[u8]) -> Result<u16, String> {
    stream.write_all(request).await.map_err(|error| told(&error))?;
    let mut head = Vec::with_capacity(1024);
    let mut marks = Marks::default();
    let mut begin = 0;
    loop {
        if stream.read_buf(&mut head).await.map_err(|error| told(&error))? == 0 {
            return Err("closed the connection before it answered".into());
        }
        while let Some(answer) =
            http1::response(&head[begin..], MAX_HEAD, false, &mut marks).map_err(|bad| bad.to_string())?
        {
            if !answer.interim() {
                return Ok(answer.status);
            }
            begin += answer.len;
            if begin > MAX_HEAD {
                return Err("answered with nothing but interim answers".into());
            }
        }
    }
}

fn told(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
        io::ErrorKind::ConnectionReset => "connection reset".into(),
        _ => error.to_string(),
    }
}
