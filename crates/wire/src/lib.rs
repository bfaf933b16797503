//! What the bytes mean: HTTP/1.1 heads and bodies, the PROXY protocol, ORCA load reports. No sockets, no clock.

pub mod http1;
pub mod orca;
pub mod proxy_protocol;
