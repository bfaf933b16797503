//! What a member says of itself with the head of its answer, and what follows for the request.

use plimsoll_wire::reading::Unseen;

use super::Exchange;
use crate::http::ending::Failure;
use crate::reason::Reason;
use crate::stream::Stream;

impl<S: Stream, M: Stream> Exchange<'_, S, M> {
    /// What the member says of its load: with a 503 it may be that it has no room, and with any failure that its server is away.
    pub(super) fn hear(&mut self, status: u16, report: &[u8]) -> Result<(), Failure> {
        match self.trip.hear(report, self.session.core.now()) {
            Some(Unseen::Full) => self.refused = status == 503,
            Some(Unseen::Away) if status >= 500 => return Err(Failure::Member(Reason::ConnectFailed, true)),
            Some(Unseen::Away) | None => {}
        }
        Ok(())
    }
}
