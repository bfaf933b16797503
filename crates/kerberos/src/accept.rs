//! The server side: verifies tokens with the keys of a keytab.

use std::ffi::CString;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr;

use libgssapi::context::{SecurityContext as _, ServerCtx};
use libgssapi::credential::Cred;
use libgssapi::error::{Error, MajorFlags};
use libgssapi::oid::{GSS_MECH_KRB5, GSS_MECH_SPNEGO, Oid};
use libgssapi_sys as sys;

use crate::{AcceptedToken, ChannelBinding, token};

/// The flag that both ends used the same channel binding: MIT's `GSS_C_CHANNEL_BOUND_FLAG`, which headers
/// before 1.19 lack.
const CHANNEL_BOUND: u32 = 0x0800;

/// Verifies tokens.
pub struct TokenAcceptor {
    keytab: PathBuf,
    cred: Cred,
}

impl TokenAcceptor {
    /// Opens a keytab. The library reads it again for each token, so keys may be added and removed at any
    /// time.
    ///
    /// # Errors
    /// Returns an error if the keytab cannot be read or holds no key.
    pub fn open(keytab: &Path) -> Result<Self, String> {
        let cred = acquire(keytab).map_err(|error| {
            format!("{}: no key of a Kerberos service can be had: {error}", keytab.display())
        })?;
        Ok(Self { keytab: keytab.to_owned(), cred })
    }

    /// Verifies a token and returns the client's principal. `text` is the part after `Negotiate`. Reads files
    /// and may wait for a lock, so it must not run on a thread that must not block.
    ///
    /// # Errors
    /// Returns the reason for the refusal, without any part of the token.
    pub fn accept(&self, text: &str, channel: ChannelBinding) -> Result<AcceptedToken, String> {
        let token = token::decode_token(text)?;
        let mut context = ServerCtx::new(Some(self.cred.clone()));
        let reply_token =
            context.step(&token, Some(&channel.gssapi_bytes())).map_err(|error| refusal_text(&error))?;
        if !context.is_complete() {
            return Err("the ticket needs more than one message, which is not done here".into());
        }
        let context_error =
            |error: Error| format!("the ticket does not count: {}", token::error_text(&error));
        let info = context.info().map_err(context_error)?;
        if info.mechanism != GSS_MECH_KRB5 {
            return Err("it is not a Kerberos ticket".into());
        }
        if info.flags.bits() & CHANNEL_BOUND == 0 {
            return Err(
                "the ticket is not bound to this connection: the client must bind it by tls-exporter".into(),
            );
        }
        let name_text = |name: libgssapi::name::Name| {
            let display_name = name.display_name().map_err(context_error)?;
            String::from_utf8(display_name.to_vec()).map_err(|_| "the ticket's name is not UTF-8".to_owned())
        };
        let service_name = name_text(info.target_name)?;
        if !service_name.starts_with("HTTP/") {
            return Err(format!("the ticket is for {}, and not for HTTP", service_name.escape_debug()));
        }
        let reply_text = reply_token.map_or_else(String::new, |reply| token::encode_token(&reply));
        Ok(AcceptedToken {
            principal: name_text(info.source_name)?,
            lifetime: info.lifetime,
            reply: reply_text,
        })
    }
}

impl fmt::Debug for TokenAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokenAcceptor").field(&self.keytab).finish()
    }
}

fn refusal_text(error: &Error) -> String {
    let has_code = |flag: MajorFlags| error.major.bits() & ROUTINE_ERROR_MASK == flag.bits();
    if has_code(MajorFlags::GSS_S_BAD_BINDINGS) {
        return "the ticket is bound to another connection".into();
    }
    format!("the ticket does not count: {}", token::error_text(error))
}

/// The mask of the routine error in a status (RFC 2744, section 3.9.1).
const ROUTINE_ERROR_MASK: u32 = 0xff << 16;

/// Acquires the server's credentials: the keys of `keytab`, for Kerberos, bare or within SPNEGO. Other
/// mechanisms are excluded, because a client could make them send network requests for credentials.
fn acquire(keytab: &Path) -> Result<Cred, String> {
    let path = [b"FILE:".as_slice(), keytab.as_os_str().as_bytes()].concat();
    let path = CString::new(path).map_err(|_| "its name has a zero byte".to_owned())?;
    let mut element = sys::gss_key_value_element_desc { key: c"keytab".as_ptr(), value: path.as_ptr() };
    let store = sys::gss_key_value_set_desc { count: 1, elements: &mut element };
    let mut mechanisms = [oid_descriptor(&GSS_MECH_KRB5), oid_descriptor(&GSS_MECH_SPNEGO)];
    let mut mechanism_set =
        sys::gss_OID_set_desc { count: mechanisms.len(), elements: mechanisms.as_mut_ptr() };
    let mut kerberos_mechanism = oid_descriptor(&GSS_MECH_KRB5);
    let mut negotiated_set = sys::gss_OID_set_desc { count: 1, elements: &mut kerberos_mechanism };
    let (mut minor, mut raw_credential) = (0, ptr::null_mut());
    let usage = sys::GSS_C_ACCEPT as sys::gss_cred_usage_t;
    // SAFETY: all pointers are valid until the call returns, and the library does not keep them (RFC 2744,
    // section 3.1). Arguments that it must not change are const. A null name selects all keys.
    let major = unsafe {
        sys::gss_acquire_cred_from(
            &mut minor,
            ptr::null_mut(),
            sys::_GSS_C_INDEFINITE,
            &mut mechanism_set,
            usage,
            &store,
            &mut raw_credential,
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
    check_status(major, minor)?;
    // SAFETY: the call above created it, and there is no other owner.
    let credential = unsafe { Cred::from_c(raw_credential) };
    // SAFETY: `owned` keeps it alive, and the library copies the set.
    let major = unsafe { sys::gss_set_neg_mechs(&mut minor, raw_credential, &mut negotiated_set) };
    check_status(major, minor)?;
    Ok(credential)
}

fn check_status(major: u32, minor: u32) -> Result<(), String> {
    if major == sys::GSS_S_COMPLETE {
        return Ok(());
    }
    Err(token::error_text(&Error { major: MajorFlags::from_bits_retain(major), minor }))
}

/// Returns the library's descriptor of an OID, which the library only reads.
fn oid_descriptor(oid: &'static Oid<'static>) -> sys::gss_OID_desc {
    let bytes: &'static [u8] = oid;
    sys::gss_OID_desc { length: bytes.len() as u32, elements: bytes.as_ptr().cast_mut().cast() }
}
