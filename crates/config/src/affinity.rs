//! `listener.affinity`: clients come back to the member that they had, by a signed cookie.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, OnceLock};

use plimsoll_proxy as proxy;
use plimsoll_wire::affinity::TokenSigner;
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::diagnostic::ConfigDiagnostic;
use super::root::millis;
use super::spans::SpanTree;
use super::{BindingMode, CookieName, FilePath, ListenerConfig, TimeSpan};

/// A client gets a cookie with its first answer, and comes back by it to the member that it had, over any
/// connection, until that may not be used, has too much to do, or is under alert. The cookie is signed, and
/// names nobody.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AffinityConfig {
    /// Name of the cookie.
    pub cookie: CookieName,

    /// For how long a cookie is good, in whole seconds; a client that is heard of gets a young one when half
    /// of that is over. `0s` for as long as the client keeps it, which browsers do until they are closed.
    #[schemars(extend("x-maximum" = "365d"))]
    pub ttl: TimeSpan,

    /// File of the key that signs cookies: 32 bytes or more that nobody can guess, such as `openssl rand -hex
    /// 32` makes. Every balancer with the same file knows the others' cookies. It is read again with each
    /// reload. Default: a key is made at start, and cookies are good until the process ends.
    #[schemars(extend("examples" = ["/etc/plimsoll/affinity.key"]))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<FilePath>,

    /// File of another key, whose cookies count as well and are given anew by that of `key_file`: to change
    /// keys without a client being sent elsewhere. It is read again with each reload.
    #[schemars(extend("examples" = ["/etc/plimsoll/affinity.old.key"]))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_key_file: Option<FilePath>,
}

impl Default for AffinityConfig {
    fn default() -> Self {
        Self {
            cookie: CookieName("plimsoll".to_owned()),
            ttl: millis::<3_600_000>(),
            key_file: None,
            old_key_file: None,
        }
    }
}

/// The least number of bytes of a key.
const MIN_KEY_BYTES: usize = 32;

/// The key of listeners without a file, for the lifetime of the process.
static PROCESS_KEY: OnceLock<Result<[u8; 32], String>> = OnceLock::new();

fn process_signer() -> Result<TokenSigner, String> {
    let draw = || {
        let mut secret = [0; 32];
        let mut filled = 0;
        while filled < secret.len() {
            let more = retry_on_intr(|| getrandom(&mut secret[filled..], GetRandomFlags::empty()));
            filled += more.map_err(|error| format!("the system gives no random numbers: {error}"))?;
        }
        Ok(secret)
    };
    PROCESS_KEY.get_or_init(draw).as_ref().map(|secret| TokenSigner::new(secret)).map_err(Clone::clone)
}

/// Returns the secret key of this process, if cookies were signed with it, for a process that takes over.
pub fn cookie_key() -> Option<[u8; 32]> {
    PROCESS_KEY.get()?.as_ref().ok().copied()
}

/// Sets the key of the process before this one. It must be called before a configuration is read.
pub fn restore_cookie_key(secret: [u8; 32]) {
    let _ = PROCESS_KEY.set(Ok(secret));
}

/// Returns a listener's affinity for the data plane; `None` without affinity, or with a key that cannot be
/// read.
pub(super) fn of_listener(
    listener: &ListenerConfig,
    spot: &SpanTree,
    found: &mut Vec<ConfigDiagnostic>,
) -> Option<Arc<proxy::AffinitySettings>> {
    let affinity = listener.affinity.as_ref()?;
    let mut of_file = |path: &FilePath, name: &str| {
        let problem = |why: String| {
            let at = spot.key("affinity").key(name).value_span();
            let hint = "make one: openssl rand -hex 32 > FILE, readable by the balancer alone";
            found.push(ConfigDiagnostic::error(at, format!("cannot use the key {path}: {why}")).hint(hint));
        };
        key(path).map_err(problem).ok()
    };
    let older = affinity.old_key_file.as_ref().map(|path| of_file(path, "old_key_file"));
    let signer = match &affinity.key_file {
        Some(path) => of_file(path, "key_file")?,
        None => match process_signer() {
            Ok(signer) => signer,
            Err(why) => {
                found.push(ConfigDiagnostic::error(
                    spot.key("affinity").value_span(),
                    format!("no key can be made: {why}"),
                ));
                return None;
            }
        },
    };
    // A file that cannot be used is an error already.
    let older = older.flatten().into_iter().collect();
    let (cookie, ttl) = (affinity.cookie.0.as_str().into(), affinity.ttl.0);
    Some(Arc::new(proxy::AffinitySettings { cookie, ttl, signer, older }))
}

/// Returns `true` if users may read a file that are neither its owner nor in its group.
fn is_world_readable(path: &FilePath) -> bool {
    std::fs::metadata(&path.0).is_ok_and(|file| file.permissions().mode() & 0o004 != 0)
}

fn key(path: &FilePath) -> Result<TokenSigner, String> {
    let text = std::fs::read(&path.0).map_err(|error| error.to_string())?;
    if is_world_readable(path) {
        tracing::warn!(
            "{path} can be read by everybody on this machine, who can make cookies then: chmod 600 {path}"
        );
    }
    let secret = text.trim_ascii();
    match secret.len() {
        few if few < MIN_KEY_BYTES => Err(format!("it has {few} bytes, {MIN_KEY_BYTES} are the least")),
        _ => Ok(TokenSigner::new(secret)),
    }
}

/// Checks the affinity against the rest of its listener.
pub(super) fn check(listener: &ListenerConfig, spot: &SpanTree, found: &mut Vec<ConfigDiagnostic>) {
    let Some(affinity) = &listener.affinity else { return };
    if !listener.protocol.is_http() {
        let message = format!("`affinity` is not supported for {}", listener.protocol.name());
        let problem = ConfigDiagnostic::error(spot.key_span("affinity"), message);
        found.push(problem.hint("clients of other protocols have no cookies: bind them per_session"));
    } else if listener.binding.is_some_and(|binding| binding != BindingMode::PerRequest)
        && !spot.is_broken("binding")
    {
        let message = "either `affinity` or `binding`, not both";
        let problem = ConfigDiagnostic::error(spot.key("binding").value_span(), message);
        found
            .push(problem.with_related(spot.key_span("affinity"), "clients stay with their members by this"));
    }
    let spot = spot.key("affinity");
    if affinity.old_key_file.is_some() && affinity.key_file.is_none() && !spot.is_broken("key_file") {
        let problem =
            ConfigDiagnostic::error(spot.key("old_key_file").value_span(), "an old key, and no `key_file`");
        found.push(problem.hint("name the file of the key that signs from now on"));
    }
    if affinity.ttl.0.subsec_nanos() != 0 && !spot.is_broken("ttl") {
        found.push(ConfigDiagnostic::error(
            spot.key("ttl").value_span(),
            "`ttl` is a whole number of seconds",
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::SocketAddr;
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::{ConfigFile, MachineDefaults, MemberAddress, parse};

    const HERE: MachineDefaults = MachineDefaults {
        threads: 1,
        max_connections: 99,
        max_descriptors: 1000,
        max_memory: 1 << 30,
        max_flows: 16384,
    };

    fn nowhere(_: &MemberAddress) -> io::Result<SocketAddr> {
        Ok(([127, 0, 0, 1], 1).into())
    }

    fn read(listener: &str) -> Result<ConfigFile, String> {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n{listener}\n[[group]]\nname = \
             \"web\"\n\
             members = [\"127.0.0.1:1\"]\n"
        );
        let file = parse("plimsoll.toml", text.into_bytes()).map_err(|problems| problems.to_string())?;
        assert_eq!(file.warnings.to_string(), "");
        Ok(file)
    }

    #[test]
    fn a_key_that_was_made_is_one_for_the_whole_process() {
        let settings = |listener: &str| read(listener).unwrap().settings(HERE, nowhere).unwrap();
        let one = settings("affinity = {}").listeners[0].affinity.clone().unwrap();
        assert_eq!((&*one.cookie, one.ttl.as_secs()), ("plimsoll", 3600));
        let other =
            settings("affinity = { cookie = \"sid\", ttl = \"0s\" }").listeners[0].affinity.clone().unwrap();
        assert_eq!((&*other.cookie, other.ttl.as_secs()), ("sid", 0));
        assert!(one.signer == other.signer, "a reload keeps clients where they are");
        assert!(settings("").listeners[0].affinity.is_none());
    }

    #[test]
    fn what_does_not_fit_is_told() {
        for (listener, why) in [
            ("protocol = \"tcp\"\naffinity = {}", "`affinity` is not supported for tcp"),
            ("binding = \"per_session\"\naffinity = {}", "either `affinity` or `binding`, not both"),
            ("affinity = { ttl = \"1500ms\" }", "a whole number of seconds"),
            ("affinity = { ttl = \"366d\" }", "ttl"),
            ("affinity = { cookie = \"a b\" }", "is no name of a cookie"),
            ("affinity = { cookie = \"\" }", "names no cookie"),
            ("affinity = { key = \"k\" }", "unknown key `key`"),
            ("affinity = { old_key_file = \"/k\" }", "an old key, and no `key_file`"),
        ] {
            let said = read(listener).expect_err(listener);
            assert!(said.contains(why), "{listener}: {said}");
        }
        assert!(read("binding = \"per_request\"\naffinity = {}").is_ok());
    }

    #[test]
    fn a_key_is_long_enough_and_there() {
        let folder = std::env::temp_dir().join(format!("plimsoll-affinity-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("key");
        let file = read(&format!("affinity = {{ key_file = \"{}\" }}", path.display())).unwrap();
        let fails = |why: &str| {
            for said in [file.settings(HERE, nowhere).unwrap_err(), file.check_files().unwrap_err()] {
                let said = said.to_string();
                assert!(said.contains(why) && said.contains("plimsoll.toml:4:"), "{said}");
            }
        };
        fails("No such file");
        std::fs::write(&path, "too short\n").unwrap();
        fails("it has 9 bytes, 32 are the least");
        std::fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
        let signer =
            || file.settings(HERE, nowhere).unwrap().listeners[0].affinity.clone().unwrap().signer.clone();
        let before = signer();
        assert!(before == signer());
        std::fs::write(&path, "0123456789abcdef0123456789abcdeg\n").unwrap();
        assert!(before != signer());
        // The old key counts as well.
        let old = folder.join("old");
        let both = format!(
            "affinity = {{ key_file = \"{}\", old_key_file = \"{}\" }}",
            path.display(),
            old.display()
        );
        let file = read(&both).unwrap();
        let said = file.settings(HERE, nowhere).unwrap_err().to_string();
        assert!(said.contains("cannot use the key") && said.contains("/old: No such file"), "{said}");
        std::fs::write(&old, "0123456789abcdef0123456789abcdef\n").unwrap();
        let settings = file.settings(HERE, nowhere).unwrap().listeners[0].affinity.clone().unwrap();
        assert!(settings.older == [before] && settings.signer == signer());
        // A file that others may read is reported.
        let shown = |mode: u32| {
            std::fs::set_permissions(&old, std::fs::Permissions::from_mode(mode)).unwrap();
            super::is_world_readable(&super::FilePath(old.clone()))
        };
        assert!(shown(0o644) && !shown(0o640) && !shown(0o600));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
