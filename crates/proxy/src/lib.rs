//! The data plane: carries TCP, UDP, HTTP and IIOP over pools of members, and publishes the choices of
//! members over DNS and xDS.
//!
//! One control thread owns the brain's analyzers, the health checks and all other slow work. `threads` worker
//! threads, one tokio `LocalRuntime` each, own listeners, connections and pools. On the request path they
//! share only the current plan and the members' live counts.

mod control;
mod engine;
mod listener;
#[cfg(test)]
#[path = "../../../fuzz/near.rs"]
mod near;
mod net;
mod protocol;
mod runtime;
mod settings;
#[cfg(any(test, fuzzing))]
#[cfg_attr(fuzzing, expect(dead_code, reason = "the targets need a part of it"))]
mod test_util;
mod upstream;
mod worker;

/// The laws of client input, for the fuzz targets: each panics if its law is broken.
#[cfg(fuzzing)]
#[expect(missing_docs, reason = "named like the targets")]
pub mod laws {
    pub fn dns(input: &[u8]) {
        crate::protocol::dns::invariants::check(input);
    }

    pub fn http2(input: &[u8]) {
        crate::protocol::http2::invariants::check(input);
    }

    pub fn http2_frames(input: &[u8]) {
        crate::protocol::http2::frames_law(input);
    }

    pub fn http2_heads(input: &[u8]) {
        crate::protocol::http2::heads_law(input);
    }
}

pub use control::SequencedEvent;
pub use control::bind::ListenerSockets;
pub use control::counter_snapshot::CounterSnapshot;
pub use control::fleet_notifier::{FleetNotice, NoticeKind};
pub use control::lease::{LONGEST_LEASE, Lease, LeaseError, LeaseHolder, LeaseRequest, SHORTEST_LEASE};
pub use control::probe::check_once;
pub use control::status_report::{GroupSnapshot, MemberCounters};
pub use engine::{Engine, HandoffState, InheritedState, MemberRates};
pub use net::acme_challenge::AcmeChallenge;
pub use net::member_addresses::{MemberAddresses, NO_ADDRESS};
pub use net::splice::MAX_PIPE_FILES;
pub use net::tls::{
    AcmeSlot, CertificateBundle, ClientVerification, InvalidTlsPart, ListenerCertificate, ListenerTls,
    MemberTls, MemberTrust,
};
pub use plimsoll_brain::load_line::CpuUtilization;
pub use protocol::http::{RequestExplanation, RouteOutcome, explain_request};
pub use protocol::udp::{FlowDescription, HandoffFlow};
pub use settings::error::StartError;
pub use settings::*;
pub use upstream::group::ReportSample;
pub use upstream::trace::{FinishedTrace, SpanCounters};
