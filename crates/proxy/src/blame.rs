//! Why a request was its member's failure: what is last known of that is told when the member is ejected.

use std::borrow::Cow;

use crate::reason::{ALL, Reason};

/// Why a request failed, of which its member is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// It answered with this status.
    Status(u16),
    /// The answer says that the call failed: a status of gRPC, an exception of CORBA.
    Call,
    /// There was no answer, for this reason.
    Reason(Reason),
    /// It broke off in the middle.
    Broken,
}

/// Where numbers of reasons begin, beyond all statuses; and the others.
const REASONS: u32 = 1000;
const CALL: u32 = 2000;
const BROKEN: u32 = 2001;

impl Blame {
    /// As a number above 0, for an atomic.
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Status(status) => u32::from(status).min(REASONS - 1),
            Self::Reason(reason) => REASONS + reason as u32,
            Self::Call => CALL,
            Self::Broken => BROKEN,
        }
    }

    /// Of such a number; `None` if it is none.
    pub(crate) fn of(code: u32) -> Option<Self> {
        match code {
            0 => None,
            CALL => Some(Self::Call),
            BROKEN => Some(Self::Broken),
            status if status < REASONS => Some(Self::Status(u16::try_from(status).ok()?)),
            reason => Some(Self::Reason(*ALL.get((reason - REASONS) as usize)?)),
        }
    }

    /// For people.
    pub(crate) fn words(self) -> Cow<'static, str> {
        match self {
            Self::Status(status) => format!("status {status}").into(),
            Self::Call => "the call failed, by what its answer says".into(),
            Self::Reason(Reason::ConnectFailed) => {
                "no connection to it could be made (refused or unreachable)".into()
            }
            Self::Reason(reason) => format!("{} ({})", reason.sentence(), reason.label()).into(),
            Self::Broken => "it closed the connection in the middle of an answer".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_blame_goes_through_a_number() {
        let reasons = ALL.into_iter().map(Blame::Reason);
        let all = [Blame::Status(500), Blame::Status(599), Blame::Call, Blame::Broken];
        let mut codes: Vec<u32> = Vec::new();
        for blame in all.into_iter().chain(reasons) {
            assert_eq!(Blame::of(blame.code()), Some(blame));
            codes.push(blame.code());
        }
        let count = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), count);
        for code in [0, REASONS + 500, u32::MAX] {
            assert_eq!(Blame::of(code), None);
        }
        assert_eq!(Blame::Status(503).words(), "status 503");
        assert_eq!(
            Blame::Reason(Reason::AnswerTimeout).words(),
            "a member took too long to answer (answer_timeout)"
        );
    }
}
