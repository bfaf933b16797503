//! The runtime of one thread: clock, timers, reactor, executor, and data structures without policy.

pub(crate) mod clock;
pub(crate) mod executor;
pub(crate) mod memory;
pub(crate) mod reactor;
pub(crate) mod resource_limits;
pub(crate) mod slab;
pub(crate) mod source_network;
pub(crate) mod sync;
pub(crate) mod timer_fd;
pub(crate) mod timer_wheel;
