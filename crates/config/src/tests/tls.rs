//! Mistakes in TLS tables.

use insta::assert_snapshot;

use super::{MINIMAL, errors, read};

#[test]
fn tls_is_held_against_the_protocol_and_itself() {
    let result_of = |protocol: &str, tls: &str| {
        let text =
            MINIMAL.replace("group = \"web\"", &format!("group = \"web\"\nprotocol = \"{protocol}\"\n{tls}"));
        read(&text).map_or_else(|problems| problems.to_string(), |file| file.warnings.to_string())
    };
    let certificate_toml = "certificates = [{ certificate = \"a.pem\", key = \"a.key\" }]";
    let names =
        "names = [{ name = \"a.example\", group = \"web\" }, { name = \"A.example\", group = \"wed\" }]";
    for (protocol, tls, expected) in [
        ("https", String::new(), "an https listener needs a certificate"),
        ("http", format!("tls = {{ {certificate_toml} }}"), "an http listener does not speak TLS"),
        ("udp", format!("tls = {{ {certificate_toml} }}"), "tls is not supported for udp"),
        ("https", "tls = { certificates = [] }".into(), "certificates"),
        (
            "https",
            format!("tls = {{ {certificate_toml}, client_certificate = \"optional\" }}"),
            "has no effect: clients are asked",
        ),
        (
            "https",
            format!("tls = {{ {certificate_toml}, {names} }}"),
            "a second group for the name a.example",
        ),
        ("https", format!("tls = {{ {certificate_toml}, {names} }}"), "there is no group named `wed`"),
        ("https", format!("tls = {{ {certificate_toml}, min_version = \"1.1\" }}"), "1.1"),
    ] {
        let outcome = result_of(protocol, &tls);
        assert!(outcome.contains(expected), "{protocol} {tls}: {outcome}");
    }
    assert_eq!(result_of("https", &format!("tls = {{ {certificate_toml} }}")), "");
    assert_eq!(result_of("tcp", &format!("tls = {{ {certificate_toml} }}")), "");
}

#[test]
fn members_behind_tls_are_not_believed_for_want_of_a_word() {
    assert_snapshot!(errors(&format!("{MINIMAL}tls = {{}}\n")), @r#"
    error: plimsoll.toml:7:1: `tls` names no authorities to check members' certificates by
        7 | tls = {}
          | ^^^ add ca = "/etc/ssl/certs/ca-certificates.crt" or your own; verify = false believes anybody
    1 error
    "#);
    errors(&format!("{MINIMAL}tls = {{ verify = true }}\n"));
    assert!(read(&format!("{MINIMAL}tls = {{ verify = false }}\n")).is_ok());
    assert!(read(&format!("{MINIMAL}tls = {{ ca = \"/etc/ssl/certs/ca-certificates.crt\" }}\n")).is_ok());
}
