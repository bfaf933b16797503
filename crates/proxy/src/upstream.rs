//! Members as one thread sees them: plans, pools, in-flight counts, admission, and what is recorded of a
//! request.

pub(crate) mod access_log;
pub(crate) mod admission;
pub(crate) mod affinity_cache;
pub(crate) mod connect;
pub(crate) mod failure_cause;
pub(crate) mod group;
pub(crate) mod in_flight;
pub(crate) mod pool;
pub(crate) mod rebind_events;
pub(crate) mod request_record;
pub(crate) mod side_car;
pub(crate) mod stats;
pub(crate) mod thread_context;
pub(crate) mod trace;
pub(crate) mod wait_queue;
