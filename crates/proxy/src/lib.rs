//! Carry traffic: tcp, udp and http over pools of members.
//!
//! One control thread owns the brain's analyzers, the health probes and everything slow; `threads` worker
//! threads, one tokio `LocalRuntime` each, own listeners, connections and pools, and share nothing on the
//! request path but the current plan and the members' live counts.

mod settings;

pub use settings::*;
