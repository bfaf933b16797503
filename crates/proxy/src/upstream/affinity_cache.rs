//! Maps the tag in a client's cookie to its member: one core's cache for one listener.
//!
//! A tag is computed from the member's name with the cookie key ([`TokenSigner::member`]). It is the same
//! after a restart and behind every balancer with that key. Each member's tag is computed once, when the core
//! first encounters the member, whether in the plan or not. So a session whose member is out of use at the
//! moment is still counted with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_brain::MemberId;
use plimsoll_wire::affinity::{MemberTag, TokenSigner};

use crate::upstream::group::{MemberRecord, PublishedPlan};
use crate::upstream::pool::PlanView;

/// Tags and members.
#[derive(Default)]
pub(crate) struct AffinityCache {
    signer: Option<TokenSigner>,
    /// The state that this cache describes; weak, because it is large and outdated as soon as it is replaced.
    published: Weak<PublishedPlan>,
    /// The group's name.
    group: Arc<str>,
    members: BTreeMap<MemberId, CachedMember>,
    /// The tags of the members in the plan, in its order.
    tags: Vec<MemberTag>,
}

struct CachedMember {
    tag: MemberTag,
    name: Arc<str>,
    record: Arc<MemberRecord>,
}

/// The member that a cookie names.
pub(crate) struct AffinityTarget {
    pub(crate) record: Arc<MemberRecord>,
    /// The index in the plan, if the member may be chosen.
    pub(crate) place: Option<usize>,
}

impl AffinityCache {
    /// Updates the cache to the members of the current plan.
    pub(crate) fn update(&mut self, signer: &TokenSigner, view: &PlanView) {
        let published = &view.published;
        if self.published.as_ptr() == Arc::as_ptr(published) && self.signer.as_ref() == Some(signer) {
            return;
        }
        let spec = &published.settings.spec;
        // Member numbers are unique within a group only.
        if self.signer.as_ref() != Some(signer) || self.group != spec.name {
            (self.signer, self.group) = (Some(signer.clone()), Arc::clone(&spec.name));
            self.members.clear();
        }
        self.published = Arc::downgrade(published);
        if self.members.len() > spec.members.len() {
            self.members.retain(|_, cached| spec.members.iter().any(|member| member.name == cached.name));
        }
        for (name, record) in &published.others {
            self.add_member(signer, name, record);
        }
        let members = published.plan.members().iter().zip(&published.records);
        self.tags = members.map(|(member, record)| self.add_member(signer, &member.name, record)).collect();
    }

    /// Adds a member and returns its tag.
    fn add_member(&mut self, signer: &TokenSigner, name: &Arc<str>, record: &Arc<MemberRecord>) -> MemberTag {
        let new_cached = || CachedMember {
            tag: signer.member(&self.group, name),
            name: Arc::clone(name),
            record: Arc::clone(record),
        };
        let cached = self.members.entry(record.id).or_insert_with(new_cached);
        if !Arc::ptr_eq(&cached.record, record) {
            *cached = new_cached();
        }
        cached.tag
    }

    /// Returns the tag of the member at an index of the plan.
    pub(crate) fn tag(&self, index: usize) -> Option<MemberTag> {
        self.tags.get(index).copied()
    }

    /// Finds the member with this tag; `None` if this core has never encountered it.
    pub(crate) fn find(&self, tag: MemberTag) -> Option<AffinityTarget> {
        let cached = self.members.values().find(|candidate| candidate.tag == tag)?;
        let index = self.tags.iter().position(|other| *other == tag);
        Some(AffinityTarget { record: Arc::clone(&cached.record), place: index })
    }

    /// Finds the member with a tag that was made with another key, and returns its tag by this key as well.
    /// Computes each member's tag for it; the client's next response carries a new cookie.
    pub(crate) fn find_by_older_key(
        &self,
        signer: &TokenSigner,
        tag: MemberTag,
    ) -> Option<(MemberTag, AffinityTarget)> {
        let has_tag = |cached: &&CachedMember| signer.member(&self.group, &cached.name) == tag;
        let current_tag = self.members.values().find(has_tag)?.tag;
        Some((current_tag, self.find(current_tag)?))
    }
}

/// Returns the seconds since 1970, in the format of cookies: valid until 2106.
pub(crate) fn unix_seconds() -> u32 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since_epoch.as_secs()).unwrap_or(u32::MAX)
}
