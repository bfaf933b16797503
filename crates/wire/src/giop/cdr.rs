//! CDR, the encoding of GIOP's values: each in the order of bytes that its sender says, aligned to its own size.
//!
//! Alignment is counted from the first byte of the message, or of the innermost encapsulation (an octet sequence that
//! begins with its own byte order). Padding is skipped whatever it holds, and written as zeros.

use super::BadGiop;

/// The order of the bytes of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Most significant first.
    Big,
    /// Least significant first.
    Little,
}

impl Order {
    /// This machine's.
    pub const NATIVE: Self = if cfg!(target_endian = "little") { Self::Little } else { Self::Big };

    /// The flag that says it: 1 for little.
    pub fn flag(self) -> u8 {
        u8::from(self == Self::Little)
    }
}

/// Reads values from bytes that it borrows. After an error it is of no more use.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
    /// What is added to `at` before it is aligned.
    origin: usize,
    order: Order,
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident: $type:ty) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// The bytes end before it does.
        pub fn $name(&mut self) -> Result<$type, BadGiop> {
            const SIZE: usize = size_of::<$type>();
            self.align(SIZE)?;
            let bytes = self.array::<SIZE>()?;
            Ok(match self.order {
                Order::Big => <$type>::from_be_bytes(bytes),
                Order::Little => <$type>::from_le_bytes(bytes),
            })
        }
    };
}

impl<'b> Reader<'b> {
    /// Reads from the first byte, which is aligned.
    pub fn new(bytes: &'b [u8], order: Order) -> Self {
        Self { bytes, at: 0, origin: 0, order }
    }

    /// Reads bytes whose first one has the offset `origin` in what alignment is counted in.
    pub fn with_origin(bytes: &'b [u8], order: Order, origin: usize) -> Self {
        Self { bytes, at: 0, origin: origin % 8, order }
    }

    /// Reads a whole message, or its beginning, from byte `at` on.
    pub(super) fn message(bytes: &'b [u8], order: Order, at: usize) -> Self {
        Self { bytes, at, origin: 0, order }
    }

    /// Reads what an encapsulation holds: its first byte says the order.
    ///
    /// # Errors
    /// It is empty, or begins with neither 0 nor 1.
    pub fn encapsulation(bytes: &'b [u8]) -> Result<Self, BadGiop> {
        let order = match bytes.first() {
            Some(0) => Order::Big,
            Some(1) => Order::Little,
            Some(_) => return Err(BadGiop::Malformed("an encapsulation begins with no byte order")),
            None => return Err(BadGiop::Malformed("an encapsulation is empty")),
        };
        Ok(Self { bytes, at: 1, origin: 0, order })
    }

    /// Bytes read so far, padding included.
    pub fn position(&self) -> usize {
        self.at
    }

    /// The order it reads in.
    pub fn order(&self) -> Order {
        self.order
    }

    /// What has not been read yet.
    pub fn rest(&self) -> &'b [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Skips to the next multiple of `to`, a power of two up to 8.
    ///
    /// # Errors
    /// The bytes end before.
    pub fn align(&mut self, to: usize) -> Result<(), BadGiop> {
        let padding = padding(self.origin + self.at, to);
        self.take(padding).map(drop)
    }

    /// So many bytes as they are.
    ///
    /// # Errors
    /// There are fewer.
    pub fn take(&mut self, count: usize) -> Result<&'b [u8], BadGiop> {
        let taken = self.rest().get(..count).ok_or(BadGiop::Truncated)?;
        self.at += count;
        Ok(taken)
    }

    /// An octet, a char, or whatever is one byte.
    ///
    /// # Errors
    /// The bytes end before it does.
    pub fn u8(&mut self) -> Result<u8, BadGiop> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A boolean.
    ///
    /// # Errors
    /// The bytes end before it does, or it is neither 0 nor 1.
    pub fn bool(&mut self) -> Result<bool, BadGiop> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(BadGiop::Malformed("a boolean is neither 0 nor 1")),
        }
    }

    number!(
        /// An unsigned short.
        u16: u16
    );
    number!(
        /// An unsigned long.
        u32: u32
    );
    number!(
        /// A long.
        i32: i32
    );
    number!(
        /// An unsigned long long.
        u64: u64
    );
    number!(
        /// A float.
        f32: f32
    );
    number!(
        /// A double.
        f64: f64
    );

    /// The length of a sequence whose elements take at least `least` bytes each, so that memory may be set aside for it.
    ///
    /// # Errors
    /// It says more than could be there.
    pub fn count(&mut self, least: usize) -> Result<usize, BadGiop> {
        let count = self.u32()? as usize;
        if count.checked_mul(least).is_none_or(|needed| needed > self.rest().len()) {
            return Err(BadGiop::Truncated);
        }
        Ok(count)
    }

    /// A sequence of octets.
    ///
    /// # Errors
    /// It says more than is there.
    pub fn octets(&mut self) -> Result<&'b [u8], BadGiop> {
        let count = self.count(1)?;
        self.take(count)
    }

    /// A string's bytes without the NUL that ends it. Some old programs send an empty string as no bytes at all.
    ///
    /// # Errors
    /// It says more than is there, or does not end in NUL.
    pub fn string(&mut self) -> Result<&'b [u8], BadGiop> {
        let octets = self.octets()?;
        match octets.split_last() {
            None => Ok(octets),
            Some((0, text)) => Ok(text),
            Some(_) => Err(BadGiop::Malformed("a string does not end in NUL")),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadGiop> {
        let bytes = self.rest().first_chunk::<N>().ok_or(BadGiop::Truncated)?;
        self.at += N;
        Ok(*bytes)
    }
}

/// Appends values to a vector.
#[derive(Debug)]
pub struct Writer<'o> {
    out: &'o mut Vec<u8>,
    /// The byte of `out` that alignment is counted from.
    base: usize,
    order: Order,
}

impl<'o> Writer<'o> {
    /// Writes to the end of `out`, which is aligned.
    pub fn new(out: &'o mut Vec<u8>, order: Order) -> Self {
        let base = out.len();
        Self { out, base, order }
    }

    /// Writes to the end of `out`, whose byte `base` is where alignment is counted from.
    pub fn with_base(out: &'o mut Vec<u8>, order: Order, base: usize) -> Self {
        Self { out, base, order }
    }

    /// Bytes since the one that alignment is counted from.
    pub fn position(&self) -> usize {
        self.out.len() - self.base
    }

    /// The order it writes in.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Pads with zeros to the next multiple of `to`, a power of two up to 8.
    pub fn align(&mut self, to: usize) {
        let padding = padding(self.position(), to);
        self.out.extend_from_slice(&[0; 8][..padding]);
    }

    /// Bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// An octet.
    pub fn u8(&mut self, value: u8) {
        self.out.push(value);
    }

    /// A boolean.
    pub fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    /// An unsigned short.
    pub fn u16(&mut self, value: u16) {
        self.number(value.to_be_bytes());
    }

    /// An unsigned long.
    pub fn u32(&mut self, value: u32) {
        self.number(value.to_be_bytes());
    }

    /// A long.
    pub fn i32(&mut self, value: i32) {
        self.number(value.to_be_bytes());
    }

    /// An unsigned long long.
    pub fn u64(&mut self, value: u64) {
        self.number(value.to_be_bytes());
    }

    /// A float.
    pub fn f32(&mut self, value: f32) {
        self.number(value.to_be_bytes());
    }

    /// A double.
    pub fn f64(&mut self, value: f64) {
        self.number(value.to_be_bytes());
    }

    /// The length of a sequence, or of anything else that is in memory.
    ///
    /// # Panics
    /// Never for what came out of a message: those are shorter than 4 GiB.
    pub fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).expect("a sequence of under 2^32 elements"));
    }

    /// A sequence of octets.
    pub fn octets(&mut self, octets: &[u8]) {
        self.count(octets.len());
        self.bytes(octets);
    }

    /// A string, the NUL that ends it added.
    pub fn string(&mut self, text: &[u8]) {
        self.count(text.len() + 1);
        self.bytes(text);
        self.u8(0);
    }

    /// A sequence of octets that holds an encapsulation in this writer's order.
    pub fn encapsulation(&mut self, write: impl FnOnce(&mut Writer<'_>)) {
        self.u32(0);
        let length_at = self.out.len() - 4;
        let base = self.out.len();
        let mut inner = Writer { out: self.out, base, order: self.order };
        inner.u8(self.order.flag());
        write(&mut inner);
        self.patch_u32(length_at, self.out.len() - base);
    }

    /// The vector it writes to.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        self.out
    }

    /// Overwrites four bytes of the vector with a length.
    pub(super) fn patch_u32(&mut self, at: usize, length: usize) {
        let length = u32::try_from(length).expect("a message of under 4 GiB");
        let bytes = match self.order {
            Order::Big => length.to_be_bytes(),
            Order::Little => length.to_le_bytes(),
        };
        self.out[at..at + 4].copy_from_slice(&bytes);
    }

    fn number<const N: usize>(&mut self, mut big: [u8; N]) {
        if self.order == Order::Little {
            big.reverse();
        }
        self.align(N);
        self.bytes(&big);
    }
}

/// Bytes from an offset to the next multiple of a power of two.
pub(super) fn padding(offset: usize, to: usize) -> usize {
    offset.wrapping_neg() & (to - 1)
}
