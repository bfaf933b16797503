//! Tests of report streams from a scripted HTTP/2 server.

use std::future::Future;

use h2::server::{SendResponse, handshake};
use hyper::{HeaderMap, Response};
use tokio::net::TcpListener;

use super::*;
use crate::{Expression, GroupSettings, MemberSettings, MetricSource, MonitorSettings, MonitorTarget};

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// Returns the target for a member at `port`, ten times a second.
fn scrape_target(port: u16) -> ScrapeTarget {
    let monitor = MonitorSettings {
        source: MetricSource::OrcaOob,
        metric: Expression::new("cpu_utilization").unwrap(),
        interval: Duration::from_millis(100),
        target: MonitorTarget { host: None, port: None, path: "/".into(), timeout: Duration::from_secs(60) },
    };
    let member = MemberSettings {
        name: "one".into(),
        address: ([127, 0, 0, 1], port).into(),
        capacity: 1.0,
        host: None,
    };
    let group =
        GroupSettings { name: "web".into(), members: vec![member], monitor: Some(monitor), weight: None };
    crate::scrape::scrape_targets(&group).remove(0).1
}

/// Receives the reports of a member that responds with `answer`. Returns the results, and the end of the
/// call.
fn received_reports<F: Future<Output = ()> + Send + 'static>(
    answer: impl FnOnce(SendResponse<Bytes>) -> F + Send + 'static,
) -> (Vec<ScrapeResult>, StreamEnd) {
    run(async {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let (stream, _) = socket.accept().await.unwrap();
            let mut connection = handshake(stream).await.unwrap();
            let (request, respond) = connection.accept().await.unwrap().unwrap();
            assert_eq!(request.uri().path(), "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics");
            tokio::spawn(answer(respond));
            while connection.accept().await.is_some() {}
        });
        let mut outcomes = Vec::new();
        let over = receive_reports(&scrape_target(port), |outcome| outcomes.push(outcome)).await;
        server.abort();
        (outcomes, over)
    })
}

fn head(status: u16) -> Response<()> {
    Response::builder().status(status).header("content-type", "application/grpc").body(()).unwrap()
}

fn trailers(status: &'static str, message: &'static str) -> HeaderMap {
    let fields = [("grpc-status", status), ("grpc-message", message)];
    let fields = fields.map(|(name, value)| (name.try_into().unwrap(), value.try_into().unwrap()));
    fields.into_iter().collect()
}

/// Returns a framed report with this CPU utilization, and with a metric whose name is invalid for a figure.
fn framed(cpu: f64) -> Vec<u8> {
    let mut message = vec![9];
    message.extend_from_slice(&cpu.to_le_bytes());
    message.extend_from_slice(b"\x42\x0e\x0a\x03a/b\x11\0\0\0\0\0\0\xf0\x3f");
    let mut frame = vec![0, 0, 0, 0, message.len() as u8];
    frame.extend(message);
    frame
}

#[test]
fn reports_are_taken_as_they_come_however_they_are_cut() {
    let (outcomes, over) = received_reports(|mut respond| async move {
        let mut out = respond.send_response(head(200), false).unwrap();
        let bytes = framed(0.5);
        out.send_data(Bytes::copy_from_slice(&bytes[..7]), false).unwrap();
        out.send_data(Bytes::copy_from_slice(&bytes[7..]), false).unwrap();
        // Of simultaneous reports only the last one counts.
        out.send_data([framed(0.6), framed(0.7)].concat().into(), false).unwrap();
        out.send_data(Bytes::from_static(b"\0\0\0\0\x01\x09"), false).unwrap();
        out.send_trailers(trailers("14", "gone")).unwrap();
    });
    let cpu = |value| Ok(vec![MetricSample::new("cpu_utilization".to_owned(), value, Duration::ZERO)]);
    assert_eq!((&outcomes[0], &outcomes[1]), (&cpu(0.5), &cpu(0.7)));
    assert!(outcomes[2].as_ref().is_err_and(|why| why.contains("cut short")) && outcomes.len() == 3);
    assert_eq!((&*over.why, over.unsupported_by.is_none()), ("ended with grpc-status 14: gone", true));
}

#[test]
fn a_member_without_the_service_keeps_its_connection() {
    let (outcomes, over) = received_reports(|mut respond| async move {
        let mut head = head(200);
        head.headers_mut().insert("grpc-status", "12".parse().unwrap());
        respond.send_response(head, true).unwrap();
    });
    assert!(outcomes.is_empty() && over.unsupported_by.is_some(), "{}", over.why);
}

#[test]
fn what_is_no_stream_of_reports_is_over() {
    let why = |status, content: &'static [u8]| {
        let (outcomes, over) = received_reports(move |mut respond| async move {
            let mut out = respond.send_response(head(status), false).unwrap();
            out.send_data(Bytes::from_static(content), true).unwrap();
        });
        assert!(outcomes.is_empty() && over.unsupported_by.is_none());
        over.why
    };
    assert_eq!(why(404, b""), "answered 404");
    assert_eq!(why(200, b"\x01\0\0\0\x01\x09"), "the message is compressed");
    assert_eq!(why(200, b"\0\x7f\0\0\0"), "the message is too long");
    assert_eq!(why(200, b""), "ended without grpc-status");
}
