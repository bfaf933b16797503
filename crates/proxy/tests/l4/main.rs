//! Streams, datagrams, the PROXY protocol and health checks through a running engine, with real sockets on
//! the loopback.
#![expect(clippy::unwrap_used, reason = "helpers of tests end the test, as tests do")]

mod addresses;
mod affinity;
mod bindings;
mod budgets;
mod calls;
mod floods;
mod frames;
mod full;
mod http2;
mod http2_clients;
mod http2_ends;
mod http2_members;
mod http2_patience;
mod leases;
mod line;
mod probe;
mod proxy_protocol;
mod pseudo;
mod rig;
mod routes;
mod second;
mod side_car;
mod side_car_away;
mod straight;
mod succession;
mod tcp;
mod udp;
mod websocket;
mod xds;
