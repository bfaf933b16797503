//! The data plane: carries TCP, UDP, HTTP and IIOP over pools of members, and publishes the choices of
//! members over DNS and xDS.
//!
//! One control thread owns the brain's analyzers, the health checks and all other slow work. `threads` worker
//! threads, one tokio `LocalRuntime` each, own listeners, connections and pools. On the request path they
//! share only the current plan and the members' live counts.

mod accept;
mod access;
mod account;
mod addresses;
mod admit;
mod affinity;
mod alarm;
mod apply;
mod bind;
mod blame;
mod bond;
mod challenge;
mod chunks;
mod clock;
mod connect;
mod control;
mod core;
mod counts;
mod dns;
mod engine;
mod error;
mod explain;
mod fellows;
#[cfg(any(test, fuzzing))]
#[cfg_attr(fuzzing, expect(dead_code, reason = "the targets need a part of it"))]
mod fixture;
mod group;
mod grpc;
mod hand_over;
mod history;
mod http;
mod http2;
mod iiop;
mod inner;
mod key;
mod lag;
mod lease;
mod link;
mod listener;
mod load_line;
mod memory;
mod metered;
mod moves;
#[cfg(test)]
#[path = "../../../fuzz/near.rs"]
mod near;
mod neighbours;
mod network;
mod pool;
mod preface;
mod probe;
mod publication;
mod readiness;
mod reason;
mod relay;
mod report;
mod residue;
mod rest;
mod room;
mod sessions;
mod settings;
mod socket;
mod splice;
mod stats;
mod stream;
mod switch;
mod tcp;
mod tls;
mod trace;
mod trip;
mod udp;
mod wheel;
mod worker;
mod xds;

/// The laws of client input, for the fuzz targets: each panics if its law is broken.
#[cfg(fuzzing)]
#[expect(missing_docs, reason = "named like the targets")]
pub mod laws {
    pub fn dns(input: &[u8]) {
        crate::dns::law::check(input);
    }

    pub fn http2(input: &[u8]) {
        crate::http2::law::check(input);
    }

    pub fn http2_frames(input: &[u8]) {
        crate::http2::frames_law(input);
    }

    pub fn http2_heads(input: &[u8]) {
        crate::http2::heads_law(input);
    }
}

pub use addresses::{Addresses, NOWHERE};
pub use bind::Bound;
pub use challenge::Challenge;
pub use control::Stamped;
pub use counts::Counts;
pub use engine::{Engine, Estate, Legacy, Rates};
pub use error::StartError;
pub use fellows::{Did, Notice};
pub use group::Said;
pub use lease::{LONGEST_LEASE, Lease, LeaseWish, Lessee, NoLease, SHORTEST_LEASE};
pub use plimsoll_brain::load_line::Cpu;
pub use probe::ask_once;
pub use report::{GroupLook, MemberCounters};
pub use settings::*;
pub use splice::PIPE_FILES;
pub use tls::{
    Certificate, ClientCertificate, Fault, Issued, ListenerTls, MemberTls, ShownCertificate, Trust,
};
pub use trace::{Spans, Traced};
pub use udp::{FlowAbout, LentFlow};
