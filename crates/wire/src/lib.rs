//! The wire formats: HTTP/1.1 heads and bodies, priorities, the PROXY protocol, ORCA load reports, the
//! Prometheus text format, GIOP, xDS and etcd. Also the datagrams of the lottery and of the fleet, session
//! cookies, trace contexts and spans. This crate opens no sockets and reads no clock.

pub mod affinity;
pub mod etcd;
pub mod fleet;
pub mod giop;
pub mod http1;
pub mod load_report;
pub mod orca;
pub mod otlp;
pub mod priority;
pub mod prometheus;
pub mod proxy_protocol;
pub mod rfs;
pub mod trace_context;
pub mod xds;
