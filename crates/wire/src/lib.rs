//! What the bytes mean: HTTP/1.1 heads and bodies, the PROXY protocol, ORCA load reports, the Prometheus text format. No
//! sockets, no clock.

pub mod http1;
pub mod orca;
pub mod prometheus;
pub mod proxy_protocol;
pub mod reading;
