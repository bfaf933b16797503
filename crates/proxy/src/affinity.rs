//! Whose the tag in a client's cookie is: one core's memory of one listener.
//!
//! A tag is made of the member's name by the key of the cookies ([`Signer::member`]), so that it is the same after a
//! restart and behind every balancer that has the key. A member's tag is made once, when the core first hears of it,
//! be it in the plan or out of it: a session whose member is out of use just now is counted with it.

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
    /// What is told of here; weak, because it is large, and old as soon as there is another.
    seen: Weak<Published>,
    /// Its name.
    group: Arc<str>,
    known: BTreeMap<MemberId, Known>,
    /// The tags of those in the plan, in its order.
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
    /// Where it is in the plan, if it may be chosen.
    pub(crate) place: Option<usize>,
}

impl Homes {
    /// Learns who is in the plan now.
    pub(crate) fn follow(&mut self, signer: &Signer, view: &View) {
        let published = &view.published;
        if self.seen.as_ptr() == Arc::as_ptr(published) && self.signer.as_ref() == Some(signer) {
            return;
        }
        let spec = &published.settings.spec;
        // Members have numbers of their own in each group.
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

    /// Notes a member; its tag.
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

    /// The tag of the member at a place of the plan.
    pub(crate) fn tag(&self, place: usize) -> Option<MemberTag> {
        self.places.get(place).copied()
    }

    /// Who has this tag: `None` for nobody that was ever heard of here.
    pub(crate) fn find(&self, tag: MemberTag) -> Option<Home> {
        let known = self.known.values().find(|known| known.tag == tag)?;
        let place = self.places.iter().position(|other| *other == tag);
        Some(Home { record: Arc::clone(&known.record), place })
    }

    /// The same of a tag that another key has made, and its tag by this one. Each member's is made for it: whoever brings one gets
    /// another with the answer.
    pub(crate) fn find_by(&self, signer: &Signer, tag: MemberTag) -> Option<(MemberTag, Home)> {
        let made = |known: &&Known| signer.member(&self.group, &known.name) == tag;
        let own = self.known.values().find(made)?.tag;
        Some((own, self.find(own)?))
    }
}

/// Seconds since 1970, as cookies have them: good until 2106.
pub(crate) fn unix_seconds() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}
