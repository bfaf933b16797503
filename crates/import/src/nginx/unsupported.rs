//! NGINX's directives: those that are read, those without effect on traffic by themselves, and the reasons
//! for the others.

use super::tokenizer::NginxDirective;

/// Directives without effect on traffic: settings of the kernel, of files and of NGINX's own tables.
pub(in super::super) const HARMLESS: [&str; 14] = [
    "sendfile",
    "tcp_nopush",
    "tcp_nodelay",
    "types",
    "default_type",
    "types_hash_max_size",
    "types_hash_bucket_size",
    "server_names_hash_max_size",
    "server_names_hash_bucket_size",
    "variables_hash_max_size",
    "variables_hash_bucket_size",
    "proxy_headers_hash_max_size",
    "proxy_headers_hash_bucket_size",
    // Listeners with TLS speak both versions.
    "http2",
];

/// Words of `listen` without effect on traffic; `bind` and those of the kernel.
pub(in super::super) const HARMLESS_OF_LISTEN: [&str; 11] = [
    "http2",
    "reuseport",
    "deferred",
    "bind",
    "fastopen",
    "so_keepalive",
    "rcvbuf",
    "sndbuf",
    "accept_filter",
    "setfib",
    "multipath",
];

/// Returns `true` if a directive has no effect on traffic at its place.
pub(super) fn is_harmless(directive: &NginxDirective) -> bool {
    HARMLESS.contains(&&*directive.name)
        || (directive.name == "include" && directive.first().ends_with("mime.types"))
}

/// The directives that are looked up where they have an effect; the rest of them has none, or cannot be read.
const READ: [&str; 26] = [
    "ssl",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_protocols",
    "ssl_verify_client",
    "ssl_client_certificate",
    "ssl_trusted_certificate",
    "listen",
    "server_name",
    "proxy_pass",
    "grpc_pass",
    "proxy_connect_timeout",
    "grpc_connect_timeout",
    "proxy_read_timeout",
    "grpc_read_timeout",
    "proxy_timeout",
    "proxy_set_header",
    "grpc_set_header",
    "proxy_next_upstream_tries",
    "proxy_ssl_verify",
    "proxy_ssl_trusted_certificate",
    "proxy_ssl_name",
    "proxy_ssl_certificate",
    "proxy_ssl_certificate_key",
    "client_header_timeout",
    "client_body_timeout",
];

/// The beginnings of names, and the reasons why such are not carried over; the first match counts.
const WHY: [(&str, &str); 30] = [
    ("access_log", "write [access_log] for a line of JSON per request"),
    ("log_", "write [access_log] for a line of JSON per request"),
    ("error_log", "the log goes to standard error"),
    ("ssl_crl", "certificates that were revoked are not told from others"),
    ("ssl_reject_handshake", "who asks for a name that is not listed gets the group of the listener"),
    ("proxy_ssl_server_name", "members are asked by their name whenever it is one"),
    ("proxy_send_timeout", "timeouts.idle of a group is for both ways: as proxy_read_timeout has it"),
    ("grpc_send_timeout", "timeouts.idle of a group is for both ways: as grpc_read_timeout has it"),
    ("proxy_http_version", "members are spoken to in HTTP/1.1, or in HTTP/2 (protocol)"),
    ("auth_", "clients show who they are by certificates (client_ca), or to members"),
    ("location", "everything that a listener gets goes to one group: paths are not told apart"),
    ("ssl_session", "sessions of TLS are resumed without being asked"),
    ("ssl_stapling", "name the answer of the authority: ocsp beside the certificate"),
    ("ssl_", "ciphers and options of TLS are not set one by one here"),
    ("proxy_ssl_", "ciphers and options of TLS are not set one by one here"),
    ("proxy_cache", "nothing is cached here"),
    ("proxy_buffer", "bodies are passed on as they come"),
    ("proxy_request_buffering", "bodies are passed on as they come"),
    ("proxy_max_temp_file_size", "bodies are passed on as they come"),
    ("proxy_next_upstream", "requests are tried again where that is safe, within a budget ([group.retry])"),
    ("client_max_body_size", "bodies may have any length"),
    ("client_body", "bodies are passed on as they come"),
    ("large_client_header_buffers", "the bound of a head is max_header_bytes"),
    ("keepalive", "connections of clients end after timeouts.idle"),
    ("gzip", "answers are passed on as they are"),
    ("brotli", "answers are passed on as they are"),
    (
        "resolver",
        "names are looked up every 30 s; write discover = [{ dns = \"name:port\" }] for a member at each \
         address",
    ),
    ("limit_conn", "groups shed what they cannot carry; clients have no limits of their own"),
    ("limit_req", "groups shed what they cannot carry; clients have no limits of their own"),
    ("health_check", "write [group.health]"),
];

/// Returns the reason for a directive without a mark.
pub(super) fn unused_reason(name: &str, streams: bool) -> &'static str {
    if READ.contains(&name) {
        return "nothing that was carried over uses it, or its value cannot be read";
    }
    if let Some((_, reason)) = WHY.iter().find(|(prefix, _)| name.starts_with(prefix)) {
        return reason;
    }
    match name {
        "include" => "other files are not read: give the output of nginx -T",
        "root" | "index" | "try_files" | "autoindex" | "expires" => "files are not served here",
        "ssl_preread" | "map" | "split_clients" | "geo" => "clients are not told apart by what they say",
        "allow" | "deny" => "clients are not told apart by their addresses: a firewall does that",
        _ if streams => "there is nothing like it here",
        _ => "there are no rules on single requests here",
    }
}
