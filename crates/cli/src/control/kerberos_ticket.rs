//! A Kerberos ticket as the credential of one request. A token bound to the connection goes with it, and the
//! answer must prove that the host has the key of the service that the ticket is for.

use std::io;

use plimsoll_kerberos::{ChannelBinding, EXPORTER_LABEL, TokenInitiator};

use super::tls_client::{ControlTlsStream, host_of};
use super::{ControlEndpoint, ControlError, ControlStream, http};

/// A ticket for one request.
pub(super) struct KerberosTicket {
    initiator: TokenInitiator,
    /// The text after `Negotiate`.
    token: String,
}

impl KerberosTicket {
    /// Returns the ticket for this connection, if the credentials ask for one.
    pub(super) fn for_connection(
        balancer: &ControlEndpoint,
        socket: &mut ControlStream,
    ) -> Result<Option<Self>, ControlError> {
        match (balancer, socket) {
            (ControlEndpoint::Https(authority, credentials), ControlStream::Tls(stream))
                if credentials.negotiates =>
            {
                let ticket =
                    Self::new(stream, authority).map_err(|error| balancer.connection_error(&error))?;
                ticket.map(Some).map_err(|error| ControlError::Refused(format!("{balancer}: {error}")))
            }
            _ => Ok(None),
        }
    }

    /// Makes a token for this connection to `authority` after the handshake: before there is nothing to bind
    /// it to.
    ///
    /// # Errors
    /// Fails if the connection fails, or (inside) if no ticket can be had.
    fn new(stream: &mut ControlTlsStream, authority: &str) -> io::Result<Result<Self, String>> {
        // The request follows the end of the handshake, and must not wait until that is acknowledged.
        stream.sock.set_nodelay(true)?;
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        let channel_binding =
            stream.conn.export_keying_material([0; 32], EXPORTER_LABEL, None).map_err(io::Error::other)?;
        let initiation = TokenInitiator::begin(host_of(authority), ChannelBinding(channel_binding));
        Ok(initiation.map(|(initiator, token)| Self { initiator, token }))
    }

    /// Returns the field of the request that carries the token.
    pub(super) fn negotiate_header(&self) -> String {
        format!("Authorization: Negotiate {}\r\n", self.token)
    }

    /// Checks that the answer comes from the service that the ticket is for.
    pub(super) fn verify(
        self,
        balancer: &ControlEndpoint,
        response: &http::HttpResponse,
    ) -> Result<(), ControlError> {
        let verified = match &response.negotiate {
            Some(proof) => self.initiator.finish(proof),
            // A host that rejects the client (401) proves nothing; its answer has only the reason.
            None if response.status == 401 => Ok(()),
            None => Err("the answer does not prove that it knows the key of the ticket".into()),
        };
        verified.map_err(|error| ControlError::Refused(format!("{balancer}: {error}")))
    }
}
