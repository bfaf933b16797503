//! Bytes in transit: sockets, connections, TLS, and the buffers between them.

pub(crate) mod acme_challenge;
pub(crate) mod byte_stream;
pub(crate) mod connection;
pub(crate) mod grpc;
pub(crate) mod member_addresses;
pub(crate) mod reason;
pub(crate) mod socket;
pub(crate) mod splice;
pub(crate) mod tls;
pub(crate) mod write_buffer;
