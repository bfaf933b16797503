//! The balancer's own responses by routes, to clients that read slowly.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use plimsoll_brain::route::RouteRule;
use plimsoll_proxy::{
    ClientTimeouts, ListenerRoutes, ListenerSettings, Protocol, ResponseSettings, RouteAction, RouteSettings,
};

use crate::rig::{group, home, listener, start, steadily, within};
use crate::second::client;

/// The maximum time without a byte that the client accepts.
const BODY: Duration = Duration::from_millis(800);
/// The size of the response: several times what a client's window takes.
const SIZE: usize = 1 << 20;

fn responding() -> ListenerSettings {
    let response =
        ResponseSettings { status: 200, content_type: "text/plain".into(), body: vec![b'x'; SIZE].into() };
    let route = RouteSettings {
        name: "page".into(),
        rule: RouteRule::default(),
        action: RouteAction::Respond(response),
    };
    let settings = listener(Protocol::Http);
    let timeouts = ClientTimeouts { body: BODY, ..settings.timeouts };
    ListenerSettings { timeouts, routes: Some(Arc::new(ListenerRoutes::new(vec![route], false))), ..settings }
}

#[tokio::test]
async fn a_client_may_read_for_as_long_as_it_reads() {
    within(async {
        // No request goes to the member.
        let (_engine, address) = start(responding(), group(&[home()]));
        loop {
            let (sender, _connection) = client(address).await;
            let mut sender = sender.ready().await.unwrap();
            let request = Request::get("http://web.example/").body(()).unwrap();
            let (response, _) = sender.send_request(request, true).unwrap();
            let mut body = response.await.unwrap().into_body();
            let mut received = 0;
            // Longer than the timeout, and without a pause as long.
            let steady = steadily(BODY, async || {
                let Some(Ok(piece)) = body.data().await else { return false };
                received += piece.len();
                body.flow_control().release_capacity(piece.len()).is_ok()
            });
            if !steady.await {
                continue;
            }
            while let Some(piece) = body.data().await {
                let piece = piece.unwrap();
                received += piece.len();
                body.flow_control().release_capacity(piece.len()).unwrap();
            }
            break assert_eq!(received, SIZE);
        }
    })
    .await;
}
