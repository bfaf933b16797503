//! What others say, and what follows from it.

use alloc::vec::Vec;
use core::time::Duration;

use super::peer::{Heard, Peer, Said};
use super::share::{self, Want};
use super::word::{Report, Reported, Word};
use super::{Cursor, Fleet, LATENCY, What, duty, find, tell};
use crate::meter::Reading;
use crate::{MOST_WARNED, Time};

impl Fleet {
    /// Takes report number `seq` of another balancer; numbers count from any number and are given once. What is of groups and
    /// members that are not served here is left out.
    pub fn hear(&mut self, from: u64, seq: u32, report: &Report, now: Time) {
        if from == self.settings.own {
            return;
        }
        // Who says something is there, even if that was not heard of by other ways yet; who was lost has to come back first.
        if !self.peers.contains_key(&from) {
            self.up(from, now);
        }
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if !peer.there() {
            return;
        }
        if !peer.spoke() {
            // Now it is certain that it hears: what it was told before may have come too early.
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

    /// Looks after what grows old: to be called several times a second. Where there are many members, some of them each time.
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

    /// Takes one word.
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
        // Whoever serves requests with it all the while knows better.
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

    /// Makes what choices read of what is known of some members of a group.
    fn refresh(&mut self, place: usize, members: impl Iterator<Item = usize>, now: Time) {
        let Some(group) = self.groups.get_mut(place) else { return };
        let there: Vec<(u64, &Peer, &Said, f64)> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.there())
            .filter_map(|(id, peer)| Some((*id, peer, peer.said(group.id)?, peer.say(now))))
            .collect();
        // One that was lost keeps its part of limits, if it served this group.
        let lost = self.peers.values().filter(|peer| !peer.there() && peer.said(group.id).is_some());
        let missing = lost.count();
        // Whoever is not heard of does not count.
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
    /// Takes what the member said of itself to another, if it has said nothing to this balancer that still means something: what a
    /// balancer is told itself no other knows, and that keeps them from meeting at the member that all know to be the emptiest.
    fn borrow(&mut self, reading: &Reading, at: Time, now: Time) {
        let known = self.vitals.heard.view();
        let own = self.vitals.view(now).is_some_and(|view| view.at != self.borrowed);
        if own || known.is_some_and(|known| at <= known.at) {
            return;
        }
        // What is under way to it since its last word to this balancer it may not have had yet.
        let (begun, in_flight) = self.vitals.work();
        let unanswered = known.map_or(0, |known| begun.wrapping_sub(known.begun)).min(in_flight);
        self.vitals.heard.take(&Reading { slot: false, ..*reading }, begun.wrapping_sub(unanswered), at);
        // It is not told again.
        self.borrowed = self.vitals.heard.view().map_or(self.borrowed, |view| view.at);
    }
}

/// Requests a second from which a balancer knows by itself how a member does.
const BUSY: f64 = 5.0;

/// Checks that were made within this are the same one, told again.
const SAME: Duration = Duration::from_millis(20);

/// Members that are looked after at once: each costs as many steps as there are balancers.
const AGED: usize = 512;

/// How much of its say a balancer has at least that counts as one.
const HEARD: f64 = 0.5;
