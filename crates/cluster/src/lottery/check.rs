//! Is the server there? Checked as a balancer checks its members: a connection, or a GET and its status, some times in a row
//! before it counts (`plimsoll_brain::Health`). A server that was not checked yet gets nothing.

use std::net::SocketAddr;

use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::{CONNECTION, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use plimsoll_brain::{Health, Verdict};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::{HttpCheck, Order, Service};
use crate::pull::{Ends, chance};

/// Checks a server for as long as there is a daemon to tell.
pub(super) async fn watch(service: Service, orders: Option<mpsc::Sender<Order>>) {
    let (Some(check), Some(orders)) = (&service.check, orders) else { return };
    let mut health = Health::unchecked();
    loop {
        let begun = Instant::now();
        let outcome = match timeout(check.timeout, ask(service.server, check.http.as_ref())).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("no answer within {} s", check.timeout.as_secs_f64())),
        };
        let turned = health.record(outcome.as_ref().copied().map_err(String::as_str), &check.spec);
        let ready = health.verdict == Verdict::Up;
        if turned.is_some() {
            let state = if ready { "up" } else { "down" };
            tracing::info!("service {}: server {} is {state}: {}", service.name, service.server, health.why);
        }
        // Also when nothing changed: it costs nothing.
        if orders.send(Order::Ready { service: service.id, ready }).await.is_err() {
            return;
        }
        sleep_until(begun + check.interval.mul_f64(0.9 + 0.2 * chance())).await;
    }
}

/// Asks once; why it failed, for people. Takes as long as it takes.
async fn ask(server: SocketAddr, http: Option<&HttpCheck>) -> Result<(), String> {
    let stream = TcpStream::connect(server).await.map_err(|error| error.to_string())?;
    // However this ends, and if it is given up: with a reset.
    let _ = stream.set_zero_linger();
    let Some(http) = http else { return Ok(()) };
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(64 * 1024)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let _driver = Ends(tokio::spawn(connection).abort_handle());
    let request = Request::get(&http.path)
        .header(HOST, &http.host)
        .header(USER_AGENT, concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
        .header(CONNECTION, "close")
        .body(Empty::new())
        .map_err(|error| error.to_string())?;
    let status = sender.send_request(request).await.map_err(|error| error.to_string())?.status().as_u16();
    match http.expect {
        Some(expected) if status == expected => Ok(()),
        Some(expected) => Err(format!("answered {status} rather than {expected}")),
        None if (200..400).contains(&status) => Ok(()),
        None => Err(format!("answered {status}")),
    }
}
