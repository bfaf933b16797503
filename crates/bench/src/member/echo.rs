//! TCP and UDP members: they echo their input after a service time.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::MemberState;

/// Echoes the bytes of one TCP client until it sends no more; each read takes one service time.
pub(super) async fn connection(mut stream: TcpStream, member: &MemberState) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stopping = member.stopping.clone();
    if member.spec.greet {
        stream.write_all(format!("{}\n", member.name).as_bytes()).await?;
    }
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = tokio::select! {
            count = stream.read(&mut buffer) => count?,
            _ = stopping.changed() => 0,
        };
        if count == 0 || member.worker_pool.serve(false).await.is_err() {
            return stream.shutdown().await;
        }
        stream.write_all(&buffer[..count]).await?;
    }
}

/// Echoes datagrams forever.
pub(super) async fn datagrams(socket: UdpSocket, member: Rc<MemberState>) {
    let socket = Rc::new(socket);
    let in_flight = Rc::new(Cell::new(0));
    let max_in_flight = member.spec.workers.saturating_add(member.spec.queue_limit);
    let greeting = if member.spec.greet { format!("{} ", member.name) } else { String::new() };
    let mut buffer = vec![0; 64 * 1024];
    loop {
        // The error belongs to an earlier answer that could not be delivered.
        let Ok((count, client)) = socket.recv_from(&mut buffer).await else { continue };
        if in_flight.get() >= max_in_flight {
            continue;
        }
        in_flight.set(in_flight.get() + 1);
        let answer = [greeting.as_bytes(), &buffer[..count]].concat();
        let (socket, member, in_flight) = (socket.clone(), member.clone(), in_flight.clone());
        tokio::task::spawn_local(async move {
            if member.worker_pool.serve(false).await.is_ok() {
                // The client has gone or the answer is too long: the datagram is lost.
                let _ = socket.send_to(&answer, client).await;
            }
            in_flight.set(in_flight.get() - 1);
        });
    }
}
