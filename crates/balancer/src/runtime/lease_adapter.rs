//! Leases, converted from the data plane's types to those of the admin plane.

use std::time::Duration;

use plimsoll_admin::{Lease, LeaseError, LeaseHolder, LeaseRequest};
use plimsoll_proxy as proxy;

/// Returns the request for the data plane.
pub(super) fn lease_request(request: &LeaseRequest) -> proxy::LeaseRequest {
    let span = request.lease_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    proxy::LeaseRequest {
        key: request.key.clone(),
        span,
        exclude: request.exclude.clone(),
        from: request.from,
    }
}

/// Returns the answer for the client.
pub(super) fn lease(lease: proxy::Lease) -> Lease {
    Lease {
        member: lease.member.to_string(),
        address: lease.address.to_string(),
        lease: lease.id,
        lease_seconds: lease.span.as_secs_f64(),
        moved: lease.moved,
        why: lease.why,
    }
}

/// Returns a client with leases.
pub(super) fn lease_holder(lessee: proxy::LeaseHolder) -> LeaseHolder {
    LeaseHolder {
        member: lessee.member.map(|member| member.to_string()),
        from: lessee.from,
        leases: lessee.leases,
        left_seconds: lessee.remaining.as_secs_f64(),
    }
}

/// Returns the reason for no lease.
pub(super) fn refusal(error: proxy::LeaseError) -> LeaseError {
    match error {
        proxy::LeaseError::Unknown(reason) => LeaseError::Unknown(reason),
        proxy::LeaseError::NoMember(reason) => LeaseError::NoMember(reason),
        proxy::LeaseError::Refused(reason) => LeaseError::LimitReached(reason),
    }
}

/// Returns the reason as a line.
pub(super) fn refusal_line(error: proxy::LeaseError) -> String {
    match error {
        proxy::LeaseError::Unknown(reason)
        | proxy::LeaseError::NoMember(reason)
        | proxy::LeaseError::Refused(reason) => reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_planes_have_the_same_bounds() {
        let bounds = plimsoll_admin::LEASE_SECONDS;
        assert_eq!(proxy::SHORTEST_LEASE.as_secs_f64(), *bounds.start());
        assert_eq!(proxy::LONGEST_LEASE.as_secs_f64(), *bounds.end());
    }
}
