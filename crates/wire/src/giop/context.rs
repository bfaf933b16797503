//! Service contexts: the metadata of a request or a reply, each an ID and bytes.

use super::{ByteOrder, CdrReader, CdrWriter, GiopError};

/// The context with the code sets of a connection's strings; sent once on each connection.
pub const CODE_SETS: u32 = 1;

/// One service context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceContext<'m> {
    /// The service's ID.
    pub id: u32,
    /// The data; an encapsulation in the standard's own contexts.
    pub data: &'m [u8],
}

/// The service contexts of a message: known to be well-formed, and parsed on demand.
#[derive(Clone, Copy, Debug)]
pub struct ServiceContexts<'m> {
    count: usize,
    /// The bytes from the first context's ID (which is aligned to 4) to the end of the last.
    bytes: &'m [u8],
    order: ByteOrder,
}

impl<'m> ServiceContexts<'m> {
    /// An empty list.
    pub const NONE: ServiceContexts<'static> =
        ServiceContexts { count: 0, bytes: &[], order: ByteOrder::Big };

    /// Returns the number of contexts.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns `true` if there are no contexts.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the contexts, in order.
    pub fn iter(&self) -> impl Iterator<Item = ServiceContext<'m>> + use<'m> {
        let mut reader = CdrReader::new(self.bytes, self.order);
        (0..self.count).map_while(move |_| read_context(&mut reader).ok())
    }

    /// Returns the data of the first context with an ID.
    pub fn find(&self, id: u32) -> Option<&'m [u8]> {
        self.iter().find(|context| context.id == id).map(|context| context.data)
    }

    pub(super) fn read(reader: &mut CdrReader<'m>) -> Result<Self, GiopError> {
        let count = reader.count(8)?;
        let (bytes, start) = (reader.rest(), reader.position());
        for _ in 0..count {
            read_context(reader)?;
        }
        Ok(Self { count, bytes: &bytes[..reader.position() - start], order: reader.order() })
    }

    /// Appends the contexts after those of `before`. They need an alignment of 4 at most, so the copied bytes
    /// stay valid.
    pub(super) fn write(&self, prepended: &[ServiceContext<'_>], writer: &mut CdrWriter<'_>) {
        writer.count(prepended.len() + self.count);
        for context in prepended {
            writer.u32(context.id);
            writer.octets(context.data);
        }
        if self.order == writer.order() {
            if self.count > 0 {
                writer.align(4);
                writer.bytes(self.bytes);
            }
            return;
        }
        for context in self.iter() {
            writer.u32(context.id);
            writer.octets(context.data);
        }
    }
}

impl PartialEq for ServiceContexts<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.count == other.count && self.iter().eq(other.iter())
    }
}

fn read_context<'m>(reader: &mut CdrReader<'m>) -> Result<ServiceContext<'m>, GiopError> {
    Ok(ServiceContext { id: reader.u32()?, data: reader.octets()? })
}
