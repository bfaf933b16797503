//! Turns errors and panics into a code and a message for the calling thread.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int};
use std::fmt::Display;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ::plimsoll_client::{LeaseError, OpenError, PickError};

/// An error: a code of the header and its cause.
#[derive(Debug)]
pub(crate) struct Fault {
    code: c_int,
    why: Why,
}

#[derive(Debug)]
enum Why {
    Words(&'static str),
    Open(OpenError),
    Lease(LeaseError),
}

const OK: c_int = 0;
const SILENCE: c_int = 1;
const BUSY: c_int = 2;
const UNKNOWN: c_int = 3;
const DRAINING: c_int = 4;
const TOO_MANY: c_int = 5;
const NOTHING: c_int = 6;
const USAGE: c_int = 16;
const KEYS: c_int = 17;
const LOOK_UP: c_int = 18;
const SYSTEM: c_int = 19;
const BUG: c_int = 20;

/// The size of the message buffer in bytes, including the terminating 0.
const ROOM: usize = 512;

thread_local! {
    /// The last message. The type needs no destructor when a thread ends.
    static LAST: RefCell<[u8; ROOM]> = const { RefCell::new([0; ROOM]) };
}

impl Fault {
    /// No error: there is no outcome to return.
    pub(crate) const NOTHING: Self = Self { code: NOTHING, why: Why::Words("nothing has come") };

    pub(crate) fn usage(why: &'static str) -> Self {
        Self { code: USAGE, why: Why::Words(why) }
    }
}

impl From<PickError> for Fault {
    fn from(why: PickError) -> Self {
        let (code, why) = match why {
            PickError::NoResponse => (SILENCE, "no daemon answered: do they run, and with the same keys?"),
            PickError::Busy => (BUSY, "no member can serve it now"),
            PickError::UnknownService => (UNKNOWN, "no member offers it"),
            PickError::Draining => (DRAINING, "all members that offer it are going"),
            PickError::TooMany => (TOO_MANY, "too many requests are on their way"),
        };
        Self { code, why: Why::Words(why) }
    }
}

impl From<OpenError> for Fault {
    fn from(why: OpenError) -> Self {
        let code = match &why {
            OpenError::NoDaemons | OpenError::NotMulticast(_) => USAGE,
            OpenError::Keys { .. } => KEYS,
            OpenError::NameResolution(_) => LOOK_UP,
            OpenError::System(_) => SYSTEM,
        };
        Self { code, why: Why::Open(why) }
    }
}

impl From<LeaseError> for Fault {
    fn from(why: LeaseError) -> Self {
        let code = match &why {
            LeaseError::Usage(_) => USAGE,
            LeaseError::NoResponse(_) => SILENCE,
            LeaseError::Busy(_) => BUSY,
            LeaseError::Unknown(_) => UNKNOWN,
        };
        Self { code, why: Why::Lease(why) }
    }
}

/// Runs a call, stores the message of its error and returns its code. Catches panics.
pub(crate) fn guarded(call: impl FnOnce() -> Result<(), Fault>) -> c_int {
    // State that a panic leaves inconsistent is behind locks that ignore poisoning (see `Client`), or belongs
    // to the C caller, which gets the code.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => OK,
        Ok(Err(Fault { code: NOTHING, .. })) => NOTHING,
        Ok(Err(Fault { code, why })) => {
            match why {
                Why::Words(why) => say(&why),
                Why::Open(why) => say(&why),
                Why::Lease(why) => say(&why),
            }
            code
        }
        Err(_) => {
            say(&"a fault of the library; what it was is on standard error: please report it");
            BUG
        }
    }
}

/// Stores a message, cut to the size of the buffer.
fn say(why: &dyn Display) {
    LAST.with_borrow_mut(|room| {
        let mut rest = &mut room[..ROOM - 1];
        // The write fails when the buffer is full; the part written so far stays.
        let _ = write!(rest, "{why}");
        let end = ROOM - 1 - rest.len();
        // The cut may be inside a character.
        let end = match str::from_utf8(&room[..end]) {
            Ok(_) => end,
            Err(cut) => cut.valid_up_to(),
        };
        room[end] = 0;
    });
}

/// Returns the last message of this thread, valid until its next failing call.
pub(crate) fn last() -> *const c_char {
    LAST.with(|room| room.as_ptr().cast())
}

/// Returns a description of a code.
pub(crate) fn words(code: c_int) -> &'static CStr {
    match code {
        OK => c"ok",
        SILENCE => c"no daemon answered",
        BUSY => c"no member can serve it now",
        UNKNOWN => c"no member offers it",
        DRAINING => c"all members that offer it are going",
        TOO_MANY => c"too many requests are on their way",
        NOTHING => c"nothing has come",
        USAGE => c"wrong argument",
        KEYS => c"the keys cannot be read",
        LOOK_UP => c"no daemon's name is known",
        SYSTEM => c"the system gives no socket",
        BUG => c"a fault of the library",
        _ => c"unknown code",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        // SAFETY: it ends with 0, and this thread stores no other message meanwhile.
        unsafe { CStr::from_ptr(last()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_a_code() {
        assert_eq!(guarded(|| panic!("on purpose")), BUG);
        assert!(message().contains("a fault of the library"));
        assert_eq!(guarded(|| Ok(())), OK);
    }

    #[test]
    fn messages_are_cut_between_characters_and_each_thread_has_its_own() {
        let long = format!("a{}", "é".repeat(ROOM));
        assert_eq!(guarded(|| Err(OpenError::NameResolution(long).into())), LOOK_UP);
        let kept = message();
        assert!((ROOM - 2..ROOM).contains(&kept.len()) && kept.ends_with('é'), "{}", kept.len());
        std::thread::spawn(|| assert_eq!(message(), "")).join().unwrap();
        assert_eq!(guarded(|| Err(Fault::NOTHING)), NOTHING);
        assert_eq!(message(), kept, "that nothing has come is no failure");
        assert_eq!(guarded(|| Err(PickError::NoResponse.into())), SILENCE);
        assert!(message().starts_with("no daemon answered"));
    }
}
