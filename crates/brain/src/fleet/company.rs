//! What the choices of a group know of other balancers, for all cores to read.
//!
//! What is in flight from here is known to the request, what others have is some milliseconds old. If both counted the same, all
//! balancers would see nearly the same member as the emptiest for that long, and meet there: a herd. So each request of one's
//! own counts as many times as there are balancers, as if every other had sent one as well, which is what each of them is about to
//! do; what they are known to have is added to that. Between members with as many requests from here it decides, and a member that is slow for
//! all, or has many requests of others, is left in time. Where nothing is heard it is what each does alone.
//!
//! Simulated against the sum, against draws of a few members, and against pouring the requests that are not seen yet over all
//! members (Goren, Vargaftik and Moses, Stochastic coordination in heterogeneous load balancing systems, PODC 2021), this was the
//! nearest to one balancer that sees everything, at every age of the reports (`tests/together`).

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Written by one thread, read with each choice; no lock.
#[derive(Debug, Default)]
pub struct Company {
    /// Others that are heard of; 0 for a balancer that is alone.
    others: AtomicU32,
    /// Is there a member of which others, or the process before this one, have heard something that it said of itself?
    speaks: AtomicU32,
}

impl Company {
    /// So many others serve the group and are heard of.
    pub fn set(&self, others: usize) {
        let others = u32::try_from(others).unwrap_or(u32::MAX).min(MOST);
        if self.others.load(Relaxed) != others {
            self.others.store(others, Relaxed);
        }
    }

    /// How many times a request of one's own counts: for each balancer once.
    #[inline]
    pub fn scale(&self) -> f64 {
        f64::from(self.others.load(Relaxed)) + 1.0
    }

    /// A member spoke to another balancer, or to the process before this one, who passed it on.
    pub(crate) fn spoke(&self) {
        if self.speaks.load(Relaxed) == 0 {
            self.speaks.store(1, Relaxed);
        }
    }

    /// Did one ever?
    pub(crate) fn speaks(&self) -> bool {
        self.speaks.load(Relaxed) != 0
    }
}

/// With more than that one's own requests decide anyway.
const MOST: u32 = 63;
