//! How connections of HTTP/2 end: not before what is on its way has arrived.

use bytes::Bytes;
use h2::server;
use http::{Response, StatusCode};
use plimsoll_proxy::{ClientTimeouts, GroupSettings, ListenerSettings, Protocol, RetrySettings};
use tokio::io::AsyncWriteExt;

use crate::frames::*;
use crate::rig::{MILLI, SECOND, listener, start, within};
use crate::second::*;

#[tokio::test]
async fn a_client_that_reads_slowly_gets_all_of_it() {
    const ALL: usize = 3 << 20;
    within(async {
        let (member, _) = second(100, |_, mut respond: server::SendResponse<Bytes>| async move {
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            let _ = send_all(&mut stream, Bytes::from(vec![b'x'; ALL]), true).await;
        })
        .await;
        let timeouts = ClientTimeouts { idle: SECOND, ..listener(Protocol::Http).timeouts };
        let hasty = ListenerSettings { timeouts, ..listener(Protocol::Http) };
        let (_engine, address) = start(hasty, to_second(&[member]));
        let mut client = raw_client(address).await;
        // All of it fits into its windows, and into the kernel's buffers: for us it is over at once.
        let window = [&[0, 4][..], &(1_u32 << 30).to_be_bytes()].concat();
        client.write_all(&frame(SETTINGS, 0, 0, &window)).await.unwrap();
        client.write_all(&frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes())).await.unwrap();
        client.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, HEAD)).await.unwrap();
        let (mut came, mut paused, mut ended) = (0, 0, false);
        while let Some((kind, flags, _, payload)) = next(&mut client).await {
            if kind != DATA {
                continue;
            }
            came += payload.len();
            ended |= flags & END_STREAM != 0;
            if came - paused >= 128 << 10 {
                paused = came;
                let more = u32::try_from(payload.len()).unwrap().to_be_bytes();
                // Once the connection is closed it cannot be told.
                let _ = client.write_all(&frame(WINDOW_UPDATE, 0, 0, &more)).await;
                tokio::time::sleep(200 * MILLI).await;
            }
        }
        assert_eq!((came, ended), (ALL, true));
    })
    .await;
}

#[tokio::test]
async fn what_a_member_did_not_take_any_more_is_asked_again_of_the_same() {
    within(async {
        // Its first connection is for one request, however many are on it.
        let (member, _) = raw_member(|number, stream| match (number, stream) {
            (1, 1) => ([frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]), ok(1)].concat(), true),
            (1, _) => (Vec::new(), true),
            _ => (ok(stream), true),
        })
        .await;
        let group = to_second(&[member]);
        let (_engine, address) =
            http(GroupSettings { retry: RetrySettings { attempts: 0, ..group.retry }, ..group });
        let (sender, _end) = client(address).await;
        let asked: Vec<_> = (0..3)
            .map(|_| {
                let sender = sender.clone();
                tokio::spawn(async move { get(&sender, "/").await.unwrap().0.status() })
            })
            .collect();
        for one in asked {
            assert_eq!(one.await.unwrap(), StatusCode::OK);
        }
    })
    .await;
}
