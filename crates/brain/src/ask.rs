//! What is asked with each request.

use crate::Time;

/// The arguments of one choice. With the same plan, live counts and [`Hand`](crate::Hand), the same ask gives
/// the same member.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask {
    /// How many choices this core made for this group before this one. Cores do well to begin at different
    /// numbers, so that they do not walk the same round in step.
    pub turn: u64,
    /// 64 uniformly random bits.
    pub chance: u64,
    /// [`hash`](crate::hash) of what should stick to one member (client address, path, a header); any value
    /// without affinity.
    pub key: u64,
    /// The moment of the choice.
    pub now: Time,
    /// If it fails, it cannot be sent to another: it is no trial for a member that is back from an ejection, while there are others.
    pub once: bool,
    /// Is it for a session, which lasts as long as its client likes, or for one that will not be counted? How long others took says nothing
    /// of it then.
    pub session: bool,
    /// Do those that its client sends after it go to the same member? How long a few requests took lately says little of what these will
    /// bring.
    pub binds: bool,
    /// Where none has room for it, may it go to one that was full a while ago and may be so no longer? That one may refuse it, so it must
    /// be possible to send it again; and it would overtake those that wait.
    pub venture: bool,
    /// Does it go on whatever limits were found for members that send no load reports? For a request that waits where none was served for a
    /// while ([`WaitQueues::starved`](crate::WaitQueues::starved)), so that no limit lasts for want of requests that show it to be wrong.
    pub insist: bool,
}
