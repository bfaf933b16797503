//! The C library of the lottery's clients. `include/plimsoll.h` says what each function does; `tests.rs` holds the two against
//! each other.
//!
//! The only unsafe code of the project is here, and it does three things: reads strings and structures that C passed, writes
//! structures that C made room for, and lends out a client as a pointer. Nothing panics across the border: a panic becomes
//! `PLIMSOLL_BUG` (`fault.rs`).

#![expect(non_camel_case_types, reason = "the names of the header")]

mod answer;
mod fault;
mod options;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsFd as _, AsRawFd as _};

use ::plimsoll_client::{Client, Lease, MOST_INFO, Wish, service};

pub use answer::{plimsoll_answer, plimsoll_member};
use fault::{Fault, guarded};
pub use options::plimsoll_options;

/// What C knows as a client.
pub struct plimsoll_client(Client);

/// What C knows as a lease.
pub struct plimsoll_lease(Lease);

/// # Safety
/// `options` points to a structure whose first field is its size, and whose texts end with 0; `client` to room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_open(
    options: *const plimsoll_options,
    client: *mut *mut plimsoll_client,
) -> c_int {
    guarded(|| {
        if client.is_null() {
            return Err(Fault::usage("there is no room for the client (NULL)"));
        }
        // SAFETY: it is not null, and by contract there is room.
        unsafe { client.write(std::ptr::null_mut()) };
        // SAFETY: by contract.
        let settings = unsafe { plimsoll_options::settings(options) }?;
        let opened = Box::new(plimsoll_client(Client::open(settings)?));
        // SAFETY: as above.
        unsafe { client.write(Box::into_raw(opened)) };
        Ok(())
    })
}

/// # Safety
/// `client` is null or came from `plimsoll_open`, and no other call uses it now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_close(client: *mut plimsoll_client) {
    guarded(|| {
        if !client.is_null() {
            // SAFETY: by contract it is the box that was lent out, and nobody else has it.
            drop(unsafe { Box::from_raw(client) });
        }
        Ok(())
    });
}

/// # Safety
/// `client` is null or open, `service` a text that ends with 0, `answer` room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_pick(
    client: *mut plimsoll_client,
    service: *const c_char,
    answer: *mut plimsoll_answer,
) -> c_int {
    // SAFETY: by contract; no information is no bytes.
    unsafe { plimsoll_pick_with(client, service, std::ptr::null(), 0, answer) }
}

/// # Safety
/// As `plimsoll_pick`; `info` has `info_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_pick_with(
    client: *mut plimsoll_client,
    service: *const c_char,
    info: *const c_void,
    info_len: usize,
    answer: *mut plimsoll_answer,
) -> c_int {
    guarded(|| {
        // SAFETY: by contract.
        let client = unsafe { borrow(client) }?;
        // SAFETY: by contract.
        let service = unsafe { number(service) }?;
        // SAFETY: by contract.
        let info = unsafe { bytes(info, info_len) }?;
        if answer.is_null() {
            return Err(Fault::usage("there is no room for the answer (NULL)"));
        }
        let pick = client.pick(service, info)?;
        // SAFETY: it is not null, and by contract there is room.
        unsafe { plimsoll_answer::write(answer, &pick) };
        Ok(())
    })
}

/// # Safety
/// `client` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_failed(client: *mut plimsoll_client, member: u16) -> c_int {
    guarded(|| {
        // SAFETY: by contract.
        unsafe { borrow(client) }?.failed(member);
        Ok(())
    })
}

/// # Safety
/// As `plimsoll_pick_with`; `context` is only kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_ask(
    client: *mut plimsoll_client,
    service: *const c_char,
    info: *const c_void,
    info_len: usize,
    context: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: by contract.
        let client = unsafe { borrow(client) }?;
        // SAFETY: by contract.
        let service = unsafe { number(service) }?;
        // SAFETY: by contract.
        let info = unsafe { bytes(info, info_len) }?;
        Ok(client.ask(context.expose_provenance() as u64, service, info)?)
    })
}

/// # Safety
/// `client` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_fd(client: *const plimsoll_client) -> c_int {
    let mut fd = -1;
    guarded(|| {
        // SAFETY: by contract.
        fd = unsafe { borrow(client) }?.as_fd().as_raw_fd();
        Ok(())
    });
    fd
}

/// # Safety
/// `client` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_timeout_ms(client: *const plimsoll_client) -> c_int {
    let mut time = -1;
    guarded(|| {
        // SAFETY: by contract.
        if let Some(left) = unsafe { borrow(client) }?.timeout() {
            // Not too early, or a loop would turn until it is time.
            time = c_int::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX);
        }
        Ok(())
    });
    time
}

/// # Safety
/// `client` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_process(client: *mut plimsoll_client) -> c_int {
    guarded(|| {
        // SAFETY: by contract. If more has come the descriptor stays readable.
        unsafe { borrow(client) }?.process();
        Ok(())
    })
}

/// # Safety
/// `client` is null or open, `context` room for a pointer, `answer` room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_next(
    client: *mut plimsoll_client,
    context: *mut *mut c_void,
    answer: *mut plimsoll_answer,
) -> c_int {
    guarded(|| {
        // SAFETY: by contract.
        let client = unsafe { borrow(client) }?;
        if context.is_null() || answer.is_null() {
            return Err(Fault::usage("there is no room for the context or the answer (NULL)"));
        }
        let next = client.next();
        let tag = next.as_ref().map_or(0, |(tag, _)| *tag);
        // SAFETY: it is not null, and by contract there is room. The number was a pointer before.
        unsafe { context.write(std::ptr::with_exposed_provenance_mut(tag as usize)) };
        let (_, outcome) = next.ok_or(Fault::NOTHING)?;
        let pick = outcome?;
        // SAFETY: it is not null, and by contract there is room.
        unsafe { plimsoll_answer::write(answer, &pick) };
        Ok(())
    })
}

/// # Safety
/// `url` and `group` are texts that end with 0, `key` is null or another; `lease` is room for a pointer, `member` for a member.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_bind(
    url: *const c_char,
    group: *const c_char,
    key: *const c_char,
    seconds: c_int,
    lease: *mut *mut plimsoll_lease,
    member: *mut plimsoll_member,
) -> c_int {
    guarded(|| {
        if lease.is_null() || member.is_null() {
            return Err(Fault::usage("there is no room for the lease or the member (NULL)"));
        }
        // SAFETY: it is not null, and by contract there is room.
        unsafe { lease.write(std::ptr::null_mut()) };
        // SAFETY: by contract.
        let url = unsafe { text_of(url) }?.ok_or_else(|| Fault::usage("there is no URL (NULL)"))?;
        // SAFETY: by contract.
        let group = unsafe { text_of(group) }?.ok_or_else(|| Fault::usage("there is no group (NULL)"))?;
        // SAFETY: by contract.
        let key = unsafe { text_of(key) }?.map(str::to_owned);
        let bound = Lease::bind(url, group, &Wish { key, seconds: span(seconds)?, exclude: Vec::new() })?;
        // SAFETY: it is not null, and by contract there is room.
        unsafe { member.write(plimsoll_member::of(0, bound.address)) };
        // SAFETY: as above.
        unsafe { lease.write(Box::into_raw(Box::new(plimsoll_lease(bound)))) };
        Ok(())
    })
}

/// # Safety
/// `lease` is null or bound, and no other call uses it now; `member` is room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_renew(
    lease: *mut plimsoll_lease,
    failed: c_int,
    moved: *mut c_int,
    member: *mut plimsoll_member,
) -> c_int {
    guarded(|| {
        // SAFETY: by contract.
        let lease = unsafe { lease.as_mut() };
        let lease = &mut lease.ok_or_else(|| Fault::usage("there is no lease (NULL)"))?.0;
        if moved.is_null() || member.is_null() {
            return Err(Fault::usage("there is no room for what has moved, or for the member (NULL)"));
        }
        let exclude = if failed == 0 { Vec::new() } else { vec![lease.member.clone()] };
        let elsewhere = lease.renew(&Wish { exclude, ..Wish::default() })?;
        // SAFETY: it is not null, and by contract there is room.
        unsafe { moved.write(c_int::from(elsewhere)) };
        // SAFETY: as above.
        unsafe { member.write(plimsoll_member::of(0, lease.address)) };
        Ok(())
    })
}

/// # Safety
/// `lease` is null or bound.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_seconds(lease: *const plimsoll_lease) -> c_int {
    // SAFETY: by contract.
    let lease = unsafe { lease.as_ref() };
    lease.map_or(-1, |lease| c_int::try_from(lease.0.span.as_secs()).unwrap_or(c_int::MAX))
}

/// # Safety
/// `lease` is null or bound, and no other call uses it now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_release(lease: *mut plimsoll_lease) -> c_int {
    guarded(|| {
        if lease.is_null() {
            return Ok(());
        }
        // SAFETY: by contract it is the box that was lent out, and nobody else has it.
        let lease = unsafe { Box::from_raw(lease) };
        Ok(lease.0.release()?)
    })
}

/// A code in words.
#[unsafe(no_mangle)]
pub extern "C" fn plimsoll_error(code: c_int) -> *const c_char {
    fault::words(code).as_ptr()
}

/// What the last call of this thread that failed was about.
#[unsafe(no_mangle)]
pub extern "C" fn plimsoll_message() -> *const c_char {
    fault::last()
}

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn plimsoll_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// # Safety
/// `client` is null or open for as long as what is borrowed is used.
unsafe fn borrow<'c>(client: *const plimsoll_client) -> Result<&'c Client, Fault> {
    // SAFETY: by contract.
    let client = unsafe { client.as_ref() };
    Ok(&client.ok_or_else(|| Fault::usage("there is no client (NULL)"))?.0)
}

/// # Safety
/// `text` is null or ends with 0.
unsafe fn number(text: *const c_char) -> Result<u32, Fault> {
    // SAFETY: by contract.
    let text = unsafe { text_of(text) }?.ok_or_else(|| Fault::usage("there is no service (NULL)"))?;
    service(text).map_err(Fault::usage)
}

/// # Safety
/// `text` is null or ends with 0, and stays as it is for as long as what is borrowed is used.
unsafe fn text_of<'t>(text: *const c_char) -> Result<Option<&'t str>, Fault> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not null, and by contract it ends with 0.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Fault::usage("a text is not UTF-8"))
}

/// 0 is as if it were not there.
fn span(seconds: c_int) -> Result<Option<f64>, Fault> {
    match seconds {
        0 => Ok(None),
        1..=3600 => Ok(Some(seconds.into())),
        _ => Err(Fault::usage("a lease is for 1 to 3600 seconds, or 0 for a minute")),
    }
}

/// # Safety
/// `info` has `len` bytes, or `len` is 0.
unsafe fn bytes<'i>(info: *const c_void, len: usize) -> Result<&'i [u8], Fault> {
    match len {
        0 => Ok(&[]),
        _ if len > MOST_INFO => Err(Fault::usage("the information has more than 1000 bytes")),
        _ if info.is_null() => Err(Fault::usage("the information is missing (NULL)")),
        // SAFETY: it is not null, and by contract it has so many bytes.
        _ => Ok(unsafe { std::slice::from_raw_parts(info.cast(), len) }),
    }
}

#[cfg(test)]
mod tests;
