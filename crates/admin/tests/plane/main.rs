//! The admin plane over real sockets, in front of a scripted balancer.

mod abuse;
mod control;
mod events;
mod exposition;
mod metrics;
mod reads;
mod script;
