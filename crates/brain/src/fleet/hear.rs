//! Receiving reports of other balancers, and applying them.

use alloc::vec::Vec;
use core::time::Duration;

use super::peer::{Heard, Peer, Said};
use super::share::{self, Want};
use super::word::{Report, Reported, Word};
use super::{Cursor, Fleet, LATENCY, What, duty, find, tell};
use crate::meter::Reading;
use crate::{MOST_WARNED, Time};

impl Fleet {
    /// Records report number `seq` of another balancer; numbers start anywhere and are used once. Entries of
    /// groups and members that are not served here are ignored.
    pub fn hear(&mut self, from: u64, seq: u32, report: &Report, now: Time) {
        if from == self.settings.own {
            return;
        }
        // A sender of a report is present, even if it is unknown so far. A lost one must be announced first.
        if !self.peers.contains_key(&from) {
            self.up(from, now);
        }
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if !peer.there() {
            return;
        }
        if !peer.spoke() {
            // Now it is certain that the sender receives reports: earlier ones may have come too early for
            // it.
            self.renewed = self.renewed.max(now);
        }
        if !peer.came(seq, now) {
            return;
        }
        for section in &report.sections {
            let Some(&place) = self.places.get(&section.group) else { continue };
            let members = self.groups[place].members.len();
            if let Some(peer) = self.peers.get_mut(&from) {
                peer.section(section.group, members).rate = f64::from(section.rate) / 4.0;
            }
            for word in &section.words {
                if let Some(member) = find(&self.groups[place].places, word.member) {
                    self.take(from, (place, member), word, seq, now);
                }
            }
        }
        for section in &report.sections {
            let Some(&place) = self.places.get(&section.group) else { continue };
            let heard = section.words.iter().filter_map(|word| find(&self.groups[place].places, word.member));
            let members: Vec<usize> = heard.collect();
            self.refresh(place, members.into_iter(), now);
        }
    }

    /// Applies the ageing of reports. It is to be called several times a second. With many members it covers
    /// some of them each time.
    pub fn tend(&mut self, now: Time) {
        let forget = self.settings.forget;
        self.peers.retain(|_, peer| !peer.gone(forget, now));
        let mut left = self.members.min(AGED);
        while left > 0 {
            let Cursor { group, member } = self.refreshed;
            let Some(members) = self.groups.get(group).map(|group| group.members.len()) else {
                self.refreshed = Cursor::default();
                continue;
            };
            let end = members.min(member + left);
            self.refresh(group, member..end, now);
            left -= end - member;
            self.refreshed = if end == members {
                Cursor { group: group + 1, member: 0 }
            } else {
                Cursor { group, member: end }
            };
        }
    }

    pub(super) fn refresh_all(&mut self, now: Time) {
        for group in 0..self.groups.len() {
            let members = self.groups[group].members.len();
            self.refresh(group, 0..members, now);
        }
    }

    /// Records the entry of one member.
    fn take(&mut self, from: u64, (place, member): (usize, usize), word: &Word, seq: u32, now: Time) {
        let group = self.groups[place].id;
        let members = self.groups[place].members.len();
        let Some(peer) = self.peers.get_mut(&from) else { return };
        let said = peer.section(group, members);
        let before = said.word(member).copied();
        if before.is_some_and(|before| (seq.wrapping_sub(before.seq) as i32) < 0) {
            return;
        }
        let heard = Heard::of(word, seq, now);
        said.set(member, heard);
        let own = &mut self.groups[place].members[member];
        if let Some((reading, age)) = word.reading.as_ref().filter(|(reading, _)| reading.sound()) {
            own.borrow(reading, now - Duration::from_millis((*age).into()), now);
            self.groups[place].company.spoke();
        }
        let own = &self.groups[place].members[member];
        let (vitals, rate) = (&own.vitals, own.rate);
        if word.suspicion > 0 && before.is_none_or(|before| word.suspicion > before.suspicion) {
            vitals.suspicion.warn((f64::from(word.suspicion) / 8.0).min(MOST_WARNED));
        }
        // A balancer that serves requests with the member all the time knows better.
        let contradicted = rate >= BUSY && vitals.streak() == 0 && vitals.suspicion.sum() <= MOST_WARNED;
        let mut news = Vec::new();
        if let Some(left) = word.ejected
            && before.is_none_or(|before| !before.ejected)
            && !contradicted
        {
            news.push(What::Ejected { left: Duration::from_millis(left.into()), by: from });
        }
        if let Some((passed, age)) = word.check
            && before.is_none_or(|before| heard.check > before.check + SAME)
        {
            news.push(What::Checked { passed, age: Duration::from_millis(age.into()), by: from });
        }
        if let Some(Reported { value, of_host, age }) = word.load {
            let age = Duration::from_millis(age.into());
            news.push(What::Loaded { value: value.into(), of_host, age });
        }
        for what in news {
            self.tell(place, member, what);
        }
    }

    /// Recomputes the state that choices read, for some members of a group.
    fn refresh(&mut self, place: usize, members: impl Iterator<Item = usize>, now: Time) {
        let Some(group) = self.groups.get_mut(place) else { return };
        let there: Vec<(u64, &Peer, &Said, f64)> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.there())
            .filter_map(|(id, peer)| Some((*id, peer, peer.said(group.id)?, peer.say(now))))
            .collect();
        // A lost balancer keeps its part of limits, if it served this group.
        let lost = self.peers.values().filter(|peer| !peer.there() && peer.said(group.id).is_some());
        let missing = lost.count();
        // Silent balancers do not count.
        group.company.set(there.iter().filter(|(.., say)| *say > HEARD).count());
        let mut news = Vec::new();
        for member in members {
            let Some(own) = group.members.get_mut(member) else { continue };
            let shared = own.limit < u32::MAX || own.vitals.rated();
            let (mut others, mut rate, mut waiting) = (0.0, 0.0, 0.0);
            let mut wants: Vec<Want> = Vec::new();
            let mut seen = Vec::new();
            for (id, peer, said, say) in &there {
                let Some(heard) = said.word(member) else { continue };
                let told = f64::from(heard.latency);
                let takes = if told > 0.0 { told } else { LATENCY };
                let age = now.since(peer.stamp(heard)).as_secs_f64();
                let mean = f64::from(heard.mean);
                others += say * (mean + (f64::from(heard.in_flight) - mean) * libm::exp(-age / takes));
                rate += say * f64::from(heard.rate);
                waiting += say * f64::from(heard.waiting);
                if own.checked {
                    seen.push(*id);
                }
                if shared {
                    let (who, demand) = (*id, heard.demand());
                    wants.push(Want { who, demand, in_flight: heard.in_flight });
                }
            }
            own.vitals.accompany(others);
            own.vitals.expect(rate, waiting);
            if shared {
                let alone = wants.is_empty() && missing == 0;
                let demand = own.told.as_ref().map_or(own.mean, tell::Told::demand);
                let in_flight = own.vitals.in_flight();
                wants.insert(0, Want { who: self.settings.own, demand, in_flight });
                own.vitals.allot((!alone).then(|| share::portion(&wants, missing)));
                let limited = own.limit < u32::MAX && !alone;
                let part = limited.then(|| share::part(own.limit, &wants, missing));
                if own.vitals.give(part) && group.waiting > 0.0 {
                    news.push((member, What::Room));
                }
            }
            if own.checked {
                let mine = duty::mine(own.id, self.settings.own, seen.into_iter(), self.settings.probers);
                if core::mem::replace(&mut own.mine, mine) != mine {
                    news.push((member, What::Duty(mine)));
                }
            }
        }
        for (member, what) in news {
            self.tell(place, member, what);
        }
    }
}

impl super::Own {
    /// Records a load report that another balancer received, unless this balancer has a recent one of its
    /// own. A balancer's own report is known to no other. That keeps balancers from choosing the same member,
    /// which all know to be the emptiest.
    fn borrow(&mut self, reading: &Reading, at: Time, now: Time) {
        let known = self.vitals.heard.view();
        let own = self.vitals.view(now).is_some_and(|view| view.at != self.borrowed);
        if own || known.is_some_and(|known| at <= known.at) {
            return;
        }
        // The member may not have received yet the requests sent since its last report to this balancer.
        let (begun, in_flight) = self.vitals.work();
        let unanswered = known.map_or(0, |known| begun.wrapping_sub(known.begun)).min(in_flight);
        self.vitals.heard.take(&Reading { slot: false, ..*reading }, begun.wrapping_sub(unanswered), at);
        // It is not reported again.
        self.borrowed = self.vitals.heard.view().map_or(self.borrowed, |view| view.at);
    }
}

/// The requests a second from which a balancer knows the state of a member itself.
const BUSY: f64 = 5.0;

/// The time within which two checks are the same one, reported again.
const SAME: Duration = Duration::from_millis(20);

/// The maximum number of members refreshed at once: each costs as many steps as there are balancers.
const AGED: usize = 512;

/// The minimum weight of a balancer that counts as one.
const HEARD: f64 = 0.5;
