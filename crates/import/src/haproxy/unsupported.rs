//! HAProxy's words: those that are read, those without effect on traffic by themselves, and the reasons for
//! the others.

use super::super::value;
use super::{NO_RULES, UNIT};

/// The keys that count once in a section and are looked up later.
pub(super) const SINGLE_KEYS: [&str; 12] = [
    "mode",
    "balance",
    "retries",
    "maxconn",
    "default_backend",
    "cookie",
    "fullconn",
    "hash-type",
    "hash-balance-factor",
    "backlog",
    "disabled",
    "source",
];

/// The options for kinds of checks, of which the last one counts.
pub(super) const CHECKS: [&str; 9] = [
    "httpchk",
    "tcp-check",
    "mysql-check",
    "pgsql-check",
    "redis-check",
    "smtpchk",
    "ldap-check",
    "ssl-hello-chk",
    "external-check",
];

/// The options that are read.
pub(super) const OPTIONS: [&str; 6] =
    ["forwardfor", "httpchk", "tcp-check", "httpclose", "http-server-close", "forceclose"];

/// Words of sections without effect on traffic by themselves.
pub(in super::super) const HARMLESS: [&str; 3] = ["description", "id", "enabled"];

/// Options without effect on traffic: logs and counts, settings of the kernel, and those that always hold
/// here.
pub(in super::super) const HARMLESS_OPTIONS: [&str; 8] = [
    "dontlognull",
    "contstats",
    "clitcpka",
    "srvtcpka",
    "tcp-smart-accept",
    "tcp-smart-connect",
    // A request that is tried again goes to another member.
    "redispatch",
    // The option is HAProxy's default, and Plimsoll's behaviour.
    "http-keep-alive",
];

/// Options without effect when they are taken back: Plimsoll does not do these things.
pub(super) const ABSENT_OPTIONS: [&str; 11] = [
    "forwardfor",
    "httpchk",
    "tcp-check",
    "httpclose",
    "http-server-close",
    "forceclose",
    "dontlognull",
    "httplog",
    "tcplog",
    "contstats",
    "prefer-last-server",
];

/// Words of `global` without effect on traffic.
pub(in super::super) const HARMLESS_GLOBALS: [&str; 2] = ["description", "node"];

/// Returns the reason for words of `global` that are set elsewhere here.
pub(super) fn process_reason(word: &str) -> &'static str {
    match word {
        "log" => {
            "write [access_log] for a line of JSON per request; the log of the process goes to standard error"
        }
        "stats" => "plimsoll top, status and metrics are always there: [admin] says where",
        "user" | "group" | "uid" | "gid" => "the unit of systemd says as whom it runs",
        "chroot" => "the unit of systemd shuts it in",
        "daemon" => "it stays in the foreground, for systemd",
        "master-worker" => "it is one process, which reloads without a master",
        "pidfile" => "systemd knows its number",
        "nbproc" => "it is one process",
        "cpu-map" => "threads are pinned to cores",
        "ulimit-n" => "the limit on open files is raised as far as it goes",
        "hard-stop-after" => "that is drain_deadline",
        word if word.starts_with("ssl-") => "ciphers and options of TLS are not set one by one here",
        word if word.starts_with("tune.") => "there is nothing to tune",
        _ => NOTHING,
    }
}

/// Returns the reason for options that are not carried over.
pub(super) fn option_reason(name: &str) -> &'static str {
    match name {
        "httplog" | "tcplog" | "httpslog" | "logasap" => LOG,
        "log-health-checks" => "every change of health is an event: plimsoll events",
        "abortonclose" => "a client that has left is not waited for, whatever its request has come to",
        name if CHECKS.contains(&name) => "checks connect (tcp), or ask for a path (http): this one connects",
        "allbackups" => "spares get work one after the other",
        "prefer-last-server" => "each request is given to a member anew",
        _ => "there is no such option here",
    }
}

const LOG: &str = "write [access_log] for a line of JSON per request";

/// Returns the reason for words of sections that are neither kept nor without effect.
pub(super) fn proxy_reason(word: &str) -> &'static str {
    match word {
        "log" | "log-format" | "log-tag" | "log-format-sd" | "unique-id-format" | "unique-id-header"
        | "error-log-format" => LOG,
        "stats" => process_reason("stats"),
        "stick-table" => "there are no tables",
        "dispatch" => "write it as a server",
        "option" | "no" | "acl" | "timeout" => "it is not complete, or there is no such word",
        "http-request"
        | "http-response"
        | "http-after-response"
        | "tcp-request"
        | "tcp-response"
        | "redirect"
        | "use-server"
        | "reqrep"
        | "rspadd"
        | "errorfile"
        | "errorfiles"
        | "errorloc"
        | "errorloc302"
        | "errorloc303"
        | "http-error"
        | "capture"
        | "monitor-uri"
        | "compression"
        | "filter"
        | "force-persist"
        | "ignore-persist" => NO_RULES,
        _ => NOTHING,
    }
}

/// Returns `true` for the first word of a line of a section.
pub(super) fn is_known(word: &str) -> bool {
    let supported = [
        "bind",
        "server",
        "server-template",
        "default-server",
        "use_backend",
        "http-check",
        "tcp-check",
        "stick",
        "stats",
        "log",
        "maxconn",
        "daemon",
        "user",
        "group",
    ];
    supported.contains(&word)
        || SINGLE_KEYS.contains(&word)
        || HARMLESS.contains(&word)
        || proxy_reason(word) != NOTHING
        || process_reason(word) != NOTHING
}

/// Returns the reason for lines that are kept, and were not used.
pub(super) fn unused_reason(words: &[&str]) -> &'static str {
    match words {
        ["mode", ..] => "it is read as tcp: there are http and tcp",
        ["source", ..] => "the kernel chooses the address that members see",
        ["hash-type", ..] => "strategies that hash have a hash of their own",
        ["hash-balance-factor", ..] => "nothing that was carried over goes by a hash",
        ["fullconn", ..] => "max_connections of a member is a fixed number",
        ["cookie", ..] => "no server of http that was carried over has a value of it",
        ["acl", ..] => NO_RULES,
        ["option", "httpchk" | "tcp-check", ..] | ["http-check" | "tcp-check", ..] => {
            "no server that was carried over is checked"
        }
        ["timeout", _, time, ..] if value::time(time, UNIT).is_none() => "it is no length of time",
        ["timeout", "tunnel", ..] => "it is of the listener here: timeouts.tunnel, or idle for tcp",
        ["timeout", "server", ..] => {
            "sessions of tcp end after timeouts.idle of their listener: as timeout tunnel or client says"
        }
        ["timeout", "server-fin" | "client-fin", ..] => {
            "what is half closed ends as the rest does, by timeouts.idle"
        }
        ["timeout", ..] => "nothing that was carried over has such a time",
        _ => "nothing that was carried over has it",
    }
}

/// Parameters of `server` without effect on traffic by themselves, and those of them that have a value.
pub(in super::super) const HARMLESS_OF_SERVER: [&str; 9] = [
    "no-check-ssl",
    "no-check-send-proxy",
    "no-agent-check",
    "no-tfo",
    "tfo",
    "stick",
    "ssl-reuse",
    "tls-tickets",
    "no-tls-tickets",
];

/// Parameters of `server` with a value that are not carried over, with their reasons.
pub(super) const SERVER_VALUES: [(&str, &str); 48] = [
    ("maxqueue", "how many wait is bounded for the group: queue"),
    ("minconn", "max_connections of a member is a fixed number"),
    ("port", "checks go to the member's own port"),
    ("addr", "checks go to the member's own address"),
    ("check-sni", "checks ask by the name that traffic asks by"),
    ("check-alpn", "checks speak what traffic speaks"),
    ("check-proto", "checks speak what traffic speaks"),
    ("resolvers", FOLLOW),
    ("resolve-prefer", "the first IPv4 address is taken"),
    ("resolve-net", FOLLOW),
    ("resolve-opts", FOLLOW),
    ("init-addr", "a member whose name cannot be looked up is down until it can be"),
    ("observe", FAILURES),
    ("on-error", FAILURES),
    ("error-limit", FAILURES),
    ("on-marked-down", "sessions end by themselves, or by binding = \"on_demand\""),
    ("on-marked-up", "sessions of spares end by themselves"),
    ("source", "the kernel chooses the address that members see"),
    ("track", "each group checks its members itself"),
    ("fastinter", "checks go on at their pace, whatever they find"),
    ("downinter", "checks go on at their pace, whatever they find"),
    ("agent-inter", REPORT),
    ("agent-port", REPORT),
    ("agent-addr", REPORT),
    ("agent-send", REPORT),
    ("pool-max-conn", "how many idle connections are kept is of the group: max_idle_connections"),
    ("pool-low-conn", "how many idle connections are kept is of the group: max_idle_connections"),
    ("pool-purge-delay", "how long idle connections are kept is of the group: pool_idle_timeout"),
    ("max-reuse", "how many idle connections are kept is of the group: max_idle_connections"),
    ("crl-file", "certificates that were revoked are not told from others"),
    ("ciphers", OPTIONS_OF_TLS),
    ("ciphersuites", OPTIONS_OF_TLS),
    ("curves", OPTIONS_OF_TLS),
    ("sigalgs", OPTIONS_OF_TLS),
    ("client-sigalgs", OPTIONS_OF_TLS),
    ("npn", OPTIONS_OF_TLS),
    ("ssl-min-ver", "1.2 and 1.3 are spoken: min_version in tls"),
    ("ssl-max-ver", "1.2 and 1.3 are spoken"),
    ("proxy-v2-options", "the header has addresses, and nothing more"),
    ("set-proxy-v2-tlv-fmt", "the header has addresses, and nothing more"),
    ("redir", NO_RULES),
    ("log-proto", NOTHING),
    ("namespace", NOTHING),
    ("shard", NOTHING),
    ("socks4", NOTHING),
    ("tcp-ut", NOTHING),
    ("usesrc", "the kernel chooses the address that members see"),
    ("ws", "a WebSocket goes as its request does"),
];

/// Parameters of `server` without a value that are not carried over.
pub(super) const SERVER_FLAGS: [(&str, &str); 14] = [
    ("agent-check", REPORT),
    ("check-send-proxy", "checks send a PROXY header if traffic does"),
    ("check-via-socks4", NOTHING),
    ("non-stick", "strategies that hash take every member"),
    ("allow-0rtt", "early data is not sent"),
    ("no-ssl-reuse", "sessions of TLS are resumed"),
    ("force-sslv3", VERSIONS),
    ("force-tlsv10", VERSIONS),
    ("force-tlsv11", VERSIONS),
    ("force-tlsv12", VERSIONS),
    ("force-tlsv13", "1.2 and 1.3 are spoken: min_version in tls"),
    ("no-tlsv12", "1.2 and 1.3 are spoken: min_version in tls"),
    ("no-tlsv13", VERSIONS),
    ("send-proxy-v2-ssl-cn", "the header has addresses, and nothing more"),
];

const NOTHING: &str = "there is nothing like it here";
const VERSIONS: &str = "1.2 and 1.3 are spoken";
const FAILURES: &str = "failures of traffic always count ([group.outlier])";
const REPORT: &str = "members report their load by plimsoll agent, or in answers";
const OPTIONS_OF_TLS: &str = "ciphers and options of TLS are not set one by one here";
const FOLLOW: &str =
    "names are looked up every 30 s; write discover = [{ dns = \"name:port\" }] for a member at each address";

/// Parameters of `bind` without effect on traffic by themselves.
pub(in super::super) const HARMLESS_OF_BIND: [&str; 6] =
    ["v4v6", "defer-accept", "tfo", "no-sslv3", "no-tlsv10", "no-tlsv11"];

/// Parameters of `bind` with a value and without effect.
pub(in super::super) const HARMLESS_VALUES_OF_BIND: [&str; 3] = ["name", "id", "npn"];

/// Parameters of `bind` without a value that are not carried over.
pub(super) const BIND_FLAGS: [&str; 15] = [
    "allow-0rtt",
    "force-sslv3",
    "force-tlsv10",
    "force-tlsv11",
    "force-tlsv12",
    "generate-certificates",
    "no-alpn",
    "no-ca-names",
    "no-tls-tickets",
    "no-tlsv13",
    "prefer-client-ciphers",
    "strict-sni",
    "tls-tickets",
    "transparent",
    "v6only",
];
