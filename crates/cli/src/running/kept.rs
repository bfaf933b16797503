//! The operators' changes that hold until they are taken back, as the store keeps them. A change at one
//! balancer is written there first, and is then put in force here, and at every other balancer as soon as it
//! sees it. After a start all are in force before any client is served.
//!
//! | key | meaning |
//! | --- | --- |
//! | `drain/GROUP/MEMBER` | the member gets nothing new |
//! | `disable/member/GROUP/MEMBER` | it is out of use |
//! | `disable/listener/PROTOCOL:ADDRESS` | the listener is closed, if there is one |
//! | `disable/balancing/GROUP` | members take equal turns |
//! | `set/GROUP/strategy` | the strategy, until the next reload of any balancer |
//! | `set/GROUP/scaler.min`, `.max`, `.pause` | of a scaler, until the next reload of any balancer |
//! | `members/GROUP/MEMBER` | a member that was registered: see `registered.rs` |
//!
//! `%` and `/` in names are written `%25` and `%2F`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_cluster as cluster;
use plimsoll_cluster::store::{Change, Entry, Store, View};
use serde_json::{Value, json};

use super::balancing::Balancing;
use super::scaled::Knob;
use super::{Running, lock, registered};
use crate::config;

/// A change that holds until it is taken back, in the order in which it is put in force.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Deed {
    /// A group has another strategy than in the file.
    Strategy(String),
    /// A scaler has another setting than in the file.
    Scaler(String, Knob),
    /// The balancing of a group is switched off.
    Unbalanced(String),
    /// A member of a group is drained.
    Drained(String, String),
    /// A member of a group is disabled.
    Disabled(String, String),
    /// A listener is closed.
    Closed(String),
}

/// All changes, each with its value in the store.
pub(crate) type Deeds = BTreeMap<Deed, Arc<str>>;

/// The number of settings that are forgotten at once: a store takes no more of them.
const AT_ONCE: usize = 64;

/// The changes that must be put in force once more, though they are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// None.
    Nothing,
    /// The changes of members: others are there now.
    Members,
    /// All: another file is in force.
    All,
}

impl Deed {
    pub(super) fn key(&self) -> String {
        match self {
            Self::Strategy(group) => format!("set/{}/strategy", escaped(group)),
            Self::Scaler(group, knob) => format!("set/{}/scaler.{}", escaped(group), knob.name()),
            Self::Unbalanced(group) => format!("disable/balancing/{}", escaped(group)),
            Self::Drained(group, member) => format!("drain/{}/{}", escaped(group), escaped(member)),
            Self::Disabled(group, member) => {
                format!("disable/member/{}/{}", escaped(group), escaped(member))
            }
            Self::Closed(listener) => format!("disable/listener/{}", escaped(listener)),
        }
    }

    fn of(key: &str) -> Option<Self> {
        let parts: Vec<&str> = key.split('/').collect();
        Some(match parts[..] {
            ["set", group, "strategy"] => Self::Strategy(plain(group)?),
            ["set", group, what] => Self::Scaler(plain(group)?, Knob::named(what.strip_prefix("scaler.")?)?),
            ["disable", "balancing", group] => Self::Unbalanced(plain(group)?),
            ["drain", group, member] => Self::Drained(plain(group)?, plain(member)?),
            ["disable", "member", group, member] => Self::Disabled(plain(group)?, plain(member)?),
            ["disable", "listener", listener] => Self::Closed(plain(listener)?),
            _ => return None,
        })
    }

    fn of_a_member(&self) -> bool {
        matches!(self, Self::Drained(..) | Self::Disabled(..))
    }

    /// Returns `true` if it ends with the next reload.
    fn till_reload(&self) -> bool {
        matches!(self, Self::Strategy(_) | Self::Scaler(..) | Self::Unbalanced(_))
    }
}

/// Returns a name as a part of a key.
pub(super) fn escaped(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2F")
}

/// Returns the name of a part of a key; `None` for a foreign one.
pub(super) fn plain(part: &str) -> Option<String> {
    let mut pieces = part.split('%');
    let mut name = pieces.next()?.to_owned();
    for piece in pieces {
        let (code, rest) = piece.split_at_checked(2)?;
        name.push(match code {
            "25" => '%',
            "2F" => '/',
            _ => return None,
        });
        name.push_str(rest);
    }
    Some(name).filter(|name| !name.is_empty())
}

/// Returns the changes in a store.
pub(crate) fn deeds(view: &View) -> Deeds {
    let entry = |(key, entry): (&String, &Entry)| Some((Deed::of(key)?, Arc::clone(&entry.value)));
    let mut deeds: Deeds = view.entries.iter().filter_map(entry).collect();
    for (group, member) in registered::draining(view) {
        deeds.entry(Deed::Drained(group, member)).or_insert_with(|| "{}".into());
    }
    deeds
}

/// Returns a value with the time, for a reader of the store.
pub(super) fn stamped(mut said: Value) -> String {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    said["at_unix_ms"] = u64::try_from(unix.as_millis()).unwrap_or(u64::MAX).into();
    said.to_string()
}

/// Parses a strategy as an operator writes it.
fn balancing(written: &str) -> Result<Balancing, String> {
    let wanted = config::strategy(written)?;
    let (strategy, knobs) = wanted.find().ok_or_else(|| format!("{written} is not a strategy"))?;
    let weight = wanted.weight().and_then(|weight| cluster::Expression::new(&weight.0).ok());
    Ok(Balancing { strategy, knobs, weight })
}

impl Running {
    /// Returns the store of state that outlives the process.
    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Locks operators' changes for a new one: not while another process takes over, or once it has. A
    /// process that collects the state waits until the lock is released.
    pub(super) fn kept_in_charge(&self) -> Result<MutexGuard<'_, Deeds>, String> {
        let kept = lock(&self.kept);
        self.in_charge()?;
        Ok(kept)
    }

    /// Puts the changes of the store in force that are not yet.
    pub(crate) fn keep(&self, again: Again) {
        self.follow(&mut lock(&self.kept), again);
    }

    /// Puts them in force with the lock of the changes.
    pub(super) fn follow(&self, kept: &mut Deeds, again: Again) {
        let wanted = deeds(&self.store.view());
        let gone: Vec<Deed> = kept.keys().filter(|deed| !wanted.contains_key(deed)).cloned().collect();
        for deed in gone {
            if let Err(why) = self.undo(&deed) {
                tracing::debug!("{}: {why}", deed.key());
            }
        }
        for (deed, said) in &wanted {
            let once_more = match again {
                Again::Nothing => false,
                Again::Members => deed.of_a_member(),
                Again::All => true,
            };
            // The change may be of a member or a listener elsewhere.
            if (once_more || kept.get(deed) != Some(said))
                && let Err(why) = self.redo(deed, said)
            {
                tracing::debug!("{}: {why}", deed.key());
            }
        }
        *kept = wanted;
    }

    fn redo(&self, deed: &Deed, said: &str) -> Result<(), String> {
        match deed {
            Deed::Strategy(group) => {
                let said: Value = serde_json::from_str(said).map_err(|why| why.to_string())?;
                let written = said["strategy"].as_str().ok_or("it names no strategy")?;
                self.choose_instead(group, &balancing(written)?, written).map(drop)
            }
            Deed::Scaler(group, knob) => self.wish(group, *knob, Some(said)),
            Deed::Unbalanced(group) => self.balance(group, false).map(drop),
            Deed::Drained(group, member) => self.engine.drain(Some(group), member),
            Deed::Disabled(group, member) => self.engine.disable(Some(group), member),
            Deed::Closed(listener) => self.close_listener(listener).map(drop),
        }
    }

    fn undo(&self, deed: &Deed) -> Result<(), String> {
        match deed {
            Deed::Strategy(group) => {
                let Some(own) = lock(&self.own).remove(group) else { return Ok(()) };
                let _one = lock(&self.reloading);
                self.choose(group, &own, own.strategy.name).map(drop)
            }
            Deed::Scaler(group, knob) => self.wish(group, *knob, None),
            Deed::Unbalanced(group) => self.balance(group, true).map(drop),
            Deed::Drained(group, member) => self.engine.undrain(Some(group), member),
            Deed::Disabled(group, member) => self.engine.enable(Some(group), member),
            Deed::Closed(listener) => self.open_listener(listener).map(drop),
        }
    }

    /// Writes a change, based on the known view.
    pub(super) fn commit(&self, change: Change) -> Result<(), String> {
        let seen = self.store.view();
        self.store.commit(&change.as_seen(&seen)).map_err(|why| why.to_string())
    }

    fn write(&self, kept: &mut Deeds, deed: Deed) -> Result<(), String> {
        // The member's own drain is known, and differs from an operator's.
        if kept.contains_key(&deed) && self.store.view().entries.contains_key(&deed.key()) {
            return Ok(());
        }
        let said = stamped(json!({}));
        self.commit(Change::put(deed.key(), said.as_str()))?;
        kept.insert(deed, said.into());
        Ok(())
    }

    fn erase(&self, kept: &mut Deeds, deed: &Deed) -> Result<(), String> {
        if kept.contains_key(deed) {
            self.commit(Change::delete(deed.key()))?;
            kept.remove(deed);
        }
        Ok(())
    }

    /// Drains or disables a member for an operator, or takes that back.
    pub(super) fn mark(
        &self,
        group: Option<&str>,
        member: &str,
        deed: fn(String, String) -> Deed,
        on: bool,
    ) -> Result<(), String> {
        let mut kept = self.kept_in_charge()?;
        let found = match self.engine.group_of(group, member) {
            Ok(found) => found.to_string(),
            Err(why) => {
                // A missing member may have a change all the same, for its return.
                let same = |known: &Deed| match known {
                    Deed::Drained(of, name) | Deed::Disabled(of, name) => {
                        let of_it = *known == deed(of.clone(), name.clone());
                        of_it && name == member && group.is_none_or(|group| group == of)
                    }
                    _ => false,
                };
                let absent: Vec<Deed> = kept.keys().filter(|known| same(known)).cloned().collect();
                if on || absent.is_empty() {
                    let status = self.engine.status();
                    let all = status.groups.iter().flat_map(|group| &group.members);
                    let names: BTreeSet<&str> = all.map(|member| member.name.as_str()).collect();
                    // The message of a named group has its members already.
                    return Err(if group.is_none() { beside(why, member, &names) } else { why });
                }
                return absent.iter().try_for_each(|deed| self.erase(&mut kept, deed));
            }
        };
        let deed = deed(found, member.to_owned());
        if on {
            self.write(&mut kept, deed.clone())?;
            self.redo(&deed, "{}")
        } else {
            self.erase(&mut kept, &deed)?;
            self.undo(&deed)
        }
    }

    /// Closes a listener for an operator, or opens it.
    pub(super) fn close(&self, listener: &str, on: bool) -> Result<bool, String> {
        let mut kept = self.kept_in_charge()?;
        let named = self.engine.listener(listener)?;
        let deed = Deed::Closed(named);
        if on {
            // Its address may not be available again: then nothing has changed.
            let news = self.open_listener(listener)?;
            if let Err(why) = self.erase(&mut kept, &deed) {
                if news {
                    // It stays closed for others and for the next process: an error here does not change
                    // that.
                    let _ = self.close_listener(listener);
                }
                return Err(why);
            }
            return Ok(news);
        }
        self.write(&mut kept, deed)?;
        self.close_listener(listener)
    }

    /// Switches the balancing of a group off for an operator, or on.
    pub(super) fn switch_balancing(&self, group: &str, on: bool) -> Result<Vec<String>, String> {
        let mut kept = self.kept_in_charge()?;
        self.own_balancing(group)?;
        let deed = Deed::Unbalanced(group.to_owned());
        if on {
            self.erase(&mut kept, &deed)?;
        } else {
            self.write(&mut kept, deed)?;
        }
        self.balance(group, on)
    }

    /// Sets another strategy of a group for an operator, until the next reload.
    pub(super) fn set_strategy(&self, group: &str, written: &str) -> Result<Vec<String>, String> {
        let written = written.trim();
        let by = balancing(written)?;
        let mut kept = self.kept_in_charge()?;
        self.own_balancing(group)?;
        let (deed, off) = (Deed::Strategy(group.to_owned()), Deed::Unbalanced(group.to_owned()));
        let said = stamped(json!({"strategy": written}));
        let mut change = Change::put(deed.key(), said.as_str());
        if kept.contains_key(&off) {
            change = change.and_delete(off.key());
        }
        self.commit(change)?;
        kept.remove(&off);
        kept.insert(deed, said.into());
        let before = self.choose_instead(group, &by, written)?;
        Ok(vec![format!("~ group {group}: strategy {before} -> {written}")])
    }

    /// Sets another balancing of a group than the file's; returns the former one, for people.
    fn choose_instead(&self, group: &str, by: &Balancing, written: &str) -> Result<String, String> {
        // The lock keeps this from running between the two halves of a reload.
        let _one = lock(&self.reloading);
        let own = self.own_balancing(group)?;
        lock(&self.own).entry(group.to_owned()).or_insert(own);
        let before = self.choose(group, by, written)?;
        lock(&self.off).remove(group);
        Ok(before)
    }

    /// Returns the balancing of a group, also if it is switched off.
    fn own_balancing(&self, group: &str) -> Result<Balancing, String> {
        if let Some(kept) = lock(&self.off).get(group) {
            return Ok(kept.clone());
        }
        self.in_force(group).ok_or_else(|| {
            let force = self.force();
            let names: Vec<&str> = force.settings.groups.iter().map(|one| &*one.spec.name).collect();
            format!("no group {group}; there are: {}", names.join(", "))
        })
    }

    /// Removes the settings that end with a reload, at all balancers. A setting that cannot be removed stays
    /// in force; then this returns a line about it.
    pub(super) fn forget_settings(&self, kept: &mut Deeds) -> Option<String> {
        let over: Vec<Deed> = kept.keys().filter(|deed| deed.till_reload()).cloned().collect();
        if over.is_empty() {
            return None;
        }
        for part in over.chunks(AT_ONCE) {
            let change = Change { deletes: part.iter().map(Deed::key).collect(), ..Change::default() };
            if let Err(why) = self.commit(change) {
                return Some(format!("! what operators set stays: {why}"));
            }
            for deed in part {
                kept.remove(deed);
                // The file has undone the rest.
                if let Deed::Scaler(group, knob) = deed
                    && let Err(why) = self.wish(group, *knob, None)
                {
                    tracing::debug!("{}: {why}", deed.key());
                }
            }
        }
        None
    }
}

/// Returns the reason why a member is unknown, with the known ones.
fn beside(why: String, member: &str, names: &BTreeSet<&str>) -> String {
    const SHOWN: usize = 20;
    if names.is_empty() || names.contains(member) {
        return why;
    }
    let shown: Vec<&str> = names.iter().copied().take(SHOWN).collect();
    let more = match names.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{why}; there are: {}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_there_are_are_named() {
        let said =
            |member: &str, names: &[&str]| beside("no".into(), member, &names.iter().copied().collect());
        assert_eq!(said("c:1", &["b:1", "a:1", "b:1"]), "no; there are: a:1, b:1");
        assert_eq!(said("c:1", &[]), "no");
        // The member exists, and the reason is another one.
        assert_eq!(said("a:1", &["a:1"]), "no");
        let many: Vec<String> = (10..35).map(|port| format!("a:{port}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(said("c:1", &many).ends_with(", a:29 and 5 more"), "{}", said("c:1", &many));
    }

    #[test]
    fn keys_and_deeds() {
        let (group, member) = (|| "game servers/100%".to_owned(), || "[::1]:80".to_owned());
        let all = [
            Deed::Strategy(group()),
            Deed::Scaler(group(), Knob::Min),
            Deed::Scaler(group(), Knob::Pause),
            Deed::Unbalanced(group()),
            Deed::Drained(group(), member()),
            Deed::Disabled(group(), member()),
            Deed::Closed("http:0.0.0.0:80".into()),
        ];
        for deed in all {
            assert_eq!(Deed::of(&deed.key()), Some(deed));
        }
        assert_eq!(Deed::Drained(group(), member()).key(), "drain/game servers%2F100%25/[::1]:80");
        for key in [
            "",
            "drain",
            "drain/a",
            "drain/a/b/c",
            "drain//b",
            "drain/a/%",
            "drain/a/%2f",
            "drain/é%2é/b",
            "config",
            "set/a/scaler.step",
        ] {
            assert_eq!(Deed::of(key), None, "{key}");
        }
    }
}
