//! Members that are lent to clients which reach them by themselves.

use std::net::IpAddr;

use super::Engine;
use crate::inner::lock;
use crate::lease::{Lease, LeaseWish, Lessee, NoLease};

impl Engine {
    /// Lends a member to a client that reaches it by itself, and counts it in until the lease ends.
    ///
    /// # Errors
    /// Why there is none.
    pub fn bind(&self, group: &str, wish: &LeaseWish) -> Result<Lease, NoLease> {
        lock(&self.0.control).bind(group, wish, self.0.clock.now())
    }

    /// Prolongs a lease, and says where its client is to be from now on: with its member, or with another one.
    ///
    /// # Errors
    /// There is no such lease.
    pub fn renew(&self, group: &str, lease: &str, wish: &LeaseWish) -> Result<Lease, NoLease> {
        lock(&self.0.control).renew(group, lease, wish, self.0.clock.now())
    }

    /// Ends a lease.
    ///
    /// # Errors
    /// There is no such lease.
    pub fn release(&self, group: &str, lease: &str) -> Result<(), NoLease> {
        lock(&self.0.control).release(group, lease, self.0.clock.now())
    }

    /// Who has leases of a group: those first that have most.
    ///
    /// # Errors
    /// There is no such group.
    pub fn leases(&self, group: &str) -> Result<Vec<Lessee>, NoLease> {
        lock(&self.0.control).leases(group, self.0.clock.now())
    }

    /// Ends the leases of a group, or those of one of its members, or of clients at one address; how many. Whoever renews one is
    /// told to bind again.
    ///
    /// # Errors
    /// There is no such group.
    pub fn end_leases(
        &self,
        group: &str,
        member: Option<&str>,
        from: Option<IpAddr>,
    ) -> Result<usize, NoLease> {
        lock(&self.0.control).withdraw(group, member, from, self.0.clock.now())
    }
}
