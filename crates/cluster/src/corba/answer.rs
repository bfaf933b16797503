//! Encodes the results of the load manager's operations as replies.

use plimsoll_wire::giop::write::{self, MessageFormat};
use plimsoll_wire::giop::{CdrWriter, CorbaAny, Ior, ReplyStatus, SystemException};

use super::Location;
use super::call::NumberedLoads;
use super::properties::Property;

/// The result of an operation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum OperationResult {
    Nothing,
    Truth(bool),
    Loads(NumberedLoads),
    Object(Ior),
    Objects(Vec<Ior>),
    Locations(Vec<Location>),
    Number(u64),
    Properties(Vec<Property>),
    /// A new group and the handle for its deletion.
    Created(Ior, CorbaAny),
}

/// The failure of an operation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CallError {
    User(UserException),
    System(SystemException<'static>),
}

impl CallError {
    /// Returns the name of the exception.
    pub(super) fn name(&self) -> String {
        let text = match self {
            Self::User(exception) => format!("{exception:?}"),
            Self::System(system) => format!("{system:?}"),
        };
        text.split(['(', ' ', '{']).next().unwrap_or_default().to_owned()
    }
}

/// The exceptions of the interface.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum UserException {
    MonitorAlreadyPresent,
    LocationNotFound,
    LoadAlertNotFound,
    LoadAlertAlreadyPresent,
    ObjectGroupNotFound,
    MemberNotFound,
    MemberAlreadyPresent,
    ObjectNotAdded,
    ObjectNotFound,
    ObjectNotCreated,
    InvalidProperty(Property),
    InvalidCriteria(Property),
    CannotMeetCriteria(Property),
}

impl From<UserException> for CallError {
    fn from(exception: UserException) -> Self {
        Self::User(exception)
    }
}

impl From<SystemException<'static>> for CallError {
    fn from(exception: SystemException<'static>) -> Self {
        Self::System(exception)
    }
}

/// Appends the reply to a request.
pub(super) fn reply(
    out: &mut Vec<u8>,
    format: MessageFormat,
    id: u32,
    outcome: &Result<OperationResult, CallError>,
) {
    match outcome {
        Ok(result) => {
            write::reply(out, format, id, ReplyStatus::NoException, &[], |writer| result.write(writer))
        }
        Err(CallError::System(exception)) => write::exception(out, format, id, exception),
        Err(CallError::User(exception)) => {
            write::reply(out, format, id, ReplyStatus::UserException, &[], |writer| exception.write(writer));
        }
    }
}

impl OperationResult {
    fn write(&self, writer: &mut CdrWriter<'_>) {
        match self {
            Self::Nothing => {}
            Self::Truth(truth) => writer.bool(*truth),
            Self::Loads(loads) => {
                writer.count(loads.len());
                for (id, value) in loads {
                    writer.u32(*id);
                    writer.f32(*value);
                }
            }
            Self::Object(object) => object.write(writer),
            Self::Objects(objects) => {
                writer.count(objects.len());
                objects.iter().for_each(|object| object.write(writer));
            }
            Self::Locations(locations) => {
                writer.count(locations.len());
                locations.iter().for_each(|location| location.write(writer));
            }
            Self::Number(number) => writer.u64(*number),
            Self::Properties(properties) => Property::write_all(properties, writer),
            Self::Created(group, deleted_by) => {
                group.write(writer);
                deleted_by.write(writer);
            }
        }
    }
}

impl UserException {
    fn type_id(&self) -> &'static str {
        match self {
            Self::MonitorAlreadyPresent => "IDL:tao.lb/CosLoadBalancing/MonitorAlreadyPresent:1.0",
            Self::LocationNotFound => "IDL:tao.lb/CosLoadBalancing/LocationNotFound:1.0",
            Self::LoadAlertNotFound => "IDL:tao.lb/CosLoadBalancing/LoadAlertNotFound:1.0",
            Self::LoadAlertAlreadyPresent => "IDL:tao.lb/CosLoadBalancing/LoadAlertAlreadyPresent:1.0",
            Self::ObjectGroupNotFound => "IDL:omg.org/PortableGroup/ObjectGroupNotFound:1.0",
            Self::MemberNotFound => "IDL:omg.org/PortableGroup/MemberNotFound:1.0",
            Self::MemberAlreadyPresent => "IDL:omg.org/PortableGroup/MemberAlreadyPresent:1.0",
            Self::ObjectNotAdded => "IDL:omg.org/PortableGroup/ObjectNotAdded:1.0",
            Self::ObjectNotFound => "IDL:omg.org/PortableGroup/ObjectNotFound:1.0",
            Self::ObjectNotCreated => "IDL:omg.org/PortableGroup/ObjectNotCreated:1.0",
            Self::InvalidProperty(_) => "IDL:omg.org/PortableGroup/InvalidProperty:1.0",
            Self::InvalidCriteria(_) => "IDL:omg.org/PortableGroup/InvalidCriteria:1.0",
            Self::CannotMeetCriteria(_) => "IDL:omg.org/PortableGroup/CannotMeetCriteria:1.0",
        }
    }

    fn write(&self, writer: &mut CdrWriter<'_>) {
        writer.string(self.type_id().as_bytes());
        match self {
            Self::InvalidProperty(property) => property.write(writer),
            Self::InvalidCriteria(property) | Self::CannotMeetCriteria(property) => {
                Property::write_all(std::slice::from_ref(property), writer);
            }
            _ => {}
        }
    }
}
