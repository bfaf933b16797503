//! The C library of the lottery's clients. `include/plimsoll.h` documents the functions; `tests.rs` compares
//! it with this code.
//!
//! The unsafe code here does three things: it reads strings and structures passed by C, writes structures
//! into memory of C, and lends clients and leases as pointers. No panic crosses the boundary: it becomes
//! `PLIMSOLL_BUG` (`fault.rs`).

#![expect(non_camel_case_types, reason = "the names of the header")]

mod answer;
mod fault;
mod options;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsFd as _, AsRawFd as _};

use ::plimsoll_client::{Client, Lease, LeaseRequest, MAX_INFO, service};

pub use answer::{plimsoll_answer, plimsoll_member};
use fault::{Fault, guarded};
pub use options::plimsoll_options;

/// A client, opaque to C.
pub struct plimsoll_client(Client);

/// A lease, opaque to C.
pub struct plimsoll_lease(Lease);

/// Opens a client.
///
/// # Safety
/// `options` points to a structure whose first field is its size, and whose strings end with 0. `client`
/// points to memory for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_open(
    options: *const plimsoll_options,
    client: *mut *mut plimsoll_client,
) -> c_int {
    guarded(|| {
        if client.is_null() {
            return Err(Fault::usage("there is no room for the client (NULL)"));
        }
        // SAFETY: it is not null, and by contract it points to memory for a pointer.
        unsafe { client.write(std::ptr::null_mut()) };
        // SAFETY: by contract.
        let settings = unsafe { plimsoll_options::settings(options) }?;
        let opened = Box::new(plimsoll_client(Client::open(settings)?));
        // SAFETY: as above.
        unsafe { client.write(Box::into_raw(opened)) };
        Ok(())
    })
}

/// Closes a client.
///
/// # Safety
/// `client` is null or came from `plimsoll_open`, and no other call uses it now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_close(client: *mut plimsoll_client) {
    guarded(|| {
        if !client.is_null() {
            // SAFETY: by contract it is the box that `plimsoll_open` returned, and no other call uses it.
            drop(unsafe { Box::from_raw(client) });
        }
        Ok(())
    });
}

/// Waits for the member to send a request to.
///
/// # Safety
/// `client` is null or open, `service` is a string that ends with 0, `answer` points to memory for an answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_pick(
    client: *mut plimsoll_client,
    service: *const c_char,
    answer: *mut plimsoll_answer,
) -> c_int {
    // SAFETY: by contract; a null `info` with length 0 is allowed.
    unsafe { plimsoll_pick_with(client, service, std::ptr::null(), 0, answer) }
}

/// Waits for a member, and sends information to the daemons' applications.
///
/// # Safety
/// As for `plimsoll_pick`; `info` points to `info_len` bytes.
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
        // SAFETY: it is not null, and by contract it points to memory for an answer.
        unsafe { plimsoll_answer::write(answer, &pick) };
        Ok(())
    })
}

/// Records a failure of a member, so that it is not picked for a while.
///
/// # Safety
/// `client` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_failed(client: *mut plimsoll_client, member: u16) -> c_int {
    guarded(|| {
        // SAFETY: by contract.
        unsafe { borrow(client) }?.record_failure(member);
        Ok(())
    })
}

/// Asks for a member without waiting.
///
/// # Safety
/// As for `plimsoll_pick_with`; `context` is stored and never dereferenced.
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
        Ok(client.start_request(context.expose_provenance() as u64, service, info)?)
    })
}

/// Returns the descriptor for an event loop, or -1 on error.
///
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

/// Returns the milliseconds until `plimsoll_process` is due, or -1 if nothing is.
///
/// # Safety
/// `client` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_timeout_ms(client: *const plimsoll_client) -> c_int {
    let mut time = -1;
    guarded(|| {
        // SAFETY: by contract.
        if let Some(left) = unsafe { borrow(client) }?.timeout() {
            // Round up: with a shorter time an event loop would spin until it is due.
            time = c_int::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX);
        }
        Ok(())
    });
    time
}

/// Receives answers and handles timeouts without waiting.
///
/// # Safety
/// `client` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_process(client: *mut plimsoll_client) -> c_int {
    guarded(|| {
        // SAFETY: by contract. If more datagrams are waiting, the descriptor stays readable.
        unsafe { borrow(client) }?.process();
        Ok(())
    })
}

/// Takes the next outcome of `plimsoll_ask`.
///
/// # Safety
/// `client` is null or open, `context` points to memory for a pointer, `answer` to memory for an answer.
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
        let next = client.next_outcome();
        let tag = next.as_ref().map_or(0, |(tag, _)| *tag);
        // SAFETY: it is not null, and by contract it points to memory for a pointer. The tag was made from a
        // pointer.
        unsafe { context.write(std::ptr::with_exposed_provenance_mut(tag as usize)) };
        let (_, outcome) = next.ok_or(Fault::NOTHING)?;
        let pick = outcome?;
        // SAFETY: it is not null, and by contract it points to memory for an answer.
        unsafe { plimsoll_answer::write(answer, &pick) };
        Ok(())
    })
}

/// Leases a member of a balancer's group.
///
/// # Safety
/// `url` and `group` are strings that end with 0, `key` is null or such a string. `lease` points to memory
/// for a pointer, `member` to memory for a member.
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
        // SAFETY: it is not null, and by contract it points to memory for a pointer.
        unsafe { lease.write(std::ptr::null_mut()) };
        // SAFETY: by contract.
        let url = unsafe { text_of(url) }?.ok_or_else(|| Fault::usage("there is no URL (NULL)"))?;
        // SAFETY: by contract.
        let group = unsafe { text_of(group) }?.ok_or_else(|| Fault::usage("there is no group (NULL)"))?;
        // SAFETY: by contract.
        let key = unsafe { text_of(key) }?.map(str::to_owned);
        let bound =
            Lease::bind(url, group, &LeaseRequest { key, seconds: span(seconds)?, exclude: Vec::new() })?;
        // SAFETY: it is not null, and by contract it points to memory for a member.
        unsafe { member.write(plimsoll_member::of(0, bound.address)) };
        // SAFETY: as above.
        unsafe { lease.write(Box::into_raw(Box::new(plimsoll_lease(bound)))) };
        Ok(())
    })
}

/// Renews a lease.
///
/// # Safety
/// `lease` is null or bound, and no other call uses it now. `moved` and `member` are null or point to memory
/// for their type.
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
        let elsewhere = lease.renew(&LeaseRequest { exclude, ..LeaseRequest::default() })?;
        // SAFETY: it is not null, and by contract it points to memory for an `int`.
        unsafe { moved.write(c_int::from(elsewhere)) };
        // SAFETY: as above.
        unsafe { member.write(plimsoll_member::of(0, lease.address)) };
        Ok(())
    })
}

/// Returns the lease's duration in seconds, or -1 if `lease` is null.
///
/// # Safety
/// `lease` is null or bound.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_seconds(lease: *const plimsoll_lease) -> c_int {
    // SAFETY: by contract.
    let lease = unsafe { lease.as_ref() };
    lease.map_or(-1, |lease| c_int::try_from(lease.0.duration.as_secs()).unwrap_or(c_int::MAX))
}

/// Releases a lease.
///
/// # Safety
/// `lease` is null or bound, and no other call uses it now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_release(lease: *mut plimsoll_lease) -> c_int {
    guarded(|| {
        if lease.is_null() {
            return Ok(());
        }
        // SAFETY: by contract it is the box that `plimsoll_bind` returned, and no other call uses it.
        let lease = unsafe { Box::from_raw(lease) };
        Ok(lease.0.release()?)
    })
}

/// Returns a description of a code.
#[unsafe(no_mangle)]
pub extern "C" fn plimsoll_error(code: c_int) -> *const c_char {
    fault::words(code).as_ptr()
}

/// Returns the message of the last call of this thread that failed.
#[unsafe(no_mangle)]
pub extern "C" fn plimsoll_message() -> *const c_char {
    fault::last()
}

/// Returns the version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn plimsoll_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// Borrows a client from its pointer.
///
/// # Safety
/// `client` is null, or open as long as the result is used.
unsafe fn borrow<'c>(client: *const plimsoll_client) -> Result<&'c Client, Fault> {
    // SAFETY: by contract.
    let client = unsafe { client.as_ref() };
    Ok(&client.ok_or_else(|| Fault::usage("there is no client (NULL)"))?.0)
}

/// Parses the number of a service from its name.
///
/// # Safety
/// `text` is null or ends with 0.
unsafe fn number(text: *const c_char) -> Result<u32, Fault> {
    // SAFETY: by contract.
    let text = unsafe { text_of(text) }?.ok_or_else(|| Fault::usage("there is no service (NULL)"))?;
    service(text).map_err(Fault::usage)
}

/// Borrows a string from its pointer; `None` if it is null.
///
/// # Safety
/// `text` is null or ends with 0, and does not change as long as the result is used.
unsafe fn text_of<'t>(text: *const c_char) -> Result<Option<&'t str>, Fault> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not null, and by contract it ends with 0.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Fault::usage("a text is not UTF-8"))
}

/// Converts the duration of a lease; 0 selects the default.
fn span(seconds: c_int) -> Result<Option<f64>, Fault> {
    match seconds {
        0 => Ok(None),
        1..=3600 => Ok(Some(seconds.into())),
        _ => Err(Fault::usage("a lease is for 1 to 3600 seconds, or 0 for a minute")),
    }
}

/// Borrows the information bytes from their pointer.
///
/// # Safety
/// `info` points to `len` bytes, or `len` is 0.
unsafe fn bytes<'i>(info: *const c_void, len: usize) -> Result<&'i [u8], Fault> {
    match len {
        0 => Ok(&[]),
        _ if len > MAX_INFO => Err(Fault::usage("the information has more than 1000 bytes")),
        _ if info.is_null() => Err(Fault::usage("the information is missing (NULL)")),
        // SAFETY: it is not null, and by contract it points to `len` bytes.
        _ => Ok(unsafe { std::slice::from_raw_parts(info.cast(), len) }),
    }
}

#[cfg(test)]
mod tests;
