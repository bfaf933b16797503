//! Parses requests into the operations of the load manager.

use plimsoll_wire::giop::{CdrReader, CorbaAny, GiopError, Ior, SystemException};

use super::Location;
use super::properties::Property;

/// The maximum number of loads in one call.
const MAX_LOADS: usize = 32;
/// The maximum length of a repository ID.
const MAX_REPOSITORY_ID: usize = 1024;

/// An operation with its arguments.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ManagerCall {
    IsA(Vec<u8>),
    NonExistent,
    PushLoads(Location, NumberedLoads),
    Loads(Location),
    EnableAlert(Location),
    DisableAlert(Location),
    RegisterAlert(Location, Ior),
    Alert(Location),
    RemoveAlert(Location),
    RegisterMonitor(Location, Ior),
    Monitor(Location),
    RemoveMonitor(Location),
    SetDefaults(Vec<Property>),
    Defaults,
    RemoveDefaults(Vec<Property>),
    Properties(Ior),
    AddMember(Ior, Location, Ior),
    RemoveMember(Ior, Location),
    Locations(Ior),
    GroupsAt(Location),
    GroupId(Ior),
    GroupReference(Ior),
    GroupById(u64),
    MemberReference(Ior, Location),
    Create(String, Vec<Property>),
    Delete(CorbaAny),
}

/// Loads by their number.
pub(super) type NumberedLoads = Vec<(u32, f32)>;

impl ManagerCall {
    /// Reads an operation's arguments.
    ///
    /// # Errors
    /// The exception for the client: the operation does not exist, is not implemented, or its arguments are
    /// malformed.
    pub(super) fn parse(
        operation: &[u8],
        reader: &mut CdrReader<'_>,
    ) -> Result<Self, SystemException<'static>> {
        let mut arguments = ArgumentReader(reader);
        let call = match operation {
            b"_is_a" => Self::IsA(arguments.text()?),
            b"_non_existent" => Self::NonExistent,
            b"push_loads" => Self::PushLoads(arguments.location()?, arguments.loads()?),
            b"get_loads" => Self::Loads(arguments.location()?),
            b"enable_alert" => Self::EnableAlert(arguments.location()?),
            b"disable_alert" => Self::DisableAlert(arguments.location()?),
            b"register_load_alert" => Self::RegisterAlert(arguments.location()?, arguments.object()?),
            b"get_load_alert" => Self::Alert(arguments.location()?),
            b"remove_load_alert" => Self::RemoveAlert(arguments.location()?),
            b"register_load_monitor" => Self::RegisterMonitor(arguments.location()?, arguments.object()?),
            b"get_load_monitor" => Self::Monitor(arguments.location()?),
            b"remove_load_monitor" => Self::RemoveMonitor(arguments.location()?),
            b"set_default_properties" => Self::SetDefaults(arguments.properties()?),
            b"get_default_properties" => Self::Defaults,
            b"remove_default_properties" => Self::RemoveDefaults(arguments.properties()?),
            b"get_properties" => Self::Properties(arguments.group()?),
            b"add_member" => Self::AddMember(arguments.group()?, arguments.location()?, arguments.object()?),
            b"remove_member" => Self::RemoveMember(arguments.group()?, arguments.location()?),
            b"locations_of_members" => Self::Locations(arguments.group()?),
            b"groups_at_location" => Self::GroupsAt(arguments.location()?),
            b"get_object_group_id" => Self::GroupId(arguments.group()?),
            b"get_object_group_ref" => Self::GroupReference(arguments.group()?),
            b"get_object_group_ref_from_id" => Self::GroupById(arguments.0.u64().map_err(marshal_error)?),
            b"get_member_ref" => Self::MemberReference(arguments.group()?, arguments.location()?),
            b"create_object" => Self::Create(arguments.type_id()?, arguments.properties()?),
            b"delete_object" => Self::Delete(CorbaAny::read(arguments.0).map_err(marshal_error)?),
            b"create_member"
            | b"set_properties_dynamically"
            | b"set_type_properties"
            | b"get_type_properties"
            | b"remove_type_properties"
            | b"_interface"
            | b"_component" => {
                return Err(SystemException::NO_IMPLEMENT);
            }
            _ => return Err(SystemException::BAD_OPERATION),
        };
        Ok(call)
    }
}

/// Reads `sequence<Load>`. Returns `Ok(None)` if it is too long, or a value is not a finite number.
///
/// # Errors
/// It is incomplete.
pub(super) fn read_loads(reader: &mut CdrReader<'_>) -> Result<Option<NumberedLoads>, GiopError> {
    let count = reader.count(8)?;
    if count > MAX_LOADS {
        return Ok(None);
    }
    let loads = (0..count)
        .map(|_| Ok((reader.u32()?, reader.f32()?)))
        .collect::<Result<NumberedLoads, GiopError>>()?;
    Ok(loads.iter().all(|(_, value)| value.is_finite()).then_some(loads))
}

impl ManagerCall {
    /// Returns the operation and its target, if it is a change. Load reports are not: they are frequent, and
    /// describe the state.
    pub(super) fn change_target(&self) -> Option<(&'static str, Option<String>)> {
        let location_target = |location: &Location| Some(location.text().to_owned());
        let member_target = |group: &Ior, location: &Location| {
            let key =
                group.first_iiop_profile().map(|profile| String::from_utf8_lossy(&profile.key).into_owned());
            Some(format!("{} {}", key.unwrap_or_default(), location.text()))
        };
        Some(match self {
            Self::EnableAlert(location) => ("enable_alert", location_target(location)),
            Self::DisableAlert(location) => ("disable_alert", location_target(location)),
            Self::RegisterAlert(location, _) => ("register_load_alert", location_target(location)),
            Self::RemoveAlert(location) => ("remove_load_alert", location_target(location)),
            Self::RegisterMonitor(location, _) => ("register_load_monitor", location_target(location)),
            Self::RemoveMonitor(location) => ("remove_load_monitor", location_target(location)),
            Self::SetDefaults(_) => ("set_default_properties", None),
            Self::RemoveDefaults(_) => ("remove_default_properties", None),
            Self::AddMember(group, location, _) => ("add_member", member_target(group, location)),
            Self::RemoveMember(group, location) => ("remove_member", member_target(group, location)),
            Self::Create(type_id, _) => ("create_object", Some(type_id.clone())),
            Self::Delete(number) => ("delete_object", number.as_integer().map(|id| id.to_string())),
            Self::IsA(_)
            | Self::NonExistent
            | Self::PushLoads(..)
            | Self::Loads(_)
            | Self::Alert(_)
            | Self::Monitor(_)
            | Self::Defaults
            | Self::Properties(_)
            | Self::Locations(_)
            | Self::GroupsAt(_)
            | Self::GroupId(_)
            | Self::GroupReference(_)
            | Self::GroupById(_)
            | Self::MemberReference(..) => return None,
        })
    }
}

struct ArgumentReader<'a, 'b>(&'a mut CdrReader<'b>);

impl ArgumentReader<'_, '_> {
    fn text(&mut self) -> Result<Vec<u8>, SystemException<'static>> {
        Ok(self.0.string().map_err(marshal_error)?.to_vec())
    }

    fn type_id(&mut self) -> Result<String, SystemException<'static>> {
        let text = self.text()?;
        let is_valid = text.len() <= MAX_REPOSITORY_ID && text.iter().all(u8::is_ascii_graphic);
        String::from_utf8(text).ok().filter(|_| is_valid).ok_or(SystemException::BAD_PARAM)
    }

    fn location(&mut self) -> Result<Location, SystemException<'static>> {
        Location::read(self.0).map_err(marshal_error)?.ok_or(SystemException::BAD_PARAM)
    }

    fn loads(&mut self) -> Result<NumberedLoads, SystemException<'static>> {
        read_loads(self.0).map_err(marshal_error)?.ok_or(SystemException::BAD_PARAM)
    }

    fn properties(&mut self) -> Result<Vec<Property>, SystemException<'static>> {
        Property::read_all(self.0).map_err(marshal_error)?.ok_or(SystemException::BAD_PARAM)
    }

    /// Reads a reference to a group, which may be any reference: it is looked up, not called.
    fn group(&mut self) -> Result<Ior, SystemException<'static>> {
        Ior::read(self.0).map_err(marshal_error)
    }

    /// Reads a reference to an object that can be called.
    fn object(&mut self) -> Result<Ior, SystemException<'static>> {
        let object = self.group()?;
        if object.first_iiop_profile().is_some() { Ok(object) } else { Err(SystemException::BAD_PARAM) }
    }
}

fn marshal_error(_: GiopError) -> SystemException<'static> {
    SystemException::MARSHAL
}
