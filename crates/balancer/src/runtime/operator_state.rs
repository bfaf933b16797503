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
use plimsoll_cluster::store::{Store, StoreChange, StoreEntry, StoreSnapshot};
use plimsoll_config as config;
use serde_json::{Value, json};

use super::group_balancing::GroupBalancing;
use super::scaler_state::ScalerSetting;
use super::{BalancerRuntime, lock, registered};

/// A change that holds until it is taken back, in the order in which it is put in force.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OperatorAction {
    /// A group has another strategy than in the file.
    Strategy(String),
    /// A scaler has another setting than in the file.
    Scaler(String, ScalerSetting),
    /// The balancing of a group is switched off.
    BalancingOff(String),
    /// A member of a group is drained.
    Drained(String, String),
    /// A member of a group is disabled.
    Disabled(String, String),
    /// A listener is closed.
    Closed(String),
}

/// All changes, each with its value in the store.
pub(crate) type OperatorActions = BTreeMap<OperatorAction, Arc<str>>;

/// The number of settings that are forgotten at once: a store takes no more of them.
const MAX_BATCH: usize = 64;

/// The changes that must be put in force once more, though they are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reapply {
    /// None.
    Nothing,
    /// The changes of members: others are there now.
    Members,
    /// All: another file is in force.
    All,
}

impl OperatorAction {
    pub(super) fn key(&self) -> String {
        match self {
            Self::Strategy(group) => format!("set/{}/strategy", escape_name(group)),
            Self::Scaler(group, knob) => format!("set/{}/scaler.{}", escape_name(group), knob.name()),
            Self::BalancingOff(group) => format!("disable/balancing/{}", escape_name(group)),
            Self::Drained(group, member) => format!("drain/{}/{}", escape_name(group), escape_name(member)),
            Self::Disabled(group, member) => {
                format!("disable/member/{}/{}", escape_name(group), escape_name(member))
            }
            Self::Closed(listener) => format!("disable/listener/{}", escape_name(listener)),
        }
    }

    fn of(key: &str) -> Option<Self> {
        let parts: Vec<&str> = key.split('/').collect();
        Some(match parts[..] {
            ["set", group, "strategy"] => Self::Strategy(unescape_name(group)?),
            ["set", group, what] => {
                Self::Scaler(unescape_name(group)?, ScalerSetting::named(what.strip_prefix("scaler.")?)?)
            }
            ["disable", "balancing", group] => Self::BalancingOff(unescape_name(group)?),
            ["drain", group, member] => Self::Drained(unescape_name(group)?, unescape_name(member)?),
            ["disable", "member", group, member] => {
                Self::Disabled(unescape_name(group)?, unescape_name(member)?)
            }
            ["disable", "listener", listener] => Self::Closed(unescape_name(listener)?),
            _ => return None,
        })
    }

    fn is_member_action(&self) -> bool {
        matches!(self, Self::Drained(..) | Self::Disabled(..))
    }

    /// Returns `true` if it ends with the next reload.
    fn ends_at_reload(&self) -> bool {
        matches!(self, Self::Strategy(_) | Self::Scaler(..) | Self::BalancingOff(_))
    }
}

/// Returns a name as a part of a key.
pub(super) fn escape_name(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2F")
}

/// Returns the name of a part of a key; `None` for a foreign one.
pub(super) fn unescape_name(part: &str) -> Option<String> {
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
pub(crate) fn read_actions(view: &StoreSnapshot) -> OperatorActions {
    let entry =
        |(key, entry): (&String, &StoreEntry)| Some((OperatorAction::of(key)?, Arc::clone(&entry.value)));
    let mut deeds: OperatorActions = view.entries.iter().filter_map(entry).collect();
    for (group, member) in registered::draining(view) {
        deeds.entry(OperatorAction::Drained(group, member)).or_insert_with(|| "{}".into());
    }
    deeds
}

/// Returns a value with the time, for a reader of the store.
pub(super) fn with_timestamp(mut said: Value) -> String {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    said["at_unix_ms"] = u64::try_from(unix.as_millis()).unwrap_or(u64::MAX).into();
    said.to_string()
}

/// Parses a strategy as an operator writes it.
fn balancing(written: &str) -> Result<GroupBalancing, String> {
    let wanted = config::parse_strategy(written)?;
    let (strategy, knobs) = wanted.find().ok_or_else(|| format!("{written} is not a strategy"))?;
    let weight = wanted.weight().and_then(|weight| cluster::Expression::new(&weight.0).ok());
    Ok(GroupBalancing { strategy, params: knobs, weight })
}

impl BalancerRuntime {
    /// Returns the store of state that outlives the process.
    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Locks operators' changes for a new one: not while another process takes over, or once it has. A
    /// process that collects the state waits until the lock is released.
    pub(super) fn lock_actions(&self) -> Result<MutexGuard<'_, OperatorActions>, String> {
        let kept = lock(&self.operator_actions);
        self.check_in_charge()?;
        Ok(kept)
    }

    /// Puts the changes of the store in force that are not yet.
    pub(crate) fn reapply_actions(&self, again: Reapply) {
        self.sync_actions(&mut lock(&self.operator_actions), again);
    }

    /// Puts them in force with the lock of the changes.
    pub(super) fn sync_actions(&self, kept: &mut OperatorActions, again: Reapply) {
        let wanted = read_actions(&self.store.snapshot());
        let gone: Vec<OperatorAction> =
            kept.keys().filter(|deed| !wanted.contains_key(deed)).cloned().collect();
        for deed in gone {
            if let Err(why) = self.revert_action(&deed) {
                tracing::debug!("{}: {why}", deed.key());
            }
        }
        for (deed, said) in &wanted {
            let once_more = match again {
                Reapply::Nothing => false,
                Reapply::Members => deed.is_member_action(),
                Reapply::All => true,
            };
            // The change may be of a member or a listener elsewhere.
            if (once_more || kept.get(deed) != Some(said))
                && let Err(why) = self.apply_action(deed, said)
            {
                tracing::debug!("{}: {why}", deed.key());
            }
        }
        *kept = wanted;
    }

    fn apply_action(&self, deed: &OperatorAction, said: &str) -> Result<(), String> {
        match deed {
            OperatorAction::Strategy(group) => {
                let said: Value = serde_json::from_str(said).map_err(|why| why.to_string())?;
                let written = said["strategy"].as_str().ok_or("it names no strategy")?;
                self.override_balancing(group, &balancing(written)?, written).map(drop)
            }
            OperatorAction::Scaler(group, knob) => self.apply_scaler_setting(group, *knob, Some(said)),
            OperatorAction::BalancingOff(group) => self.set_balancing(group, false).map(drop),
            OperatorAction::Drained(group, member) => self.engine.drain(Some(group), member),
            OperatorAction::Disabled(group, member) => self.engine.disable(Some(group), member),
            OperatorAction::Closed(listener) => self.close_listener(listener).map(drop),
        }
    }

    fn revert_action(&self, deed: &OperatorAction) -> Result<(), String> {
        match deed {
            OperatorAction::Strategy(group) => {
                let Some(own) = lock(&self.file_balancing).remove(group) else { return Ok(()) };
                let _one = lock(&self.reloading);
                self.apply_balancing(group, &own, own.strategy.name).map(drop)
            }
            OperatorAction::Scaler(group, knob) => self.apply_scaler_setting(group, *knob, None),
            OperatorAction::BalancingOff(group) => self.set_balancing(group, true).map(drop),
            OperatorAction::Drained(group, member) => self.engine.undrain(Some(group), member),
            OperatorAction::Disabled(group, member) => self.engine.enable(Some(group), member),
            OperatorAction::Closed(listener) => self.open_listener(listener).map(drop),
        }
    }

    /// Writes a change, based on the known view.
    pub(super) fn commit(&self, change: StoreChange) -> Result<(), String> {
        let seen = self.store.snapshot();
        self.store.commit(&change.if_unchanged_since(&seen)).map_err(|why| why.to_string())
    }

    fn store_action(&self, kept: &mut OperatorActions, deed: OperatorAction) -> Result<(), String> {
        // The member's own drain is known, and differs from an operator's.
        if kept.contains_key(&deed) && self.store.snapshot().entries.contains_key(&deed.key()) {
            return Ok(());
        }
        let said = with_timestamp(json!({}));
        self.commit(StoreChange::put(deed.key(), said.as_str()))?;
        kept.insert(deed, said.into());
        Ok(())
    }

    fn remove_action(&self, kept: &mut OperatorActions, deed: &OperatorAction) -> Result<(), String> {
        if kept.contains_key(deed) {
            self.commit(StoreChange::delete(deed.key()))?;
            kept.remove(deed);
        }
        Ok(())
    }

    /// Drains or disables a member for an operator, or takes that back.
    pub(super) fn set_member_state(
        &self,
        group: Option<&str>,
        member: &str,
        deed: fn(String, String) -> OperatorAction,
        on: bool,
    ) -> Result<(), String> {
        let mut kept = self.lock_actions()?;
        let found = match self.engine.group_of(group, member) {
            Ok(found) => found.to_string(),
            Err(why) => {
                // A missing member may have a change all the same, for its return.
                let same = |known: &OperatorAction| match known {
                    OperatorAction::Drained(of, name) | OperatorAction::Disabled(of, name) => {
                        let of_it = *known == deed(of.clone(), name.clone());
                        of_it && name == member && group.is_none_or(|group| group == of)
                    }
                    _ => false,
                };
                let absent: Vec<OperatorAction> = kept.keys().filter(|known| same(known)).cloned().collect();
                if on || absent.is_empty() {
                    let status = self.engine.status();
                    let all = status.groups.iter().flat_map(|group| &group.members);
                    let names: BTreeSet<&str> = all.map(|member| member.name.as_str()).collect();
                    // The message of a named group has its members already.
                    return Err(if group.is_none() {
                        unknown_member_message(why, member, &names)
                    } else {
                        why
                    });
                }
                return absent.iter().try_for_each(|deed| self.remove_action(&mut kept, deed));
            }
        };
        let deed = deed(found, member.to_owned());
        if on {
            self.store_action(&mut kept, deed.clone())?;
            self.apply_action(&deed, "{}")
        } else {
            self.remove_action(&mut kept, &deed)?;
            self.revert_action(&deed)
        }
    }

    /// Closes a listener for an operator, or opens it.
    pub(super) fn set_listener_closed(&self, listener: &str, on: bool) -> Result<bool, String> {
        let mut kept = self.lock_actions()?;
        let named = self.engine.listener(listener)?;
        let deed = OperatorAction::Closed(named);
        if on {
            // Its address may not be available again: then nothing has changed.
            let news = self.open_listener(listener)?;
            if let Err(why) = self.remove_action(&mut kept, &deed) {
                if news {
                    // It stays closed for others and for the next process: an error here does not change
                    // that.
                    let _ = self.close_listener(listener);
                }
                return Err(why);
            }
            return Ok(news);
        }
        self.store_action(&mut kept, deed)?;
        self.close_listener(listener)
    }

    /// Switches the balancing of a group off for an operator, or on.
    pub(super) fn switch_balancing(&self, group: &str, on: bool) -> Result<Vec<String>, String> {
        let mut kept = self.lock_actions()?;
        self.configured_balancing(group)?;
        let deed = OperatorAction::BalancingOff(group.to_owned());
        if on {
            self.remove_action(&mut kept, &deed)?;
        } else {
            self.store_action(&mut kept, deed)?;
        }
        self.set_balancing(group, on)
    }

    /// Sets another strategy of a group for an operator, until the next reload.
    pub(super) fn set_strategy(&self, group: &str, written: &str) -> Result<Vec<String>, String> {
        let written = written.trim();
        let by = balancing(written)?;
        let mut kept = self.lock_actions()?;
        self.configured_balancing(group)?;
        let (deed, off) =
            (OperatorAction::Strategy(group.to_owned()), OperatorAction::BalancingOff(group.to_owned()));
        let said = with_timestamp(json!({"strategy": written}));
        let mut change = StoreChange::put(deed.key(), said.as_str());
        if kept.contains_key(&off) {
            change = change.and_delete(off.key());
        }
        self.commit(change)?;
        kept.remove(&off);
        kept.insert(deed, said.into());
        let before = self.override_balancing(group, &by, written)?;
        Ok(vec![format!("~ group {group}: strategy {before} -> {written}")])
    }

    /// Sets another balancing of a group than the file's; returns the former one, for people.
    fn override_balancing(&self, group: &str, by: &GroupBalancing, written: &str) -> Result<String, String> {
        // The lock keeps this from running between the two halves of a reload.
        let _one = lock(&self.reloading);
        let own = self.configured_balancing(group)?;
        lock(&self.file_balancing).entry(group.to_owned()).or_insert(own);
        let before = self.apply_balancing(group, by, written)?;
        lock(&self.unbalanced).remove(group);
        Ok(before)
    }

    /// Returns the balancing of a group, also if it is switched off.
    fn configured_balancing(&self, group: &str) -> Result<GroupBalancing, String> {
        if let Some(kept) = lock(&self.unbalanced).get(group) {
            return Ok(kept.clone());
        }
        self.current_balancing(group).ok_or_else(|| {
            let force = self.effective_config();
            let names: Vec<&str> = force.settings.groups.iter().map(|one| &*one.spec.name).collect();
            format!("no group {group}; there are: {}", names.join(", "))
        })
    }

    /// Removes the settings that end with a reload, at all balancers. A setting that cannot be removed stays
    /// in force; then this returns a line about it.
    pub(super) fn forget_settings(&self, kept: &mut OperatorActions) -> Option<String> {
        let over: Vec<OperatorAction> = kept.keys().filter(|deed| deed.ends_at_reload()).cloned().collect();
        if over.is_empty() {
            return None;
        }
        for part in over.chunks(MAX_BATCH) {
            let change = StoreChange {
                deletes: part.iter().map(OperatorAction::key).collect(),
                ..StoreChange::default()
            };
            if let Err(why) = self.commit(change) {
                return Some(format!("! what operators set stays: {why}"));
            }
            for deed in part {
                kept.remove(deed);
                // The file has undone the rest.
                if let OperatorAction::Scaler(group, knob) = deed
                    && let Err(why) = self.apply_scaler_setting(group, *knob, None)
                {
                    tracing::debug!("{}: {why}", deed.key());
                }
            }
        }
        None
    }
}

/// Returns the reason why a member is unknown, with the known ones.
fn unknown_member_message(why: String, member: &str, names: &BTreeSet<&str>) -> String {
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
        let said = |member: &str, names: &[&str]| {
            unknown_member_message("no".into(), member, &names.iter().copied().collect())
        };
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
            OperatorAction::Strategy(group()),
            OperatorAction::Scaler(group(), ScalerSetting::Min),
            OperatorAction::Scaler(group(), ScalerSetting::Pause),
            OperatorAction::BalancingOff(group()),
            OperatorAction::Drained(group(), member()),
            OperatorAction::Disabled(group(), member()),
            OperatorAction::Closed("http:0.0.0.0:80".into()),
        ];
        for deed in all {
            assert_eq!(OperatorAction::of(&deed.key()), Some(deed));
        }
        assert_eq!(OperatorAction::Drained(group(), member()).key(), "drain/game servers%2F100%25/[::1]:80");
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
            assert_eq!(OperatorAction::of(key), None, "{key}");
        }
    }
}
