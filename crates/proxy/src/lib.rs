//! Carry traffic.
