//! The ADS state machine of one client, in the state-of-the-world variant (Envoy's "xDS REST and gRPC
//! protocol"): a pure value. Requests go in, responses come out.
//!
//! There is at most one response in flight per type. The next one waits until the client has accepted or
//! rejected it, and has the state of that time. So a slow client skips intermediate states, and a client that
//! rejects a response does not get the same again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll_wire::xds::{DiscoveryRequest, DiscoveryResponse, PREFIX, ProtobufAny};

use super::resource::ResourceKind;

/// The available resources.
pub(super) trait ResourceSource {
    /// Returns all groups.
    fn names(&self) -> Vec<Arc<str>>;
    /// Returns a number that changes with the resource; `None` if there is none with that name.
    fn resource_version(&self, kind: ResourceKind, name: &str) -> Option<u64>;
    /// Returns the resource.
    fn resource(&self, kind: ResourceKind, name: &str) -> Option<ProtobufAny>;
}

/// The maximum number of names that a client may request, and the maximum size of one in bytes.
const MAX_NAMES: usize = 1024;
const MAX_NAME_LEN: usize = 512;

/// The effect of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestEffect {
    Accepted,
    /// The request changes nothing.
    Unchanged,
    /// The client rejected the last response, after it had accepted the one before: the reason.
    Rejected(ResourceKind, String),
    /// The client requests more than is permitted.
    OverLimit,
}

/// A client's requests, and the responses so far.
#[derive(Debug, Default)]
pub(super) struct AdsSession {
    subscriptions: [TypeSubscription; ResourceKind::ALL.len()],
    nonce: u64,
}

/// The state of one type.
#[derive(Debug, Default)]
struct TypeSubscription {
    requested: bool,
    /// Whether all resources are requested.
    wildcard: bool,
    names: BTreeSet<Arc<str>>,
    /// The numbers of the resources in the last responses, by name.
    sent_versions: BTreeMap<Arc<str>, u64>,
    /// The nonce of the last response; 0 before the first.
    nonce: u64,
    /// Whether that response is in flight.
    response_in_flight: bool,
    /// Whether it was rejected.
    rejected: bool,
}

impl AdsSession {
    /// Handles a request.
    pub(super) fn handle_request(&mut self, request: &DiscoveryRequest) -> RequestEffect {
        let Some(kind) = ResourceKind::from_type_url(&request.type_url) else {
            return RequestEffect::Unchanged;
        };
        if request.resource_names.len() > MAX_NAMES
            || request.resource_names.iter().any(|name| name.len() > MAX_NAME_LEN)
        {
            return RequestEffect::OverLimit;
        }
        let subscription = &mut self.subscriptions[kind as usize];
        let mut effect = RequestEffect::Accepted;
        if request.response_nonce.is_empty() {
            // The first request of its type, or the client has dropped its state.
            *subscription = TypeSubscription {
                requested: true,
                wildcard: kind.is_complete_set() && request.resource_names.is_empty(),
                // Reported once, until the client accepts a response again.
                rejected: subscription.rejected,
                ..TypeSubscription::default()
            };
        } else if subscription.requested {
            if request.response_nonce != subscription.nonce.to_string() {
                // About a response before the last: the client has yet to read that one, and will send its
                // requests with it.
                return RequestEffect::Unchanged;
            }
            subscription.response_in_flight = false;
            let is_rejected = request.error_detail.is_some();
            if let Some(error) = request.error_detail.as_ref().filter(|_| !subscription.rejected) {
                effect = RequestEffect::Rejected(kind, super::printable(&error.message));
            }
            subscription.rejected = is_rejected;
        } else {
            // Another server sent it that response.
            subscription.requested = true;
        }
        if !subscription.wildcard {
            subscription.names = request.resource_names.iter().map(|name| Arc::from(name.as_str())).collect();
            let names = &subscription.names;
            // The client may request a dropped name again.
            subscription.sent_versions.retain(|name, _| names.contains(name));
        }
        effect
    }

    /// Returns the requested names of a type.
    pub(super) fn names(&self, kind: ResourceKind) -> impl Iterator<Item = &Arc<str>> {
        self.subscriptions[kind as usize].names.iter()
    }

    /// Returns the next response, if one is due.
    pub(super) fn next_response(&mut self, source: &impl ResourceSource) -> Option<DiscoveryResponse> {
        for kind in ResourceKind::ALL {
            let subscription = &mut self.subscriptions[kind as usize];
            if !subscription.requested || subscription.response_in_flight {
                continue;
            }
            let names: Vec<Arc<str>> = if subscription.wildcard {
                source.names()
            } else {
                subscription.names.iter().map(Arc::clone).collect()
            };
            let versions: BTreeMap<Arc<str>, u64> = names
                .into_iter()
                .filter_map(|name| {
                    let version = source.resource_version(kind, &name)?;
                    Some((name, version))
                })
                .collect();
            if versions == subscription.sent_versions {
                continue;
            }
            let is_new =
                |name: &Arc<str>, version: &u64| subscription.sent_versions.get(name) != Some(version);
            let resources: Vec<ProtobufAny> = versions
                .iter()
                .filter(|(name, version)| kind.is_complete_set() || is_new(name, version))
                .filter_map(|(name, _)| source.resource(kind, name))
                .collect();
            subscription.sent_versions = versions;
            if resources.is_empty() && !kind.is_complete_set() {
                // Only removals, which this type cannot express.
                continue;
            }
            self.nonce += 1;
            (subscription.nonce, subscription.response_in_flight) = (self.nonce, true);
            return Some(DiscoveryResponse {
                version_info: self.nonce.to_string(),
                resources,
                type_url: format!("{PREFIX}{}", kind.type_name()),
                nonce: self.nonce.to_string(),
            });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_wire::xds::RpcStatus;

    use super::*;

    /// Groups with the numbers of their endpoints.
    struct TestGroups(Vec<(&'static str, u64)>);

    impl ResourceSource for TestGroups {
        fn names(&self) -> Vec<Arc<str>> {
            self.0.iter().map(|(name, _)| Arc::from(*name)).collect()
        }

        fn resource_version(&self, kind: ResourceKind, name: &str) -> Option<u64> {
            let (_, version) = self.0.iter().find(|(group, _)| *group == name)?;
            Some(if kind == ResourceKind::Endpoints { *version } else { 1 })
        }

        fn resource(&self, _: ResourceKind, name: &str) -> Option<ProtobufAny> {
            Some(ProtobufAny { type_url: name.into(), value: Vec::new() })
        }
    }

    fn request(kind: ResourceKind, names: &[&str], nonce: &str) -> DiscoveryRequest {
        DiscoveryRequest {
            type_url: format!("{PREFIX}{}", kind.type_name()),
            resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
            response_nonce: nonce.into(),
            ..DiscoveryRequest::default()
        }
    }

    fn refusal(kind: ResourceKind, names: &[&str], nonce: &str) -> DiscoveryRequest {
        let error_detail = Some(RpcStatus { code: 3, message: "so\nthere".into() });
        DiscoveryRequest { error_detail, ..request(kind, names, nonce) }
    }

    /// Returns the names of the resources, and the nonce.
    fn next_response(session: &mut AdsSession, groups: &TestGroups) -> Option<(Vec<String>, String)> {
        let answer = session.next_response(groups)?;
        Some((answer.resources.into_iter().map(|any| any.type_url).collect(), answer.nonce))
    }

    #[test]
    fn an_answer_waits_for_what_is_made_of_the_one_before() {
        let (mut session, mut groups) = (AdsSession::default(), TestGroups(vec![("a", 1), ("b", 1)]));
        assert_eq!(next_response(&mut session, &groups), None);
        session.handle_request(&request(ResourceKind::Endpoints, &["a"], ""));
        assert_eq!(next_response(&mut session, &groups), Some((vec!["a".into()], "1".into())));
        groups.0[0].1 = 2;
        assert_eq!(next_response(&mut session, &groups), None, "it has not said anything yet");
        groups.0[0].1 = 3;
        assert_eq!(
            session.handle_request(&request(ResourceKind::Endpoints, &["a"], "1")),
            RequestEffect::Accepted
        );
        assert_eq!(next_response(&mut session, &groups), Some((vec!["a".into()], "2".into())));
        assert_eq!(
            session.handle_request(&request(ResourceKind::Endpoints, &["a", "b"], "1")),
            RequestEffect::Unchanged
        );
        assert_eq!(next_response(&mut session, &groups), None, "said of what is past");
        session.handle_request(&request(ResourceKind::Endpoints, &["a", "b"], "2"));
        assert_eq!(
            next_response(&mut session, &groups),
            Some((vec!["b".into()], "3".into())),
            "only what is new"
        );
        session.handle_request(&request(ResourceKind::Endpoints, &["b"], "3"));
        assert_eq!(next_response(&mut session, &groups), None);
        session.handle_request(&request(ResourceKind::Endpoints, &["a", "b"], "3"));
        assert_eq!(
            next_response(&mut session, &groups),
            Some((vec!["a".into()], "4".into())),
            "what it had forgotten"
        );
    }

    #[test]
    fn listeners_and_clusters_are_told_all_at_once() {
        let (mut session, mut groups) = (AdsSession::default(), TestGroups(vec![("a", 1)]));
        session.handle_request(&request(ResourceKind::Listener, &["a", "c"], ""));
        assert_eq!(next_response(&mut session, &groups), Some((vec!["a".into()], "1".into())));
        session.handle_request(&request(ResourceKind::Listener, &["a", "c"], "1"));
        assert_eq!(next_response(&mut session, &groups), None);
        groups.0.push(("c", 1));
        assert_eq!(next_response(&mut session, &groups), Some((vec!["a".into(), "c".into()], "2".into())));
        session.handle_request(&request(ResourceKind::Listener, &["a", "c"], "2"));
        groups.0.remove(0);
        assert_eq!(
            next_response(&mut session, &groups),
            Some((vec!["c".into()], "3".into())),
            "a is no more"
        );
        session.handle_request(&request(ResourceKind::Cluster, &[], ""));
        assert_eq!(
            next_response(&mut session, &groups),
            Some((vec!["c".into()], "4".into())),
            "whatever there is"
        );
    }

    #[test]
    fn what_was_refused_is_not_told_again_and_a_row_of_refusals_is_noted_once() {
        let (mut session, mut groups) = (AdsSession::default(), TestGroups(vec![("a", 1)]));
        session.handle_request(&request(ResourceKind::Endpoints, &["a"], ""));
        next_response(&mut session, &groups);
        let effect = session.handle_request(&refusal(ResourceKind::Endpoints, &["a"], "1"));
        assert_eq!(effect, RequestEffect::Rejected(ResourceKind::Endpoints, "so there".into()));
        assert_eq!(next_response(&mut session, &groups), None);
        groups.0[0].1 = 2;
        assert!(next_response(&mut session, &groups).is_some());
        assert_eq!(
            session.handle_request(&refusal(ResourceKind::Endpoints, &["a"], "2")),
            RequestEffect::Accepted
        );
        groups.0[0].1 = 3;
        next_response(&mut session, &groups);
        session.handle_request(&request(ResourceKind::Endpoints, &["a"], "3"));
        groups.0[0].1 = 4;
        next_response(&mut session, &groups);
        assert_ne!(
            session.handle_request(&refusal(ResourceKind::Endpoints, &["a"], "4")),
            RequestEffect::Accepted
        );
        // A request that starts again does not end a sequence of rejections.
        session.handle_request(&request(ResourceKind::Endpoints, &["a"], ""));
        next_response(&mut session, &groups);
        assert_eq!(
            session.handle_request(&refusal(ResourceKind::Endpoints, &["a"], "5")),
            RequestEffect::Accepted
        );
    }

    #[test]
    fn more_than_anybody_needs_is_too_much() {
        let mut session = AdsSession::default();
        let many = vec!["x"; MAX_NAMES + 1];
        assert_eq!(
            session.handle_request(&request(ResourceKind::Routes, &many, "")),
            RequestEffect::OverLimit
        );
        assert_eq!(
            session.handle_request(&request(ResourceKind::Routes, &[&"x".repeat(MAX_NAME_LEN + 1)], "")),
            RequestEffect::OverLimit
        );
        let unknown = DiscoveryRequest { type_url: "what".into(), ..DiscoveryRequest::default() };
        assert_eq!(session.handle_request(&unknown), RequestEffect::Unchanged);
        assert_eq!(next_response(&mut session, &TestGroups(vec![("x", 1)])), None);
    }

    #[test]
    fn a_client_that_forgot_is_told_again() {
        let (mut session, groups) = (AdsSession::default(), TestGroups(vec![("a", 1)]));
        session.handle_request(&request(ResourceKind::Routes, &["a"], ""));
        assert!(next_response(&mut session, &groups).is_some());
        session.handle_request(&request(ResourceKind::Routes, &["a"], ""));
        assert_eq!(next_response(&mut session, &groups), Some((vec!["a".into()], "2".into())));
        // It comes with another server's nonce.
        session.handle_request(&request(ResourceKind::Endpoints, &["a"], "77"));
        assert!(next_response(&mut session, &groups).is_some());
    }
}
