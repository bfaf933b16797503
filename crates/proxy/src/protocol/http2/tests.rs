//! The relay between the two forms of HTTP, without sockets.

use super::is_preface;

#[test]
fn a_connection_of_http_2_is_known_by_its_beginning() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for len in 14..=PREFACE.len() {
        assert!(is_preface(&PREFACE[..len]), "{len}");
    }
    assert!(is_preface(&[PREFACE, b"more"].concat()));
    for other in
        [&b""[..], b"PRI", b"PRI * HTTP/2.1\r\n\r\n", b"GET / HTTP/2.0\r\n\r\n", b"PRI * HTTP/2.0\r\nHost: x"]
    {
        assert!(!is_preface(other));
    }
}
