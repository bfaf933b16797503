//! Tests of rejected and of forwarded requests.

use super::*;

const PLAIN: ForwardingOptions<'_> = ForwardingOptions {
    style: ForwardedStyle::XForwarded,
    trusted: false,
    client: "192.0.2.7",
    plain: b"X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: http\r\n",
    scheme: "http",
};

#[test]
fn lines_of_other_protocols_are_known() {
    for line in [
        "INVALID CONNECTION PREFACE\r\n\r\n",
        "OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n",
        "INVITE sip:a@b SIP/2.0\r\n",
    ] {
        assert!(is_foreign_protocol(line.as_bytes()) && refused(line.as_bytes()).status() == 400, "{line}");
    }
    for line in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / http/1.1\r\n\r\n",
        "GET / HTTPS/1.1\r\n\r\n",
        "GET / a HTTP/1.1\r\n\r\n",
        "GET /\r\n\r\n",
        "GET /  \r\n\r\n",
        "INVALID CONNECTION PREFACE\n",
        "INVALID CONNECTION PREFACE",
        "\x16\x03\x01 a b\r\n",
        "",
    ] {
        assert!(!is_foreign_protocol(line.as_bytes()), "{line}");
    }
}

#[test]
fn the_plain_fields_are_what_a_connection_gives() {
    assert_eq!(x_forwarded(PLAIN.client, PLAIN.scheme), PLAIN.plain);
}

fn rewritten(input: &str, forwarding: &ForwardingOptions<'_>) -> String {
    let mut marks = MarkedFields::new();
    let request = request(input.as_bytes(), 8192, &mut marks).expect("accepted");
    let mut out = Vec::new();
    request.write(forwarding, &mut out);
    String::from_utf8(out).expect("text")
}

fn refused(input: &[u8]) -> RequestRejection {
    let mut marks = MarkedFields::new();
    match request(input, 8192, &mut marks) {
        Err(HeadError::Invalid(refusal)) => refusal,
        other => panic!("{:?} was not refused: {other:?}", String::from_utf8_lossy(input)),
    }
}

#[test]
fn a_plain_request_gains_only_who_the_client_is() {
    assert_eq!(
        rewritten("GET /a?b HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n", &PLAIN),
        "GET /a?b HTTP/1.1\r\nHost: x\r\nAccept: */*\r\nX-Forwarded-For: 192.0.2.7\r\n\
         X-Forwarded-Proto: http\r\nX-Forwarded-Host: x\r\n\r\n"
    );
}

#[test]
fn hop_by_hop_fields_stay_behind() {
    let input = "GET / HTTP/1.1\r\nConnection: x-mine, close, host\r\nHost: x\r\nX-Mine: 1\r\nKeep-Alive: \
                 5\r\n\
                 TE: trailers\r\nProxy-Connection: y\r\nAccept: z\r\nUpgrade: h2c\r\nHTTP2-Settings: \
                 AAM\r\n\r\n";
    let options = ForwardingOptions { style: ForwardedStyle::Off, ..PLAIN };
    assert_eq!(rewritten(input, &options), "GET / HTTP/1.1\r\nHost: x\r\nAccept: z\r\n\r\n");
}

#[test]
fn a_list_of_what_concerns_one_hop_has_an_end() {
    let parse_naming = |names: usize, empty: usize| {
        let list = (0..names).map(|nth| format!("x-{nth}, ")).collect::<String>() + &",".repeat(empty);
        let input = format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: {list}\r\nX-31: y\r\n\r\n");
        request(input.as_bytes(), 64 * 1024, &mut MarkedFields::new()).map(|_| ())
    };
    assert_eq!(parse_naming(32, 0), Ok(()));
    assert_eq!(parse_naming(33, 0), Err(HeadError::Invalid(RequestRejection::HeadTooLarge)));
    // These name no fields.
    assert_eq!(parse_naming(32, 30_000), Ok(()));
}

#[test]
fn who_names_no_host_is_passed_on_as_http_1_0() {
    let options = ForwardingOptions { style: ForwardedStyle::Off, ..PLAIN };
    assert_eq!(rewritten("GET / HTTP/1.0\r\n\r\n", &options), "GET / HTTP/1.0\r\n\r\n");
    let with_host = "GET / HTTP/1.0\r\nHost: x\r\n\r\n";
    assert_eq!(rewritten(with_host, &options), "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
}

#[test]
fn a_websocket_upgrade_is_passed_on() {
    let input =
        "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let options = ForwardingOptions { style: ForwardedStyle::Off, ..PLAIN };
    assert_eq!(
        rewritten(input, &options),
        "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
}

#[test]
fn an_absolute_target_becomes_origin_form_and_host() {
    let options = ForwardingOptions { style: ForwardedStyle::Off, ..PLAIN };
    let input = "GET http://real:81/p?q HTTP/1.1\r\nHost: other\r\n\r\n";
    assert_eq!(rewritten(input, &options), "GET /p?q HTTP/1.1\r\nHost: real:81\r\n\r\n");
    let input = "GET http://real?q HTTP/1.1\r\nHost: other\r\n\r\n";
    assert_eq!(rewritten(input, &options), "GET /?q HTTP/1.1\r\nHost: real\r\n\r\n");
}

#[test]
fn what_a_server_as_a_whole_is_asked_has_a_target_of_its_own() {
    let options = ForwardingOptions { style: ForwardedStyle::Off, ..PLAIN };
    for (target, line) in [
        ("http://h", "OPTIONS * HTTP/1.1\r\nHost: h"),
        ("http://h:81", "OPTIONS * HTTP/1.1\r\nHost: h:81"),
        ("http://h/", "OPTIONS / HTTP/1.1\r\nHost: h"),
        ("http://h?q", "OPTIONS /?q HTTP/1.1\r\nHost: h"),
        ("*", "OPTIONS * HTTP/1.1\r\nHost: x"),
    ] {
        let input = format!("OPTIONS {target} HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(rewritten(&input, &options), format!("{line}\r\n\r\n"), "{target}");
    }
}

#[test]
fn versions_above_1_1_are_taken_for_it() {
    let options = ForwardingOptions { style: ForwardedStyle::Off, ..PLAIN };
    for version in ["HTTP/1.2", "HTTP/1.9"] {
        let input = format!("GET /a {version}\r\nHost: x\r\nA: b\r\n\r\n");
        assert_eq!(rewritten(&input, &options), "GET /a HTTP/1.1\r\nHost: x\r\nA: b\r\n\r\n");
        assert_eq!(refused(format!("GET /a {version}\r\n\r\n").as_bytes()).status(), 400);
    }
}

#[test]
fn an_expectation_that_is_unknown_and_a_target_that_is_too_long_have_their_own_status() {
    assert_eq!(refused(b"GET / HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n").status(), 417);
    let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(9000));
    assert_eq!(refused(long.as_bytes()).status(), 414);
    assert_eq!(refused(format!("\r\n{long}").as_bytes()).status(), 414);
}

#[test]
fn framing_cannot_be_said_with_underscores() {
    let input = "POST / HTTP/1.1\r\nHost: x\r\nContent_Length: 9\r\ncontent_LENGTH: 8\r\nTransfer_Encoding: \
                 chunked\r\n\
                 TRANSFER_ENCODING: x\r\nContent_Lengths: 1\r\n\r\n";
    let options = ForwardingOptions { style: ForwardedStyle::Off, ..PLAIN };
    assert_eq!(rewritten(input, &options), "POST / HTTP/1.1\r\nHost: x\r\nContent_Lengths: 1\r\n\r\n");
}

#[test]
fn upgrades_are_known_by_the_names_of_all_their_protocols() {
    let upgrades = |value: &str| {
        let input = format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: {value}\r\n\r\n");
        let mut marks = MarkedFields::new();
        let request = request(input.as_bytes(), 8192, &mut marks).expect("accepted");
        request.upgrades_to(|name| name.eq_ignore_ascii_case(b"websocket"))
    };
    assert!(upgrades("websocket") && upgrades("WebSocket/13") && upgrades("websocket, WEBSOCKET"));
    assert!(
        !upgrades("TLS/1.0")
            && !upgrades("websocket, TLS/1.0")
            && !upgrades("h2c")
            && !upgrades("")
            && !upgrades("websocket, h2c")
    );
}

#[test]
fn who_the_client_is_cannot_be_said_with_underscores() {
    let fields = "X_Forwarded_For: 10.0.0.1\r\nx-forwarded_proto: https\r\nX_FORWARDED-HOST: y\r\n";
    let others = "X_Forwarded_Fox: 1\r\nAccept_Encoding: br\r\nx_forwarded: 2\r\n";
    let input = format!("GET / HTTP/1.1\r\nHost: x\r\n{fields}{others}\r\n");
    assert_eq!(
        rewritten(&input, &PLAIN),
        format!(
            "GET / HTTP/1.1\r\nHost: x\r\n{others}X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: http\r\n\
             X-Forwarded-Host: x\r\n\r\n"
        )
    );
}

#[test]
fn forwarding_fields_of_strangers_are_dropped_and_those_of_friends_kept() {
    let input = "GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: https\r\n\
                 X-Forwarded-For: 10.0.0.2\r\n\r\n";
    assert!(
        rewritten(input, &PLAIN).contains("\r\nX-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: http\r\n")
    );
    assert!(!rewritten(input, &PLAIN).contains("10.0.0.1"));
    let trusted = ForwardingOptions { trusted: true, ..PLAIN };
    assert!(rewritten(input, &trusted).contains(
        "\r\nX-Forwarded-For: 10.0.0.1, 10.0.0.2, 192.0.2.7\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: \
         x\r\n"
    ));
    let rfc7239 = ForwardingOptions { style: ForwardedStyle::Rfc7239, client: "2001:db8::1", ..PLAIN };
    assert!(
        rewritten("GET / HTTP/1.1\r\nHost: x\r\n\r\n", &rfc7239)
            .contains("\r\nForwarded: for=\"[2001:db8::1]\";host=\"x\";proto=http\r\n")
    );
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    for bad in [
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length:03\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x3\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: \r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n",
        "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n",
        "GET / HTTP/1.1\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n\n",
        "GET / HTTP/1.1\r\nHost: x\n\n",
        "\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x, y\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /\r\nHost: x\r\n\r\n",
        "GET nonsense HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET http:// HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET http:///x HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET http://:80/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET http://:h/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET http://h:abc/x HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET http://[::1/x HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET http://e]x/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET http://a@h/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET http://h#b/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /# HTTP/1.1\r\nHost: x\r\n\r\n",
        "OPTIONS *#b HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a:x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a:80:80\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a%\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: :80\r\n\r\n",
        // Their senders wait for a response and send no more.
        "GET / \r\n\r\n",
        "GET / \r",
        "GET / HTTP/1\r\n",
        "GET /\r\n",
        "GET / HTTP/1.1\r\n: x\r\nHost: x\r\n\r\n",
    ] {
        assert_eq!(refused(bad.as_bytes()).status(), 400, "{bad:?}");
    }
    for version in ["HTTP/2.0", "HTTP/0.9", "HTTP/3.1"] {
        let head = format!("GET / {version}\r\nHost: x\r\n\r\n");
        assert_eq!(refused(head.as_bytes()), RequestRejection::Version, "{version}");
    }
    for target in ["x:1", "/", "http://x/", "*"] {
        let connect = format!("CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(refused(connect.as_bytes()).status(), 501, "{target}");
    }
    let gzip = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n";
    assert_eq!(refused(gzip).status(), 501);
}

#[test]
fn an_oversized_head_is_refused_without_waiting_for_its_end() {
    let long = format!("\r\nGET / HTTP/1.1\r\nHost: x\r\nA: {}", "b".repeat(9000));
    assert_eq!(refused(long.as_bytes()), RequestRejection::HeadTooLarge);
    let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(200));
    assert_eq!(refused(many.as_bytes()), RequestRejection::HeadTooLarge);
}

#[test]
fn every_prefix_is_incomplete() {
    let head = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n";
    for end in 0..head.len() {
        let error = request(&head[..end], 8192, &mut MarkedFields::new()).expect_err("too short");
        assert_eq!(error, HeadError::Partial, "at {end}");
    }
    assert!(request(head, 8192, &mut MarkedFields::new()).is_ok());
}

#[test]
fn who_keeps_the_connection() {
    let keeps_alive =
        |head: &str| request(head.as_bytes(), 8192, &mut MarkedFields::new()).expect("accepted").keep_alive;
    assert!(keeps_alive("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
    assert!(!keeps_alive("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
    assert!(!keeps_alive("GET / HTTP/1.0\r\n\r\n"));
    assert!(keeps_alive("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"));
}
