//! DNS and its law, side by side as they are in the proxy.

#[expect(dead_code, reason = "the target needs a part of it")]
#[path = "../../crates/proxy/src/dns/cookie.rs"]
mod cookie;
#[path = "../../crates/proxy/src/dns/law.rs"]
pub(crate) mod law;
#[path = "../../crates/proxy/src/dns/zone.rs"]
mod zone;
