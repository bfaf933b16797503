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
    let draw_secret = || {
        let mut secret = [0; 32];
        let mut filled_len = 0;
        while filled_len < secret.len() {
            let read_len = retry_on_intr(|| getrandom(&mut secret[filled_len..], GetRandomFlags::empty()));
            filled_len += read_len.map_err(|error| format!("the system gives no random numbers: {error}"))?;
        }
        Ok(secret)
    };
    PROCESS_KEY.get_or_init(draw_secret).as_ref().map(|secret| TokenSigner::new(secret)).map_err(Clone::clone)
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
    spans: &SpanTree,
    diagnostics: &mut Vec<ConfigDiagnostic>,
) -> Option<Arc<proxy::AffinitySettings>> {
    let affinity = listener.affinity.as_ref()?;
    let mut signer_of = |path: &FilePath, name: &str| {
        let problem = |reason: String| {
            let span = spans.key("affinity").key(name).value_span();
            let hint = "make one: openssl rand -hex 32 > FILE, readable by the balancer alone";
            diagnostics.push(
                ConfigDiagnostic::error(span, format!("cannot use the key {path}: {reason}")).hint(hint),
            );
        };
        key(path).map_err(problem).ok()
    };
    let old_signer = affinity.old_key_file.as_ref().map(|path| signer_of(path, "old_key_file"));
    let signer = match &affinity.key_file {
        Some(path) => signer_of(path, "key_file")?,
        None => match process_signer() {
            Ok(signer) => signer,
            Err(cause) => {
                diagnostics.push(ConfigDiagnostic::error(
                    spans.key("affinity").value_span(),
                    format!("no key can be made: {cause}"),
                ));
                return None;
            }
        },
    };
    // A file that cannot be used is an error already.
    let old_signers = old_signer.flatten().into_iter().collect();
    let (cookie, ttl) = (affinity.cookie.0.as_str().into(), affinity.ttl.0);
    Some(Arc::new(proxy::AffinitySettings { cookie, ttl, signer, older: old_signers }))
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
        short_len if short_len < MIN_KEY_BYTES => {
            Err(format!("it has {short_len} bytes, {MIN_KEY_BYTES} are the least"))
        }
        _ => Ok(TokenSigner::new(secret)),
    }
}

/// Checks the affinity against the rest of its listener.
pub(super) fn check(listener: &ListenerConfig, spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let Some(affinity) = &listener.affinity else { return };
    if !listener.protocol.is_http() {
        let message = format!("`affinity` is not supported for {}", listener.protocol.name());
        let problem = ConfigDiagnostic::error(spans.key_span("affinity"), message);
        diagnostics.push(problem.hint("clients of other protocols have no cookies: bind them per_session"));
    } else if listener.binding.is_some_and(|binding| binding != BindingMode::PerRequest)
        && !spans.is_broken("binding")
    {
        let message = "either `affinity` or `binding`, not both";
        let problem = ConfigDiagnostic::error(spans.key("binding").value_span(), message);
        diagnostics.push(
            problem.with_related(spans.key_span("affinity"), "clients stay with their members by this"),
        );
    }
    let spans = spans.key("affinity");
    if affinity.old_key_file.is_some() && affinity.key_file.is_none() && !spans.is_broken("key_file") {
        let problem =
            ConfigDiagnostic::error(spans.key("old_key_file").value_span(), "an old key, and no `key_file`");
        diagnostics.push(problem.hint("name the file of the key that signs from now on"));
    }
    if affinity.ttl.0.subsec_nanos() != 0 && !spans.is_broken("ttl") {
        diagnostics.push(ConfigDiagnostic::error(
            spans.key("ttl").value_span(),
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

    fn failing_resolver(_: &MemberAddress) -> io::Result<SocketAddr> {
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
        let settings = |listener: &str| read(listener).unwrap().settings(HERE, failing_resolver).unwrap();
        let first_affinity = settings("affinity = {}").listeners[0].affinity.clone().unwrap();
        assert_eq!((&*first_affinity.cookie, first_affinity.ttl.as_secs()), ("plimsoll", 3600));
        let second_affinity =
            settings("affinity = { cookie = \"sid\", ttl = \"0s\" }").listeners[0].affinity.clone().unwrap();
        assert_eq!((&*second_affinity.cookie, second_affinity.ttl.as_secs()), ("sid", 0));
        assert!(first_affinity.signer == second_affinity.signer, "a reload keeps clients where they are");
        assert!(settings("").listeners[0].affinity.is_none());
    }

    #[test]
    fn what_does_not_fit_is_told() {
        for (listener, expected) in [
            ("protocol = \"tcp\"\naffinity = {}", "`affinity` is not supported for tcp"),
            ("binding = \"per_session\"\naffinity = {}", "either `affinity` or `binding`, not both"),
            ("affinity = { ttl = \"1500ms\" }", "a whole number of seconds"),
            ("affinity = { ttl = \"366d\" }", "ttl"),
            ("affinity = { cookie = \"a b\" }", "is no name of a cookie"),
            ("affinity = { cookie = \"\" }", "names no cookie"),
            ("affinity = { key = \"k\" }", "unknown key `key`"),
            ("affinity = { old_key_file = \"/k\" }", "an old key, and no `key_file`"),
        ] {
            let error = read(listener).expect_err(listener);
            assert!(error.contains(expected), "{listener}: {error}");
        }
        assert!(read("binding = \"per_request\"\naffinity = {}").is_ok());
    }

    #[test]
    fn a_key_is_long_enough_and_there() {
        let folder = std::env::temp_dir().join(format!("plimsoll-affinity-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("key");
        let file = read(&format!("affinity = {{ key_file = \"{}\" }}", path.display())).unwrap();
        let assert_refused = |expected: &str| {
            for refusal in
                [file.settings(HERE, failing_resolver).unwrap_err(), file.check_files().unwrap_err()]
            {
                let error = refusal.to_string();
                assert!(error.contains(expected) && error.contains("plimsoll.toml:4:"), "{error}");
            }
        };
        assert_refused("No such file");
        std::fs::write(&path, "too short\n").unwrap();
        assert_refused("it has 9 bytes, 32 are the least");
        std::fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
        let signer = || {
            file.settings(HERE, failing_resolver).unwrap().listeners[0]
                .affinity
                .clone()
                .unwrap()
                .signer
                .clone()
        };
        let signer_before = signer();
        assert!(signer_before == signer());
        std::fs::write(&path, "0123456789abcdef0123456789abcdeg\n").unwrap();
        assert!(signer_before != signer());
        // The old key counts as well.
        let old_path = folder.join("old");
        let affinity_text = format!(
            "affinity = {{ key_file = \"{}\", old_key_file = \"{}\" }}",
            path.display(),
            old_path.display()
        );
        let file = read(&affinity_text).unwrap();
        let error = file.settings(HERE, failing_resolver).unwrap_err().to_string();
        assert!(error.contains("cannot use the key") && error.contains("/old: No such file"), "{error}");
        std::fs::write(&old_path, "0123456789abcdef0123456789abcdef\n").unwrap();
        let settings = file.settings(HERE, failing_resolver).unwrap().listeners[0].affinity.clone().unwrap();
        assert!(settings.older == [signer_before] && settings.signer == signer());
        // A file that others may read is reported.
        let is_readable = |mode: u32| {
            std::fs::set_permissions(&old_path, std::fs::Permissions::from_mode(mode)).unwrap();
            super::is_world_readable(&super::FilePath(old_path.clone()))
        };
        assert!(is_readable(0o644) && !is_readable(0o640) && !is_readable(0o600));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
