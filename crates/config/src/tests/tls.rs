//! Mistakes in TLS tables.

use insta::assert_snapshot;

use super::{LEAST, errors, read};

#[test]
fn tls_is_held_against_the_protocol_and_itself() {
    let of = |protocol: &str, tls: &str| {
        let text =
            LEAST.replace("group = \"web\"", &format!("group = \"web\"\nprotocol = \"{protocol}\"\n{tls}"));
        read(&text).map_or_else(|problems| problems.to_string(), |file| file.warnings.to_string())
    };
    let one = "certificates = [{ certificate = \"a.pem\", key = \"a.key\" }]";
    let names =
        "names = [{ name = \"a.example\", group = \"web\" }, { name = \"A.example\", group = \"wed\" }]";
    for (protocol, tls, why) in [
        ("https", String::new(), "an https listener needs a certificate"),
        ("http", format!("tls = {{ {one} }}"), "an http listener does not speak TLS"),
        ("udp", format!("tls = {{ {one} }}"), "tls is not supported for udp"),
        ("https", "tls = { certificates = [] }".into(), "certificates"),
        (
            "https",
            format!("tls = {{ {one}, client_certificate = \"optional\" }}"),
            "has no effect: clients are asked",
        ),
        ("https", format!("tls = {{ {one}, {names} }}"), "a second group for the name a.example"),
        ("https", format!("tls = {{ {one}, {names} }}"), "there is no group named `wed`"),
        ("https", format!("tls = {{ {one}, min_version = \"1.1\" }}"), "1.1"),
    ] {
        let said = of(protocol, &tls);
        assert!(said.contains(why), "{protocol} {tls}: {said}");
    }
    assert_eq!(of("https", &format!("tls = {{ {one} }}")), "");
    assert_eq!(of("tcp", &format!("tls = {{ {one} }}")), "");
}

#[test]
fn members_behind_tls_are_not_believed_for_want_of_a_word() {
    assert_snapshot!(errors(&format!("{LEAST}tls = {{}}\n")), @r#"
    error: plimsoll.toml:7:1: `tls` names no authorities to check members' certificates by
        7 | tls = {}
          | ^^^ add ca = "/etc/ssl/certs/ca-certificates.crt" or your own; verify = false believes anybody
    1 error
    "#);
    errors(&format!("{LEAST}tls = {{ verify = true }}\n"));
    assert!(read(&format!("{LEAST}tls = {{ verify = false }}\n")).is_ok());
    assert!(read(&format!("{LEAST}tls = {{ ca = \"/etc/ssl/certs/ca-certificates.crt\" }}\n")).is_ok());
}
