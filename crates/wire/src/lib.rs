//! What the bytes mean: HTTP/1.1 heads and bodies, priorities, the PROXY protocol, ORCA load reports, the Prometheus text
//! format, GIOP, xDS, etcd, the datagrams of the lottery and of balancers that act together, cookies of sessions, traces and their spans. No sockets, no clock.

pub mod affinity;
pub mod etcd;
pub mod fleet;
pub mod giop;
pub mod http1;
pub mod orca;
pub mod otlp;
pub mod priority;
pub mod prometheus;
pub mod proxy_protocol;
pub mod reading;
pub mod rfs;
pub mod trace_context;
pub mod xds;
