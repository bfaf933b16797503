//! DNS and its law, side by side as they are in the proxy.

#[path = "../../crates/proxy/src/dns/law.rs"]
pub(crate) mod law;
#[path = "../../crates/proxy/src/dns/zone.rs"]
mod zone;
