//! What a member says of itself with the head of its answer, and what follows for the request.

use plimsoll_wire::reading::Unseen;

use super::Exchange;
use crate::http::ending::Failure;
use crate::reason::Reason;
use crate::stream::Stream;

impl<S: Stream, M: Stream> Exchange<'_, S, M> {
    /// What the member says of its load: with a 503 it may be that it has no room, and with any failure that its server is away.
    /// `only`: its answer is nothing but a head, which is how calls fail (gRPC, "Trailers-Only"; the status is 200 then).
    pub(super) fn hear(&mut self, status: u16, only: bool, report: &[u8]) -> Result<(), Failure> {
        let unseen = self.trip.hear(report, self.session.core.now());
        let failed_call = || status == 200 && only && self.session.stream.call().is_some();
        match unseen {
            Some(Unseen::Full) => self.refused = status == 503 || failed_call(),
            Some(Unseen::Away) if status >= 500 || failed_call() => {
                return Err(Failure::Member(Reason::ConnectFailed, true));
            }
            Some(Unseen::Away) | None => {}
        }
        Ok(())
    }
}
