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
            Self::Scaler(group, setting) => format!("set/{}/scaler.{}", escape_name(group), setting.name()),
            Self::BalancingOff(group) => format!("disable/balancing/{}", escape_name(group)),
            Self::Drained(group, member) => format!("drain/{}/{}", escape_name(group), escape_name(member)),
            Self::Disabled(group, member) => {
                format!("disable/member/{}/{}", escape_name(group), escape_name(member))
            }
            Self::Closed(listener) => format!("disable/listener/{}", escape_name(listener)),
        }
    }

    fn of(key: &str) -> Option<Self> {
        let segments: Vec<&str> = key.split('/').collect();
        Some(match segments[..] {
            ["set", group, "strategy"] => Self::Strategy(unescape_name(group)?),
            ["set", group, setting_name] => Self::Scaler(
                unescape_name(group)?,
                ScalerSetting::named(setting_name.strip_prefix("scaler.")?)?,
            ),
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
pub(super) fn unescape_name(escaped: &str) -> Option<String> {
    let mut pieces = escaped.split('%');
    let mut name = pieces.next()?.to_owned();
    for escape in pieces {
        let (escape_code, rest) = escape.split_at_checked(2)?;
        name.push(match escape_code {
            "25" => '%',
            "2F" => '/',
            _ => return None,
        });
        name.push_str(rest);
    }
    Some(name).filter(|name| !name.is_empty())
}

/// Returns the changes in a store.
pub(crate) fn read_actions(snapshot: &StoreSnapshot) -> OperatorActions {
    let entry =
        |(key, entry): (&String, &StoreEntry)| Some((OperatorAction::of(key)?, Arc::clone(&entry.value)));
    let mut actions: OperatorActions = snapshot.entries.iter().filter_map(entry).collect();
    for (group, member) in registered::draining(snapshot) {
        actions.entry(OperatorAction::Drained(group, member)).or_insert_with(|| "{}".into());
    }
    actions
}

/// Returns a value with the time, for a reader of the store.
pub(super) fn with_timestamp(mut fields: Value) -> String {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    fields["at_unix_ms"] = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX).into();
    fields.to_string()
}

/// Parses a strategy as an operator writes it.
fn balancing(strategy_text: &str) -> Result<GroupBalancing, String> {
    let parsed = config::parse_strategy(strategy_text)?;
    let (strategy, params) = parsed.find().ok_or_else(|| format!("{strategy_text} is not a strategy"))?;
    let weight = parsed.weight().and_then(|weight| cluster::Expression::new(&weight.0).ok());
    Ok(GroupBalancing { strategy, params, weight })
}

impl BalancerRuntime {
    /// Returns the store of state that outlives the process.
    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Locks operators' changes for a new one: not while another process takes over, or once it has. A
    /// process that collects the state waits until the lock is released.
    pub(super) fn lock_actions(&self) -> Result<MutexGuard<'_, OperatorActions>, String> {
        let actions = lock(&self.operator_actions);
        self.check_in_charge()?;
        Ok(actions)
    }

    /// Puts the changes of the store in force that are not yet.
    pub(crate) fn reapply_actions(&self, reapply: Reapply) {
        self.sync_actions(&mut lock(&self.operator_actions), reapply);
    }

    /// Puts them in force with the lock of the changes.
    pub(super) fn sync_actions(&self, actions: &mut OperatorActions, reapply: Reapply) {
        let stored_actions = read_actions(&self.store.snapshot());
        let removed_actions: Vec<OperatorAction> =
            actions.keys().filter(|action| !stored_actions.contains_key(action)).cloned().collect();
        for action in removed_actions {
            if let Err(error) = self.revert_action(&action) {
                tracing::debug!("{}: {error}", action.key());
            }
        }
        for (action, value_text) in &stored_actions {
            let must_reapply = match reapply {
                Reapply::Nothing => false,
                Reapply::Members => action.is_member_action(),
                Reapply::All => true,
            };
            // The change may be of a member or a listener elsewhere.
            if (must_reapply || actions.get(action) != Some(value_text))
                && let Err(error) = self.apply_action(action, value_text)
            {
                tracing::debug!("{}: {error}", action.key());
            }
        }
        *actions = stored_actions;
    }

    fn apply_action(&self, action: &OperatorAction, value_text: &str) -> Result<(), String> {
        match action {
            OperatorAction::Strategy(group) => {
                let value: Value = serde_json::from_str(value_text).map_err(|error| error.to_string())?;
                let strategy_text = value["strategy"].as_str().ok_or("it names no strategy")?;
                self.override_balancing(group, &balancing(strategy_text)?, strategy_text).map(drop)
            }
            OperatorAction::Scaler(group, setting) => {
                self.apply_scaler_setting(group, *setting, Some(value_text))
            }
            OperatorAction::BalancingOff(group) => self.set_balancing(group, false).map(drop),
            OperatorAction::Drained(group, member) => self.engine.drain(Some(group), member),
            OperatorAction::Disabled(group, member) => self.engine.disable(Some(group), member),
            OperatorAction::Closed(listener) => self.close_listener(listener).map(drop),
        }
    }

    fn revert_action(&self, action: &OperatorAction) -> Result<(), String> {
        match action {
            OperatorAction::Strategy(group) => {
                let Some(balancing) = lock(&self.file_balancing).remove(group) else { return Ok(()) };
                let _reload_guard = lock(&self.reload_lock);
                self.apply_balancing(group, &balancing, balancing.strategy.name).map(drop)
            }
            OperatorAction::Scaler(group, setting) => self.apply_scaler_setting(group, *setting, None),
            OperatorAction::BalancingOff(group) => self.set_balancing(group, true).map(drop),
            OperatorAction::Drained(group, member) => self.engine.undrain(Some(group), member),
            OperatorAction::Disabled(group, member) => self.engine.enable(Some(group), member),
            OperatorAction::Closed(listener) => self.open_listener(listener).map(drop),
        }
    }

    /// Writes a change, based on the known view.
    pub(super) fn commit(&self, change: StoreChange) -> Result<(), String> {
        let snapshot = self.store.snapshot();
        self.store.commit(&change.if_unchanged_since(&snapshot)).map_err(|error| error.to_string())
    }

    fn store_action(&self, actions: &mut OperatorActions, action: OperatorAction) -> Result<(), String> {
        // The member's own drain is known, and differs from an operator's.
        if actions.contains_key(&action) && self.store.snapshot().entries.contains_key(&action.key()) {
            return Ok(());
        }
        let value_text = with_timestamp(json!({}));
        self.commit(StoreChange::put(action.key(), value_text.as_str()))?;
        actions.insert(action, value_text.into());
        Ok(())
    }

    fn remove_action(&self, actions: &mut OperatorActions, action: &OperatorAction) -> Result<(), String> {
        if actions.contains_key(action) {
            self.commit(StoreChange::delete(action.key()))?;
            actions.remove(action);
        }
        Ok(())
    }

    /// Drains or disables a member for an operator, or takes that back.
    pub(super) fn set_member_state(
        &self,
        group: Option<&str>,
        member: &str,
        to_action: fn(String, String) -> OperatorAction,
        enabled: bool,
    ) -> Result<(), String> {
        let mut actions = self.lock_actions()?;
        let owning_group = match self.engine.group_of(group, member) {
            Ok(owning_group) => owning_group.to_string(),
            Err(error) => {
                // A missing member may have a change all the same, for its return.
                let is_same_member = |stored_action: &OperatorAction| match stored_action {
                    OperatorAction::Drained(group_name, name)
                    | OperatorAction::Disabled(group_name, name) => {
                        let is_action = *stored_action == to_action(group_name.clone(), name.clone());
                        is_action && name == member && group.is_none_or(|group| group == group_name)
                    }
                    _ => false,
                };
                let missing_actions: Vec<OperatorAction> =
                    actions.keys().filter(|stored_action| is_same_member(stored_action)).cloned().collect();
                if enabled || missing_actions.is_empty() {
                    let status = self.engine.status();
                    let known_members = status.groups.iter().flat_map(|group| &group.members);
                    let names: BTreeSet<&str> = known_members.map(|member| member.name.as_str()).collect();
                    // The message of a named group has its members already.
                    return Err(if group.is_none() {
                        unknown_member_message(error, member, &names)
                    } else {
                        error
                    });
                }
                return missing_actions
                    .iter()
                    .try_for_each(|action| self.remove_action(&mut actions, action));
            }
        };
        let action = to_action(owning_group, member.to_owned());
        if enabled {
            self.store_action(&mut actions, action.clone())?;
            self.apply_action(&action, "{}")
        } else {
            self.remove_action(&mut actions, &action)?;
            self.revert_action(&action)
        }
    }

    /// Closes a listener for an operator, or opens it.
    pub(super) fn set_listener_closed(&self, listener: &str, enabled: bool) -> Result<bool, String> {
        let mut actions = self.lock_actions()?;
        let address = self.engine.listener(listener)?;
        let action = OperatorAction::Closed(address);
        if enabled {
            // Its address may not be available again: then nothing has changed.
            let changed = self.open_listener(listener)?;
            if let Err(cause) = self.remove_action(&mut actions, &action) {
                if changed {
                    // It stays closed for others and for the next process: an error here does not change
                    // that.
                    let _ = self.close_listener(listener);
                }
                return Err(cause);
            }
            return Ok(changed);
        }
        self.store_action(&mut actions, action)?;
        self.close_listener(listener)
    }

    /// Switches the balancing of a group off for an operator, or on.
    pub(super) fn switch_balancing(&self, group: &str, enabled: bool) -> Result<Vec<String>, String> {
        let mut actions = self.lock_actions()?;
        self.configured_balancing(group)?;
        let action = OperatorAction::BalancingOff(group.to_owned());
        if enabled {
            self.remove_action(&mut actions, &action)?;
        } else {
            self.store_action(&mut actions, action)?;
        }
        self.set_balancing(group, enabled)
    }

    /// Sets another strategy of a group for an operator, until the next reload.
    pub(super) fn set_strategy(&self, group: &str, strategy_text: &str) -> Result<Vec<String>, String> {
        let strategy_text = strategy_text.trim();
        let new_balancing = balancing(strategy_text)?;
        let mut actions = self.lock_actions()?;
        self.configured_balancing(group)?;
        let (action, balancing_off) =
            (OperatorAction::Strategy(group.to_owned()), OperatorAction::BalancingOff(group.to_owned()));
        let value_text = with_timestamp(json!({"strategy": strategy_text}));
        let mut change = StoreChange::put(action.key(), value_text.as_str());
        if actions.contains_key(&balancing_off) {
            change = change.and_delete(balancing_off.key());
        }
        self.commit(change)?;
        actions.remove(&balancing_off);
        actions.insert(action, value_text.into());
        let previous = self.override_balancing(group, &new_balancing, strategy_text)?;
        Ok(vec![format!("~ group {group}: strategy {previous} -> {strategy_text}")])
    }

    /// Sets another balancing of a group than the file's; returns the former one, for people.
    fn override_balancing(
        &self,
        group: &str,
        balancing: &GroupBalancing,
        strategy_text: &str,
    ) -> Result<String, String> {
        // The lock keeps this from running between the two halves of a reload.
        let _reload_guard = lock(&self.reload_lock);
        let current = self.configured_balancing(group)?;
        lock(&self.file_balancing).entry(group.to_owned()).or_insert(current);
        let previous = self.apply_balancing(group, balancing, strategy_text)?;
        lock(&self.disabled_balancing).remove(group);
        Ok(previous)
    }

    /// Returns the balancing of a group, also if it is switched off.
    fn configured_balancing(&self, group: &str) -> Result<GroupBalancing, String> {
        if let Some(saved) = lock(&self.disabled_balancing).get(group) {
            return Ok(saved.clone());
        }
        self.current_balancing(group).ok_or_else(|| {
            let effective_config = self.effective_config();
            let names: Vec<&str> =
                effective_config.settings.groups.iter().map(|settings| &*settings.spec.name).collect();
            format!("no group {group}; there are: {}", names.join(", "))
        })
    }

    /// Removes the settings that end with a reload, at all balancers. A setting that cannot be removed stays
    /// in force; then this returns a line about it.
    pub(super) fn forget_settings(&self, actions: &mut OperatorActions) -> Option<String> {
        let ended_actions: Vec<OperatorAction> =
            actions.keys().filter(|action| action.ends_at_reload()).cloned().collect();
        if ended_actions.is_empty() {
            return None;
        }
        for batch in ended_actions.chunks(MAX_BATCH) {
            let change = StoreChange {
                deletes: batch.iter().map(OperatorAction::key).collect(),
                ..StoreChange::default()
            };
            if let Err(error) = self.commit(change) {
                return Some(format!("! what operators set stays: {error}"));
            }
            for action in batch {
                actions.remove(action);
                // The file has undone the rest.
                if let OperatorAction::Scaler(group, setting) = action
                    && let Err(error) = self.apply_scaler_setting(group, *setting, None)
                {
                    tracing::debug!("{}: {error}", action.key());
                }
            }
        }
        None
    }
}

/// Returns the reason why a member is unknown, with the known ones.
fn unknown_member_message(reason: String, member: &str, names: &BTreeSet<&str>) -> String {
    const SHOWN: usize = 20;
    if names.is_empty() || names.contains(member) {
        return reason;
    }
    let shown_names: Vec<&str> = names.iter().copied().take(SHOWN).collect();
    let suffix = match names.len() - shown_names.len() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    format!("{reason}; there are: {}{suffix}", shown_names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_there_are_are_named() {
        let message_for = |member: &str, names: &[&str]| {
            unknown_member_message("no".into(), member, &names.iter().copied().collect())
        };
        assert_eq!(message_for("c:1", &["b:1", "a:1", "b:1"]), "no; there are: a:1, b:1");
        assert_eq!(message_for("c:1", &[]), "no");
        // The member exists, and the reason is another one.
        assert_eq!(message_for("a:1", &["a:1"]), "no");
        let member_names: Vec<String> = (10..35).map(|port| format!("a:{port}")).collect();
        let member_names: Vec<&str> = member_names.iter().map(String::as_str).collect();
        assert!(
            message_for("c:1", &member_names).ends_with(", a:29 and 5 more"),
            "{}",
            message_for("c:1", &member_names)
        );
    }

    #[test]
    fn keys_and_deeds() {
        let (group, member) = (|| "game servers/100%".to_owned(), || "[::1]:80".to_owned());
        let actions = [
            OperatorAction::Strategy(group()),
            OperatorAction::Scaler(group(), ScalerSetting::Min),
            OperatorAction::Scaler(group(), ScalerSetting::Pause),
            OperatorAction::BalancingOff(group()),
            OperatorAction::Drained(group(), member()),
            OperatorAction::Disabled(group(), member()),
            OperatorAction::Closed("http:0.0.0.0:80".into()),
        ];
        for action in actions {
            assert_eq!(OperatorAction::of(&action.key()), Some(action));
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
