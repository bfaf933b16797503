//! Streams, datagrams, the PROXY protocol and health checks through a running engine, with real sockets on
//! the loopback.

mod probe;
mod proxy_protocol;
mod rig;
mod tcp;
mod udp;
