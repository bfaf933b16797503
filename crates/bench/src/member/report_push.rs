//! The reports of a server to an agent or a daemon beside it, or to a balancer, four times a second by `POST
//! /v1/report`.
//!
//! They hold the number of requests as `in_flight`, as one member or as several. On request they also hold
//! the number of emulated cores or workers, as `cpus`, and the share of them in use since the last report, as
//! `cpu`. Failed reports are ignored, so an agent may start later.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::MemberState;

/// The time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// Sends reports forever.
pub(super) async fn push_reports(report_address: SocketAddr, member: Rc<MemberState>) {
    let mut tick = interval(REPORT_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut previous = (Instant::now(), member.worker_pool.capacity_and_busy().1);
    loop {
        tick.tick().await;
        let (now, (cores, busy)) = (Instant::now(), member.worker_pool.capacity_and_busy());
        let seconds = now.duration_since(previous.0).as_secs_f64();
        let utilization = if seconds > 0.0 { (busy - previous.1) / seconds / cores } else { 0.0 };
        previous = (now, busy);
        // A failed report is not repeated: the next one is fresher.
        let mut body = format!("name=in_flight&value={}", member.in_flight.get());
        if member.spec.report_utilization {
            body += &format!("&cpus={cores}&cpu={:.4}", utilization.clamp(0.0, 1.0));
        }
        let names = &member.spec.report_as;
        if names.is_empty() {
            let _ = timeout(REPORT_INTERVAL, push_report(report_address, &body)).await;
        }
        for name in names {
            let _ =
                timeout(REPORT_INTERVAL, push_report(report_address, &format!("member={name}&{body}"))).await;
        }
    }
}

async fn push_report(report_address: SocketAddr, body: &str) -> io::Result<()> {
    let request = format!(
        "POST /v1/report HTTP/1.1\r\nhost: {report_address}\r\ncontent-type: \
         application/x-www-form-urlencoded\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(report_address).await?;
    stream.write_all(request.as_bytes()).await?;
    // Reads until the receiver has taken the report.
    let mut answer = Vec::new();
    stream.take(4096).read_to_end(&mut answer).await.map(drop)
}
