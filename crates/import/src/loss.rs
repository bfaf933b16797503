//! The weight of a loss, by the words of the line that is lost: one table for each language.
//!
//! A row is a pattern and a class; the first row that fits decides. `*` in a pattern stands for any word, or
//! for the rest of one. A line that fits no row may change the clients' results, and counts as such. Words
//! whose arguments decide are in [`classify_haproxy`] and [`classify_nginx`].

use super::ImportSource;
use LossClass::{Changed, Harmless, Security};

/// The weight of a loss, the heaviest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossClass {
    /// The line refused or limited clients: without it a listener serves requests that were refused.
    Security,
    /// Clients may get other results than before.
    Changed,
    /// Logging, tuning, and lines that have no effect by themselves.
    Harmless,
}

impl LossClass {
    /// Returns the word that marks a line of the list.
    pub fn name(self) -> &'static str {
        match self {
            Security => "security",
            Changed => "changed",
            Harmless => "harmless",
        }
    }
}

/// An access rule that could not be carried over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccessRule {
    pub(super) line: usize,
    /// The text of the rule.
    pub(super) text: String,
    /// Whether it redirects clients to https: a listener with TLS does not need it.
    pub(super) is_https_redirect: bool,
}

impl AccessRule {
    /// Returns the rule that a line is, if losing the line loses an access rule.
    pub(super) fn of(source: ImportSource, line: usize, statement: &str) -> Option<Self> {
        let words: Vec<&str> = statement.split_whitespace().collect();
        (class(source, statement) == Security).then(|| Self {
            line,
            text: statement.to_owned(),
            is_https_redirect: is_https_redirect(&words),
        })
    }
}

/// Returns the class of a line that is lost.
pub(super) fn class(source: ImportSource, statement: &str) -> LossClass {
    let words: Vec<&str> = statement.split_whitespace().collect();
    let (special_class, class_table) = match source {
        ImportSource::Haproxy => (classify_haproxy(&words), HAPROXY),
        ImportSource::Nginx => (classify_nginx(&words), NGINX),
    };
    let row = || {
        class_table.iter().find(|(patterns, _)| patterns.iter().any(|pattern| matches_words(pattern, &words)))
    };
    special_class.or_else(|| row().map(|(_, class)| *class)).unwrap_or(Changed)
}

fn matches_words(pattern: &str, words: &[&str]) -> bool {
    // `NAME … word` is of a parameter: the name is the user's, and no word of the language.
    let is_parameter = words.get(1) == Some(&"…");
    if is_parameter != (pattern.split(' ').nth(1) == Some("…")) {
        return false;
    }
    pattern.split(' ').enumerate().all(|(index, expected)| {
        words.get(index).is_some_and(|word| match expected.strip_suffix('*') {
            Some(prefix) => word.starts_with(prefix),
            None => *word == expected,
        })
    })
}

/// Returns whether a line redirects clients to https.
fn is_https_redirect(words: &[&str]) -> bool {
    let redirects = words.iter().take(2).any(|word| ["redirect", "return", "rewrite"].contains(word));
    let scheme = words.windows(2).any(|word_pair| word_pair == ["scheme", "https"]);
    redirects && (scheme || words.iter().any(|word| word.trim_matches(['"', '\'']).starts_with("https://")))
}

/// Returns whether a field, by its name, identifies a client to members.
fn is_identity_field(field: &str) -> bool {
    let field = field.to_ascii_lowercase();
    ["auth", "user", "cert", "client", "ssl", "identity", "role", "token", "subject"]
        .iter()
        .any(|fragment| field.contains(fragment))
}

/// Returns whether a value is the client's identity as the balancer found it.
fn is_verified_identity(value: &str) -> bool {
    ["ssl_c_", "ssl_client", "remote_user", "http_auth", "$auth", "$jwt", "$oidc"]
        .iter()
        .any(|fragment| value.contains(fragment))
}

fn classify_haproxy(words: &[&str]) -> Option<LossClass> {
    let status = || words.iter().skip_while(|word| **word != "status").nth(1)?.parse::<u16>().ok();
    match words {
        _ if is_https_redirect(words) => Some(Security),
        ["http-request", "return", ..] => Some(refusal(status())),
        ["http-request", "set-header" | "add-header" | "replace-header", _, value @ ..]
            if value.iter().any(|word| is_verified_identity(word)) =>
        {
            Some(Security)
        }
        ["http-request", "del-header", field, ..] if is_identity_field(field) => Some(Security),
        _ => None,
    }
}

fn classify_nginx(words: &[&str]) -> Option<LossClass> {
    match words {
        _ if is_https_redirect(words) => Some(Security),
        ["return", status, ..] => Some(refusal(status.parse().ok())),
        ["proxy_set_header" | "grpc_set_header", field, value @ ..] => {
            let value = value.join(" ");
            let is_emptied = value.is_empty() && is_identity_field(field);
            Some(if is_emptied || is_verified_identity(&value) { Security } else { Changed })
        }
        // A file that is not read may hold rules of any kind, unless its name identifies its content.
        ["include", file, ..] => {
            let contains_any = |needles: &[&str]| needles.iter().any(|fragment| file.contains(fragment));
            Some(match file {
                _ if contains_any(&["mime.types", "modules", "_params", "ssl"]) => Harmless,
                _ if contains_any(&["conf.d/", "sites-"]) => Changed,
                _ => Security,
            })
        }
        _ => None,
    }
}

fn refusal(status: Option<u16>) -> LossClass {
    if status.is_some_and(|status| status >= 400) { Security } else { Changed }
}

type LossTable = &'static [(&'static [&'static str], LossClass)];

const HAPROXY: LossTable = &[
    // Rules that refuse, ask for a password, or limit.
    (
        &[
            "http-request deny",
            "http-request tarpit",
            "http-request reject",
            "http-request silent-drop",
            "http-request auth",
            "http-request lua.*",
            "http-response deny",
            "http-response silent-drop",
            "http-response lua.*",
            "tcp-request * reject",
            "tcp-request * silent-drop",
            "tcp-request * lua.*",
            "tcp-response * close",
            "tcp-response * reject",
            "tcp-response * silent-drop",
            "block",
            "reqdeny",
            "reqideny",
            "reqtarpit",
            "reqitarpit",
            "rspdeny",
            "rspideny",
            "rate-limit",
            "filter spoe",
            "bind … interface",
            "bind … namespace",
            "bind … crl-file",
            "bind … strict-sni",
        ],
        Security,
    ),
    // Logging.
    (
        &[
            "log*",
            "error-log-format",
            "unique-id-format",
            "capture",
            "http-request capture",
            "http-response capture",
            "tcp-request * capture",
            "option httplog",
            "option tcplog",
            "option httpslog",
            "option logasap",
            "option log-*",
            "option dontlog-normal",
            "option socket-stats",
            "stats socket",
            "stats timeout",
            "stats maxconn",
            "stats refresh",
            "stats show-*",
            "stats hide-version",
            "stats realm",
            "stats auth",
            "stats admin",
            "email-alert",
        ],
        Harmless,
    ),
    // Words without effect by themselves: lines that use them have a class of their own.
    (
        &[
            "acl",
            "stick-table",
            "http-request allow",
            "http-request set-var*",
            "http-request unset-var*",
            "http-request track-sc*",
            "http-request sc-*",
            "http-request set-log-level",
            "http-request set-mark",
            "http-request set-tos",
            "http-request set-nice",
            "http-request wait-for-handshake",
            "http-request do-resolve*",
            "http-request add-acl*",
            "http-request del-acl*",
            "http-request set-map*",
            "http-request del-map*",
            "http-response allow",
            "http-response set-var*",
            "http-response sc-*",
            "http-response track-sc*",
            "http-response set-log-level",
            "tcp-request inspect-delay",
            "tcp-request * accept",
            "tcp-request * set-var*",
            "tcp-request * unset-var*",
            "tcp-request * track-sc*",
            "tcp-request * sc-*",
            "tcp-response inspect-delay",
            "tcp-response * accept",
            "tcp-response * set-var*",
            "tcp-response * sc-*",
            "userlist",
            "resolvers",
            "peers",
            "mailers",
            "program",
            "ring",
            "traces",
            "lua-load*",
        ],
        Harmless,
    ),
    // Settings of the process, and tuning.
    (
        &[
            "user",
            "group",
            "uid",
            "gid",
            "chroot",
            "daemon",
            "master-worker",
            "pidfile",
            "nbproc",
            "cpu-map",
            "ulimit-n",
            "hard-stop-after",
            "tune.*",
            "ssl-default-*",
            "ssl-dh*",
            "spread-checks",
            "server-state-*",
            "load-server-state-from-file",
            "http-reuse",
            "fullconn",
            "timeout server-fin",
            "timeout client-fin",
            "timeout check",
            "timeout tarpit",
            "option abortonclose",
            "option prefer-last-server",
            "option splice-*",
            "option http-no-delay",
            "option http-use-htx",
            "option nolinger",
            "option tcpka",
            "bind … ciphers*",
            "bind … curves",
            "bind … ecdhe",
            "bind … sigalgs",
            "bind … client-sigalgs",
            "bind … prefer-client-ciphers",
            "bind … tls-tickets",
            "bind … no-tls-tickets",
            "bind … tls-ticket-keys",
            "bind … allow-0rtt",
            "bind … no-ca-names",
            "bind … force-*",
            "bind … no-tlsv13",
            "bind … process",
            "bind … thread",
            "bind … nice",
            "bind … mss",
            "bind … tcp-ut",
            "* … ciphers*",
            "* … curves",
            "* … sigalgs",
            "* … client-sigalgs",
            "* … npn",
            "* … ssl-min-ver",
            "* … ssl-max-ver",
            "* … force-*",
            "* … no-ssl-reuse",
            "* … fastinter",
            "* … downinter",
            "* … observe",
            "* … on-error",
            "* … error-limit",
            "* … pool-*",
            "* … max-reuse",
            "* … minconn",
            "* … maxqueue",
            "* … init-addr",
            "* … resolvers",
            "* … resolve-*",
            "* … check-*",
            "* … tcp-ut",
        ],
        Harmless,
    ),
];

const NGINX: LossTable = &[
    // A rule that is switched off refuses no client.
    (
        &[
            "allow all",
            "auth_basic off",
            "auth_request off",
            "auth_jwt off",
            "auth_request_set",
            "auth_delay",
            "ssl_reject_handshake off",
            "ssl_ocsp off",
            "modsecurity off",
            "app_protect_enable off",
        ],
        Harmless,
    ),
    (
        &[
            "limit_req_zone",
            "limit_req_status",
            "limit_req_log_level",
            "limit_req_dry_run",
            "limit_conn_zone",
            "limit_conn_status",
            "limit_conn_log_level",
            "limit_conn_dry_run",
        ],
        Harmless,
    ),
    // Rules that refuse, ask for a certificate or password, or limit.
    (
        &[
            "allow",
            "deny",
            "auth_*",
            "satisfy",
            "limit_req",
            "limit_conn",
            "limit_except",
            "internal",
            "valid_referers",
            "secure_link*",
            "ssl_crl",
            "ssl_ocsp",
            "ssl_reject_handshake",
            "access_by_lua*",
            "rewrite_by_lua*",
            "preread_by_lua*",
            "js_access",
            "modsecurity*",
            "app_protect*",
            "SecRulesEnabled",
        ],
        Security,
    ),
    // Logging.
    (&["access_log", "log_*", "error_log", "server_tokens"], Harmless),
    // Directives without effect by themselves: those that use them have a class of their own.
    (&["map", "map_hash*", "geo", "geoip*", "split_clients", "set", "referer_hash*"], Harmless),
    // Settings of the process, and tuning.
    (
        &[
            "user",
            "pid",
            "daemon",
            "master_process",
            "load_module",
            "worker_*",
            "pcre_jit",
            "events",
            "thread_pool",
            "env",
            "lock_file",
            "timer_resolution",
            "multi_accept",
            "use",
            "accept_mutex*",
            "debug_*",
            "ssl_session*",
            "ssl_ciphers",
            "ssl_prefer*",
            "ssl_dhparam",
            "ssl_ecdh*",
            "ssl_stapling*",
            "ssl_buffer*",
            "ssl_early*",
            "ssl_conf*",
            "proxy_ssl_session*",
            "proxy_ssl_ciphers",
            "proxy_ssl_protocols",
            "proxy_buffer*",
            "proxy_busy*",
            "proxy_request_buffering",
            "proxy_max_temp*",
            "proxy_temp*",
            "proxy_send_timeout",
            "proxy_http_version",
            "proxy_headers_hash*",
            "proxy_socket_keepalive",
            "grpc_send_timeout",
            "grpc_buffer*",
            "client_body_buffer*",
            "client_body_temp*",
            "client_body_in*",
            "client_header_buffer*",
            "large_client*",
            "connection_pool*",
            "request_pool*",
            "output_buffers",
            "postpone_output",
            "open_file*",
            "aio*",
            "directio*",
            "reset_timedout*",
            "lingering*",
            "keepalive_*",
            "resolver*",
            "variables_hash*",
        ],
        Harmless,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_class_of_their_effect() {
        for (source, expected_class, lines) in [
            (
                ImportSource::Haproxy,
                Security,
                &[
                    "http-request deny if !internal",
                    "http-request auth unless ok",
                    "http-request return status 403 if x",
                    "http-request redirect scheme https unless { ssl_fc }",
                    "redirect location https://x/",
                    "http-request set-header X-CN %{+Q}[ssl_c_s_dn(cn)]",
                    "http-request del-header X-Auth-User",
                    "tcp-request connection reject if { src_conn_rate gt 9 }",
                    "tcp-request content silent-drop if x",
                    "block if x",
                    "rate-limit sessions 9",
                    "bind … interface eth1",
                ][..],
            ),
            (
                ImportSource::Haproxy,
                Changed,
                &[
                    "http-request return status 200",
                    "http-request set-header A b",
                    "redirect prefix http://x",
                    "use_backend b if x",
                    "http-request del-header Proxy",
                    "block … weight 0",
                    "of-a-later-version 7",
                ],
            ),
            (
                ImportSource::Haproxy,
                Harmless,
                &["log global", "acl x src 10.0.0.0/8", "tune.bufsize 7", "a … observe layer7"],
            ),
            (
                ImportSource::Nginx,
                Security,
                &[
                    "deny all",
                    "allow 10.0.0.0/8",
                    "auth_basic closed",
                    "auth_request /auth",
                    "limit_req zone=a",
                    "return 444",
                    "return 301 https://$host$request_uri",
                    "rewrite ^ https://$host$uri permanent",
                    "include snippets/internal.conf",
                    "proxy_set_header X-User $remote_user",
                    "proxy_set_header X-Auth ",
                    "internal",
                    "limit_except GET { … }",
                ],
            ),
            (
                ImportSource::Nginx,
                Changed,
                &["return 204", "gzip on", "proxy_set_header A $b", "of_a_later_version 7"],
            ),
            (
                ImportSource::Nginx,
                Harmless,
                &["allow all", "auth_basic off", "access_log off", "limit_req_zone $a zone=b:1m"],
            ),
        ] {
            for line in lines {
                assert_eq!(class(source, line), expected_class, "{line}");
            }
        }
        let is_redirect =
            |line| AccessRule::of(ImportSource::Haproxy, 1, line).map(|rule| rule.is_https_redirect);
        assert_eq!(is_redirect("redirect scheme https if !{ ssl_fc }"), Some(true));
        assert_eq!((is_redirect("block if x"), is_redirect("acl a src ::1")), (Some(false), None));
    }
}
