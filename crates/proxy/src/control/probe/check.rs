//! One health check: a connection, and for HTTP and IIOP one request and (the head of) its response.

use std::io;
use std::net::SocketAddr;

use plimsoll_wire::http1;
use plimsoll_wire::proxy_protocol;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{ProbeTarget, http2_probe};
use crate::ProbeKind;
use crate::net::tls;
use crate::protocol::iiop::locate::{self, LocateAnswer};
use crate::upstream::connect::{self, is_local_failure};

/// The maximum size of a response's head, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// Returns the PROXY protocol header for members that expect one: it states that this is no client.
pub(super) fn encode_proxy_header(send_proxy: Option<u8>) -> Vec<u8> {
    let mut header = Vec::new();
    if let Some(version) = send_proxy {
        proxy_protocol::write(connect::proxy_version(version), None, &mut header);
    }
    header
}

/// Returns the request for `path`.
pub(super) fn request(path: &str, host: &str) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: plimsoll/{version}\r\nAccept: */*\r\n\
         Connection: close\r\n\r\n"
    );
    head.into_bytes()
}

/// Runs one check without a time limit of its own. The inner error is the reason why the member failed, for
/// people.
///
/// # Errors
/// This process has no file descriptor, memory or port left for a check, which is no finding about the
/// member.
pub(super) async fn check_member(
    target: &ProbeTarget,
    address: SocketAddr,
) -> io::Result<Result<(), String>> {
    match TcpStream::connect(address).await {
        Ok(stream) => Ok(check_on(stream, target).await),
        Err(error) if is_local_failure(&error, address) => Err(error),
        Err(error) => Ok(Err(describe_error(&error))),
    }
}

async fn check_on(mut stream: TcpStream, target: &ProbeTarget) -> Result<(), String> {
    // The connection ends with a reset, also if the check is abandoned.
    let _ = stream.set_zero_linger();
    if !target.proxy_header.is_empty() {
        stream.write_all(&target.proxy_header).await.map_err(|error| describe_error(&error))?;
    }
    if let Some((tls, name)) = &target.tls
        && target.settings.kind != ProbeKind::Iiop
    {
        let tls_stream = tls::reach(tls, name, stream).await.map_err(|error| format!("TLS: {error}"))?;
        return check_stream(tls_stream, target).await;
    }
    match &target.settings.kind {
        ProbeKind::Iiop => match locate::ask(stream, &target.request).await {
            LocateAnswer::Here | LocateAnswer::ForwardsAway => Ok(()),
            LocateAnswer::NotHere(reason) => Err(reason),
        },
        ProbeKind::Tcp | ProbeKind::Http { .. } | ProbeKind::Grpc { .. } => {
            check_stream(stream, target).await
        }
    }
}

/// Returns the finding about a member on a connection.
async fn check_stream(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    target: &ProbeTarget,
) -> Result<(), String> {
    match &target.settings.kind {
        // The member accepts connections, and with TLS has proved its identity.
        ProbeKind::Tcp | ProbeKind::Iiop => Ok(()),
        ProbeKind::Grpc { host, .. } => {
            http2_probe::check_health(stream, target, host.as_deref().unwrap_or(&target.name)).await
        }
        ProbeKind::Http { path, host, expect } => {
            let status = match target.http2 {
                false => get(stream, &target.request).await?,
                true => {
                    http2_probe::get(stream, target, path, host.as_deref().unwrap_or(&target.name)).await?
                }
            };
            check_status(status, path, *expect)
        }
    }
}

/// Returns the finding of a status: valid is only the expected one, or without one any of success.
fn check_status(status: u16, path: &str, expect: Option<u16>) -> Result<(), String> {
    // Most often the server works, and the path is wrong.
    let hint = match status {
        404 => format!(": it has no {path}; is `http` of the health check the right path?"),
        _ => String::new(),
    };
    match expect {
        Some(expected) if status == expected => Ok(()),
        Some(expected) => Err(format!("answered {status} rather than {expected}{hint}")),
        None if (200..400).contains(&status) => Ok(()),
        None => Err(format!("answered {status}{hint}")),
    }
}

/// Returns the status of the response to a request.
async fn get(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &[u8]) -> Result<u16, String> {
    stream.write_all(request).await.map_err(|error| describe_error(&error))?;
    let mut head = Vec::with_capacity(1024);
    loop {
        if stream.read_buf(&mut head).await.map_err(|error| describe_error(&error))? == 0 {
            return Err("closed the connection before it answered".into());
        }
        if let Some(status) = http1::final_status(&head, MAX_HEAD).map_err(|error| error.to_string())? {
            return Ok(status);
        }
    }
}

fn describe_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
        io::ErrorKind::ConnectionReset => "connection reset".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_found_is_most_often_the_path() {
        assert_eq!(check_status(204, "/up", None), Ok(()));
        assert_eq!(check_status(404, "/up", Some(404)), Ok(()));
        assert_eq!(check_status(503, "/up", None), Err("answered 503".into()));
        assert_eq!(check_status(200, "/up", Some(204)), Err("answered 200 rather than 204".into()));
        for expect in [None, Some(200)] {
            let error = check_status(404, "/up", expect).unwrap_err();
            assert!(
                error.starts_with("answered 404")
                    && error.contains("it has no /up; is `http` of the health check"),
                "{error}"
            );
        }
    }
}
