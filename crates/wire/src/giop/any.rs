//! The type `any`: a value preceded by its type, a TypeCode (CORBA 3.4 part 2, section 9.3.5).
//!
//! The reader supports numbers, strings, references, structs and lists of these. Other types (unions, fixed,
//! values, wide characters) are rejected. A TypeCode may point back at an earlier one instead of repeating
//! it. A few bytes can therefore describe a type, and a value, of any size, so the reader counts its steps
//! and rejects more than `STEPS`.

use std::rc::Rc;

use super::{BadGiop, Ior, Reader, Writer};

/// The maximum nesting of types, and of values.
const DEPTH: usize = 16;
/// The maximum number of types and values in one `any`, with nested ones.
const STEPS: usize = 4096;

/// A value of some type.
#[derive(Clone, Debug, PartialEq)]
pub enum Any {
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

impl Any {
    /// Reads a TypeCode and the value that follows it.
    ///
    /// # Errors
    /// It is incomplete, malformed, of an unsupported type, or over a limit.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, BadGiop> {
        Steps(STEPS).any(reader, DEPTH)
    }

    /// Appends the value with its type. Structs, lists and references are written as null.
    pub fn write(&self, writer: &mut Writer<'_>) {
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
    pub fn whole(&self) -> Option<i128> {
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
    pub fn number(&self) -> Option<f64> {
        match *self {
            Self::Float(value) => Some(value.into()),
            Self::Double(value) => Some(value),
            _ => self.whole().map(|whole| whole as f64),
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
    pub(super) const BEFORE: u32 = u32::MAX;
}

enum Type {
    /// A type that its kind fully describes.
    Plain(u32),
    Struct(Vec<Rc<Self>>),
    Sequence(Rc<Self>),
    Array(Rc<Self>, u32),
}

/// The complete types of one TypeCode, by their offsets.
type Said = Vec<(usize, Rc<Type>)>;

/// The number of types and values that may still be read.
struct Steps(usize);

impl Steps {
    fn step(&mut self) -> Result<(), BadGiop> {
        self.0 = self.0.checked_sub(1).ok_or(BadGiop::Malformed("an any holds more than is taken"))?;
        Ok(())
    }

    fn any(&mut self, reader: &mut Reader<'_>, depth: usize) -> Result<Any, BadGiop> {
        let of = self.type_code(reader, 0, &mut Said::new(), depth)?;
        self.value(reader, &of, depth)
    }

    /// Reads a TypeCode; `base` is the offset of the reader's first byte in the outermost TypeCode.
    fn type_code(
        &mut self,
        reader: &mut Reader<'_>,
        base: usize,
        said: &mut Said,
        depth: usize,
    ) -> Result<Rc<Type>, BadGiop> {
        self.step()?;
        let depth = deeper(depth)?;
        let number = reader.u32()?;
        let begin = base + reader.position() - 4;
        if number == kind::BEFORE {
            let back = reader.i32()?;
            // The offset counts from its own first byte.
            let at = i64::try_from(begin + 4).ok().and_then(|here| here.checked_add(back.into()));
            let one = said.iter().find(|(begin, _)| i64::try_from(*begin).ok() == at);
            // A type that is still incomplete contains itself; values of such types are not supported.
            return one
                .map(|(_, of)| Rc::clone(of))
                .ok_or(BadGiop::Malformed("a type points at no type before it"));
        }
        let of = match number {
            kind::STRING => {
                reader.u32()?;
                Type::Plain(number)
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
                let mut inside = Reader::encapsulation(data)?;
                let of = self.made(number, &mut inside, base, said, depth)?;
                said.push((begin, Rc::clone(&of)));
                return Ok(of);
            }
            kind::NULL..=kind::ANY | kind::LONG_LONG | kind::ULONG_LONG => Type::Plain(number),
            _ => return Err(BadGiop::Malformed("an any is of a type that is not understood here")),
        };
        let of = Rc::new(of);
        said.push((begin, Rc::clone(&of)));
        Ok(of)
    }

    /// Reads the parameters of a TypeCode that contains other types.
    fn made(
        &mut self,
        number: u32,
        reader: &mut Reader<'_>,
        base: usize,
        said: &mut Said,
        depth: usize,
    ) -> Result<Rc<Type>, BadGiop> {
        match number {
            kind::SEQUENCE | kind::ARRAY => {
                let of = self.type_code(reader, base, said, depth)?;
                let length = reader.u32()?;
                let sequence = number == kind::SEQUENCE;
                return Ok(Rc::new(if sequence { Type::Sequence(of) } else { Type::Array(of, length) }));
            }
            _ => {}
        }
        reader.string()?; // its repository ID
        reader.string()?; // its name
        match number {
            kind::ALIAS => self.type_code(reader, base, said, depth),
            kind::STRUCT | kind::EXCEPTION => {
                let mut members = Vec::new();
                for _ in 0..reader.count(8)? {
                    reader.string()?;
                    members.push(self.type_code(reader, base, said, depth)?);
                }
                Ok(Rc::new(Type::Struct(members)))
            }
            // The enumerators' names do not matter.
            _ => Ok(Rc::new(Type::Plain(number))),
        }
    }

    fn value(&mut self, reader: &mut Reader<'_>, of: &Type, depth: usize) -> Result<Any, BadGiop> {
        self.step()?;
        let depth = deeper(depth)?;
        let number = match of {
            Type::Plain(number) => *number,
            Type::Struct(types) => {
                let members =
                    types.iter().map(|of| self.value(reader, of, depth)).collect::<Result<_, _>>()?;
                return Ok(Any::Struct(members));
            }
            Type::Sequence(of) => {
                let count = reader.u32()?;
                return self.list(reader, of, count, depth);
            }
            Type::Array(of, count) => return self.list(reader, of, *count, depth),
        };
        Ok(match number {
            kind::NULL | kind::VOID => Any::Null,
            kind::SHORT => Any::Short(reader.u16()?.cast_signed()),
            kind::LONG => Any::Long(reader.i32()?),
            kind::USHORT => Any::UShort(reader.u16()?),
            kind::ULONG | kind::ENUM => Any::ULong(reader.u32()?),
            kind::FLOAT => Any::Float(reader.f32()?),
            kind::DOUBLE => Any::Double(reader.f64()?),
            kind::BOOLEAN => Any::Bool(reader.bool()?),
            kind::CHAR | kind::OCTET => Any::Octet(reader.u8()?),
            kind::ANY => Any::Any(Box::new(self.any(reader, depth)?)),
            kind::OBJECT => Any::Object(Ior::read(reader)?),
            kind::STRING => Any::Text(reader.string()?.to_vec()),
            kind::LONG_LONG => Any::LongLong(reader.u64()?.cast_signed()),
            kind::ULONG_LONG => Any::ULongLong(reader.u64()?),
            _ => return Err(BadGiop::Malformed("an any is of a type that is not understood here")),
        })
    }

    fn list(&mut self, reader: &mut Reader<'_>, of: &Type, count: u32, depth: usize) -> Result<Any, BadGiop> {
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(self.value(reader, of, depth)?);
        }
        Ok(Any::List(list))
    }
}

fn deeper(depth: usize) -> Result<usize, BadGiop> {
    depth.checked_sub(1).ok_or(BadGiop::Malformed("types of an any are nested too deep"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::giop::Order;

    fn written(order: Order, write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut Writer::new(&mut out, order));
        out
    }

    #[test]
    fn what_is_written_is_read() {
        let all = [
            Any::Null,
            Any::Bool(true),
            Any::Octet(7),
            Any::Short(-2),
            Any::UShort(65_535),
            Any::Long(-3),
            Any::ULong(u32::MAX),
            Any::LongLong(-4),
            Any::ULongLong(u64::MAX),
            Any::Float(0.5),
            Any::Double(-0.25),
            Any::Text(b"LeastLoaded".to_vec()),
            Any::Any(Box::new(Any::Long(1))),
        ];
        for order in [Order::Big, Order::Little] {
            for any in &all {
                let bytes = written(order, |writer| any.write(writer));
                assert_eq!(Any::read(&mut Reader::new(&bytes, order)).as_ref(), Ok(any));
                for end in 0..bytes.len() {
                    assert!(Any::read(&mut Reader::new(&bytes[..end], order)).is_err());
                }
            }
        }
    }

    /// sequence<struct Pair { string a; string b; }>, with an indirection from the type of b to that of a.
    fn pairs() -> Vec<u8> {
        written(Order::Little, |writer| {
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
                    writer.u32(kind::BEFORE);
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
        let pair = Any::Struct(vec![Any::Text(b"left".to_vec()), Any::Text(b"right".to_vec())]);
        assert_eq!(Any::read(&mut Reader::new(&pairs(), Order::Little)), Ok(Any::List(vec![pair])));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(0_u8..32, 0..200)) {
            let _ = Any::read(&mut Reader::new(&bytes, Order::Little));
            let _ = Any::read(&mut Reader::new(&bytes, Order::Big));
        }

        #[test]
        fn one_wrong_byte_is_no_harm(at in 0_usize..200, byte: u8) {
            let mut bytes = pairs();
            let length = bytes.len();
            bytes[at % length] = byte;
            let _ = Any::read(&mut Reader::new(&bytes, Order::Little));
        }
    }

    #[test]
    fn much_of_nothing_is_refused() {
        let bytes = written(Order::Big, |writer| {
            writer.u32(kind::ARRAY);
            writer.encapsulation(|writer| {
                writer.u32(kind::NULL);
                writer.u32(u32::MAX);
            });
        });
        let refused = Any::read(&mut Reader::new(&bytes, Order::Big));
        assert_eq!(refused, Err(BadGiop::Malformed("an any holds more than is taken")));
    }

    #[test]
    fn a_type_within_itself_is_refused() {
        let bytes = written(Order::Big, |writer| {
            writer.u32(kind::SEQUENCE);
            writer.encapsulation(|writer| {
                writer.u32(kind::BEFORE);
                writer.i32(-16);
                writer.u32(0);
            });
            writer.u32(0);
        });
        assert!(Any::read(&mut Reader::new(&bytes, Order::Big)).is_err());
        let deep = written(Order::Big, |writer| (0..100).for_each(|_| writer.u32(kind::ANY)));
        assert!(Any::read(&mut Reader::new(&deep, Order::Big)).is_err());
    }
}
