//! The protocols that listeners speak.

pub(crate) mod dns;
pub(crate) mod http;
pub(crate) mod http2;
pub(crate) mod iiop;
pub(crate) mod tcp;
pub(crate) mod udp;
pub(crate) mod xds;
