//! Leases: members lent to clients that connect to them directly.

use std::net::IpAddr;

use super::Engine;
use crate::control::lease::{Lease, LeaseError, LeaseHolder, LeaseRequest};
use crate::runtime::sync::lock;

impl Engine {
    /// Leases a member to a client that connects to it directly, and counts the client until the lease ends.
    ///
    /// # Errors
    /// The reason why there is no lease.
    pub fn bind(&self, group: &str, request: &LeaseRequest) -> Result<Lease, LeaseError> {
        lock(&self.0.control).bind(group, request, self.0.clock.now())
    }

    /// Renews a lease, and returns the member for its client from now on: the same or another one.
    ///
    /// # Errors
    /// There is no such lease.
    pub fn renew_lease(&self, group: &str, lease: &str, request: &LeaseRequest) -> Result<Lease, LeaseError> {
        lock(&self.0.control).renew_lease(group, lease, request, self.0.clock.now())
    }

    /// Ends a lease.
    ///
    /// # Errors
    /// There is no such lease.
    pub fn release_lease(&self, group: &str, lease: &str) -> Result<(), LeaseError> {
        lock(&self.0.control).release_lease(group, lease, self.0.clock.now())
    }

    /// Returns the clients that hold leases of a group, those with most leases first.
    ///
    /// # Errors
    /// There is no such group.
    pub fn leases(&self, group: &str) -> Result<Vec<LeaseHolder>, LeaseError> {
        lock(&self.0.control).leases(group, self.0.clock.now())
    }

    /// Ends the leases of a group, or those of one of its members, or of clients at one address, and returns
    /// their number. Clients that renew such a lease are asked to bind again.
    ///
    /// # Errors
    /// There is no such group.
    pub fn end_leases(
        &self,
        group: &str,
        member: Option<&str>,
        client: Option<IpAddr>,
    ) -> Result<usize, LeaseError> {
        lock(&self.0.control).end_leases_of(group, member, client, self.0.clock.now())
    }
}
