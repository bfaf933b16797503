//! Properties of groups: names with values of any type, and what of them means something here.

use plimsoll_wire::giop::{Any, BadGiop, Reader, Writer};

use super::answer::Raised;
use super::{Location, StrategyInfo};

/// Properties at once.
pub(super) const MOST: usize = 64;

const STYLE: &str = "org.omg.PortableGroup.MembershipStyle";
const INITIAL: &str = "org.omg.PortableGroup.InitialNumberMembers";
const MINIMUM: &str = "org.omg.PortableGroup.MinimumNumberMembers";
const FACTORIES: &str = "org.omg.PortableGroup.Factories";
const STRATEGY: &str = "org.omg.CosLoadBalancing.StrategyInfo";
/// Some versions of the tools say it without the organisation.
const STRATEGY_TOO: &str = "CosLoadBalancing.StrategyInfo";

/// A property.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Property {
    /// A name of the naming service's kind, as locations are.
    pub(super) name: Location,
    pub(super) value: Any,
}

impl Property {
    /// Reads a sequence of them; `None` if one has no name, or there are too many.
    pub(super) fn read_all(reader: &mut Reader<'_>) -> Result<Option<Vec<Self>>, BadGiop> {
        let mut all = Vec::new();
        for _ in 0..reader.count(8)? {
            let name = Location::read(reader)?;
            let value = Any::read(reader)?;
            match name {
                Some(name) if all.len() < MOST => all.push(Self { name, value }),
                _ => return Ok(None),
            }
        }
        Ok(Some(all))
    }

    pub(super) fn write_all(all: &[Self], writer: &mut Writer<'_>) {
        writer.count(all.len());
        for property in all {
            property.write(writer);
        }
    }

    pub(super) fn write(&self, writer: &mut Writer<'_>) {
        self.name.write(writer);
        self.value.write(writer);
    }
}

/// Those of `defaults` that `own` does not say otherwise, and those of `own`.
pub(super) fn merged(defaults: &[Property], own: &[Property]) -> Vec<Property> {
    let other = |property: &&Property| own.iter().all(|one| one.name != property.name);
    defaults.iter().filter(other).chain(own).cloned().collect()
}

/// The strategy that a group is to have by its properties; `None` if they do not say. Members are added by the
/// application, whatever the properties say of how many there should be.
pub(super) fn strategy(properties: &[Property]) -> Result<Option<StrategyInfo>, Raised> {
    let mut strategy = None;
    for property in properties {
        match property.name.text() {
            STYLE => match property.value.whole() {
                Some(0) => {}
                // Members that the load manager makes itself by factories: there are none.
                Some(1) => return Err(Raised::CannotMeetCriteria(property.clone())),
                _ => return Err(Raised::InvalidProperty(property.clone())),
            },
            INITIAL | MINIMUM if property.value.whole().is_some() => {}
            FACTORIES if property.value == Any::List(Vec::new()) => {}
            FACTORIES => return Err(Raised::CannotMeetCriteria(property.clone())),
            STRATEGY | STRATEGY_TOO => {
                let info = info(&property.value).ok_or_else(|| Raised::InvalidProperty(property.clone()))?;
                strategy = Some(info);
            }
            INITIAL | MINIMUM => return Err(Raised::InvalidProperty(property.clone())),
            _ => return Err(Raised::InvalidCriteria(property.clone())),
        }
    }
    Ok(strategy)
}

/// struct StrategyInfo { string name; Properties props; }
fn info(value: &Any) -> Option<StrategyInfo> {
    let Any::Struct(members) = value else { return None };
    let [Any::Text(name), Any::List(properties)] = members.as_slice() else { return None };
    let settings = properties.iter().map(|property| {
        let Any::Struct(members) = property else { return None };
        let [Any::List(parts), Any::Any(value)] = members.as_slice() else { return None };
        let [.., Any::Struct(last)] = parts.as_slice() else { return None };
        let Some(Any::Text(id)) = last.first() else { return None };
        let id = std::str::from_utf8(id).ok()?;
        let id = id.rsplit('.').next().unwrap_or(id);
        Some((id.to_owned(), value.number().filter(|number| number.is_finite())?))
    });
    let settings = settings.collect::<Option<_>>()?;
    Some(StrategyInfo { name: String::from_utf8(name.clone()).ok()?, settings })
}
