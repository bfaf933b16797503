//! What the bytes mean: HTTP/1.1 heads and bodies, priorities, the PROXY protocol, ORCA load reports, the Prometheus text
//! format, GIOP, the datagrams of the lottery, cookies of sessions. No sockets, no clock.

pub mod affinity;
pub mod giop;
pub mod http1;
pub mod orca;
pub mod priority;
pub mod prometheus;
pub mod proxy_protocol;
pub mod reading;
pub mod rfs;
