//! The references of a side-car of a CORBA server. Clients are forwarded to that of the group when the server
//! is under alert or gone. The server's own is written to a file with the side-car's address in place of the
//! server's, for the balancer to hand out.
//!
//! Both may come late and change: a restarted server may have another key, a balancer may not be up yet. They
//! are polled for as long as the side-car runs; a known reference stays until another one is found.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use plimsoll_agent::ServerUrl;
use plimsoll_config::{ListenAddress, MemberAddress, ObjectReference};
use plimsoll_wire::giop::{
    ALTERNATE_ADDRESS, ByteOrder, CodeSets, Corbaloc, GiopVersion, IIOP_TAG, IiopProfile, Ior,
    TaggedComponent,
};
use tokio::time::sleep;

use super::side_car::SideCar;
use crate::command::{CliError, CliExitCode};

/// The time between two looks at a file.
const FILE_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The time between two questions to balancers that have the group's reference; [`MAX_GROUP_RETRY_INTERVAL`]
/// is the longest to those that do not.
const GROUP_REFRESH_INTERVAL: Duration = Duration::from_secs(30);
const MAX_GROUP_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The type of a group without a known one. Some clients take a reference without a type for nil.
const ANY_OBJECT_TYPE: &[u8] = b"IDL:omg.org/CORBA/Object:1.0";

/// The place of a side-car: `ADDRESS`, or `ADDRESS=SERVER` if the server is not at the address of its
/// reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IiopAddresses {
    pub(super) listen: SocketAddr,
    server: Option<MemberAddress>,
}

impl FromStr for IiopAddresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected ADDRESS=SERVER, such as 0.0.0.0:2809=127.0.0.1:12809";
        let (listen, server) = text
            .split_once('=')
            .map_or((text, None), |(listen_text, server_text)| (listen_text, Some(server_text)));
        let ListenAddress(listen) =
            listen.parse().map_err(|error| format!("the address `{listen}` {error}; {expected}"))?;
        let server = server.map(|server| {
            server.parse().map_err(|error| format!("the server `{server}` {error}; {expected}"))
        });
        Ok(Self { listen, server: server.transpose()? })
    }
}

/// The place of a reference: itself, or a file with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReferenceSource(String);

impl FromStr for ReferenceSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let has_scheme =
            |scheme: &str| text.get(..scheme.len()).is_some_and(|prefix| prefix.eq_ignore_ascii_case(scheme));
        if has_scheme("IOR:") || has_scheme("corbaloc:") {
            text.parse::<ObjectReference>().map_err(|error| format!("it {error}"))?;
            return Ok(Self(text.to_owned()));
        }
        match text.strip_prefix("file:").unwrap_or(text) {
            "" => Err("expected IOR:..., corbaloc:... or a file with one of them".to_owned()),
            path => Ok(Self(format!("file:{path}"))),
        }
    }
}

impl fmt::Display for ReferenceSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short: String = self.0.chars().take(60).collect();
        write!(out, "{short}{}", if short.len() < self.0.len() { "…" } else { "" })
    }
}

impl ReferenceSource {
    fn read(&self) -> Result<ObjectReference, String> {
        self.0.parse().map_err(|error| format!("{self}: it {error}"))
    }
}

/// The options of the command line about references.
#[derive(Clone, Debug)]
pub(super) struct ReferenceOptions {
    pub(super) addresses: IiopAddresses,
    /// The server's reference.
    pub(super) server_reference: Option<ReferenceSource>,
    /// The file for the server's reference with another address in it.
    pub(super) output_file: Option<PathBuf>,
    /// The group's reference.
    pub(super) group_reference: Option<ReferenceSource>,
    /// The group's name, and balancers that know its reference.
    pub(super) group_name: Option<String>,
    pub(super) balancers: Vec<ServerUrl>,
    /// The server's name at balancers, if it is given.
    pub(super) member_name: Option<String>,
}

/// The references.
pub(super) struct SideCarReferences {
    options: ReferenceOptions,
    /// The address at which clients find the side-car.
    side_car_address: MemberAddress,
    /// The server's reference, as last seen.
    last_server_reference: Option<Ior>,
}

impl ReferenceOptions {
    /// Returns the server's address, from the command line or its reference.
    pub(super) fn server_address(&self) -> Result<MemberAddress, CliError> {
        let usage = |message: &str| {
            CliError::new(CliExitCode::Usage, format_args!("--iiop {}: {message}", self.addresses.listen))
        };
        if self.group_reference.is_none() && self.group_name.is_none() && !self.balancers.is_empty() {
            return Err(usage(
                "where are clients to go that the server sends away? Give --group and the group's name, or \
                 --group-ior",
            ));
        }
        match (&self.addresses.server, &self.server_reference) {
            (Some(server), _) => Ok(server.clone()),
            (None, Some(source)) => {
                let server_reference = source.read().map_err(|error| {
                    CliError::failed(format_args!(
                        "cannot tell where the server is: {error}; start it first, or say so: --iiop \
                         {}=HOST:PORT",
                        self.addresses.listen
                    ))
                });
                server_reference.map(|reference| reference.address)
            }
            (None, None) => Err(usage("where is the server? Say so with =HOST:PORT, or give --server-ior")),
        }
    }
}

impl SideCarReferences {
    /// Returns the references of a side-car that listens there.
    pub(super) fn new(options: ReferenceOptions, listen_address: SocketAddr) -> Self {
        let configured_address = match listen_address.ip().is_unspecified() {
            false => None,
            // Balancers know it by a name that should lead there.
            true => options.member_name.as_ref().and_then(|member| member.parse().ok()),
        };
        let side_car_address = configured_address.unwrap_or_else(|| {
            let host = match listen_address.ip().is_unspecified() {
                true => rustix::system::uname().nodename().to_string_lossy().into_owned(),
                false => listen_address.ip().to_string(),
            };
            MemberAddress { host, port: listen_address.port() }
        });
        Self { options, side_car_address, last_server_reference: None }
    }

    /// Returns the server's name at balancers: the given one, or the address at which clients find it.
    pub(super) fn member_name(&self) -> String {
        self.options.member_name.clone().unwrap_or_else(|| self.side_car_address.to_string())
    }

    /// Reads the server's reference, and writes the file anew if it has changed.
    pub(super) fn refresh(&mut self, side_car: &SideCar) -> Result<(), String> {
        let Some(source) = &self.options.server_reference else { return Ok(()) };
        let ObjectReference { ior, address, .. } = source.read()?;
        if self.last_server_reference.as_ref() == Some(&ior) {
            return Ok(());
        }
        let address = self.options.addresses.server.is_none().then_some(address);
        side_car.set_server_object(&ior, address)?;
        if let Some(file) = &self.options.output_file {
            let text = format!("{}\n", with_address(&ior, &self.side_car_address));
            write(file, &text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
        if let Some(corbaloc) = Corbaloc::from_ior(&with_address(&ior, &self.side_car_address)) {
            tracing::info!("the server's object is at {corbaloc} now");
        }
        self.last_server_reference = Some(ior);
        Ok(())
    }

    /// Polls the references for ever.
    pub(super) async fn poll_changes(&mut self, side_car: &SideCar) -> Infallible {
        let options = self.options.clone();
        let group = async {
            match (&options.group_reference, &options.group_name) {
                (None, None) => std::future::pending().await,
                _ => follow_group_reference(&options, side_car).await,
            }
        };
        let server = async {
            let mut last_error = None;
            loop {
                let result = self.refresh(side_car);
                log_once(&mut last_error, result.err(), "the server's reference cannot be had yet");
                sleep(FILE_POLL_INTERVAL).await;
            }
        };
        tokio::select! {
            never = group => never,
            never = server => never,
        }
    }
}

/// Passes the changes of the group's reference to a side-car.
async fn follow_group_reference(options: &ReferenceOptions, side_car: &SideCar) -> Infallible {
    let (mut last_reference, mut last_error) = (None, None);
    let mut wait = FILE_POLL_INTERVAL;
    loop {
        match find_group_reference(options).await {
            Ok(group_reference) => {
                wait = if options.group_reference.is_some() {
                    FILE_POLL_INTERVAL
                } else {
                    GROUP_REFRESH_INTERVAL
                };
                if last_reference.as_ref() != Some(&group_reference) {
                    let corbaloc = Corbaloc::from_ior(&group_reference)
                        .map(|corbaloc| corbaloc.to_string())
                        .unwrap_or_default();
                    let result = side_car.set_group_object(&group_reference);
                    log_once(&mut last_error, result.err(), "the group's reference cannot be taken");
                    tracing::info!("clients that the server sends away go to {corbaloc}");
                    last_reference = Some(group_reference);
                }
            }
            // The known reference may still be right.
            Err(_) if last_reference.is_some() => wait = MAX_GROUP_RETRY_INTERVAL,
            Err(error) => {
                let message = "clients stay until the group's reference is there";
                log_once(&mut last_error, Some(error), message);
                wait = (wait * 2).min(MAX_GROUP_RETRY_INTERVAL);
            }
        }
        sleep(wait).await;
    }
}

/// Returns the group's reference, from its given place or from the first balancer that has it.
async fn find_group_reference(options: &ReferenceOptions) -> Result<Ior, String> {
    if let Some(source) = &options.group_reference {
        return source.read().map(|reference| with_type_and_code_sets(reference.ior));
    }
    let mut last_error = "there is no balancer to ask: give --report-to or --group-ior".to_owned();
    let path = format!("/v1/groups/{}/ior", options.group_name.as_deref().unwrap_or_default());
    for url in &options.balancers {
        let result = url.fetch(&path).await.and_then(|body| {
            let body: plimsoll_admin::ObjectReference = serde_json::from_slice(&body)
                .map_err(|error| format!("it answered something else: {error}"))?;
            body.ior.parse::<ObjectReference>().map_err(|error| format!("its reference {error}"))
        });
        match result {
            Ok(reference) => return Ok(with_type_and_code_sets(reference.ior)),
            Err(error) => last_error = format!("{url}: {error}"),
        }
    }
    Err(last_error)
}

/// Adds a type and code sets to a reference without them. Some clients follow no forward to a reference
/// without a type, and none sends a wide string to one without code sets.
fn with_type_and_code_sets(mut ior: Ior) -> Ior {
    if ior.type_id.is_empty() {
        ior.type_id = ANY_OBJECT_TYPE.to_vec();
    }
    for profile in &mut ior.profiles {
        let iiop_profile = IiopProfile::parse(&profile.data).ok().filter(|_| profile.tag == IIOP_TAG);
        let Some(mut iiop_profile) =
            iiop_profile.filter(|iiop_profile| iiop_profile.version > GiopVersion::V1_0)
        else {
            continue;
        };
        if iiop_profile.components.iter().all(|component| component.code_sets().is_none()) {
            iiop_profile.components.push(CodeSets::common_sets().component(ByteOrder::NATIVE));
            *profile = iiop_profile.to_tagged(ByteOrder::NATIVE);
        }
    }
    ior
}

/// Returns a reference to the same object at another address. The key and the components stay; other
/// addresses are removed, as they would lead past this one.
fn with_address(ior: &Ior, address: &MemberAddress) -> Ior {
    let mut profiles = Vec::new();
    if let Some(mut profile) = ior.first_iiop_profile() {
        (profile.host, profile.port) = (address.host.clone(), address.port);
        profile.components.retain(|component: &TaggedComponent| component.tag != ALTERNATE_ADDRESS);
        profiles.push(profile.to_tagged(ByteOrder::NATIVE));
    }
    let multiple_components = ior.profiles.iter().filter(|profile| profile.tag == TAG_MULTIPLE_COMPONENTS);
    profiles.extend(multiple_components.cloned());
    Ior { type_id: ior.type_id.clone(), profiles }
}

/// The tag of a profile without an address, whose components hold for all (TAG_MULTIPLE_COMPONENTS).
const TAG_MULTIPLE_COMPONENTS: u32 = 1;

/// Replaces a file atomically: concurrent readers see the old one.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let temporary_path = file.with_added_extension("new");
    std::fs::write(&temporary_path, text)?;
    std::fs::rename(&temporary_path, file)
}

/// Logs an error, once for as long as it is the same.
fn log_once(previous: &mut Option<String>, current: Option<String>, message: &str) {
    if let Some(error) = current.as_ref().filter(|_| *previous != current) {
        tracing::warn!("{message}: {error}");
    }
    *previous = current;
}

#[cfg(test)]
mod tests {
    use plimsoll_wire::giop::TaggedProfile;

    use super::*;

    #[test]
    fn stands() {
        let iiop_addresses: IiopAddresses = "127.0.0.1:0=server:2809".parse().unwrap();
        assert_eq!(iiop_addresses.server.unwrap().to_string(), "server:2809");
        assert_eq!("[::]:2809".parse::<IiopAddresses>().unwrap().server, None);
        for invalid in ["", "2809", "0.0.0.0:80=", "0.0.0.0:80=x"] {
            assert!(
                invalid.parse::<IiopAddresses>().unwrap_err().contains("expected ADDRESS=SERVER"),
                "{invalid}"
            );
        }
    }

    #[test]
    fn spots() {
        for (text, shown) in
            [("/run/a.ior", "file:/run/a.ior"), ("file:a", "file:a"), ("corbaloc::h:1/k", "corbaloc::h:1/k")]
        {
            assert_eq!(text.parse::<ReferenceSource>().unwrap().0, shown);
        }
        for invalid in ["", "file:", "IOR:00", "IOR:zz", "corbaloc:rir:/k"] {
            assert!(invalid.parse::<ReferenceSource>().is_err(), "{invalid}");
        }
        assert!(
            "/no/such/file".parse::<ReferenceSource>().unwrap().read().unwrap_err().contains("/no/such/file")
        );
    }

    #[test]
    fn only_the_address_is_another() {
        let unknown = TaggedComponent { tag: 77, data: vec![0, 1, 2, 3, 4] };
        let components = vec![
            CodeSets::common_sets().component(ByteOrder::Big),
            TaggedComponent::alternate_address("elsewhere", 7, ByteOrder::Big),
            unknown.clone(),
        ];
        let profile = IiopProfile {
            version: GiopVersion::V1_2,
            host: "10.0.0.1".into(),
            port: 2809,
            key: b"a\0key".to_vec(),
            components: components.clone(),
        };
        let multiple_components = TaggedProfile { tag: TAG_MULTIPLE_COMPONENTS, data: vec![0, 0, 0, 0, 0] };
        let other = TaggedProfile { tag: 99, data: vec![0] };
        let type_id = b"IDL:Test/Latency:1.0".to_vec();
        let second = IiopProfile { host: "10.0.0.2".into(), ..profile.clone() }.to_tagged(ByteOrder::Big);
        let profiles = vec![profile.to_tagged(ByteOrder::Big), second, other, multiple_components.clone()];
        let address = MemberAddress { host: "::1".into(), port: 9 };
        let moved = with_address(&Ior { type_id: type_id.clone(), profiles }, &address);
        let expected = IiopProfile {
            host: "::1".into(),
            port: 9,
            components: vec![components[0].clone(), unknown],
            ..profile
        };
        assert_eq!((&moved.type_id, &moved.profiles[1..]), (&type_id, &[multiple_components][..]));
        assert_eq!(moved.first_iiop_profile(), Some(expected));
    }

    #[test]
    fn a_group_has_a_type_and_code_sets() {
        let parse_completed =
            |text: &str| with_type_and_code_sets(text.parse::<ObjectReference>().unwrap().ior);
        let ior = parse_completed("corbaloc:iiop:1.2@h:1/k");
        assert_eq!(ior.type_id, ANY_OBJECT_TYPE);
        assert!(ior.first_iiop_profile().unwrap().components[0].code_sets().is_some());
        assert_eq!(with_type_and_code_sets(ior.clone()), ior);
        assert_eq!(parse_completed("corbaloc::h:1/k").first_iiop_profile().unwrap().components, []);
    }
}
