//! The object itself: `Test::Latency`, after the class of that name in the papers' experiments, and the
//! operations that every object has.

use plimsoll_wire::giop::write::{self, MessageFormat};
use plimsoll_wire::giop::{
    CdrReader, CdrWriter, ExpectedResponse, GiopError, GiopRequest, GiopVersion, ReplyStatus, ServiceContext,
    SystemException,
};

use super::write_exception;
use crate::member::MemberState;

/// The repository id of the object's type.
pub const TYPE_ID: &[u8] = b"IDL:Test/Latency:1.0";

const OBJECT: &[u8] = b"IDL:omg.org/CORBA/Object:1.0";
const OOPS: &[u8] = b"IDL:Test/Oops:1.0";
const FORBIDDEN: SystemException<'static> = SystemException {
    type_id: b"IDL:omg.org/CORBA/NO_PERMISSION:1.0",
    minor: 7,
    ..SystemException::TRANSIENT
};

/// Performs an operation and appends its reply; a oneway has none.
pub(super) fn reply(
    out: &mut Vec<u8>,
    format: MessageFormat,
    request: &GiopRequest<'_>,
    member: &MemberState,
    contexts: &[ServiceContext<'_>],
) {
    let mut arguments = request.argument_reader(format.order);
    let result = match perform(request.operation, &mut arguments, format.version, member) {
        Ok(result) => result,
        Err(_) => OperationResult::Failed(SystemException::MARSHAL),
    };
    let status = match &result {
        OperationResult::Failed(exception) => return write_exception(out, format, request, exception),
        OperationResult::Oops => ReplyStatus::UserException,
        _ => ReplyStatus::NoException,
    };
    if request.expected_response != ExpectedResponse::Oneway {
        write::reply(out, format, request.id, status, contexts, |writer| result.write(member, writer));
    }
}

/// The result of an operation.
enum OperationResult<'m> {
    Nothing,
    Bool(bool),
    Long(u32),
    Double(f64),
    /// A string with its NUL.
    Text(&'m [u8]),
    Octets(&'m [u8]),
    /// A wide string as received: its length and its characters.
    Wide(u32, &'m [u8]),
    /// The member's name.
    Name,
    Oops,
    Failed(SystemException<'static>),
}

/// Returns `true` for operations that the object adapter answers; they are no work of the object's program.
pub(super) fn is_adapter_operation(operation: &[u8]) -> bool {
    matches!(operation, b"_is_a" | b"_non_existent" | b"_not_existent" | b"_repository_id")
}

fn perform<'m>(
    operation: &[u8],
    arguments: &mut CdrReader<'m>,
    version: GiopVersion,
    member: &MemberState,
) -> Result<OperationResult<'m>, GiopError> {
    Ok(match operation {
        b"is_prime" => OperationResult::Bool(is_prime(arguments.u32()?)),
        b"echo" => OperationResult::Text(arguments.string()?),
        b"echo_wide" => echo_wide(arguments, version)?,
        b"half" => OperationResult::Double(arguments.f64()? / 2.0),
        b"blob" => OperationResult::Octets(arguments.octets()?),
        b"note" => {
            arguments.u32()?;
            member.oneway_count.set(member.oneway_count.get().wrapping_add(1));
            OperationResult::Nothing
        }
        b"noted" => OperationResult::Long(member.oneway_count.get()),
        b"fail" if arguments.bool()? => OperationResult::Oops,
        b"fail" => OperationResult::Failed(FORBIDDEN),
        b"who" => OperationResult::Name,
        b"_is_a" => {
            let type_id = arguments.string()?;
            OperationResult::Bool(type_id == TYPE_ID || type_id == OBJECT)
        }
        b"_non_existent" | b"_not_existent" => OperationResult::Bool(false),
        b"_repository_id" => OperationResult::Text(TYPE_ID),
        _ => OperationResult::Failed(SystemException::BAD_OPERATION),
    })
}

/// Reads a wide string, which is the last argument.
///
/// | GIOP | length field |
/// |---|---|
/// | 1.0 | wide strings do not exist: MARSHAL |
/// | 1.1 | in bytes or in characters, depending on the sender: the rest of the message is taken |
/// | 1.2 | in bytes |
fn echo_wide<'m>(
    arguments: &mut CdrReader<'m>,
    version: GiopVersion,
) -> Result<OperationResult<'m>, GiopError> {
    if version == GiopVersion::V1_0 {
        return Ok(OperationResult::Failed(SystemException::MARSHAL));
    }
    let count = arguments.count(1)?;
    let length = u32::try_from(count).map_err(|_| GiopError::Truncated)?;
    let size = if version == GiopVersion::V1_1 { arguments.rest().len() } else { count };
    arguments.take(size).map(|characters| OperationResult::Wide(length, characters))
}

impl OperationResult<'_> {
    fn write(&self, member: &MemberState, writer: &mut CdrWriter<'_>) {
        match self {
            Self::Nothing | Self::Failed(_) => {}
            Self::Bool(value) => writer.bool(*value),
            Self::Long(value) => writer.u32(*value),
            Self::Double(value) => writer.f64(*value),
            Self::Text(text) => writer.string(text),
            Self::Octets(octets) => writer.octets(octets),
            Self::Wide(length, characters) => {
                writer.u32(*length);
                writer.bytes(characters);
            }
            Self::Name => writer.string(member.name.as_bytes()),
            Self::Oops => {
                writer.string(OOPS);
                writer.string(member.name.as_bytes());
            }
        }
    }
}

/// Tests a number by trial division, as in the papers: the work grows with the number.
pub(crate) fn is_prime(number: u32) -> bool {
    if number < 4 {
        return number > 1;
    }
    if number.is_multiple_of(2) {
        return false;
    }
    let divisors = (3..).step_by(2).take_while(|divisor: &u64| divisor * divisor <= u64::from(number));
    !divisors.into_iter().any(|divisor| u64::from(number).is_multiple_of(divisor))
}

#[cfg(test)]
mod tests {
    use super::is_prime;

    #[test]
    fn primes() {
        let primes: Vec<u32> = (0..32).filter(|number| is_prime(*number)).collect();
        assert_eq!(primes, [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31]);
        assert!(
            is_prime(4_294_967_291) && !is_prime(u32::MAX) && !is_prime(65_521 * 65_519) && is_prime(65_521)
        );
    }
}
