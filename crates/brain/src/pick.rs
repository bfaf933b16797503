//! The arguments of a choice.

use crate::Time;

/// The arguments of one choice. The same arguments with the same plan, live counts and
/// [`PickerState`](crate::PickerState) give the same member.
#[derive(Clone, Copy, Debug, Default)]
pub struct PickRequest {
    /// The number of choices that this core made for this group before. Cores are best started at different
    /// numbers, so that they do not walk the same round in step.
    pub turn: u64,
    /// 64 uniformly random bits.
    pub random_bits: u64,
    /// The [`hash`](fn@crate::hash) of the affinity key (client address, path, a header); any value without
    /// affinity.
    pub key: u64,
    /// The time of the choice.
    pub now: Time,
    /// Whether the request cannot be retried: it is no trial for a member back from an ejection, while there
    /// are others.
    pub single_attempt: bool,
    /// Whether it is for a session, which lasts as long as its client wants, or for one that is not counted.
    /// The latency of other requests then predicts nothing.
    pub is_session: bool,
    /// Whether its client's later requests go to the same member. The recent latency of a few requests then
    /// predicts little.
    pub binds_client: bool,
    /// Whether it may go to a member with an outdated report of a reached limit, if no member has room. That
    /// member may reject it, so it must be possible to retry it; and it would overtake waiting requests.
    pub may_try_stale: bool,
    /// Whether it ignores the learnt limits of members without load reports. It is set for a request that
    /// waits while none was served for a while ([`WaitQueues::is_starved`](crate::WaitQueues::is_starved)).
    /// So a wrong limit does not last for want of requests that disprove it.
    pub ignores_learnt_limits: bool,
}
