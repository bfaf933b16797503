//! One client's side of discovery, state of the world (Envoy's "xDS REST and gRPC protocol"): a pure value. Requests go in, answers
//! come out.
//!
//! Of each type there is one answer under way at most: the next one waits until the client has accepted or refused it, and then
//! has what is true by then. So a client that is slow skips what it missed, and a client that refuses something is not told the same
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll_wire::xds::{Any, DiscoveryRequest, DiscoveryResponse, PREFIX};

use super::resource::Kind;

/// What there is to be told.
pub(super) trait Catalogue {
    /// All groups.
    fn names(&self) -> Vec<Arc<str>>;
    /// A number that changes with the resource; `None` if there is none of that name.
    fn number(&self, kind: Kind, name: &str) -> Option<u64>;
    /// The resource.
    fn resource(&self, kind: Kind, name: &str) -> Option<Any>;
}

/// Names that a client may ask for, and bytes of one.
const NAMES: usize = 1024;
const NAME: usize = 512;

/// What a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Fine,
    /// It changes nothing.
    Nothing,
    /// The client refused what it was told, after having accepted what came before: why.
    Refused(Kind, String),
    /// It asks for more than anybody needs.
    TooMuch,
}

/// What a client has asked for and was told.
#[derive(Debug, Default)]
pub(super) struct Session {
    topics: [Topic; Kind::ALL.len()],
    nonce: u64,
}

/// The same of one type.
#[derive(Debug, Default)]
struct Topic {
    asked: bool,
    /// It asks for whatever there is.
    all: bool,
    names: BTreeSet<Arc<str>>,
    /// The number of the resource that it was told last, by name.
    told: BTreeMap<Arc<str>, u64>,
    /// Of the last answer; 0 before the first.
    nonce: u64,
    /// Is it under way?
    waiting: bool,
    /// Was it refused?
    refused: bool,
}

impl Session {
    /// Takes a request.
    pub(super) fn take(&mut self, request: &DiscoveryRequest) -> Heard {
        let Some(kind) = Kind::of(&request.type_url) else { return Heard::Nothing };
        if request.resource_names.len() > NAMES || request.resource_names.iter().any(|name| name.len() > NAME)
        {
            return Heard::TooMuch;
        }
        let topic = &mut self.topics[kind as usize];
        let mut heard = Heard::Fine;
        if request.response_nonce.is_empty() {
            // The first of its type, or the client has forgotten what it knew.
            *topic = Topic {
                asked: true,
                all: kind.whole() && request.resource_names.is_empty(),
                // Told once, until it takes something again.
                refused: topic.refused,
                ..Topic::default()
            };
        } else if topic.asked {
            if request.response_nonce != topic.nonce.to_string() {
                // Said of an answer before the last: it has that one still to read, and will say what it wants with it.
                return Heard::Nothing;
            }
            topic.waiting = false;
            let refused = request.error_detail.is_some();
            if let Some(error) = request.error_detail.as_ref().filter(|_| !topic.refused) {
                heard = Heard::Refused(kind, super::said(&error.message));
            }
            topic.refused = refused;
        } else {
            // It was told that by somebody else.
            topic.asked = true;
        }
        if !topic.all {
            topic.names = request.resource_names.iter().map(|name| Arc::from(name.as_str())).collect();
            let names = &topic.names;
            // What it no longer wants it may want again.
            topic.told.retain(|name, _| names.contains(name));
        }
        heard
    }

    /// What it asks for of a type.
    pub(super) fn names(&self, kind: Kind) -> impl Iterator<Item = &Arc<str>> {
        self.topics[kind as usize].names.iter()
    }

    /// What it is to be told next, if anything.
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
                // Nothing but that some are no more, which there is no way to say.
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

    /// Names of the resources, and the nonce.
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
        // To ask from the beginning ends no row.
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
        // It brings a nonce from elsewhere.
        session.take(&request(Kind::Endpoints, &["a"], "77"));
        assert!(told(&mut session, &groups).is_some());
    }
}
