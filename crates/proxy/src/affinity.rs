//! Maps the tag in a client's cookie to its member: one core's cache for one listener.
//!
//! A tag is computed from the member's name with the cookie key ([`Signer::member`]). It is the same after a
//! restart and behind every balancer with that key. Each member's tag is computed once, when the core first
//! encounters the member, whether in the plan or not. So a session whose member is out of use at the moment
//! is still counted with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_brain::MemberId;
use plimsoll_wire::affinity::{MemberTag, Signer};

use crate::group::{Published, Record};
use crate::pool::View;

/// Tags and members.
#[derive(Default)]
pub(crate) struct Homes {
    signer: Option<Signer>,
    /// The state that this cache describes; weak, because it is large and outdated as soon as it is replaced.
    seen: Weak<Published>,
    /// The group's name.
    group: Arc<str>,
    known: BTreeMap<MemberId, Known>,
    /// The tags of the members in the plan, in its order.
    places: Vec<MemberTag>,
}

struct Known {
    tag: MemberTag,
    name: Arc<str>,
    record: Arc<Record>,
}

/// The member that a cookie names.
pub(crate) struct Home {
    pub(crate) record: Arc<Record>,
    /// The index in the plan, if the member may be chosen.
    pub(crate) place: Option<usize>,
}

impl Homes {
    /// Updates the cache to the members of the current plan.
    pub(crate) fn follow(&mut self, signer: &Signer, view: &View) {
        let published = &view.published;
        if self.seen.as_ptr() == Arc::as_ptr(published) && self.signer.as_ref() == Some(signer) {
            return;
        }
        let spec = &published.settings.spec;
        // Member numbers are unique within a group only.
        if self.signer.as_ref() != Some(signer) || self.group != spec.name {
            (self.signer, self.group) = (Some(signer.clone()), Arc::clone(&spec.name));
            self.known.clear();
        }
        self.seen = Arc::downgrade(published);
        if self.known.len() > spec.members.len() {
            self.known.retain(|_, known| spec.members.iter().any(|member| member.name == known.name));
        }
        for (name, record) in &published.others {
            self.learn(signer, name, record);
        }
        let members = published.plan.members().iter().zip(&published.records);
        self.places = members.map(|(member, record)| self.learn(signer, &member.name, record)).collect();
    }

    /// Adds a member and returns its tag.
    fn learn(&mut self, signer: &Signer, name: &Arc<str>, record: &Arc<Record>) -> MemberTag {
        let learn = || Known {
            tag: signer.member(&self.group, name),
            name: Arc::clone(name),
            record: Arc::clone(record),
        };
        let known = self.known.entry(record.id).or_insert_with(learn);
        if !Arc::ptr_eq(&known.record, record) {
            *known = learn();
        }
        known.tag
    }

    /// Returns the tag of the member at an index of the plan.
    pub(crate) fn tag(&self, place: usize) -> Option<MemberTag> {
        self.places.get(place).copied()
    }

    /// Finds the member with this tag; `None` if this core has never encountered it.
    pub(crate) fn find(&self, tag: MemberTag) -> Option<Home> {
        let known = self.known.values().find(|known| known.tag == tag)?;
        let place = self.places.iter().position(|other| *other == tag);
        Some(Home { record: Arc::clone(&known.record), place })
    }

    /// Finds the member with a tag that was made with another key, and returns its tag by this key as well.
    /// Computes each member's tag for it; the client's next response carries a new cookie.
    pub(crate) fn find_by(&self, signer: &Signer, tag: MemberTag) -> Option<(MemberTag, Home)> {
        let made = |known: &&Known| signer.member(&self.group, &known.name) == tag;
        let own = self.known.values().find(made)?.tag;
        Some((own, self.find(own)?))
    }
}

/// Returns the seconds since 1970, in the format of cookies: valid until 2106.
pub(crate) fn unix_seconds() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}
