//! The step from a checked file to the settings of the shells: the last one, and the only one that asks the
//! resolver.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use plimsoll_admin::{ActiveRules, JwtSettings, TlsSettings};
use plimsoll_brain::{self as brain, GroupSpec, HealthSpec, MemberSpec};
use plimsoll_cluster as cluster;
use plimsoll_proxy as proxy;
use plimsoll_wire::giop::{ByteOrder, CodeSets, GiopVersion, IiopProfile, Ior};
use plimsoll_wire::rfs::{KeyRing, service_id};

use super::check::LOTTERY;
use super::diagnostic::{ConfigDiagnostic, ConfigDiagnostics};
use super::{
    BindingMode, Config, ConfigFile, DiscoverConfig, Domain, DrainHookConfig, DrainPolicy, ForwardedHeaders,
    GroupConfig, HealthConfig, ListenerConfig, ListenerProtocol, LoadReportHeader, MemberAddress,
    MemberConfig, MemberEntry, MemberProtocol, MonitorConfig, OutlierConfig, ProxyVersion, RebindMode,
    StrategyConfig, WhenAllDown, affinity, default_control, route, tls, trace,
};

/// The addresses at which the balancer is watched and controlled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminConfig {
    /// The address of status, metrics and events: read-only. `None` for off.
    pub listen: Option<SocketAddr>,
    /// The names by which that may be asked.
    pub names: Vec<Box<str>>,
    /// The path of the unix socket for commands. `None` for off.
    pub control: Option<PathBuf>,
    /// The address of members' reports, and nothing else. `None` for off.
    pub reports: Option<SocketAddr>,
    /// Whether that address lends members, too.
    pub leases: bool,
    /// Whether it registers them.
    pub register: bool,
    /// The load manager, and its interval of asking. `None` for off.
    pub load_manager: Option<(SocketAddr, Duration)>,
    /// Whether `control` is in the file, and not the default.
    pub control_is_set: bool,
    /// Control over TLS, the tokens that are valid there, and the keytab for tickets. `None` for off.
    pub tls: Option<(TlsSettings, Option<JwtSettings>, Option<PathBuf>)>,
    /// The audit log. `None` for off.
    pub audit: Option<PathBuf>,
}

/// A group whose members come from a lottery.
#[derive(Clone, Debug)]
pub struct LotteryGroup {
    /// The group's name.
    pub group: Arc<str>,
    /// The maximum of requests, connections or flows at once at each member.
    pub limit: u32,
    /// The number of the service.
    pub service: u32,
    /// The daemons to begin with.
    pub daemons: Vec<SocketAddr>,
    /// The keys, and their file.
    pub keys: (KeyRing, PathBuf),
}

/// Defaults that depend on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineDefaults {
    /// The default of `threads`.
    pub threads: usize,
    /// The default of `max_connections`.
    pub max_connections: usize,
    /// The descriptors that connections of clients and to members may take.
    pub max_descriptors: usize,
    /// The default of `max_memory`.
    pub max_memory: usize,
    /// The default of `max_flows` of each udp listener.
    pub max_flows: usize,
}

impl MachineDefaults {
    /// Returns those of this machine, where a process may open `files` files.
    pub fn detect(config: &Config, files: u64) -> Self {
        Self {
            threads: available_parallelism().map_or(1, usize::from),
            max_connections: crate::limits::max_connections(config, files),
            max_descriptors: crate::limits::max_descriptors(config, files),
            max_memory: crate::limits::max_memory(),
            max_flows: crate::limits::max_flows(config, files),
        }
    }
}

/// The maximum number of addresses of a name that are used.
const MAX_ADDRESSES: usize = 16;

/// Looks a member's address up with the system's resolver: of several the first of IPv4, or else the first.
///
/// # Errors
/// Fails with the resolver's error.
pub fn look_up(address: &MemberAddress) -> std::io::Result<SocketAddr> {
    let addresses = look_up_all(address)?;
    addresses.first().copied().ok_or_else(|| std::io::Error::other("the name has no address"))
}

/// Looks up all addresses of a member with the system's resolver, those of IPv4 first.
///
/// # Errors
/// Fails with the resolver's error, or if there is none.
pub fn look_up_all(address: &MemberAddress) -> std::io::Result<Vec<SocketAddr>> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for socket_address in (address.host.as_str(), address.port).to_socket_addrs()? {
        if !addresses.contains(&socket_address) {
            addresses.push(socket_address);
        }
    }
    addresses.sort_by_key(SocketAddr::is_ipv6);
    addresses.truncate(MAX_ADDRESSES);
    if addresses.is_empty() { Err(std::io::Error::other("the name has no address")) } else { Ok(addresses) }
}

/// A member whose host is a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedMember {
    /// The name of its group.
    pub group: String,
    /// Its name in commands, metrics and events.
    pub member: String,
    /// The address to look up.
    pub address: MemberAddress,
    /// Whether its group has health checks.
    pub has_health_checks: bool,
}

impl ConfigFile {
    /// Returns the data plane's settings.
    ///
    /// # Errors
    /// Fails if `resolve` cannot turn names of members into addresses, each with its place in the file.
    pub fn settings(
        &self,
        machine: MachineDefaults,
        mut resolve: impl FnMut(&MemberAddress) -> std::io::Result<SocketAddr>,
    ) -> Result<proxy::Settings, ConfigDiagnostics> {
        let mut problems = Vec::new();
        let mut resolved: HashMap<MemberAddress, Option<SocketAddr>> = HashMap::new();
        let mut groups = Vec::new();
        for (index, group) in self.config.groups.iter().enumerate() {
            let spans = self.spans.key("group").item(index).key("members");
            let mut members = Vec::new();
            for (index, member) in group.members.iter().enumerate() {
                let Some(address) = member.address() else { continue };
                let resolved_address =
                    resolved.entry(address.clone()).or_insert_with(|| match resolve(address) {
                        Ok(resolved_address) => Some(resolved_address),
                        Err(error) => {
                            let span = spans.item(index).key("address").value_span();
                            let message = format!("cannot look up `{}`: {error}", address.host);
                            problems.push(
                                ConfigDiagnostic::error(span, message)
                                    .hint("correct the name, or write an IP address"),
                            );
                            None
                        }
                    });
                members.extend(resolved_address.map(|address| member_spec(group, member, address)));
            }
            let tls = group.tls.as_ref().and_then(|tls| {
                let spans = self.spans.key("group").item(index).key("tls");
                tls::of_group(tls, group.protocol, spans, &mut problems)
            });
            let settings = group_settings(group, members);
            groups.extend(settings.map(|settings| Arc::new(proxy::GroupSettings { tls, ..settings })));
        }
        let config = &self.config;
        let root_spans = self.spans.key("listener");
        let listeners = config.listeners.iter().enumerate().flat_map(|(index, listener)| {
            let tls = tls::of_listener(listener, root_spans.item(index).key("tls"), &mut problems);
            let affinity = affinity::of_listener(listener, root_spans.item(index), &mut problems);
            let routes = route::of_listener(listener, root_spans.item(index), &mut problems);
            let group = listener.main_group().or_else(|| Some(&config.groups.first()?.name));
            let group: Arc<str> = group.map_or_else(|| "".into(), |group| group.0.as_str().into());
            // Without a group of its own, the cookie of each group has the group's name.
            let affinity = match (affinity, &routes) {
                (Some(affinity), Some(_)) if listener.group.is_none() => {
                    let cookie = format!("{}-{group}", affinity.cookie).into_boxed_str();
                    Some(Arc::new(proxy::AffinitySettings { cookie, ..(*affinity).clone() }))
                }
                (affinity, _) => affinity,
            };
            listeners(listener, machine).into_iter().map(move |settings| {
                let (tls, affinity, routes) = (tls.clone(), affinity.clone(), routes.clone());
                proxy::ListenerSettings { group: Arc::clone(&group), tls, affinity, routes, ..settings }
            })
        });
        let listeners = listeners.collect();
        if let Some(tracing) = &config.tracing {
            trace::check_files(tracing, self.spans.key("tracing"), &mut problems);
        }
        if !problems.is_empty() {
            return Err(ConfigDiagnostics::new(Arc::clone(&self.source), problems));
        }
        Ok(proxy::Settings {
            threads: config.threads.unwrap_or(machine.threads),
            max_connections: config.max_connections.unwrap_or(machine.max_connections),
            max_descriptors: machine.max_descriptors,
            max_memory: config.max_memory.unwrap_or(machine.max_memory),
            listeners,
            groups,
            access_log: config
                .access_log
                .as_ref()
                .map(|log| proxy::AccessLogSettings { path: log.path.0.clone(), sample: log.sample }),
            tracing: config.tracing.as_ref().map(|tracing| proxy::TracingSettings { sample: tracing.sample }),
            drain_deadline: config.drain_deadline.0,
            upgrade_deadline: config.upgrade_deadline.0,
        })
    }

    /// Returns the members whose hosts are names.
    pub fn named_members(&self) -> Vec<NamedMember> {
        let named_of = |group: &GroupConfig| {
            let with_address =
                group.members.iter().filter_map(|member| Some((member.name(), member.address()?.clone())));
            let host_names = with_address.filter(|(_, address)| address.host.parse::<IpAddr>().is_err());
            let named_member = |(member, address)| NamedMember {
                group: group.name.0.clone(),
                member,
                address,
                has_health_checks: group.health.is_some(),
            };
            host_names.map(named_member).collect::<Vec<_>>()
        };
        self.config.groups.iter().flat_map(named_of).collect()
    }

    /// Returns the groups whose members come from a lottery, with the keys as they are now.
    ///
    /// # Errors
    /// Fails if keys cannot be read, or no daemon of a group can be looked up, each with its place in the
    /// file.
    pub fn lotteries(
        &self,
        mut resolve: impl FnMut(&MemberAddress) -> std::io::Result<SocketAddr>,
    ) -> Result<Vec<LotteryGroup>, ConfigDiagnostics> {
        let (mut lotteries, mut problems) = (Vec::new(), Vec::new());
        for (index, group) in self.config.groups.iter().enumerate() {
            let Some(lottery_config) = &group.lottery else { continue };
            let spans = self.spans.key("group").item(index).key("lottery");
            let results = lottery_config.daemons.iter().map(&mut resolve);
            let (daemons_found, lookup_errors): (Vec<_>, Vec<_>) = results.partition(Result::is_ok);
            let daemons: Vec<SocketAddr> = daemons_found.into_iter().flatten().collect();
            if let (true, Some(Err(error))) = (daemons.is_empty(), lookup_errors.into_iter().next()) {
                let message = format!("none of the daemons can be looked up: {error}");
                problems.push(ConfigDiagnostic::error(spans.key("daemons").value_span(), message));
            }
            let path = &lottery_config.keys.0;
            let key_text = std::fs::read_to_string(path).map_err(|error| error.to_string());
            match key_text
                .and_then(|text| text.parse::<KeyRing>().map_err(|parse_error| parse_error.to_string()))
            {
                Ok(keys) => lotteries.push(LotteryGroup {
                    group: group.name.0.as_str().into(),
                    limit: group.max_connections.unwrap_or(u32::MAX),
                    service: service_id(&lottery_config.service.0),
                    daemons,
                    keys: (keys, path.clone()),
                }),
                Err(cause) => {
                    let message = format!("cannot read the keys {}: {cause}", path.display());
                    let hint = "it is the file that `plimsoll lottery --keys` made";
                    problems
                        .push(ConfigDiagnostic::error(spans.key("keys").value_span(), message).hint(hint));
                }
            }
        }
        if problems.is_empty() {
            Ok(lotteries)
        } else {
            Err(ConfigDiagnostics::new(Arc::clone(&self.source), problems))
        }
    }

    /// Returns the cluster's settings for the members of `settings`, which are this file's.
    pub fn watched_groups(&self, settings: &proxy::Settings) -> Vec<Arc<cluster::GroupSettings>> {
        let groups = self.config.groups.iter().zip(&settings.groups);
        let to_cluster_group = |(group, settings): (&GroupConfig, &Arc<proxy::GroupSettings>)| {
            Arc::new(cluster::GroupSettings {
                name: Arc::clone(&settings.spec.name),
                members: settings.spec.members.iter().map(|spec| watched_member(spec, settings)).collect(),
                monitor: group.monitor.as_ref().and_then(MonitorConfig::settings),
                weight: group.strategy.weight().and_then(|weight| cluster::Expression::new(&weight.0).ok()),
            })
        };
        groups.map(to_cluster_group).collect()
    }

    /// Returns the locations of the members that have one, by group and member.
    pub fn locations(&self) -> BTreeMap<(String, String), String> {
        let member_locations = |group: &GroupConfig| {
            let location_of = |member: &MemberEntry| {
                Some(((group.name.0.clone(), member.name()), member.table().location?.0))
            };
            group.members.iter().filter_map(location_of).collect::<Vec<_>>()
        };
        self.config.groups.iter().flat_map(member_locations).collect()
    }

    /// Returns the addresses at which the balancer is watched and controlled.
    pub fn admin(&self) -> AdminConfig {
        let admin = &self.config.admin;
        let has_control = self.spans.has_key("admin") && self.spans.key("admin").has_key("control");
        let (listen, reports) = (admin.listen.0, admin.reports.0);
        let control = if has_control { admin.control.unix().cloned() } else { Some(default_control()) };
        let load_manager = admin.load_manager.0.map(|address| (address, admin.load_interval.0));
        let audit = admin.audit.as_ref().map(|path| path.0.clone());
        let names = admin.names.iter().map(Domain::host).collect();
        let (leases, register, tls) = (admin.leases, admin.register, admin.control_section().tls_control());
        AdminConfig {
            listen,
            names,
            control,
            reports,
            leases,
            register,
            load_manager,
            control_is_set: has_control,
            tls,
            audit,
        }
    }

    /// Returns the rights of clients over TLS.
    ///
    /// # Errors
    /// Fails with one line if the file of rules cannot be read, or is wrong.
    pub fn rules(&self) -> Result<ActiveRules, String> {
        self.config.admin.control_section().rules()
    }
}

impl Config {
    /// Returns the configuration with all defaults written out.
    pub fn with_defaults(&self, machine: MachineDefaults) -> Self {
        let mut config = self.clone();
        config.threads.get_or_insert(machine.threads);
        config.max_connections.get_or_insert(machine.max_connections);
        config.max_memory.get_or_insert(machine.max_memory);
        for listener in &mut config.listeners {
            listener.binding.get_or_insert_with(|| listener.protocol.binding());
            listener.timeouts.idle.get_or_insert_with(|| listener.protocol.idle());
            if listener.protocol == ListenerProtocol::Udp {
                listener.max_flows.get_or_insert(machine.max_flows);
            }
        }
        for group in &mut config.groups {
            group.strategy = match group.lottery {
                Some(_) => StrategyConfig::Name(LOTTERY.to_owned()),
                None => group.strategy.with_defaults(),
            };
            let limits =
                || group.strategy.find().is_some_and(|(strategy_info, _)| strategy_info.enforces_limits);
            group.admission.get_or_insert_with(limits);
            group.outlier = group.outlier.table().map_or(OutlierConfig::Switch(false), OutlierConfig::Table);
            group.discover = group.discover.iter().map(DiscoverConfig::with_defaults).collect();
            for member in &mut group.members {
                let mut table = member.table();
                table.max_connections = table.max_connections.or(group.max_connections);
                *member = MemberEntry::Table(Box::new(table));
            }
        }
        config
    }

    /// Returns the number of members of all groups.
    pub fn member_count(&self) -> usize {
        self.groups.iter().map(|group| group.members.len()).sum()
    }
}

/// Returns the data plane's listeners for one of the file: dns listens on both transports, all others on one.
fn listeners(listener: &ListenerConfig, machine: MachineDefaults) -> Vec<proxy::ListenerSettings> {
    let settings = listener_settings(listener, machine);
    match listener.protocol {
        ListenerProtocol::Dns => {
            let stream = proxy::ListenerSettings { protocol: proxy::Protocol::DnsStream, ..settings.clone() };
            vec![settings, stream]
        }
        _ => vec![settings],
    }
}

fn listener_settings(listener: &ListenerConfig, machine: MachineDefaults) -> proxy::ListenerSettings {
    let timeouts = &listener.timeouts;
    // Other protocols have no flows.
    let flows = if listener.protocol == ListenerProtocol::Udp { machine.max_flows } else { 0 };
    proxy::ListenerSettings {
        address: listener.address.0,
        protocol: match listener.protocol {
            ListenerProtocol::Http | ListenerProtocol::Https => proxy::Protocol::Http,
            ListenerProtocol::Tcp => proxy::Protocol::Tcp,
            ListenerProtocol::Udp => proxy::Protocol::Udp,
            ListenerProtocol::Dns => proxy::Protocol::Dns,
            ListenerProtocol::Iiop => proxy::Protocol::Iiop,
            ListenerProtocol::Xds => proxy::Protocol::Xds,
        },
        group: listener.main_group_name().into(),
        routes: None,
        others: listener.groups.iter().map(|group| group.0.as_str().into()).collect(),
        binding: match listener.binding.unwrap_or_else(|| listener.protocol.binding()) {
            BindingMode::PerRequest => proxy::BindingMode::PerRequest,
            BindingMode::PerSession => proxy::BindingMode::PerSession,
            BindingMode::OnDemand => proxy::BindingMode::OnDemand(match listener.rebind {
                RebindMode::Silent => proxy::RebindMode::Silent,
                RebindMode::Close => proxy::RebindMode::Close,
                RebindMode::Redirect => proxy::RebindMode::Redirect,
                RebindMode::Agent => proxy::RebindMode::Agent,
            }),
        },
        affinity: None,
        public: listener
            .public
            .as_ref()
            .map(|public_address| (public_address.host.as_str().into(), public_address.port)),
        move_idle: listener.rebind_idle.0,
        backlog: u32::try_from(listener.backlog).unwrap_or(u32::MAX),
        accept_proxy: listener.accept_proxy,
        priority: listener.priority.as_ref().map(|header| header.0.as_str().into()),
        timeouts: proxy::ClientTimeouts {
            head: timeouts.head.0,
            idle: timeouts.idle.unwrap_or_else(|| listener.protocol.idle()).0,
            body: timeouts.body.0,
            tunnel: timeouts.tunnel.0,
        },
        half_close: listener.half_close,
        upgrades: listener.upgrades.iter().map(|name| name.0.as_str().into()).collect(),
        max_head: listener.max_header_bytes,
        forwarded: match listener.forwarded {
            ForwardedHeaders::X => proxy::ForwardedHeaders::XForwarded,
            ForwardedHeaders::Rfc7239 => proxy::ForwardedHeaders::Rfc7239,
            ForwardedHeaders::Off => proxy::ForwardedHeaders::Off,
        },
        trusted: listener.trusted.iter().map(|network| network.0).collect(),
        max_flows: listener.max_flows.unwrap_or(flows),
        zone: listener.domain.as_ref().map(|domain| proxy::ZoneSettings {
            domain: domain.0.as_str().into(),
            ttl: u32::try_from(listener.ttl.0.as_secs()).unwrap_or(u32::MAX),
            rate: u32::try_from(listener.answer_rate).unwrap_or(u32::MAX),
            slip: u32::try_from(listener.answer_slip).unwrap_or(u32::MAX),
        }),
        tls: None,
    }
}

/// Returns the data plane's settings of a group; `None` only for an unknown strategy, which a checked file
/// does not have.
fn group_settings(group: &GroupConfig, members: Vec<MemberSpec>) -> Option<proxy::GroupSettings> {
    // The lottery's weights are used like those of an expression, and the lottery has a slow start of its
    // own.
    let (strategy, params) = match group.lottery {
        Some(_) => {
            (brain::strategy::EXPRESSION, brain::StrategyParams::defaults(brain::strategy::EXPRESSION))
        }
        None => group.strategy.find()?,
    };
    let slow_start = if group.lottery.is_some() { Duration::ZERO } else { group.slow_start.0 };
    let timeouts = &group.timeouts;
    let spec = GroupSpec {
        name: group.name.0.as_str().into(),
        strategy,
        params,
        members,
        health: group.health.as_ref().map(|health| HealthSpec { rise: health.rise, fall: health.fall }),
        outlier: group.outlier.spec(),
        slow_start,
        when_all_down: match group.when_all_down {
            WhenAllDown::Reject => brain::WhenAllDown::Reject,
            WhenAllDown::FailOpen => brain::WhenAllDown::FailOpen,
        },
        admission: group.admission,
        objective: group.objective.map(|objective| objective.0),
        aperture: group.aperture,
    };
    Some(proxy::GroupSettings {
        strip_reports: group.load_report_header == LoadReportHeader::Strip,
        sample_reports: group.monitor.as_ref().and_then(MonitorConfig::sample_interval),
        session_load: group.monitor.as_ref().map_or(proxy::SessionLoad::Unknown, MonitorConfig::session_load),
        public: public_urls(group),
        hosts: host_labels(group),
        addresses: BTreeMap::new(),
        iiop: Some(iiop_settings(group)),
        side_car: None,
        hand_over: group.drain_hook.as_ref().map(DrainHookConfig::settings),
        keeps_drained: group.on_drain == DrainPolicy::Stay,
        spec,
        probe: group.health.as_ref().map(HealthConfig::settings),
        key: group.key.0.clone(),
        timeouts: proxy::MemberTimeouts {
            connect: timeouts.connect.0,
            per_try: timeouts.per_try.0,
            total: timeouts.total.0,
            idle: timeouts.idle.0,
        },
        retry: proxy::RetrySettings {
            attempts: group.retry.attempts,
            budget: group.retry.budget,
            min_per_second: group.retry.min_per_second,
        },
        max_rate: group.max_rate,
        queue: group.queue,
        queue_timeout: group.queue_timeout.0,
        pool: group.max_idle_connections,
        pool_idle: group.pool_idle_timeout.0,
        send_proxy: group.send_proxy.map(|version| match version {
            ProxyVersion::V1 => 1,
            ProxyVersion::V2 => 2,
        }),
        tls: None,
        http2: group.protocol == MemberProtocol::H2,
    })
}

fn public_urls(group: &GroupConfig) -> BTreeMap<Arc<str>, Box<str>> {
    let public_url = |member: &MemberEntry| Some((member.name().into(), member.table().public?.0.into()));
    group.members.iter().filter_map(public_url).collect()
}

/// Returns a group's object and those of its members. It is made for every group, whatever the protocols of
/// its listeners.
fn iiop_settings(group: &GroupConfig) -> proxy::IiopSettings {
    let iiop = group.iiop.clone().unwrap_or_default();
    let key = iiop.key.map_or_else(|| group.name.0.clone().into_bytes(), |key| key.bytes);
    let member_tables = || group.members.iter().map(|member| (member.name(), member.table()));
    let type_ids = |(_, table): (String, MemberConfig)| table.ior.map(|ior| ior.ior.type_id);
    let type_id = match iiop.type_id {
        Some(type_id) => type_id.0.into_bytes(),
        None => member_tables().filter_map(type_ids).find(|type_id| !type_id.is_empty()).unwrap_or_default(),
    };
    let object = |(name, table): (String, MemberConfig)| {
        let mut ior = match table.ior {
            Some(reference) => reference.ior,
            None => {
                let address = table.address?;
                let key = table.key.map_or_else(|| key.clone(), |key| key.bytes);
                reference(address.host, address.port, key, &type_id)
            }
        };
        if ior.type_id.is_empty() {
            ior.type_id = type_id.clone();
        }
        Some((Arc::from(name), proxy::CorbaObject::new(ior)?))
    };
    let objects: BTreeMap<Arc<str>, proxy::CorbaObject> = member_tables().filter_map(object).collect();
    proxy::IiopSettings {
        key: Some(key),
        type_id,
        objects,
        max_message: iiop.max_message,
        connections: iiop.connections,
        former: Vec::new(),
        home: None,
    }
}

/// Returns the object of a member that a lottery draws: the group's, at the member's address. `None` if it
/// cannot be reached over IIOP.
pub fn lottery_object(iiop: &proxy::IiopSettings, address: SocketAddr) -> Option<proxy::CorbaObject> {
    let key = iiop.key.clone().unwrap_or_default();
    proxy::CorbaObject::new(reference(address.ip().to_string(), address.port(), key, &iiop.type_id))
}

/// Returns the reference of an object with this address and key.
fn reference(host: String, port: u16, key: Vec<u8>, type_id: &[u8]) -> Ior {
    let components = vec![CodeSets::common_sets().component(ByteOrder::NATIVE)];
    let profile = IiopProfile { version: GiopVersion::V1_2, host, port, key, components };
    Ior { type_id: type_id.to_vec(), profiles: vec![profile.to_tagged(ByteOrder::NATIVE)] }
}

/// Returns the labels of hosts, of those members that have one.
fn host_labels(group: &GroupConfig) -> BTreeMap<Arc<str>, Arc<str>> {
    let label =
        |member: &MemberEntry| Some((member.name().as_str().into(), member.table().host?.0.as_str().into()));
    group.members.iter().filter_map(label).collect()
}

fn watched_member(spec: &MemberSpec, group: &proxy::GroupSettings) -> cluster::MemberSettings {
    let MemberSpec { name, address, capacity, .. } = spec.clone();
    let host = group.hosts.get(&name).cloned();
    cluster::MemberSettings { name, address, capacity, host }
}

fn member_spec(group: &GroupConfig, member: &MemberEntry, address: SocketAddr) -> MemberSpec {
    let table = member.table();
    MemberSpec {
        name: member.name().into(),
        address,
        capacity: table.capacity,
        limit: table.max_connections.or(group.max_connections).unwrap_or(u32::MAX),
        leaving: false,
        checked: false,
    }
}
