//! What a server tells an agent or a daemon beside it: how many requests it has, as `in_flight`, four times a second, by
//! `POST /v1/report`. Nothing comes of an agent that is not there: it is told when it is.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::Member;

/// Between two.
const EACH: Duration = Duration::from_millis(250);

/// Tells for ever.
pub(super) async fn tell(to: SocketAddr, member: Rc<Member>) {
    let mut tick = interval(EACH);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        // The next one says more than a repetition of this.
        let _ = timeout(EACH, once(to, member.in_flight.get())).await;
    }
}

async fn once(to: SocketAddr, in_flight: usize) -> io::Result<()> {
    let body = format!("name=in_flight&value={in_flight}");
    let request = format!(
        "POST /v1/report HTTP/1.1\r\nhost: {to}\r\ncontent-type: application/x-www-form-urlencoded\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(to).await?;
    stream.write_all(request.as_bytes()).await?;
    // Until it has been taken.
    let mut answer = Vec::new();
    stream.take(4096).read_to_end(&mut answer).await.map(drop)
}
