//! The type `any`: a value preceded by its type, a TypeCode (CORBA 3.4 part 2, section 9.3.5).
//!
//! The reader supports numbers, strings, references, structs and lists of these. Other types (unions, fixed,
//! values, wide characters) are rejected. A TypeCode may point back at an earlier one instead of repeating
//! it. A few bytes can therefore describe a type, and a value, of any size, so the reader counts its steps
//! and rejects more than `STEPS`.

use std::rc::Rc;

use super::{CdrReader, CdrWriter, GiopError, Ior};

/// The maximum nesting of types, and of values.
const DEPTH: usize = 16;
/// The maximum number of types and values in one `any`, with nested ones.
const STEPS: usize = 4096;

/// A value of some type.
#[derive(Clone, Debug, PartialEq)]
pub enum CorbaAny {
    /// No value: the types null and void.
    Null,
    /// A boolean.
    Bool(bool),
    /// An octet, or a char.
    Octet(u8),
    /// A short.
    Short(i16),
    /// An unsigned short.
    UShort(u16),
    /// A long.
    Long(i32),
    /// An unsigned long, or the number of an enumerator.
    ULong(u32),
    /// A long long.
    LongLong(i64),
    /// An unsigned long long.
    ULongLong(u64),
    /// A float.
    Float(f32),
    /// A double.
    Double(f64),
    /// A string, without its NUL.
    Text(Vec<u8>),
    /// An object reference.
    Object(Ior),
    /// The members of a struct or an exception, in order.
    Struct(Vec<Self>),
    /// The elements of a sequence or an array.
    List(Vec<Self>),
    /// An `any` within.
    Any(Box<Self>),
}

impl CorbaAny {
    /// Reads a TypeCode and the value that follows it.
    ///
    /// # Errors
    /// It is incomplete, malformed, of an unsupported type, or over a limit.
    pub fn read(reader: &mut CdrReader<'_>) -> Result<Self, GiopError> {
        StepBudget(STEPS).read_any(reader, DEPTH)
    }

    /// Appends the value with its type. Structs, lists and references are written as null.
    pub fn write(&self, writer: &mut CdrWriter<'_>) {
        match self {
            Self::Null | Self::Object(_) | Self::Struct(_) | Self::List(_) => writer.u32(kind::NULL),
            Self::Bool(value) => {
                writer.u32(kind::BOOLEAN);
                writer.bool(*value);
            }
            Self::Octet(value) => {
                writer.u32(kind::OCTET);
                writer.u8(*value);
            }
            Self::Short(value) => {
                writer.u32(kind::SHORT);
                writer.u16(value.cast_unsigned());
            }
            Self::UShort(value) => {
                writer.u32(kind::USHORT);
                writer.u16(*value);
            }
            Self::Long(value) => {
                writer.u32(kind::LONG);
                writer.i32(*value);
            }
            Self::ULong(value) => {
                writer.u32(kind::ULONG);
                writer.u32(*value);
            }
            Self::LongLong(value) => {
                writer.u32(kind::LONG_LONG);
                writer.u64(value.cast_unsigned());
            }
            Self::ULongLong(value) => {
                writer.u32(kind::ULONG_LONG);
                writer.u64(*value);
            }
            Self::Float(value) => {
                writer.u32(kind::FLOAT);
                writer.f32(*value);
            }
            Self::Double(value) => {
                writer.u32(kind::DOUBLE);
                writer.f64(*value);
            }
            Self::Text(text) => {
                writer.u32(kind::STRING);
                writer.u32(0); // of any length
                writer.string(text);
            }
            Self::Any(inner) => {
                writer.u32(kind::ANY);
                inner.write(writer);
            }
        }
    }

    /// Returns the value of any integer type; `None` for booleans.
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            Self::Octet(value) => Some(value.into()),
            Self::Short(value) => Some(value.into()),
            Self::UShort(value) => Some(value.into()),
            Self::Long(value) => Some(value.into()),
            Self::ULong(value) => Some(value.into()),
            Self::LongLong(value) => Some(value.into()),
            Self::ULongLong(value) => Some(value.into()),
            _ => None,
        }
    }

    /// Returns the value of any numeric type.
    pub fn as_number(&self) -> Option<f64> {
        match *self {
            Self::Float(value) => Some(value.into()),
            Self::Double(value) => Some(value),
            _ => self.as_integer().map(|whole| whole as f64),
        }
    }
}

/// The numbers of the TypeCode kinds.
mod kind {
    pub(super) const NULL: u32 = 0;
    pub(super) const VOID: u32 = 1;
    pub(super) const SHORT: u32 = 2;
    pub(super) const LONG: u32 = 3;
    pub(super) const USHORT: u32 = 4;
    pub(super) const ULONG: u32 = 5;
    pub(super) const FLOAT: u32 = 6;
    pub(super) const DOUBLE: u32 = 7;
    pub(super) const BOOLEAN: u32 = 8;
    pub(super) const CHAR: u32 = 9;
    pub(super) const OCTET: u32 = 10;
    pub(super) const ANY: u32 = 11;
    pub(super) const OBJECT: u32 = 14;
    pub(super) const STRUCT: u32 = 15;
    pub(super) const ENUM: u32 = 17;
    pub(super) const STRING: u32 = 18;
    pub(super) const SEQUENCE: u32 = 19;
    pub(super) const ARRAY: u32 = 20;
    pub(super) const ALIAS: u32 = 21;
    pub(super) const EXCEPTION: u32 = 22;
    pub(super) const LONG_LONG: u32 = 23;
    pub(super) const ULONG_LONG: u32 = 24;
    /// An indirection, not a kind: the type is an earlier one, at the offset that follows.
    pub(super) const INDIRECTION: u32 = u32::MAX;
}

enum TypeCode {
    /// A type that its kind fully describes.
    Plain(u32),
    Struct(Vec<Rc<Self>>),
    Sequence(Rc<Self>),
    Array(Rc<Self>, u32),
}

/// The complete types of one TypeCode, by their offsets.
type KnownTypes = Vec<(usize, Rc<TypeCode>)>;

/// The number of types and values that may still be read.
struct StepBudget(usize);

impl StepBudget {
    fn take_step(&mut self) -> Result<(), GiopError> {
        self.0 = self.0.checked_sub(1).ok_or(GiopError::Malformed("an any holds more than is taken"))?;
        Ok(())
    }

    fn read_any(&mut self, reader: &mut CdrReader<'_>, depth: usize) -> Result<CorbaAny, GiopError> {
        let type_code = self.read_type_code(reader, 0, &mut KnownTypes::new(), depth)?;
        self.read_value(reader, &type_code, depth)
    }

    /// Reads a TypeCode; `base` is the offset of the reader's first byte in the outermost TypeCode.
    fn read_type_code(
        &mut self,
        reader: &mut CdrReader<'_>,
        base: usize,
        known_types: &mut KnownTypes,
        depth: usize,
    ) -> Result<Rc<TypeCode>, GiopError> {
        self.take_step()?;
        let depth = next_depth(depth)?;
        let number = reader.u32()?;
        let offset = base + reader.position() - 4;
        if number == kind::INDIRECTION {
            let back = reader.i32()?;
            // The offset counts from its own first byte.
            let target =
                i64::try_from(offset + 4).ok().and_then(|position| position.checked_add(back.into()));
            let known = known_types.iter().find(|(offset, _)| i64::try_from(*offset).ok() == target);
            // A type that is still incomplete contains itself; values of such types are not supported.
            return known
                .map(|(_, type_code)| Rc::clone(type_code))
                .ok_or(GiopError::Malformed("a type points at no type before it"));
        }
        let type_code = match number {
            kind::STRING => {
                reader.u32()?;
                TypeCode::Plain(number)
            }
            kind::OBJECT
            | kind::STRUCT
            | kind::ENUM
            | kind::SEQUENCE
            | kind::ARRAY
            | kind::ALIAS
            | kind::EXCEPTION => {
                let data = reader.octets()?;
                let base = base + reader.position() - data.len();
                let mut inner = CdrReader::encapsulation(data)?;
                let type_code = self.read_parameters(number, &mut inner, base, known_types, depth)?;
                known_types.push((offset, Rc::clone(&type_code)));
                return Ok(type_code);
            }
            kind::NULL..=kind::ANY | kind::LONG_LONG | kind::ULONG_LONG => TypeCode::Plain(number),
            _ => return Err(GiopError::Malformed("an any is of a type that is not understood here")),
        };
        let type_code = Rc::new(type_code);
        known_types.push((offset, Rc::clone(&type_code)));
        Ok(type_code)
    }

    /// Reads the parameters of a TypeCode that contains other types.
    fn read_parameters(
        &mut self,
        number: u32,
        reader: &mut CdrReader<'_>,
        base: usize,
        known_types: &mut KnownTypes,
        depth: usize,
    ) -> Result<Rc<TypeCode>, GiopError> {
        match number {
            kind::SEQUENCE | kind::ARRAY => {
                let type_code = self.read_type_code(reader, base, known_types, depth)?;
                let length = reader.u32()?;
                let sequence = number == kind::SEQUENCE;
                return Ok(Rc::new(if sequence {
                    TypeCode::Sequence(type_code)
                } else {
                    TypeCode::Array(type_code, length)
                }));
            }
            _ => {}
        }
        reader.string()?; // its repository ID
        reader.string()?; // its name
        match number {
            kind::ALIAS => self.read_type_code(reader, base, known_types, depth),
            kind::STRUCT | kind::EXCEPTION => {
                let mut members = Vec::new();
                for _ in 0..reader.count(8)? {
                    reader.string()?;
                    members.push(self.read_type_code(reader, base, known_types, depth)?);
                }
                Ok(Rc::new(TypeCode::Struct(members)))
            }
            // The enumerators' names do not matter.
            _ => Ok(Rc::new(TypeCode::Plain(number))),
        }
    }

    fn read_value(
        &mut self,
        reader: &mut CdrReader<'_>,
        type_code: &TypeCode,
        depth: usize,
    ) -> Result<CorbaAny, GiopError> {
        self.take_step()?;
        let depth = next_depth(depth)?;
        let number = match type_code {
            TypeCode::Plain(number) => *number,
            TypeCode::Struct(types) => {
                let members = types
                    .iter()
                    .map(|type_code| self.read_value(reader, type_code, depth))
                    .collect::<Result<_, _>>()?;
                return Ok(CorbaAny::Struct(members));
            }
            TypeCode::Sequence(type_code) => {
                let count = reader.u32()?;
                return self.read_list(reader, type_code, count, depth);
            }
            TypeCode::Array(type_code, count) => return self.read_list(reader, type_code, *count, depth),
        };
        Ok(match number {
            kind::NULL | kind::VOID => CorbaAny::Null,
            kind::SHORT => CorbaAny::Short(reader.u16()?.cast_signed()),
            kind::LONG => CorbaAny::Long(reader.i32()?),
            kind::USHORT => CorbaAny::UShort(reader.u16()?),
            kind::ULONG | kind::ENUM => CorbaAny::ULong(reader.u32()?),
            kind::FLOAT => CorbaAny::Float(reader.f32()?),
            kind::DOUBLE => CorbaAny::Double(reader.f64()?),
            kind::BOOLEAN => CorbaAny::Bool(reader.bool()?),
            kind::CHAR | kind::OCTET => CorbaAny::Octet(reader.u8()?),
            kind::ANY => CorbaAny::Any(Box::new(self.read_any(reader, depth)?)),
            kind::OBJECT => CorbaAny::Object(Ior::read(reader)?),
            kind::STRING => CorbaAny::Text(reader.string()?.to_vec()),
            kind::LONG_LONG => CorbaAny::LongLong(reader.u64()?.cast_signed()),
            kind::ULONG_LONG => CorbaAny::ULongLong(reader.u64()?),
            _ => return Err(GiopError::Malformed("an any is of a type that is not understood here")),
        })
    }

    fn read_list(
        &mut self,
        reader: &mut CdrReader<'_>,
        type_code: &TypeCode,
        count: u32,
        depth: usize,
    ) -> Result<CorbaAny, GiopError> {
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(self.read_value(reader, type_code, depth)?);
        }
        Ok(CorbaAny::List(list))
    }
}

fn next_depth(depth: usize) -> Result<usize, GiopError> {
    depth.checked_sub(1).ok_or(GiopError::Malformed("types of an any are nested too deep"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::giop::ByteOrder;

    fn written(order: ByteOrder, write: impl FnOnce(&mut CdrWriter<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut CdrWriter::new(&mut out, order));
        out
    }

    #[test]
    fn what_is_written_is_read() {
        let values = [
            CorbaAny::Null,
            CorbaAny::Bool(true),
            CorbaAny::Octet(7),
            CorbaAny::Short(-2),
            CorbaAny::UShort(65_535),
            CorbaAny::Long(-3),
            CorbaAny::ULong(u32::MAX),
            CorbaAny::LongLong(-4),
            CorbaAny::ULongLong(u64::MAX),
            CorbaAny::Float(0.5),
            CorbaAny::Double(-0.25),
            CorbaAny::Text(b"LeastLoaded".to_vec()),
            CorbaAny::Any(Box::new(CorbaAny::Long(1))),
        ];
        for order in [ByteOrder::Big, ByteOrder::Little] {
            for any in &values {
                let bytes = written(order, |writer| any.write(writer));
                assert_eq!(CorbaAny::read(&mut CdrReader::new(&bytes, order)).as_ref(), Ok(any));
                for end in 0..bytes.len() {
                    assert!(CorbaAny::read(&mut CdrReader::new(&bytes[..end], order)).is_err());
                }
            }
        }
    }

    /// sequence<struct Pair { string a; string b; }>, with an indirection from the type of b to that of a.
    fn pairs() -> Vec<u8> {
        written(ByteOrder::Little, |writer| {
            writer.u32(kind::SEQUENCE);
            writer.encapsulation(|writer| {
                writer.u32(kind::STRUCT);
                writer.encapsulation(|writer| {
                    writer.string(b"IDL:Pair:1.0");
                    writer.string(b"Pair");
                    writer.u32(2);
                    writer.string(b"a");
                    writer.align(4);
                    let first = writer.position();
                    writer.u32(kind::ALIAS);
                    writer.encapsulation(|writer| {
                        writer.string(b"");
                        writer.string(b"");
                        writer.u32(kind::STRING);
                        writer.u32(0);
                    });
                    writer.string(b"b");
                    writer.u32(kind::INDIRECTION);
                    let back = writer.position() - first;
                    writer.i32(-i32::try_from(back).unwrap());
                });
                writer.u32(0);
            });
            writer.u32(1);
            writer.string(b"left");
            writer.string(b"right");
        })
    }

    #[test]
    fn a_type_may_point_at_one_before_it() {
        let pair =
            CorbaAny::Struct(vec![CorbaAny::Text(b"left".to_vec()), CorbaAny::Text(b"right".to_vec())]);
        assert_eq!(
            CorbaAny::read(&mut CdrReader::new(&pairs(), ByteOrder::Little)),
            Ok(CorbaAny::List(vec![pair]))
        );
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(0_u8..32, 0..200)) {
            let _ = CorbaAny::read(&mut CdrReader::new(&bytes, ByteOrder::Little));
            let _ = CorbaAny::read(&mut CdrReader::new(&bytes, ByteOrder::Big));
        }

        #[test]
        fn one_wrong_byte_is_no_harm(at in 0_usize..200, byte: u8) {
            let mut bytes = pairs();
            let length = bytes.len();
            bytes[at % length] = byte;
            let _ = CorbaAny::read(&mut CdrReader::new(&bytes, ByteOrder::Little));
        }
    }

    #[test]
    fn much_of_nothing_is_refused() {
        let bytes = written(ByteOrder::Big, |writer| {
            writer.u32(kind::ARRAY);
            writer.encapsulation(|writer| {
                writer.u32(kind::NULL);
                writer.u32(u32::MAX);
            });
        });
        let result = CorbaAny::read(&mut CdrReader::new(&bytes, ByteOrder::Big));
        assert_eq!(result, Err(GiopError::Malformed("an any holds more than is taken")));
    }

    #[test]
    fn a_type_within_itself_is_refused() {
        let bytes = written(ByteOrder::Big, |writer| {
            writer.u32(kind::SEQUENCE);
            writer.encapsulation(|writer| {
                writer.u32(kind::INDIRECTION);
                writer.i32(-16);
                writer.u32(0);
            });
            writer.u32(0);
        });
        assert!(CorbaAny::read(&mut CdrReader::new(&bytes, ByteOrder::Big)).is_err());
        let nested = written(ByteOrder::Big, |writer| (0..100).for_each(|_| writer.u32(kind::ANY)));
        assert!(CorbaAny::read(&mut CdrReader::new(&nested, ByteOrder::Big)).is_err());
    }
}
