//! The cause of a member's failure. The last known cause is reported when the member is ejected.

use std::borrow::Cow;

use crate::net::reason::{ALL, Reason};

/// The cause of a failed request for which its member is responsible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureCause {
    /// The member responded with this status.
    Status(u16),
    /// The response reports that the call failed, by a gRPC status or a CORBA exception.
    FailedCall,
    /// There was no response, for this reason.
    Reason(Reason),
    /// The response ended before it was complete.
    IncompleteResponse,
}

/// The first code for reasons, above all statuses; then the other codes.
const REASONS: u32 = 1000;
const FAILED_CALL: u32 = 2000;
const INCOMPLETE_RESPONSE: u32 = 2001;

impl FailureCause {
    /// Returns the cause as a number above 0, for an atomic.
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Status(status) => u32::from(status).min(REASONS - 1),
            Self::Reason(reason) => REASONS + reason as u32,
            Self::FailedCall => FAILED_CALL,
            Self::IncompleteResponse => INCOMPLETE_RESPONSE,
        }
    }

    /// Returns the cause with this number; `None` if there is none.
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => None,
            FAILED_CALL => Some(Self::FailedCall),
            INCOMPLETE_RESPONSE => Some(Self::IncompleteResponse),
            status if status < REASONS => Some(Self::Status(u16::try_from(status).ok()?)),
            reason => Some(Self::Reason(*ALL.get((reason - REASONS) as usize)?)),
        }
    }

    /// Returns a description for people.
    pub(crate) fn description(self) -> Cow<'static, str> {
        match self {
            Self::Status(status) => format!("status {status}").into(),
            Self::FailedCall => "the call failed, by what its answer says".into(),
            Self::Reason(Reason::ConnectFailed) => {
                "no connection to it could be made (refused or unreachable)".into()
            }
            Self::Reason(reason) => format!("{} ({})", reason.sentence(), reason.label()).into(),
            Self::IncompleteResponse => "it closed the connection in the middle of an answer".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_blame_goes_through_a_number() {
        let reasons = ALL.into_iter().map(FailureCause::Reason);
        let causes = [
            FailureCause::Status(500),
            FailureCause::Status(599),
            FailureCause::FailedCall,
            FailureCause::IncompleteResponse,
        ];
        let mut codes: Vec<u32> = Vec::new();
        for cause in causes.into_iter().chain(reasons) {
            assert_eq!(FailureCause::from_code(cause.code()), Some(cause));
            codes.push(cause.code());
        }
        let count = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), count);
        for code in [0, REASONS + 500, u32::MAX] {
            assert_eq!(FailureCause::from_code(code), None);
        }
        assert_eq!(FailureCause::Status(503).description(), "status 503");
        assert_eq!(
            FailureCause::Reason(Reason::AnswerTimeout).description(),
            "a member took too long to answer (answer_timeout)"
        );
    }
}
