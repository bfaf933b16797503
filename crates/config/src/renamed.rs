//! Keys that had another name in earlier files: an old key is an error that names the new one.

/// A key with a new name.
#[derive(Debug)]
pub(super) struct RenamedKey {
    /// The tables on the way to the key.
    pub(super) section: &'static [&'static str],
    /// The name that is no longer read.
    pub(super) old: &'static str,
    /// The name that is read.
    pub(super) new: &'static str,
}

const fn key(section: &'static [&'static str], old: &'static str, new: &'static str) -> RenamedKey {
    RenamedKey { section, old, new }
}

/// All keys with a new name.
pub(super) const RENAMED_KEYS: &[RenamedKey] = &[
    key(&["admin"], "lend", "leases"),
    key(&["fleet"], "forget", "lost_peer_timeout"),
    key(&["fleet"], "probers", "checks_per_member"),
    key(&["group"], "drained_sessions", "on_drain"),
    key(&["group"], "hand_over", "drain_hook"),
    key(&["group"], "pool", "max_idle_connections"),
    key(&["group"], "pool_idle", "pool_idle_timeout"),
    key(&["group"], "report_header", "load_report_header"),
    key(&["group", "discover"], "hold", "stale_ttl"),
    key(&["group", "scaler", "cool_down"], "down", "scale_in"),
    key(&["group", "scaler", "cool_down"], "up", "scale_out"),
    key(&["group", "scaler", "step"], "down", "scale_in"),
    key(&["group", "scaler", "step"], "up", "scale_out"),
    key(&["group", "scaler", "target"], "head_room", "headroom"),
    key(&["listener"], "max_head", "max_header_bytes"),
    key(&["listener"], "move_idle", "rebind_idle"),
];

/// Returns the new name of the key `old` in the table at `path`.
pub(super) fn new_name(path: &[String], old: &str) -> Option<&'static str> {
    RENAMED_KEYS.iter().find(|key| key.old == old && path == key.section).map(|key| key.new)
}
