//! The client's side: a token for one request, and the proof that it came to the right server.

use std::fmt;

use libgssapi::context::{ClientCtx, CtxFlags, SecurityContext as _};
use libgssapi::error::Error;
use libgssapi::name::Name;
use libgssapi::oid::{GSS_MECH_SPNEGO, GSS_NT_HOSTBASED_SERVICE};

use crate::{Channel, token};

/// Makes a token, and knows what must be answered to it.
pub struct Initiator {
    context: ClientCtx,
    host: String,
    channel: Channel,
}

impl Initiator {
    /// Begins with the ticket for `HTTP@host` out of the credential cache, asking the KDC for one if none is there. What
    /// follows `Negotiate` comes with it.
    ///
    /// # Errors
    /// There is no ticket to be had, and what to do.
    pub fn begin(host: &str, channel: Channel) -> Result<(Self, String), String> {
        let name = format!("HTTP@{host}");
        let wrong = |error: Error| {
            format!("no Kerberos ticket for HTTP/{host}: {}; get one with kinit", token::why(&error))
        };
        let name = Name::new(name.as_bytes(), Some(GSS_NT_HOSTBASED_SERVICE)).map_err(wrong)?;
        let flags = CtxFlags::GSS_C_MUTUAL_FLAG | CtxFlags::GSS_C_REPLAY_FLAG | CtxFlags::GSS_C_INTEG_FLAG;
        let mut context = ClientCtx::new(None, name, flags, Some(GSS_MECH_SPNEGO));
        let token = context.step(None, Some(&channel.binding())).map_err(wrong)?;
        let token = token.filter(|token| !token.is_empty()).ok_or("Kerberos made no token")?;
        let text = token::write(&token);
        Ok((Self { context, host: host.to_owned(), channel }, text))
    }

    /// Judges what follows `Negotiate` in the answer.
    ///
    /// # Errors
    /// It does not prove that the server has the service's key.
    pub fn finish(mut self, reply: &str) -> Result<(), String> {
        let unproved =
            |why: String| format!("{} did not prove by Kerberos that it is HTTP/{0}: {why}", self.host);
        let reply = token::read(reply).map_err(unproved)?;
        let done = self.context.step(Some(&reply), Some(&self.channel.binding()));
        done.map_err(|error| unproved(token::why(&error)))?;
        let mutual = self.context.flags().is_ok_and(|flags| flags.contains(CtxFlags::GSS_C_MUTUAL_FLAG));
        if !self.context.is_complete() || !mutual {
            return Err(unproved("its answer is not all".into()));
        }
        Ok(())
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Initiator").field(&self.host).finish()
    }
}
