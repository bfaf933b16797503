//! The ADS state machine of one client, in the state-of-the-world variant (Envoy's "xDS REST and gRPC
//! protocol"): a pure value. Requests go in, responses come out.
//!
//! There is at most one response in flight per type. The next one waits until the client has accepted or
//! rejected it, and has the state of that time. So a slow client skips intermediate states, and a client that
//! rejects a response does not get the same again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll_wire::xds::{Any, DiscoveryRequest, DiscoveryResponse, PREFIX};

use super::resource::Kind;

/// The available resources.
pub(super) trait Catalogue {
    /// Returns all groups.
    fn names(&self) -> Vec<Arc<str>>;
    /// Returns a number that changes with the resource; `None` if there is none with that name.
    fn number(&self, kind: Kind, name: &str) -> Option<u64>;
    /// Returns the resource.
    fn resource(&self, kind: Kind, name: &str) -> Option<Any>;
}

/// The maximum number of names that a client may request, and the maximum size of one in bytes.
const NAMES: usize = 1024;
const NAME: usize = 512;

/// The effect of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Fine,
    /// The request changes nothing.
    Nothing,
    /// The client rejected the last response, after it had accepted the one before: the reason.
    Refused(Kind, String),
    /// The client requests more than is permitted.
    TooMuch,
}

/// A client's requests, and the responses so far.
#[derive(Debug, Default)]
pub(super) struct Session {
    topics: [Topic; Kind::ALL.len()],
    nonce: u64,
}

/// The state of one type.
#[derive(Debug, Default)]
struct Topic {
    asked: bool,
    /// Whether all resources are requested.
    all: bool,
    names: BTreeSet<Arc<str>>,
    /// The numbers of the resources in the last responses, by name.
    told: BTreeMap<Arc<str>, u64>,
    /// The nonce of the last response; 0 before the first.
    nonce: u64,
    /// Whether that response is in flight.
    waiting: bool,
    /// Whether it was rejected.
    refused: bool,
}

impl Session {
    /// Handles a request.
    pub(super) fn take(&mut self, request: &DiscoveryRequest) -> Heard {
        let Some(kind) = Kind::of(&request.type_url) else { return Heard::Nothing };
        if request.resource_names.len() > NAMES || request.resource_names.iter().any(|name| name.len() > NAME)
        {
            return Heard::TooMuch;
        }
        let topic = &mut self.topics[kind as usize];
        let mut heard = Heard::Fine;
        if request.response_nonce.is_empty() {
            // The first request of its type, or the client has dropped its state.
            *topic = Topic {
                asked: true,
                all: kind.whole() && request.resource_names.is_empty(),
                // Reported once, until the client accepts a response again.
                refused: topic.refused,
                ..Topic::default()
            };
        } else if topic.asked {
            if request.response_nonce != topic.nonce.to_string() {
                // About a response before the last: the client has yet to read that one, and will send its
                // requests with it.
                return Heard::Nothing;
            }
            topic.waiting = false;
            let refused = request.error_detail.is_some();
            if let Some(error) = request.error_detail.as_ref().filter(|_| !topic.refused) {
                heard = Heard::Refused(kind, super::said(&error.message));
            }
            topic.refused = refused;
        } else {
            // Another server sent it that response.
            topic.asked = true;
        }
        if !topic.all {
            topic.names = request.resource_names.iter().map(|name| Arc::from(name.as_str())).collect();
            let names = &topic.names;
            // The client may request a dropped name again.
            topic.told.retain(|name, _| names.contains(name));
        }
        heard
    }

    /// Returns the requested names of a type.
    pub(super) fn names(&self, kind: Kind) -> impl Iterator<Item = &Arc<str>> {
        self.topics[kind as usize].names.iter()
    }

    /// Returns the next response, if one is due.
    pub(super) fn next(&mut self, catalogue: &impl Catalogue) -> Option<DiscoveryResponse> {
        for kind in Kind::ALL {
            let topic = &mut self.topics[kind as usize];
            if !topic.asked || topic.waiting {
                continue;
            }
            let names: Vec<Arc<str>> =
                if topic.all { catalogue.names() } else { topic.names.iter().map(Arc::clone).collect() };
            let there: BTreeMap<Arc<str>, u64> = names
                .into_iter()
                .filter_map(|name| {
                    let number = catalogue.number(kind, &name)?;
                    Some((name, number))
                })
                .collect();
            if there == topic.told {
                continue;
            }
            let new = |name: &Arc<str>, number: &u64| topic.told.get(name) != Some(number);
            let resources: Vec<Any> = there
                .iter()
                .filter(|(name, number)| kind.whole() || new(name, number))
                .filter_map(|(name, _)| catalogue.resource(kind, name))
                .collect();
            topic.told = there;
            if resources.is_empty() && !kind.whole() {
                // Only removals, which this type cannot express.
                continue;
            }
            self.nonce += 1;
            (topic.nonce, topic.waiting) = (self.nonce, true);
            return Some(DiscoveryResponse {
                version_info: self.nonce.to_string(),
                resources,
                type_url: format!("{PREFIX}{}", kind.name()),
                nonce: self.nonce.to_string(),
            });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_wire::xds::Status;

    use super::*;

    /// Groups with the numbers of their endpoints.
    struct Groups(Vec<(&'static str, u64)>);

    impl Catalogue for Groups {
        fn names(&self) -> Vec<Arc<str>> {
            self.0.iter().map(|(name, _)| Arc::from(*name)).collect()
        }

        fn number(&self, kind: Kind, name: &str) -> Option<u64> {
            let (_, number) = self.0.iter().find(|(group, _)| *group == name)?;
            Some(if kind == Kind::Endpoints { *number } else { 1 })
        }

        fn resource(&self, _: Kind, name: &str) -> Option<Any> {
            Some(Any { type_url: name.into(), value: Vec::new() })
        }
    }

    fn request(kind: Kind, names: &[&str], nonce: &str) -> DiscoveryRequest {
        DiscoveryRequest {
            type_url: format!("{PREFIX}{}", kind.name()),
            resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
            response_nonce: nonce.into(),
            ..DiscoveryRequest::default()
        }
    }

    fn refusal(kind: Kind, names: &[&str], nonce: &str) -> DiscoveryRequest {
        let error_detail = Some(Status { code: 3, message: "so\nthere".into() });
        DiscoveryRequest { error_detail, ..request(kind, names, nonce) }
    }

    /// Returns the names of the resources, and the nonce.
    fn told(session: &mut Session, groups: &Groups) -> Option<(Vec<String>, String)> {
        let answer = session.next(groups)?;
        Some((answer.resources.into_iter().map(|any| any.type_url).collect(), answer.nonce))
    }

    #[test]
    fn an_answer_waits_for_what_is_made_of_the_one_before() {
        let (mut session, mut groups) = (Session::default(), Groups(vec![("a", 1), ("b", 1)]));
        assert_eq!(told(&mut session, &groups), None);
        session.take(&request(Kind::Endpoints, &["a"], ""));
        assert_eq!(told(&mut session, &groups), Some((vec!["a".into()], "1".into())));
        groups.0[0].1 = 2;
        assert_eq!(told(&mut session, &groups), None, "it has not said anything yet");
        groups.0[0].1 = 3;
        assert_eq!(session.take(&request(Kind::Endpoints, &["a"], "1")), Heard::Fine);
        assert_eq!(told(&mut session, &groups), Some((vec!["a".into()], "2".into())));
        assert_eq!(session.take(&request(Kind::Endpoints, &["a", "b"], "1")), Heard::Nothing);
        assert_eq!(told(&mut session, &groups), None, "said of what is past");
        session.take(&request(Kind::Endpoints, &["a", "b"], "2"));
        assert_eq!(told(&mut session, &groups), Some((vec!["b".into()], "3".into())), "only what is new");
        session.take(&request(Kind::Endpoints, &["b"], "3"));
        assert_eq!(told(&mut session, &groups), None);
        session.take(&request(Kind::Endpoints, &["a", "b"], "3"));
        assert_eq!(
            told(&mut session, &groups),
            Some((vec!["a".into()], "4".into())),
            "what it had forgotten"
        );
    }

    #[test]
    fn listeners_and_clusters_are_told_all_at_once() {
        let (mut session, mut groups) = (Session::default(), Groups(vec![("a", 1)]));
        session.take(&request(Kind::Listener, &["a", "c"], ""));
        assert_eq!(told(&mut session, &groups), Some((vec!["a".into()], "1".into())));
        session.take(&request(Kind::Listener, &["a", "c"], "1"));
        assert_eq!(told(&mut session, &groups), None);
        groups.0.push(("c", 1));
        assert_eq!(told(&mut session, &groups), Some((vec!["a".into(), "c".into()], "2".into())));
        session.take(&request(Kind::Listener, &["a", "c"], "2"));
        groups.0.remove(0);
        assert_eq!(told(&mut session, &groups), Some((vec!["c".into()], "3".into())), "a is no more");
        session.take(&request(Kind::Cluster, &[], ""));
        assert_eq!(told(&mut session, &groups), Some((vec!["c".into()], "4".into())), "whatever there is");
    }

    #[test]
    fn what_was_refused_is_not_told_again_and_a_row_of_refusals_is_noted_once() {
        let (mut session, mut groups) = (Session::default(), Groups(vec![("a", 1)]));
        session.take(&request(Kind::Endpoints, &["a"], ""));
        told(&mut session, &groups);
        let heard = session.take(&refusal(Kind::Endpoints, &["a"], "1"));
        assert_eq!(heard, Heard::Refused(Kind::Endpoints, "so there".into()));
        assert_eq!(told(&mut session, &groups), None);
        groups.0[0].1 = 2;
        assert!(told(&mut session, &groups).is_some());
        assert_eq!(session.take(&refusal(Kind::Endpoints, &["a"], "2")), Heard::Fine);
        groups.0[0].1 = 3;
        told(&mut session, &groups);
        session.take(&request(Kind::Endpoints, &["a"], "3"));
        groups.0[0].1 = 4;
        told(&mut session, &groups);
        assert_ne!(session.take(&refusal(Kind::Endpoints, &["a"], "4")), Heard::Fine);
        // A request that starts again does not end a sequence of rejections.
        session.take(&request(Kind::Endpoints, &["a"], ""));
        told(&mut session, &groups);
        assert_eq!(session.take(&refusal(Kind::Endpoints, &["a"], "5")), Heard::Fine);
    }

    #[test]
    fn more_than_anybody_needs_is_too_much() {
        let mut session = Session::default();
        let many = vec!["x"; NAMES + 1];
        assert_eq!(session.take(&request(Kind::Routes, &many, "")), Heard::TooMuch);
        assert_eq!(session.take(&request(Kind::Routes, &[&"x".repeat(NAME + 1)], "")), Heard::TooMuch);
        let odd = DiscoveryRequest { type_url: "what".into(), ..DiscoveryRequest::default() };
        assert_eq!(session.take(&odd), Heard::Nothing);
        assert_eq!(told(&mut session, &Groups(vec![("x", 1)])), None);
    }

    #[test]
    fn a_client_that_forgot_is_told_again() {
        let (mut session, groups) = (Session::default(), Groups(vec![("a", 1)]));
        session.take(&request(Kind::Routes, &["a"], ""));
        assert!(told(&mut session, &groups).is_some());
        session.take(&request(Kind::Routes, &["a"], ""));
        assert_eq!(told(&mut session, &groups), Some((vec!["a".into()], "2".into())));
        // It comes with another server's nonce.
        session.take(&request(Kind::Endpoints, &["a"], "77"));
        assert!(told(&mut session, &groups).is_some());
    }
}
