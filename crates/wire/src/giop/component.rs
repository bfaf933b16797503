//! Tagged components: the parts of an IIOP profile besides address and key.

use super::profile::IiopAddress;
use super::{ByteOrder, CdrReader, CdrWriter, GiopError, GiopVersion};

/// The tag of the component that names the program that created the reference.
pub const ORB_TYPE: u32 = 0;
/// The tag of [`CodeSets`].
pub const CODE_SETS: u32 = 1;
/// The tag of the component with another address of the same object.
pub const ALTERNATE_ADDRESS: u32 = 3;

/// One component, kept byte for byte.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TaggedComponent {
    /// The tag.
    pub tag: u32,
    /// The contents, an encapsulation.
    pub data: Vec<u8>,
}

impl TaggedComponent {
    /// Creates the component with another address of the same object.
    pub fn alternate_address(host: &str, port: u16, order: ByteOrder) -> Self {
        let data = encapsulation(order, |writer| {
            writer.string(host.as_bytes());
            writer.u16(port);
        });
        Self { tag: ALTERNATE_ADDRESS, data }
    }

    /// Returns the address, if the component holds one.
    pub fn address(&self) -> Option<IiopAddress> {
        if self.tag != ALTERNATE_ADDRESS {
            return None;
        }
        let mut reader = CdrReader::encapsulation(&self.data).ok()?;
        let host = std::str::from_utf8(reader.string().ok()?).ok()?.to_string();
        Some(IiopAddress { version: GiopVersion::V1_2, host, port: reader.u16().ok()? })
    }

    /// Returns the code sets, if the component holds them.
    pub fn code_sets(&self) -> Option<CodeSets> {
        if self.tag == CODE_SETS { CodeSets::parse(&self.data).ok() } else { None }
    }
}

/// The character sets that a server accepts strings in, by their numbers in the OSF registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CodeSets {
    /// The sets for `char` and `string`.
    pub char: CodeSet,
    /// The sets for `wchar` and `wstring`.
    pub wchar: CodeSet,
}

/// The sets for one kind of character.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CodeSet {
    /// The server's native set.
    pub native: u32,
    /// The sets that the server converts from and to.
    pub conversions: Vec<u32>,
}

impl CodeSets {
    /// ISO 8859-1.
    pub const LATIN_1: u32 = 0x0001_0001;
    /// UTF-8.
    pub const UTF_8: u32 = 0x0501_0001;
    /// UTF-16.
    pub const UTF_16: u32 = 0x0001_0109;

    /// Returns UTF-8 or ISO 8859-1, and UTF-16. Every ORB supports these, so a group's references list them
    /// instead of the members' own. Without code sets a client refuses to send a wide string.
    pub fn common_sets() -> Self {
        Self {
            char: CodeSet { native: Self::UTF_8, conversions: vec![Self::LATIN_1] },
            wchar: CodeSet { native: Self::UTF_16, conversions: Vec::new() },
        }
    }

    /// Returns the component with these code sets.
    pub fn component(&self, order: ByteOrder) -> TaggedComponent {
        let data = encapsulation(order, |writer| {
            for set in [&self.char, &self.wchar] {
                writer.u32(set.native);
                writer.count(set.conversions.len());
                set.conversions.iter().for_each(|conversion| writer.u32(*conversion));
            }
        });
        TaggedComponent { tag: CODE_SETS, data }
    }

    fn parse(data: &[u8]) -> Result<Self, GiopError> {
        let mut reader = CdrReader::encapsulation(data)?;
        Ok(Self { char: read_code_set(&mut reader)?, wchar: read_code_set(&mut reader)? })
    }
}

fn read_code_set(reader: &mut CdrReader<'_>) -> Result<CodeSet, GiopError> {
    let native = reader.u32()?;
    let count = reader.count(4)?;
    let conversions = (0..count).map(|_| reader.u32()).collect::<Result<_, _>>()?;
    Ok(CodeSet { native, conversions })
}

/// Returns the bytes of an encapsulation.
pub(super) fn encapsulation(order: ByteOrder, write: impl FnOnce(&mut CdrWriter<'_>)) -> Vec<u8> {
    let mut data = Vec::new();
    let mut writer = CdrWriter::new(&mut data, order);
    writer.u8(order.flag());
    write(&mut writer);
    data
}
