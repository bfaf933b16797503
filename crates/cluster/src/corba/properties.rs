//! Properties of groups: names with values of any type, and the ones that this balancer supports.

use plimsoll_wire::giop::{CdrReader, CdrWriter, CorbaAny, GiopError};

use super::answer::UserException;
use super::{Location, StrategyInfo};

/// The maximum number of properties in one call.
pub(super) const MAX_PROPERTIES: usize = 64;

const STYLE: &str = "org.omg.PortableGroup.MembershipStyle";
const INITIAL: &str = "org.omg.PortableGroup.InitialNumberMembers";
const MINIMUM: &str = "org.omg.PortableGroup.MinimumNumberMembers";
const FACTORIES: &str = "org.omg.PortableGroup.Factories";
const STRATEGY: &str = "org.omg.CosLoadBalancing.StrategyInfo";
/// Some versions of the tools omit the organisation.
const SHORT_STRATEGY: &str = "CosLoadBalancing.StrategyInfo";

/// A property.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Property {
    /// The name, in the naming service's format like locations.
    pub(super) name: Location,
    pub(super) value: CorbaAny,
}

impl Property {
    /// Reads a sequence of properties; `None` if one has no valid name, or there are too many.
    pub(super) fn read_all(reader: &mut CdrReader<'_>) -> Result<Option<Vec<Self>>, GiopError> {
        let mut properties = Vec::new();
        for _ in 0..reader.count(8)? {
            let name = Location::read(reader)?;
            let value = CorbaAny::read(reader)?;
            match name {
                Some(name) if properties.len() < MAX_PROPERTIES => properties.push(Self { name, value }),
                _ => return Ok(None),
            }
        }
        Ok(Some(properties))
    }

    pub(super) fn write_all(properties: &[Self], writer: &mut CdrWriter<'_>) {
        writer.count(properties.len());
        for property in properties {
            property.write(writer);
        }
    }

    pub(super) fn write(&self, writer: &mut CdrWriter<'_>) {
        self.name.write(writer);
        self.value.write(writer);
    }
}

/// Returns the properties of `own`, and those of `defaults` that `own` does not override.
pub(super) fn merged(defaults: &[Property], overrides: &[Property]) -> Vec<Property> {
    let is_not_overridden = |property: &&Property| {
        overrides.iter().all(|override_property| override_property.name != property.name)
    };
    defaults.iter().filter(is_not_overridden).chain(overrides).cloned().collect()
}

/// Returns the strategy in a group's properties; `None` if there is none. The application adds the members,
/// so properties about their number have no effect.
pub(super) fn strategy(properties: &[Property]) -> Result<Option<StrategyInfo>, UserException> {
    let mut strategy = None;
    for property in properties {
        match property.name.text() {
            STYLE => match property.value.as_integer() {
                Some(0) => {}
                // The load manager would create such members by factories, which it does not support.
                Some(1) => return Err(UserException::CannotMeetCriteria(property.clone())),
                _ => return Err(UserException::InvalidProperty(property.clone())),
            },
            INITIAL | MINIMUM if property.value.as_integer().is_some() => {}
            FACTORIES if property.value == CorbaAny::List(Vec::new()) => {}
            FACTORIES => return Err(UserException::CannotMeetCriteria(property.clone())),
            STRATEGY | SHORT_STRATEGY => {
                let info = parse_strategy_info(&property.value)
                    .ok_or_else(|| UserException::InvalidProperty(property.clone()))?;
                strategy = Some(info);
            }
            INITIAL | MINIMUM => return Err(UserException::InvalidProperty(property.clone())),
            _ => return Err(UserException::InvalidCriteria(property.clone())),
        }
    }
    Ok(strategy)
}

/// Decodes `struct StrategyInfo { string name; Properties props; }`.
fn parse_strategy_info(value: &CorbaAny) -> Option<StrategyInfo> {
    let CorbaAny::Struct(members) = value else { return None };
    let [CorbaAny::Text(name), CorbaAny::List(properties)] = members.as_slice() else { return None };
    let settings = properties.iter().map(|property| {
        let CorbaAny::Struct(members) = property else { return None };
        let [CorbaAny::List(components), CorbaAny::Any(value)] = members.as_slice() else { return None };
        let [.., CorbaAny::Struct(last_component)] = components.as_slice() else { return None };
        let Some(CorbaAny::Text(id)) = last_component.first() else { return None };
        let id = std::str::from_utf8(id).ok()?;
        let id = id.rsplit('.').next().unwrap_or(id);
        Some((id.to_owned(), value.as_number().filter(|number| number.is_finite())?))
    });
    let settings = settings.collect::<Option<_>>()?;
    Some(StrategyInfo { name: String::from_utf8(name.clone()).ok()?, settings })
}
