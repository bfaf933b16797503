//! CDR, the encoding of GIOP's values: each in the sender's byte order, aligned to its own size.
//!
//! Alignment counts from the first byte of the message, or of the innermost encapsulation (an octet sequence
//! that begins with its own byte order). Padding is ignored when read, and written as zeros.

use super::GiopError;

/// A byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// Most significant first.
    Big,
    /// Least significant first.
    Little,
}

impl ByteOrder {
    /// This machine's byte order.
    pub const NATIVE: Self = if cfg!(target_endian = "little") { Self::Little } else { Self::Big };

    /// Returns the flag that stands for this order: 1 for little.
    pub fn flag(self) -> u8 {
        u8::from(self == Self::Little)
    }
}

/// Reads values from borrowed bytes. After an error it cannot be used any further.
#[derive(Clone, Copy, Debug)]
pub struct CdrReader<'b> {
    bytes: &'b [u8],
    position: usize,
    /// The offset that is added to `at` for alignment.
    origin: usize,
    order: ByteOrder,
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident: $type:ty) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// The bytes end before the value does.
        pub fn $name(&mut self) -> Result<$type, GiopError> {
            const SIZE: usize = size_of::<$type>();
            self.align(SIZE)?;
            let bytes = self.array::<SIZE>()?;
            Ok(match self.order {
                ByteOrder::Big => <$type>::from_be_bytes(bytes),
                ByteOrder::Little => <$type>::from_le_bytes(bytes),
            })
        }
    };
}

impl<'b> CdrReader<'b> {
    /// Creates a reader whose first byte is aligned.
    pub fn new(bytes: &'b [u8], order: ByteOrder) -> Self {
        Self { bytes, position: 0, origin: 0, order }
    }

    /// Creates a reader whose first byte has the offset `origin` for alignment.
    pub fn with_origin(bytes: &'b [u8], order: ByteOrder, origin: usize) -> Self {
        Self { bytes, position: 0, origin: origin % 8, order }
    }

    /// Creates a reader of a whole message, or of its beginning, from byte `at` on.
    pub(super) fn message(bytes: &'b [u8], order: ByteOrder, position: usize) -> Self {
        Self { bytes, position, origin: 0, order }
    }

    /// Creates a reader of an encapsulation, whose first byte gives the byte order.
    ///
    /// # Errors
    /// It is empty, or begins with neither 0 nor 1.
    pub fn encapsulation(bytes: &'b [u8]) -> Result<Self, GiopError> {
        let order = match bytes.first() {
            Some(0) => ByteOrder::Big,
            Some(1) => ByteOrder::Little,
            Some(_) => return Err(GiopError::Malformed("an encapsulation begins with no byte order")),
            None => return Err(GiopError::Malformed("an encapsulation is empty")),
        };
        Ok(Self { bytes, position: 1, origin: 0, order })
    }

    /// Returns the number of bytes read so far, with padding.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Returns the byte order.
    pub fn order(&self) -> ByteOrder {
        self.order
    }

    /// Returns the unread bytes.
    pub fn rest(&self) -> &'b [u8] {
        self.bytes.get(self.position..).unwrap_or_default()
    }

    /// Skips to the next multiple of `to`, a power of two up to 8.
    ///
    /// # Errors
    /// The bytes end earlier.
    pub fn align(&mut self, alignment: usize) -> Result<(), GiopError> {
        let padding = padding_to(self.origin + self.position, alignment);
        self.take(padding).map(drop)
    }

    /// Returns the next `count` bytes.
    ///
    /// # Errors
    /// Fewer bytes are left.
    pub fn take(&mut self, count: usize) -> Result<&'b [u8], GiopError> {
        let taken = self.rest().get(..count).ok_or(GiopError::Truncated)?;
        self.position += count;
        Ok(taken)
    }

    /// Reads an octet, a char, or any other type of one byte.
    ///
    /// # Errors
    /// The bytes end before the value does.
    pub fn u8(&mut self) -> Result<u8, GiopError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Reads a boolean.
    ///
    /// # Errors
    /// The bytes end before the value does, or it is neither 0 nor 1.
    pub fn bool(&mut self) -> Result<bool, GiopError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(GiopError::Malformed("a boolean is neither 0 nor 1")),
        }
    }

    number!(
        /// Reads an unsigned short.
        u16: u16
    );
    number!(
        /// Reads an unsigned long.
        u32: u32
    );
    number!(
        /// Reads a long.
        i32: i32
    );
    number!(
        /// Reads an unsigned long long.
        u64: u64
    );
    number!(
        /// Reads a float.
        f32: f32
    );
    number!(
        /// Reads a double.
        f64: f64
    );

    /// Reads the length of a sequence whose elements take at least `least` bytes each, so that callers may
    /// allocate it.
    ///
    /// # Errors
    /// The length exceeds the available bytes.
    pub fn count(&mut self, min_element_len: usize) -> Result<usize, GiopError> {
        let count = self.u32()? as usize;
        if count.checked_mul(min_element_len).is_none_or(|needed| needed > self.rest().len()) {
            return Err(GiopError::Truncated);
        }
        Ok(count)
    }

    /// Reads a sequence of octets.
    ///
    /// # Errors
    /// The length exceeds the available bytes.
    pub fn octets(&mut self) -> Result<&'b [u8], GiopError> {
        let count = self.count(1)?;
        self.take(count)
    }

    /// Reads a string's bytes without the final NUL. Some old programs send an empty string as no bytes.
    ///
    /// # Errors
    /// The length exceeds the available bytes, or the string does not end in NUL.
    pub fn string(&mut self) -> Result<&'b [u8], GiopError> {
        let octets = self.octets()?;
        match octets.split_last() {
            None => Ok(octets),
            Some((0, text)) => Ok(text),
            Some(_) => Err(GiopError::Malformed("a string does not end in NUL")),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GiopError> {
        let bytes = self.rest().first_chunk::<N>().ok_or(GiopError::Truncated)?;
        self.position += N;
        Ok(*bytes)
    }
}

/// Appends values to a vector.
#[derive(Debug)]
pub struct CdrWriter<'o> {
    out: &'o mut Vec<u8>,
    /// The offset in `out` that alignment counts from.
    base: usize,
    order: ByteOrder,
}

impl<'o> CdrWriter<'o> {
    /// Creates a writer at the end of `out`, which is aligned.
    pub fn new(out: &'o mut Vec<u8>, order: ByteOrder) -> Self {
        let base = out.len();
        Self { out, base, order }
    }

    /// Creates a writer at the end of `out`; alignment counts from byte `base`.
    pub fn with_base(out: &'o mut Vec<u8>, order: ByteOrder, base: usize) -> Self {
        Self { out, base, order }
    }

    /// Returns the offset from the byte that alignment counts from.
    pub fn position(&self) -> usize {
        self.out.len() - self.base
    }

    /// Returns the byte order.
    pub fn order(&self) -> ByteOrder {
        self.order
    }

    /// Pads with zeros to the next multiple of `to`, a power of two up to 8.
    pub fn align(&mut self, alignment: usize) {
        let padding = padding_to(self.position(), alignment);
        self.out.extend_from_slice(&[0; 8][..padding]);
    }

    /// Appends bytes unchanged.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Appends an octet.
    pub fn u8(&mut self, value: u8) {
        self.out.push(value);
    }

    /// Appends a boolean.
    pub fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    /// Appends an unsigned short.
    pub fn u16(&mut self, value: u16) {
        self.number(value.to_be_bytes());
    }

    /// Appends an unsigned long.
    pub fn u32(&mut self, value: u32) {
        self.number(value.to_be_bytes());
    }

    /// Appends a long.
    pub fn i32(&mut self, value: i32) {
        self.number(value.to_be_bytes());
    }

    /// Appends an unsigned long long.
    pub fn u64(&mut self, value: u64) {
        self.number(value.to_be_bytes());
    }

    /// Appends a float.
    pub fn f32(&mut self, value: f32) {
        self.number(value.to_be_bytes());
    }

    /// Appends a double.
    pub fn f64(&mut self, value: f64) {
        self.number(value.to_be_bytes());
    }

    /// Appends the length of a sequence, or of anything else in memory.
    ///
    /// # Panics
    /// Panics if the length is 2^32 or more. Parts of a message are shorter than 4 GiB.
    pub fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).expect("a sequence of under 2^32 elements"));
    }

    /// Appends a sequence of octets.
    pub fn octets(&mut self, octets: &[u8]) {
        self.count(octets.len());
        self.bytes(octets);
    }

    /// Appends a string with the final NUL.
    pub fn string(&mut self, text: &[u8]) {
        self.count(text.len() + 1);
        self.bytes(text);
        self.u8(0);
    }

    /// Appends a sequence of octets that holds an encapsulation in this writer's byte order.
    pub fn encapsulation(&mut self, write: impl FnOnce(&mut CdrWriter<'_>)) {
        self.u32(0);
        let length_offset = self.out.len() - 4;
        let base = self.out.len();
        let mut inner = CdrWriter { out: self.out, base, order: self.order };
        inner.u8(self.order.flag());
        write(&mut inner);
        self.patch_u32(length_offset, self.out.len() - base);
    }

    /// Returns the vector.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        self.out
    }

    /// Overwrites four bytes of the vector with a length.
    pub(super) fn patch_u32(&mut self, offset: usize, length: usize) {
        let length = u32::try_from(length).expect("a message of under 4 GiB");
        let bytes = match self.order {
            ByteOrder::Big => length.to_be_bytes(),
            ByteOrder::Little => length.to_le_bytes(),
        };
        self.out[offset..offset + 4].copy_from_slice(&bytes);
    }

    fn number<const N: usize>(&mut self, mut bytes: [u8; N]) {
        if self.order == ByteOrder::Little {
            bytes.reverse();
        }
        self.align(N);
        self.bytes(&bytes);
    }
}

/// Returns the number of bytes from an offset to the next multiple of `to`, a power of two.
pub(super) fn padding_to(offset: usize, alignment: usize) -> usize {
    offset.wrapping_neg() & (alignment - 1)
}
