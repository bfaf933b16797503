//! A balancer that does what the test says.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;

use plimsoll_admin::{
    BalancerBackend, ChangeFuture, CompletedUpgrade, EventEntry, Lease, LeaseError, LeaseHolder,
    LeaseRequest, LoadReport, ObjectReference, RegisteredMember, Registration, RegistrationError,
    ReportRejection, SwitchTarget, UpgradeRequest,
};
use plimsoll_brain::status::{GroupExplanation, StatusReport};
use plimsoll_brain::{EventKind, MemberState, ShedDecision};
use tokio::sync::broadcast;

/// A balancer with one group of two members whose work ends while one looks.
pub(crate) struct Script {
    pub(crate) status: Mutex<StatusReport>,
    pub(crate) log: Mutex<Vec<EventEntry>>,
    pub(crate) news: broadcast::Sender<()>,
    pub(crate) stops: broadcast::Sender<()>,
}

impl Script {
    pub(crate) fn tell(&self, kind: EventKind) {
        let mut log = self.log.lock().unwrap();
        let seq = log.len() as u64 + 1;
        log.push(EventEntry {
            seq,
            unix_ms: 1_000_000_000_000 * seq,
            kind,
            group: "web".into(),
            member: Some("a:80".into()),
            why: "because".into(),
            inputs: BTreeMap::new(),
        });
        let _ = self.news.send(());
    }

    fn set(&self, group: Option<&str>, member: &str, state: MemberState) -> Result<(), String> {
        let mut status = self.status.lock().unwrap();
        let members = status.groups.iter_mut().filter(|found| group.is_none_or(|group| group == found.name));
        match members.flat_map(|group| &mut group.members).find(|found| found.name == member) {
            Some(found) => {
                found.state = state;
                Ok(())
            }
            None => Err(format!("no group has a member {member}")),
        }
    }
}

impl BalancerBackend for Script {
    fn status(&self) -> StatusReport {
        let mut status = self.status.lock().unwrap();
        let said = status.clone();
        for member in status.groups.iter_mut().flat_map(|group| &mut group.members) {
            member.in_flight = member.in_flight.saturating_sub(1);
        }
        said
    }

    fn buckets(&self, _: &str) -> Vec<(f64, u64)> {
        Vec::new()
    }

    fn events(&self, since: u64) -> Vec<EventEntry> {
        self.log.lock().unwrap().iter().filter(|entry| entry.seq > since).cloned().collect()
    }

    fn next_change(&self) -> ChangeFuture {
        let mut news = self.news.subscribe();
        Box::pin(async move {
            let _ = news.recv().await;
        })
    }

    fn drain(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        self.set(group, member, MemberState::Draining)
    }

    fn undrain(&self, group: Option<&str>, member: &str) -> Result<(), String> {
        self.set(group, member, MemberState::Up)
    }

    fn set_enabled(&self, what: &SwitchTarget, on: bool) -> Result<Vec<String>, String> {
        match what {
            SwitchTarget::Member { group, name } => {
                self.set(group.as_deref(), name, if on { MemberState::Up } else { MemberState::Disabled })?;
                Ok(vec![format!("~ member {name}: {on}")])
            }
            SwitchTarget::Listener(address) => Ok(vec![format!("~ listener {address}: {on}")]),
            SwitchTarget::Balancing(_) => Ok(Vec::new()),
        }
    }

    fn reload(&self) -> Result<Vec<String>, String> {
        match self.status.lock().unwrap().last_reload_successful {
            true => Ok(vec!["+ group web: member c:80".into()]),
            false => Err("plimsoll.toml:3:1: there is no lisener".into()),
        }
    }

    fn upgrade(&self, wish: &UpgradeRequest) -> Result<CompletedUpgrade, String> {
        match &wish.binary {
            Some(binary) => Err(format!("{binary} cannot be started")),
            None => Ok(CompletedUpgrade { pid: 4711, version: "1.2.3".into(), connections: 7 }),
        }
    }

    fn stop(&self) -> Result<(), String> {
        let _ = self.stops.send(());
        Ok(())
    }

    fn explain(&self, group: &str) -> Option<GroupExplanation> {
        let verdict = "2/2 members up".to_owned();
        let explanation = GroupExplanation { name: group.into(), verdict, ..GroupExplanation::default() };
        (group == "web").then_some(explanation)
    }

    fn reference(&self, group: &str) -> Option<ObjectReference> {
        let (type_id, ior, corbaloc) =
            ("IDL:Test/Latency:1.0".into(), "IOR:00".into(), "corbaloc::one:1/web".into());
        (group == "web").then(|| ObjectReference { group: group.into(), type_id, ior, corbaloc })
    }

    fn set(&self, group: &str, key: &str, value: &str) -> Result<Vec<String>, String> {
        match key {
            "strategy" => Ok(vec![format!("~ group {group}: strategy round_robin -> {value}")]),
            _ => Err(format!("{key} cannot be changed while it runs")),
        }
    }

    fn report(&self, _: LoadReport) -> Result<Option<ShedDecision>, ReportRejection> {
        Ok(None)
    }

    fn grant_lease(&self, _: &str, _: &LeaseRequest) -> Result<Lease, LeaseError> {
        Err(LeaseError::NoMember("no command asks for that".into()))
    }

    fn renew_lease(&self, _: &str, _: &str, _: &LeaseRequest) -> Result<Lease, LeaseError> {
        Err(LeaseError::NoMember("no command asks for that".into()))
    }

    fn release_lease(&self, _: &str, _: &str) -> Result<(), LeaseError> {
        Err(LeaseError::NoMember("no command asks for that".into()))
    }

    fn leases(&self, _: &str) -> Option<Vec<LeaseHolder>> {
        None
    }

    fn renew_registration(
        &self,
        _group: &str,
        _member: &str,
        _asked: &Registration,
    ) -> Option<Result<RegisteredMember, RegistrationError>> {
        None
    }

    fn register(
        &self,
        group: &str,
        member: &str,
        asked: &Registration,
    ) -> Result<RegisteredMember, RegistrationError> {
        let (group, member) = (group.to_owned(), member.to_owned());
        let Registration { ttl_seconds, draining, .. } = *asked;
        Ok(RegisteredMember { address: member.clone(), group, member, ttl_seconds, draining, in_flight: 0 })
    }

    fn deregister(&self, _group: &str, _member: &str) -> Result<(), RegistrationError> {
        Ok(())
    }

    fn end_leases(&self, _: &str, _: Option<&str>, _: Option<IpAddr>) -> Result<usize, String> {
        Ok(0)
    }
}
