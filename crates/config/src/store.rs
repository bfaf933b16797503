//! `[store]`: the place that keeps operators' changes and registered members; `[etcd]`: the cluster that may
//! be that place, and a source of members.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use plimsoll_cluster::etcd::{EtcdEndpoint, EtcdSettings, TlsFiles};
use plimsoll_cluster::store::{EtcdStore, EtcdStoreSettings, LocalStore, Store, StoreSnapshot};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::diagnostic::ConfigDiagnostic;
use super::root::millis;
use super::spans::SpanTree;
use super::text::{TextValue, text};
use super::{Config, FilePath, MemberAddress, TimeSpan};

/// Storage of operators' changes (drain, disable, set) and registered members. Without this section they are
/// in `state.json` in the service manager's state folder (`$STATE_DIRECTORY`, systemd's `StateDirectory=`).
/// Without such a folder they are lost when the process ends. Takes effect at start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StoreConfig {
    /// File of this balancer, in a folder that it may write to. With `etcd` it holds a copy, for a start
    /// while etcd is unavailable.
    #[schemars(extend("examples" = ["/var/lib/plimsoll/state.json"]))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FilePath>,

    /// Uses groups and listeners in the store (`plimsoll config push`) in addition to those of this file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub config: bool,

    /// Key prefix in the cluster of `[etcd]`: all balancers with the same prefix share one store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<KeyPrefix>,
}

/// A cluster of etcd, version 3, for `store` and for sources of members. Files are read again with each
/// connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EtcdConfig {
    /// Members of the cluster, tried in turn.
    #[schemars(length(min = 1, max = 32))]
    pub endpoints: Vec<EtcdUrl>,

    /// User name, if etcd has authentication enabled.
    #[schemars(length(min = 1, max = 256))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,

    /// File with the user's password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<FilePath>,

    /// CA certificates that verify the endpoints' certificates, PEM. Default: those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<FilePath>,

    /// Client certificate of this balancer, PEM, if etcd requires one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<FilePath>,

    /// Private key of the client certificate, PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<FilePath>,

    /// Timeout of a connection, and of an answer.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1m"))]
    #[serde(default = "millis::<3000>")]
    pub timeout: TimeSpan,
}

impl EtcdConfig {
    /// Returns the settings of the client.
    pub fn settings(&self) -> EtcdSettings {
        let path = |path: &FilePath| path.0.clone();
        let endpoint = |url: &EtcdUrl| EtcdEndpoint {
            https: url.https,
            host: url.address.host.clone(),
            port: url.address.port,
        };
        EtcdSettings {
            endpoints: self.endpoints.iter().map(endpoint).collect(),
            user: self.user.clone().zip(self.password_file.as_ref().map(path)),
            tls: TlsFiles {
                ca: self.ca.as_ref().map(path),
                client_identity: self.certificate.as_ref().map(path).zip(self.key.as_ref().map(path)),
            },
            timeout: self.timeout.0,
        }
    }
}

impl Config {
    /// Returns `true` if the store has groups and listeners, too.
    pub fn shares_config(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.config)
    }

    /// Opens the store that it names; returns a message about it, too. Without a name it is a file in
    /// `folder`, or a store that forgets.
    ///
    /// # Errors
    /// Fails with one line if it cannot be used.
    pub fn open_store(
        &self,
        folder: Option<&Path>,
        read_snapshot: impl FnOnce(&str) -> Option<StoreSnapshot>,
    ) -> Result<(Arc<dyn Store>, Option<String>), String> {
        let Some(StoreConfig { file, etcd, .. }) = self.store.clone() else { return open_default(folder) };
        let file = file.map(|FilePath(path)| path);
        if let (Some(prefix), Some(cluster)) = (etcd, &self.etcd) {
            let settings = EtcdStoreSettings { etcd: cluster.settings(), prefix: prefix.0, copy: file };
            let snapshot = read_snapshot(&settings.prefix);
            let (store, notice) = EtcdStore::open_after(settings, snapshot)?;
            return Ok((Arc::new(store), notice));
        }
        let (store, notice) = LocalStore::open(file.as_deref())?;
        Ok((Arc::new(store), notice))
    }

    /// Returns the place of registered members, for people.
    pub(super) fn store_location(&self) -> String {
        match &self.store {
            Some(StoreConfig { etcd: Some(prefix), .. }) => format!("etcd {prefix}"),
            Some(StoreConfig { file: Some(file), .. }) => file.to_string(),
            // The place is a file that is not named here, or memory.
            _ => "this balancer's".to_owned(),
        }
    }
}

/// Opens the default store: a file of that folder, or memory if there is none or it cannot be used.
fn open_default(folder: Option<&Path>) -> Result<(Arc<dyn Store>, Option<String>), String> {
    let Some(folder) = folder else {
        let (store, notice) = LocalStore::open(None)?;
        return Ok((Arc::new(store), notice));
    };
    match LocalStore::open(Some(&folder.join(STATE_FILE))) {
        Ok((store, notice)) => Ok((Arc::new(store), notice)),
        Err(error) => {
            let (store, _) = LocalStore::open(None)?;
            Ok((Arc::new(store), Some(format!("STATE_DIRECTORY is of no use: {error}"))))
        }
    }
}

/// Returns the service manager's folder for state that outlives the process; the first, if there are several.
pub fn state_folder() -> Option<PathBuf> {
    let folders = std::env::var_os("STATE_DIRECTORY")?;
    let first_folder = folders.as_bytes().split(|byte| *byte == b':').next()?;
    let folder = PathBuf::from(OsStr::from_bytes(first_folder));
    folder.is_absolute().then_some(folder)
}

/// The file in that folder.
const STATE_FILE: &str = "state.json";

/// A member of a cluster of etcd: `http://HOST:PORT`, or `https://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdUrl {
    pub https: bool,
    pub address: MemberAddress,
}

text! {
    EtcdUrl,
    format: "plimsoll-etcd-url",
    what: "a URL of etcd's client port",
    example: "https://10.0.0.1:2379",
    pattern: "^https?://.+$",
}

/// The port of etcd for clients.
const PORT: u16 = 2379;

impl FromStr for EtcdUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let without_scheme = text.strip_prefix("http://").map(|rest| (false, rest));
        let (https, rest) = without_scheme
            .or_else(|| text.strip_prefix("https://").map(|rest| (true, rest)))
            .ok_or("begins with neither http:// nor https://")?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let has_port = rest.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        let address = if has_port { rest.parse()? } else { format!("{rest}:{PORT}").parse()? };
        Ok(Self { https, address })
    }
}

impl fmt::Display for EtcdUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "http{}://{}", if self.https { "s" } else { "" }, self.address)
    }
}

/// The prefix of keys of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPrefix(pub String);

text! {
    KeyPrefix,
    format: "plimsoll-key-prefix",
    what: "what keys of etcd begin with",
    example: "/plimsoll/",
}

impl FromStr for KeyPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > 512 {
            return Err("is longer than 512 bytes".into());
        }
        if text.chars().any(|c| c.is_control() || c == ' ') {
            return Err("has a space or a control character".into());
        }
        // Without the slash `/web` would include the keys of `/web2`, too.
        if !text.ends_with('/') || text == "/" {
            return Err("is not a name that ends with /".into());
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for KeyPrefix {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Checks the tables against one another.
pub(super) fn check(config: &Config, root_spans: &SpanTree, diagnostics: &mut Vec<ConfigDiagnostic>) {
    let is_shared = config.store.as_ref().is_some_and(|store| store.etcd.is_some());
    if let Some(store) = &config.store {
        let spans = root_spans.key("store");
        if store.file.is_none()
            && store.etcd.is_none()
            && !spans.is_broken("file")
            && !spans.is_broken("etcd")
        {
            let problem = ConfigDiagnostic::error(spans.value_span(), "a store without a place");
            diagnostics
                .push(problem.hint("add file = \"/var/lib/plimsoll/state.json\", or etcd = \"/plimsoll/\""));
        }
        if is_shared && config.etcd.is_none() && !root_spans.is_broken("etcd") {
            let problem =
                ConfigDiagnostic::error(spans.key("etcd").value_span(), "there is no cluster of etcd");
            diagnostics.push(problem.hint("add [etcd] with endpoints = [\"http://10.0.0.1:2379\"]"));
        }
    }
    for (index, group) in config.groups.iter().enumerate() {
        for (source_index, source) in group.discover.iter().enumerate() {
            if source.etcd.is_some() && config.etcd.is_none() && !root_spans.is_broken("etcd") {
                let span = root_spans
                    .key("group")
                    .item(index)
                    .key("discover")
                    .item(source_index)
                    .key("etcd")
                    .value_span();
                let problem = ConfigDiagnostic::error(span, "there is no cluster of etcd");
                diagnostics.push(problem.hint("add [etcd] with endpoints = [\"http://10.0.0.1:2379\"]"));
            }
        }
    }
    let Some(etcd) = &config.etcd else { return };
    let spans = root_spans.key("etcd");
    let is_used = is_shared
        || config.groups.iter().flat_map(|group| &group.discover).any(|discover| discover.etcd.is_some());
    let is_unreadable = root_spans.is_broken("store")
        || root_spans.key("store").is_broken("etcd")
        || root_spans.is_broken("group");
    if !is_used && !is_unreadable {
        let problem = ConfigDiagnostic::warning(
            root_spans.key_span("etcd"),
            "`etcd` has no effect: nothing is kept or found there",
        );
        diagnostics.push(problem.hint("add [store] with etcd = \"/plimsoll/\""));
    }
    for (first_key, second_key, has_first, lacks_second) in [
        ("user", "password_file", etcd.user.is_some(), etcd.password_file.is_none()),
        ("password_file", "user", etcd.password_file.is_some(), etcd.user.is_none()),
        ("certificate", "key", etcd.certificate.is_some(), etcd.key.is_none()),
        ("key", "certificate", etcd.key.is_some(), etcd.certificate.is_none()),
    ] {
        if has_first && lacks_second && !spans.is_broken(second_key) {
            let problem = ConfigDiagnostic::error(
                spans.key_span(first_key),
                format!("`{first_key}` needs `{second_key}`"),
            );
            diagnostics.push(problem.hint(format!("add {second_key} to [etcd]")));
        }
    }
    let has_https = etcd.endpoints.iter().any(|endpoint| endpoint.https);
    for key in ["ca", "certificate"].into_iter().filter(|key| spans.has_key(key) && !has_https) {
        let message = format!("`{key}` has no effect: no endpoint begins with https://");
        diagnostics.push(ConfigDiagnostic::warning(spans.key_span(key), message));
    }
    let is_plain_remote =
        |url: &EtcdUrl| !url.https && !matches!(&*url.address.host, "127.0.0.1" | "::1" | "localhost");
    if etcd.user.is_some() && etcd.endpoints.iter().any(is_plain_remote) {
        let problem =
            ConfigDiagnostic::warning(spans.key_span("user"), "whoever is on the way can read the password");
        diagnostics.push(problem.hint("use https://"));
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::super::parse;
    use super::*;

    const REST: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n[[group]]\nname = \
        \"web\"\nmembers = [\"a:1\"]\n";

    fn errors_of(config_tables: &str) -> String {
        match parse("plimsoll.toml", format!("{config_tables}{REST}").into_bytes()) {
            Err(problems) => problems.to_string(),
            Ok(file) => file.warnings.to_string(),
        }
    }

    #[test]
    fn urls_and_prefixes() {
        let url = |text: &str| text.parse::<EtcdUrl>().map(|url| url.to_string());
        assert_eq!(url("http://a").unwrap(), "http://a:2379");
        assert_eq!(url("https://[::1]/").unwrap(), "https://[::1]:2379");
        assert_eq!(url("https://B:1").unwrap(), "https://b:1");
        for invalid in ["a:2379", "http://", "http://a/v3", "http://a:0"] {
            assert!(url(invalid).is_err(), "{invalid}");
        }
        for invalid in ["", "/", "/a", "a b/"] {
            assert!(invalid.parse::<KeyPrefix>().is_err(), "{invalid}");
        }
        assert!("/plimsoll/".parse::<KeyPrefix>().is_ok());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        assert_snapshot!(errors_of("[store]\n"), @r#"
        error: plimsoll.toml:1:1: a store without a place
            1 | [store]
              | ^^^^^^^ add file = "/var/lib/plimsoll/state.json", or etcd = "/plimsoll/"
        1 error
        "#);
        assert_snapshot!(errors_of("store = { etcd = \"/plimsoll/\" }\n"), @r#"
        error: plimsoll.toml:1:18: there is no cluster of etcd
            1 | store = { etcd = "/plimsoll/" }
              |                  ^^^^^^^^^^^^ add [etcd] with endpoints = ["http://10.0.0.1:2379"]
        1 error
        "#);
        assert_snapshot!(errors_of("[etcd]\nendpoints = [\"http://10.0.0.1\"]\nuser = \"u\"\nkey = \"/k\"\nca = \"/c\"\n"), @r#"
        warning: plimsoll.toml:1:2: `etcd` has no effect: nothing is kept or found there
            1 | [etcd]
              |  ^^^^ add [store] with etcd = "/plimsoll/"
        error: plimsoll.toml:3:1: `user` needs `password_file`
            3 | user = "u"
              | ^^^^ add password_file to [etcd]
        warning: plimsoll.toml:3:1: whoever is on the way can read the password
            3 | user = "u"
              | ^^^^ use https://
        error: plimsoll.toml:4:1: `key` needs `certificate`
            4 | key = "/k"
              | ^^^ add certificate to [etcd]
        warning: plimsoll.toml:5:1: `ca` has no effect: no endpoint begins with https://
            5 | ca = "/c"
              | ^^
        2 errors, 3 warnings
        "#);
        assert_snapshot!(errors_of("store.etcd = \"plimsoll\"\netcd = { endpoints = [\"10.0.0.1:2379\"] }\n"), @r#"
        error: plimsoll.toml:1:14: `etcd`: `plimsoll` is not a name that ends with /
            1 | store.etcd = "plimsoll"
              |              ^^^^^^^^^^ what keys of etcd begin with, such as "/plimsoll/"
        error: plimsoll.toml:2:23: `endpoints`: `10.0.0.1:2379` begins with neither http:// nor https://
            2 | etcd = { endpoints = ["10.0.0.1:2379"] }
              |                       ^^^^^^^^^^^^^^^ a URL of etcd's client port, such as "https://10.0.0.1:2379"
        2 errors
        "#);
    }

    #[test]
    fn what_is_right_says_nothing() {
        assert_eq!(errors_of("[store]\nfile = \"/tmp/state.json\"\n"), "");
        let etcd = "[etcd]\nendpoints = [\"https://a\", \"https://b\"]\nuser = \"u\"\npassword_file = \
            \"/p\"\nca = \"/c\"\n";
        assert_eq!(errors_of(&format!("[store]\netcd = \"/plimsoll/\"\nfile = \"/copy\"\n{etcd}")), "");
    }
}
