//! The client side: creates a token for one request and verifies the server's reply.

use std::fmt;

use libgssapi::context::{ClientCtx, CtxFlags, SecurityContext as _};
use libgssapi::error::Error;
use libgssapi::name::Name;
use libgssapi::oid::{GSS_MECH_SPNEGO, GSS_NT_HOSTBASED_SERVICE};

use crate::{ChannelBinding, token};

/// Creates a token and verifies the reply to it.
pub struct TokenInitiator {
    context: ClientCtx,
    host: String,
    channel: ChannelBinding,
}

impl TokenInitiator {
    /// Creates a token with the ticket for `HTTP@host` from the credential cache, or else from the KDC. Also
    /// returns the text that follows `Negotiate`.
    ///
    /// # Errors
    /// Returns the reason why there is no ticket, and a remedy.
    pub fn begin(host: &str, channel: ChannelBinding) -> Result<(Self, String), String> {
        let service_text = format!("HTTP@{host}");
        let ticket_error = |error: Error| {
            format!("no Kerberos ticket for HTTP/{host}: {}; get one with kinit", token::error_text(&error))
        };
        let service_name =
            Name::new(service_text.as_bytes(), Some(GSS_NT_HOSTBASED_SERVICE)).map_err(ticket_error)?;
        let flags = CtxFlags::GSS_C_MUTUAL_FLAG | CtxFlags::GSS_C_REPLAY_FLAG | CtxFlags::GSS_C_INTEG_FLAG;
        let mut context = ClientCtx::new(None, service_name, flags, Some(GSS_MECH_SPNEGO));
        let token = context.step(None, Some(&channel.gssapi_bytes())).map_err(ticket_error)?;
        let token = token.filter(|token| !token.is_empty()).ok_or("Kerberos made no token")?;
        let text = token::encode_token(&token);
        Ok((Self { context, host: host.to_owned(), channel }, text))
    }

    /// Verifies the text after `Negotiate` in the response.
    ///
    /// # Errors
    /// Returns an error if the text does not prove that the server has the service's key.
    pub fn finish(mut self, reply: &str) -> Result<(), String> {
        let proof_error =
            |reason: String| format!("{} did not prove by Kerberos that it is HTTP/{0}: {reason}", self.host);
        let reply = token::decode_token(reply).map_err(proof_error)?;
        let final_step = self.context.step(Some(&reply), Some(&self.channel.gssapi_bytes()));
        final_step.map_err(|error| proof_error(token::error_text(&error)))?;
        let is_mutual = self.context.flags().is_ok_and(|flags| flags.contains(CtxFlags::GSS_C_MUTUAL_FLAG));
        if !self.context.is_complete() || !is_mutual {
            return Err(proof_error("its answer is not all".into()));
        }
        Ok(())
    }
}

impl fmt::Debug for TokenInitiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokenInitiator").field(&self.host).finish()
    }
}
