//! Gossip and its law, side by side as they are in the cluster.

#[path = "../../crates/cluster/src/lottery/gossip.rs"]
mod gossip;
#[path = "../../crates/cluster/src/lottery/law.rs"]
pub(crate) mod law;
