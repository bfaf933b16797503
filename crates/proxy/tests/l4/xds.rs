//! xDS by a client that behaves unlike those of gRPC: it rejects responses, leaves, sends invalid messages.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use plimsoll_brain::EventKind;
use plimsoll_proxy::{BindingMode, Engine, GroupSettings, ListenerSettings, Protocol};
use plimsoll_wire::xds::{
    CLUSTER, Cluster, ClusterLoadAssignment, ClusterStats, DISCOVERY, DiscoveryRequest, DiscoveryResponse,
    ENDPOINTS, FrameDecoder, LISTENER, LOAD_REPORTS, LoadStatsRequest, LoadStatsResponse, Locality,
    LocalityStats, Message, Node, PREFIX, RpcStatus, encode_frame,
};

use crate::rig::{HOUR, MILLI, by, group, listener, settings, start_with, status_of, until, within};
use crate::second::{answer, client};

fn members() -> Vec<SocketAddr> {
    (1..=3).map(|host| ([10, 9, 8, host], 80).into()).collect()
}

fn started(group: GroupSettings) -> (Engine, SocketAddr) {
    let listener = ListenerSettings { binding: BindingMode::PerRequest, ..listener(Protocol::Xds) };
    start_with(settings(listener, group))
}

/// A call of a method with messages in both directions.
struct Call {
    out: SendStream<Bytes>,
    body: RecvStream,
    frames: FrameDecoder,
}

impl Call {
    /// Begins a call; `first` is sent before anything is received.
    async fn begin(sender: &SendRequest<Bytes>, path: &str, first: &impl Message) -> Self {
        let mut sender = sender.clone().ready().await.unwrap();
        let request =
            Request::post(format!("http://lb.example{path}")).header("content-type", "application/grpc");
        let (response, mut out) = sender.send_request(request.body(()).unwrap(), false).unwrap();
        out.send_data(encode_frame(first).into(), false).unwrap();
        let body = response.await.unwrap().into_body();
        Self { out, body, frames: FrameDecoder::new(1 << 20) }
    }

    fn say(&mut self, message: &impl Message) {
        self.out.send_data(encode_frame(message).into(), false).unwrap();
    }

    /// Returns the next message; `None` at the end.
    async fn hear<M: Message + Default>(&mut self) -> Option<M> {
        loop {
            if let Some(message) = self.frames.next_message().unwrap() {
                return Some(M::decode(&message[..]).unwrap());
            }
            let piece = self.body.data().await?.unwrap();
            self.body.flow_control().release_capacity(piece.len()).unwrap();
            self.frames.push(&piece);
        }
    }

    /// Checks that nothing arrives for a while; on a slow machine, nothing arrives either.
    async fn silence(&mut self, span: Duration) {
        let heard = tokio::time::timeout(span, self.hear::<DiscoveryResponse>()).await;
        assert!(heard.is_err(), "{heard:?}");
    }

    /// Returns the trailers with which the call ends.
    async fn end(mut self) -> HeaderMap {
        while let Some(piece) = self.body.data().await {
            self.body.flow_control().release_capacity(piece.unwrap().len()).unwrap();
        }
        self.body.trailers().await.unwrap().unwrap()
    }
}

fn ask(kind: &str, name: &str, nonce: &str) -> DiscoveryRequest {
    DiscoveryRequest {
        node: Some(Node { id: "test".into(), ..Node::default() }),
        resource_names: vec![name.into()],
        type_url: format!("{PREFIX}{kind}"),
        response_nonce: nonce.into(),
        ..DiscoveryRequest::default()
    }
}

/// Returns the last part of each member's address, and its weight.
fn weights(answer: &DiscoveryResponse) -> Vec<(String, u32)> {
    let told = ClusterLoadAssignment::decode(&answer.resources[0].value[..]).unwrap();
    let one = |place: &plimsoll_wire::xds::LocalityEndpoints| {
        let member = place.locality.as_ref().unwrap().sub_zone.clone();
        (member, place.load_balancing_weight.unwrap().value)
    };
    told.endpoints.iter().map(one).collect()
}

async fn endpoints(address: SocketAddr) -> (Call, Vec<(String, u32)>, String) {
    let (sender, _end) = client(address).await;
    let mut call = Call::begin(&sender, DISCOVERY, &ask(ENDPOINTS, "g", "")).await;
    let told: DiscoveryResponse = call.hear().await.unwrap();
    let weights = weights(&told);
    (call, weights, told.nonce)
}

#[tokio::test]
async fn a_client_is_told_what_it_asks_for_and_again_when_that_changes() {
    within(async {
        let mut group = by(group(&members()), "weighted_round_robin");
        group.spec.members[1].capacity = 2.0;
        let (engine, address) = started(group);
        let (sender, _end) = client(address).await;
        let mut call = Call::begin(&sender, DISCOVERY, &ask(LISTENER, "g", "")).await;
        let told: DiscoveryResponse = call.hear().await.unwrap();
        assert_eq!((told.resources.len(), &*told.type_url), (1, &*format!("{PREFIX}{LISTENER}")));
        call.say(&ask(CLUSTER, "g", ""));
        let told: DiscoveryResponse = call.hear().await.unwrap();
        let cluster = Cluster::decode(&told.resources[0].value[..]).unwrap();
        assert!(cluster.lrs_server.is_some() && cluster.name == "g");
        call.say(&ask(ENDPOINTS, "g", ""));
        let told: DiscoveryResponse = call.hear().await.unwrap();
        let all = [("10.9.8.1:80", 250_000), ("10.9.8.2:80", 500_000), ("10.9.8.3:80", 250_000)];
        assert_eq!(weights(&told), all.map(|(name, weight)| (name.to_owned(), weight)));

        call.say(&ask(ENDPOINTS, "g", &told.nonce));
        call.silence(600 * MILLI).await;
        engine.drain(Some("g"), "10.9.8.2:80").unwrap();
        let told: DiscoveryResponse = call.hear().await.unwrap();
        assert_eq!(
            weights(&told),
            [("10.9.8.1:80".to_owned(), 500_000), ("10.9.8.3:80".to_owned(), 500_000)]
        );

        // Not accepted yet: later changes are sent at once, afterwards.
        engine.undrain(Some("g"), "10.9.8.2:80").unwrap();
        engine.drain(Some("g"), "10.9.8.1:80").unwrap();
        call.silence(300 * MILLI).await;
        call.say(&ask(ENDPOINTS, "g", &told.nonce));
        let mut told: DiscoveryResponse = call.hear().await.unwrap();
        if weights(&told).len() == 3 {
            // If the machine was suspended in between.
            call.say(&ask(ENDPOINTS, "g", &told.nonce));
            told = call.hear().await.unwrap();
        }
        assert_eq!(weights(&told).len(), 2);
        assert_eq!(weights(&told)[0].0, "10.9.8.2:80");
    })
    .await;
}

#[tokio::test]
async fn what_a_client_refuses_is_an_event_and_is_not_told_again() {
    within(async {
        let (engine, address) = started(by(group(&members()), "weighted_round_robin"));
        let (mut call, _, nonce) = endpoints(address).await;
        let error_detail = Some(RpcStatus { code: 3, message: "no such\nthing".into() });
        call.say(&DiscoveryRequest { error_detail, ..ask(ENDPOINTS, "g", &nonce) });
        let refused = || {
            let events = engine.events();
            events.into_iter().find(|stamped| stamped.event.kind == EventKind::Refused)
        };
        until("it is written down", || refused().is_some()).await;
        let event = refused().unwrap().event;
        assert!(
            event.why.contains("(test)") && event.why.ends_with("endpoints): no such thing"),
            "{}",
            event.why
        );
        call.silence(300 * MILLI).await;
        engine.drain(Some("g"), "10.9.8.2:80").unwrap();
        let told: DiscoveryResponse = call.hear().await.unwrap();
        assert_eq!(weights(&told).len(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_up_no_other() {
    within(async {
        let (engine, address) = started(by(group(&members()), "weighted_round_robin"));
        // A call that acknowledges nothing, on the same connection as one that does.
        let (sender, _end) = client(address).await;
        let mut mute = Call::begin(&sender, DISCOVERY, &ask(ENDPOINTS, "g", "")).await;
        let mut call = Call::begin(&sender, DISCOVERY, &ask(ENDPOINTS, "g", "")).await;
        for turn in 0..20 {
            let told: DiscoveryResponse = call.hear().await.unwrap();
            assert_eq!(weights(&told).len(), 3 - turn % 2);
            call.say(&ask(ENDPOINTS, "g", &told.nonce));
            match turn % 2 {
                0 => engine.drain(Some("g"), "10.9.8.2:80").unwrap(),
                _ => engine.undrain(Some("g"), "10.9.8.2:80").unwrap(),
            };
        }
        assert!(mute.hear::<DiscoveryResponse>().await.is_some());
        mute.silence(200 * MILLI).await;
    })
    .await;
}

#[tokio::test]
async fn reports_count_and_what_a_client_had_under_way_ends_with_it() {
    within(async {
        let (engine, address) = started(group(&members()));
        let (sender, end) = client(address).await;
        let mut call = Call::begin(&sender, LOAD_REPORTS, &LoadStatsRequest::default()).await;
        let told: LoadStatsResponse = call.hear().await.unwrap();
        assert_eq!((&told.clusters[..], told.send_all_clusters), (&["g".to_owned()][..], false));
        let stats = LocalityStats {
            locality: Some(Locality { sub_zone: "10.9.8.2:80".into(), ..Locality::default() }),
            total_successful_requests: 40,
            total_requests_in_progress: 9,
            total_error_requests: 2,
            ..LocalityStats::default()
        };
        let cluster_name = "g".into();
        let stats =
            ClusterStats { cluster_name, upstream_locality_stats: vec![stats], load_report_interval: None };
        call.say(&LoadStatsRequest { node: None, cluster_stats: vec![stats] });
        let two = members()[1];
        until("it counts", || status_of(&engine, two).in_flight == 9).await;
        let status = status_of(&engine, two);
        assert_eq!((status.requests, status.failures), (42, 2));
        // A client that asks for endpoints gets them.
        let (_call, told, _) = endpoints(address).await;
        assert!(told[1].1 < told[0].1 / 2 && told[1].1 < told[2].1 / 2, "{told:?}");
        drop((call, sender));
        end.abort();
        until("it is gone", || status_of(&engine, two).in_flight == 0).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_not_understood_is_said_to_be_so() {
    within(async {
        let (_engine, address) = started(group(&members()));
        let (sender, _end) = client(address).await;
        let mut ready = sender.clone().ready().await.unwrap();
        let path = DISCOVERY.replace("Stream", "Delta");
        let request = Request::post(format!("http://lb{path}")).header("content-type", "application/grpc");
        let (response, _) = ready.send_request(request.body(()).unwrap(), true).unwrap();
        let (head, ..) = answer(response).await.unwrap();
        assert_eq!(head.headers()["grpc-status"], "12");
        let nonsense = Node { id: "x".repeat(40), ..Node::default() };
        let call = Call::begin(&sender, DISCOVERY, &nonsense).await;
        // That is a request, without a type.
        drop(call);
        let mut call = Call::begin(&sender, DISCOVERY, &ask(LISTENER, "g", "")).await;
        call.out.send_data(Bytes::from_static(b"\0\0\0\0\x02\x0a\xff"), false).unwrap();
        assert_eq!(call.end().await["grpc-status"], "3");
        let mut call = Call::begin(&sender, LOAD_REPORTS, &LoadStatsRequest::default()).await;
        call.out.send_data(Bytes::from_static(b"\0\xff\0\0\0"), false).unwrap();
        assert_eq!(call.end().await["grpc-status"], "8");
        let mut call = Call::begin(&sender, LOAD_REPORTS, &LoadStatsRequest::default()).await;
        call.out.send_data(Bytes::from_static(b"\x01\0\0\0\0"), true).unwrap();
        assert_eq!(call.end().await["grpc-status"], "12");
    })
    .await;
}

#[tokio::test]
async fn calls_end_when_the_listener_goes() {
    within(async {
        let listener = ListenerSettings { binding: BindingMode::PerRequest, ..listener(Protocol::Xds) };
        let mut settings = settings(listener, group(&members()));
        settings.drain_deadline = HOUR;
        let (engine, address) = start_with(settings);
        let (call, ..) = endpoints(address).await;
        let stopping = tokio::spawn(async move { engine.stop().await });
        assert_eq!(call.end().await["grpc-status"], "14");
        assert_eq!(stopping.await.unwrap(), 0, "nothing is cut");
    })
    .await;
}

#[tokio::test]
async fn another_group_comes_and_goes_with_the_configuration() {
    within(async {
        let own = group(&members());
        let mut other = by(group(&members()[..1]), "round_robin");
        other.spec.name = "other".into();
        let listener = ListenerSettings { binding: BindingMode::PerRequest, ..listener(Protocol::Xds) };
        let alone = settings(listener, own);
        let (engine, address) = start_with(alone.clone());
        let mut both = alone.clone();
        both.listeners[0].others = vec!["other".into()];
        both.groups.push(other.into());
        let (sender, _end) = client(address).await;
        let mut call = Call::begin(&sender, DISCOVERY, &ask(ENDPOINTS, "other", "")).await;
        call.silence(200 * MILLI).await;
        engine.reload(both, Vec::new()).unwrap();
        let told: DiscoveryResponse = call.hear().await.unwrap();
        assert_eq!(weights(&told), [("10.9.8.1:80".to_owned(), 1_000_000)]);
        call.say(&ask(LISTENER, "other", ""));
        let told: DiscoveryResponse = call.hear().await.unwrap();
        assert_eq!(told.resources.len(), 1);
        call.say(&ask(LISTENER, "other", &told.nonce));
        engine.reload(alone, Vec::new()).unwrap();
        let told: DiscoveryResponse = call.hear().await.unwrap();
        assert!(told.type_url.ends_with(LISTENER) && told.resources.is_empty(), "{told:?}");
    })
    .await;
}
