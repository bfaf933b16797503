//! The changes of the load manager's clients while the balancer runs: groups that they create, members that
//! they add and remove. The changes lie over the file, also after each reload, until the process ends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::sync::Arc;

use plimsoll_acme as acme;
use plimsoll_admin::OtlpCollector;
use plimsoll_brain::MemberSpec;
use plimsoll_cluster as cluster;
use plimsoll_cluster::corba::{GroupError, Location, StrategyInfo};
use plimsoll_proxy as proxy;
use plimsoll_wire::giop::Ior;

use plimsoll_config::{self as config, ConfigFile, MachineDefaults, MemberAddress, look_up};

/// The maximum number of members that clients add to one group.
const MAX_ADDED_MEMBERS: usize = 1024;

/// The content of the file, as settings of the shells.
#[derive(Clone, Debug)]
pub(crate) struct FileConfig {
    /// The settings of the data plane.
    pub settings: proxy::Settings,
    /// The settings of the cluster, which watches members.
    pub cluster_groups: Vec<Arc<cluster::GroupSettings>>,
    /// The locations of the members that have one, by group and member.
    pub locations: BTreeMap<(String, String), String>,
    /// The groups whose members come from a lottery.
    pub lotteries: Vec<config::LotteryGroup>,
    /// The certificates that authorities are asked for.
    pub certificates: Vec<acme::CertificateSettings>,
    /// The groups with members from sources.
    pub discoveries: Vec<config::GroupDiscovery>,
    /// The balancers that act together with this one.
    pub fleet: Option<config::FleetConfig>,
    /// The groups with scalers.
    pub scalings: Vec<config::GroupScaling>,
    /// The collector of spans.
    pub collector: Option<OtlpCollector>,
}

/// The changes of clients.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigOverlay {
    /// The numbers of all groups that were ever in force, the file's included.
    numbers: BTreeMap<Arc<str>, u64>,
    /// The last number that was given.
    last_number: u64,
    groups: Vec<OverlayGroup>,
    /// Members, with the names of their groups.
    added_members: Vec<(Arc<str>, OverlayMember)>,
    /// Members from lotteries, by group.
    lottery_members: BTreeMap<Arc<str>, Vec<MemberSpec>>,
    /// Members from sources, by group.
    discovered_members: BTreeMap<Arc<str>, Vec<MemberSpec>>,
    /// Members of the file that were removed, by group and name.
    removed_members: BTreeSet<(Arc<str>, Arc<str>)>,
}

#[derive(Clone, Debug)]
struct OverlayGroup {
    settings: proxy::GroupSettings,
    listener: proxy::ListenerSettings,
    cluster_settings: cluster::GroupSettings,
}

#[derive(Clone, Debug)]
struct OverlayMember {
    spec: MemberSpec,
    object: proxy::CorbaObject,
    location: Location,
}

/// The settings in force: the file's, with the changes since then.
#[derive(Clone, Debug)]
pub(crate) struct EffectiveConfig {
    pub settings: proxy::Settings,
    pub cluster_groups: Vec<Arc<cluster::GroupSettings>>,
    locations: BTreeMap<(Arc<str>, Arc<str>), Location>,
}

impl FileConfig {
    /// Returns the base of a file that was read and looked up.
    pub(crate) fn new(
        file: &ConfigFile,
        settings: proxy::Settings,
        lotteries: Vec<config::LotteryGroup>,
        certificates: Vec<acme::CertificateSettings>,
    ) -> Self {
        let cluster_groups = file.watched_groups(&settings);
        let (locations, discoveries, scalings) = (file.locations(), file.discoveries(), file.scalings());
        let collector = file.config.tracing.as_ref().map(config::TracingConfig::collector);
        let fleet = file.config.fleet.clone();
        Self {
            settings,
            cluster_groups,
            locations,
            lotteries,
            certificates,
            discoveries,
            scalings,
            fleet,
            collector,
        }
    }

    /// Returns the settings in force after sources of a few groups have found others; `before` is in force
    /// and made of this base. The cost depends on those groups, and not on all.
    pub(crate) fn reapply_groups(
        &self,
        previous: &EffectiveConfig,
        overlay: &ConfigOverlay,
        groups: &[Arc<str>],
    ) -> EffectiveConfig {
        if !overlay.groups.is_empty()
            || !overlay.added_members.is_empty()
            || !overlay.removed_members.is_empty()
        {
            return self.with_overlay(overlay);
        }
        let mut effective_config = previous.clone();
        let group_names: BTreeSet<&Arc<str>> = groups.iter().collect();
        let is_selected = |name: &Arc<str>| group_names.contains(name);
        for file_group in self.settings.groups.iter().filter(|file_group| is_selected(&file_group.spec.name))
        {
            effective_config
                .settings
                .groups
                .iter_mut()
                .filter(|effective_group| effective_group.spec.name == file_group.spec.name)
                .for_each(|effective_group| {
                    effective_group.clone_from(file_group);
                });
        }
        for file_group in self.cluster_groups.iter().filter(|file_group| is_selected(&file_group.name)) {
            effective_config
                .cluster_groups
                .iter_mut()
                .filter(|effective_group| effective_group.name == file_group.name)
                .for_each(|effective_group| effective_group.clone_from(file_group));
        }
        for group in groups {
            if let Some(members) = overlay.discovered_members.get(group) {
                effective_config.append_discovered(group, members);
            }
        }
        effective_config
    }

    /// Updates the addresses of watched members to those of the settings.
    pub(crate) fn follow_addresses(&mut self) {
        for group in &self.settings.groups {
            let cluster_group =
                self.cluster_groups.iter_mut().filter(|cluster_group| cluster_group.name == group.spec.name);
            for member in cluster_group.flat_map(|cluster_group| &mut Arc::make_mut(cluster_group).members) {
                let spec = group.spec.members.iter().find(|spec| spec.name == member.name);
                member.address = spec.map_or(member.address, |spec| spec.address);
            }
        }
    }

    /// Returns the settings in force with these changes.
    pub(crate) fn with_overlay(&self, overlay: &ConfigOverlay) -> EffectiveConfig {
        let mut effective_config = EffectiveConfig {
            settings: self.settings.clone(),
            cluster_groups: self.cluster_groups.clone(),
            locations: BTreeMap::new(),
        };
        for ((group, member), location) in &self.locations {
            let key = (group.as_str().into(), member.as_str().into());
            effective_config.locations.insert(key, Location::new(location));
        }
        for group in &overlay.groups {
            // A file that was read again may have a group of this name now: its own comes first.
            if effective_config.group(&group.settings.spec.name).is_none() {
                effective_config.settings.groups.push(Arc::new(group.settings.clone()));
                effective_config.settings.listeners.push(group.listener.clone());
                effective_config.cluster_groups.push(Arc::new(group.cluster_settings.clone()));
            }
        }
        for lottery in &self.lotteries {
            if let Some(members) = overlay.lottery_members.get(&lottery.group) {
                effective_config.replace_members(&lottery.group, members);
            }
        }
        for discovery in &self.discoveries {
            if let Some(members) = overlay.discovered_members.get(&discovery.group) {
                effective_config.append_discovered(&discovery.group, members);
            }
        }
        for (group, member) in &overlay.removed_members {
            effective_config.remove(group, member);
        }
        for (group, member) in &overlay.added_members {
            effective_config.add(group, member);
        }
        effective_config
    }
}

impl EffectiveConfig {
    /// Returns the members of all groups with their locations: group, member, location.
    pub(crate) fn member_locations(&self) -> impl Iterator<Item = (&Arc<str>, &MemberSpec, Location)> {
        self.settings.groups.iter().flat_map(move |group| {
            let name = &group.spec.name;
            group.spec.members.iter().map(move |member| (name, member, self.location(name, &member.name)))
        })
    }

    /// Returns the members of a group that have an object.
    pub(crate) fn objects(&self, group: &str) -> Vec<(Arc<str>, Location, Ior)> {
        let Some(settings) = self.group(group) else { return Vec::new() };
        let Some(iiop) = &settings.iiop else { return Vec::new() };
        let object_entry = |member: &MemberSpec| {
            let object = iiop.objects.get(&member.name)?;
            Some((
                Arc::clone(&member.name),
                self.location(&settings.spec.name, &member.name),
                object.ior().clone(),
            ))
        };
        settings.spec.members.iter().filter_map(object_entry).collect()
    }

    fn group(&self, name: &str) -> Option<&proxy::GroupSettings> {
        self.settings.groups.iter().find(|group| *group.spec.name == *name).map(|group| &**group)
    }

    fn location(&self, group: &Arc<str>, member: &Arc<str>) -> Location {
        let stored_location = self.locations.get(&(Arc::clone(group), Arc::clone(member)));
        stored_location.cloned().unwrap_or_else(|| Location::new(member))
    }

    fn remove(&mut self, group: &str, member: &str) {
        if let Some(group) = self.settings.groups.iter_mut().find(|settings| *settings.spec.name == *group) {
            let group = Arc::make_mut(group);
            group.spec.members.retain(|group_member| *group_member.name != *member);
            if let Some(iiop) = &mut group.iiop {
                iiop.objects.remove(member);
            }
        }
        if let Some(group) =
            self.cluster_groups.iter_mut().find(|cluster_group| *cluster_group.name == *group)
        {
            Arc::make_mut(group).members.retain(|cluster_member| *cluster_member.name != *member);
        }
    }

    fn replace_members(&mut self, group: &str, members: &[MemberSpec]) {
        let mut hosts = BTreeMap::new();
        if let Some(group) = self.settings.groups.iter_mut().find(|settings| *settings.spec.name == *group) {
            let group = Arc::make_mut(group);
            hosts.clone_from(&group.hosts);
            group.spec.members = members.to_vec();
            if let Some(iiop) = &mut group.iiop {
                let object = |spec: &MemberSpec| {
                    config::lottery_object(iiop, spec.address).map(|object| (Arc::clone(&spec.name), object))
                };
                iiop.objects = members.iter().filter_map(object).collect();
            }
        }
        if let Some(cluster_group) =
            self.cluster_groups.iter_mut().find(|cluster_settings| *cluster_settings.name == *group)
        {
            let member = |spec: &MemberSpec| {
                let MemberSpec { name, address, capacity, .. } = spec.clone();
                let host = hosts.get(&name).cloned();
                cluster::MemberSettings { name, address, capacity, host }
            };
            Arc::make_mut(cluster_group).members = members.iter().map(member).collect();
        }
    }

    /// Adds members of sources after those of the file.
    fn append_discovered(&mut self, group: &str, discovered: &[MemberSpec]) {
        let Some(settings) = self.group(group) else { return };
        let listed_names: BTreeSet<&Arc<str>> =
            settings.spec.members.iter().map(|member| &member.name).collect();
        let unlisted = discovered.iter().filter(|member| !listed_names.contains(&member.name));
        let members: Vec<MemberSpec> = settings.spec.members.iter().chain(unlisted).cloned().collect();
        self.replace_members(group, &members);
    }

    fn add(&mut self, group: &Arc<str>, member: &OverlayMember) {
        let Some(settings) =
            self.settings.groups.iter_mut().find(|group_settings| group_settings.spec.name == *group)
        else {
            return;
        };
        let settings = Arc::make_mut(settings);
        let Some(iiop) = &mut settings.iiop else { return };
        if settings.spec.members.iter().any(|other| other.name == member.spec.name) {
            return;
        }
        settings.spec.members.push(member.spec.clone());
        iiop.objects.insert(Arc::clone(&member.spec.name), member.object.clone());
        self.locations.insert((Arc::clone(group), Arc::clone(&member.spec.name)), member.location.clone());
        if let Some(cluster_group) =
            self.cluster_groups.iter_mut().find(|cluster_settings| cluster_settings.name == *group)
        {
            let MemberSpec { name, address, capacity, .. } = member.spec.clone();
            Arc::make_mut(cluster_group).members.push(cluster::MemberSettings {
                name,
                address,
                capacity,
                host: None,
            });
        }
    }
}

impl ConfigOverlay {
    /// Gives numbers to the groups of a file that have none yet.
    pub(crate) fn assign_numbers(&mut self, file_config: &FileConfig) {
        for group in &file_config.settings.groups {
            if !self.numbers.contains_key(&group.spec.name) {
                self.last_number += 1;
                self.numbers.insert(Arc::clone(&group.spec.name), self.last_number);
            }
        }
    }

    /// Returns the number of a group, the same as long as this lives; 0 for one that was not counted.
    pub(crate) fn number(&self, group: &str) -> u64 {
        self.numbers.get(group).copied().unwrap_or_default()
    }

    /// Returns the group of a number.
    pub(crate) fn group_of(&self, number: u64) -> Option<Arc<str>> {
        self.numbers
            .iter()
            .find(|(_, group_number)| **group_number == number)
            .map(|(name, _)| Arc::clone(name))
    }

    /// Creates a group; returns its name. It is served like the first iiop listener's, on a port of its own.
    pub(crate) fn create(
        &mut self,
        file_config: &FileConfig,
        machine: MachineDefaults,
        type_id: &str,
        strategy: Option<&StrategyInfo>,
    ) -> Result<Arc<str>, GroupError> {
        let impossible = |reason: String| GroupError::Impossible(reason);
        let mut listeners = file_config.settings.listeners.iter();
        let template = listeners.find(|listener| listener.protocol == proxy::Protocol::Iiop);
        let template =
            template.ok_or_else(|| impossible("no listener speaks iiop: add one to the file".into()))?;
        let ip = template.address.ip();
        let free_address = TcpListener::bind((ip, 0)).and_then(|socket| socket.local_addr());
        let address =
            free_address.map_err(|error| impossible(format!("no port is free on {ip}: {error}")))?;
        let name = (self.last_number + 1..).map(|number| format!("corba-{number}"));
        let is_taken =
            |name: &String| file_config.settings.groups.iter().any(|group| *group.spec.name == **name);
        let mut name = name;
        let name = name.find(|name| !is_taken(name)).unwrap_or_default();
        let strategy = match strategy {
            Some(strategy) => strategy_toml(strategy),
            None => "\"adaptive\"".to_owned(),
        };
        config::parse_strategy(&strategy)
            .map_err(|cause| GroupError::Strategy(format!("{strategy}: {cause}")))?;
        let type_id =
            if type_id.is_empty() { String::new() } else { format!("iiop.type_id = {type_id:?}\n") };
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"iiop\"\ngroup = \"{name}\"\n\
             [[group]]\nname = \"{name}\"\nmembers = [\"127.0.0.1:1\"]\nstrategy = {strategy}\n\
             health = {{ iiop = true }}\n\
             monitor = {{ source = \"push\", metric = \"load\", interval = \"5s\" }}\n{type_id}"
        );
        let file =
            config::parse(&name, text.into_bytes()).map_err(|problems| impossible(problems.first()))?;
        let settings = file.settings(machine, look_up).map_err(|problems| impossible(problems.first()))?;
        let cluster_groups = file.watched_groups(&settings).pop();
        let (Some(settings), Some(cluster_settings)) =
            (settings.groups.into_iter().next_back(), cluster_groups)
        else {
            return Err(impossible(format!("group {name} came to nothing")));
        };
        let (mut settings, mut cluster_settings) =
            (Arc::unwrap_or_clone(settings), Arc::unwrap_or_clone(cluster_settings));
        settings.spec.members.clear();
        cluster_settings.members.clear();
        if let Some(iiop) = &mut settings.iiop {
            iiop.objects.clear();
        }
        let group: Arc<str> = name.as_str().into();
        let public = template.public.clone().map(|(host, _)| (host, address.port()));
        let listener =
            proxy::ListenerSettings { address, public, group: Arc::clone(&group), ..template.clone() };
        self.last_number += 1;
        self.numbers.insert(Arc::clone(&group), self.last_number);
        self.groups.push(OverlayGroup { settings, listener, cluster_settings });
        Ok(group)
    }

    /// Deletes a group that was created here.
    pub(crate) fn delete(&mut self, group: &Arc<str>) -> Result<(), GroupError> {
        let previous_len = self.groups.len();
        self.groups.retain(|corba_group| corba_group.settings.spec.name != *group);
        if self.groups.len() == previous_len {
            return Err(GroupError::NoGroup);
        }
        self.numbers.remove(group);
        self.added_members.retain(|(group_name, _)| group_name != group);
        Ok(())
    }

    /// Adds a member to a group that is in force.
    pub(crate) fn add(
        &mut self,
        effective_config: &EffectiveConfig,
        group: &Arc<str>,
        location: &Location,
        object: &Ior,
    ) -> Result<(), GroupError> {
        let settings = effective_config.group(group).ok_or(GroupError::NoGroup)?;
        if effective_config
            .member_locations()
            .any(|(group_name, _, member_location)| group_name == group && member_location == *location)
        {
            return Err(GroupError::MemberExists);
        }
        if self.added_members.iter().filter(|(group_name, _)| group_name == group).count()
            >= MAX_ADDED_MEMBERS
        {
            return Err(GroupError::Impossible(format!(
                "{MAX_ADDED_MEMBERS} members were added to group {group}"
            )));
        }
        let unreachable =
            || GroupError::Impossible(format!("the object at {location} cannot be reached over IIOP"));
        let address_text = object
            .first_iiop_profile()
            .and_then(|profile| profile.addresses().next())
            .ok_or_else(unreachable)?;
        let invalid_address = |reason: String| {
            GroupError::Impossible(format!("the object at {location} is at {address_text}, which {reason}"))
        };
        let address: MemberAddress = address_text.to_string().parse().map_err(invalid_address)?;
        let socket_address =
            look_up(&address).map_err(|error| invalid_address(format!("cannot be looked up: {error}")))?;
        // The locations tell several objects of one server apart.
        let is_taken = |name: &str| settings.spec.members.iter().any(|member| *member.name == *name);
        let name = Some(address.to_string()).filter(|name| !is_taken(name));
        let name: Arc<str> = name.unwrap_or_else(|| location.text().to_owned()).into();
        if is_taken(&name) {
            return Err(GroupError::MemberExists);
        }
        let mut ior = object.clone();
        if ior.type_id.is_empty() {
            ior.type_id = settings.iiop.as_ref().map(|iiop| iiop.type_id.clone()).unwrap_or_default();
        }
        let object = proxy::CorbaObject::new(ior).ok_or_else(unreachable)?;
        let spec = MemberSpec {
            name,
            address: socket_address,
            capacity: 1.0,
            limit: u32::MAX,
            leaving: false,
            checked: false,
        };
        // A member of the file that was removed stays out: this one takes its place.
        self.added_members
            .push((Arc::clone(group), OverlayMember { spec, object, location: location.clone() }));
        Ok(())
    }

    /// Removes a member from a group that is in force.
    pub(crate) fn remove(
        &mut self,
        effective_config: &EffectiveConfig,
        group: &Arc<str>,
        location: &str,
    ) -> Result<(), GroupError> {
        effective_config.group(group).ok_or(GroupError::NoGroup)?;
        let mut locations = effective_config.member_locations();
        let entry = locations.find(|(group_name, _, member_location)| {
            *group_name == group && member_location.text() == location
        });
        let (_, member, _) = entry.ok_or(GroupError::NoMember)?;
        let previous_len = self.added_members.len();
        self.added_members.retain(|(group_name, added_member)| {
            group_name != group || added_member.spec.name != member.name
        });
        if self.added_members.len() == previous_len {
            self.removed_members.insert((Arc::clone(group), Arc::clone(&member.name)));
        }
        Ok(())
    }

    /// Sets the members of a group from a lottery; returns `true` if they differ from those before.
    pub(crate) fn set_lottery_members(&mut self, group: &Arc<str>, members: &[MemberSpec]) -> bool {
        if self.lottery_members.get(group).is_some_and(|previous_members| previous_members == members) {
            return false;
        }
        self.lottery_members.insert(Arc::clone(group), members.to_vec());
        true
    }

    /// Sets the members from sources, of all groups.
    pub(crate) fn set_discovered(&mut self, discovered: BTreeMap<Arc<str>, Vec<MemberSpec>>) {
        self.discovered_members = discovered;
    }

    /// Sets the members from sources, of some groups.
    pub(crate) fn extend_discovered(&mut self, discovered: BTreeMap<Arc<str>, Vec<MemberSpec>>) {
        self.discovered_members.extend(discovered);
    }

    /// Applies an operator's choice of a strategy to a group that was created here; returns whether there is
    /// such a group.
    pub(crate) fn apply_strategy(
        &mut self,
        group: &str,
        change: impl FnOnce(&mut proxy::GroupSettings),
    ) -> bool {
        let found_group = self.groups.iter_mut().find(|entry| *entry.settings.spec.name == *group);
        found_group.map(|entry| change(&mut entry.settings)).is_some()
    }
}

/// Returns a strategy in the form of a file.
fn strategy_toml(info: &StrategyInfo) -> String {
    let name = snake_case(&info.name);
    if info.settings.is_empty() {
        return format!("{name:?}");
    }
    let settings = info.settings.iter().map(|(name, value)| {
        let name = snake_case(name);
        format!("{:?} = {value:?}", name.strip_suffix("_threshold").unwrap_or(&name))
    });
    format!("{{ {name:?} = {{ {} }} }}", settings.collect::<Vec<_>>().join(", "))
}

/// Returns `LeastLoaded` as `least_loaded`; characters other than letters and digits are left out.
fn snake_case(name: &str) -> String {
    let mut out = String::new();
    for char in name.chars().filter(|char| char.is_ascii_alphanumeric() || *char == '_').take(64) {
        if char.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(char.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_are_written_as_in_a_file() {
        let mut info = StrategyInfo { name: "LeastLoaded".into(), settings: Vec::new() };
        assert_eq!(strategy_toml(&info), "\"least_loaded\"");
        info.settings = vec![("CriticalThreshold".into(), 5.0), ("PerBalanceLoad".into(), 0.5)];
        let text = strategy_toml(&info);
        assert_eq!(text, "{ \"least_loaded\" = { \"critical\" = 5.0, \"per_balance_load\" = 0.5 } }");
        assert!(config::parse_strategy(&text).is_ok());
        info.name = "\"} x = 1".into();
        assert!(config::parse_strategy(&strategy_toml(&info)).is_err());
    }
}
