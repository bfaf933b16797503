//! The forwarding headers that members receive, and the headers that are removed.

use crate::stage::{Balancer, Member, Nginx, Wire, get, listening, web};

/// Returns the request that the member received.
fn seen(balancer: &Balancer, fields: &str) -> String {
    let mut client = Wire::connect(balancer.address());
    client.send(format!("GET /path?q HTTP/1.1\r\nHost: shop.example\r\n{fields}\r\n"));
    client.answer().unwrap().text()
}

const LIES: &str =
    "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: lie.example\r\n";

/// The same for servers that make variables of fields.
const DISGUISED: &str =
    "X_Forwarded_For: 192.0.2.1\r\nX-Forwarded_Proto: https\r\nx_forwarded-host: lie.example\r\n";

#[test]
fn members_learn_who_the_client_is() {
    let member = Member::start(&["--echo", "http"]);
    let balancer = Balancer::start(&web(&[member.address], ""));
    let request = seen(&balancer, "");
    assert!(request.starts_with("GET /path?q HTTP/1.1\r\nHost: shop.example\r\n"), "{request}");
    let said =
        "\r\nX-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: shop.example\r\n";
    assert!(request.contains(said), "{request}");
    for lies in [LIES, DISGUISED] {
        let request = seen(&balancer, lies);
        assert!(
            request.contains(said) && !request.contains("192.0.2.1") && !request.contains("lie"),
            "{request}"
        );
    }
}

#[test]
fn what_concerns_one_hop_stays_behind() {
    let member = Member::start(&["--echo", "http"]);
    let balancer = Balancer::start(&web(&[member.address], ""));
    let request = seen(
        &balancer,
        "Connection: keep-alive, X-Secret\r\nX-Secret: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: \
         close\r\n\
         TE: trailers\r\nX-Kept: 1\r\n",
    );
    assert!(request.contains("\r\nX-Kept: 1\r\n"), "{request}");
    for gone in ["X-Secret", "Keep-Alive", "Proxy-Connection", "TE:"] {
        assert!(!request.contains(gone), "{gone} in {request}");
    }
}

#[test]
fn the_standard_field_can_be_had_instead_or_none() {
    let member = Member::start(&["--echo", "http"]);
    let with =
        |style: &str| Balancer::start(&listening(&format!("forwarded = \"{style}\""), &[member.address], ""));
    let request = seen(&with("forwarded"), "Forwarded: for=192.0.2.1\r\n");
    assert!(
        request.contains("\r\nForwarded: for=127.0.0.1;host=\"shop.example\";proto=http\r\n"),
        "{request}"
    );
    assert!(!request.contains("192.0.2.1"), "{request}");
    let request = seen(&with("off"), LIES);
    assert!(request.contains(LIES) && !request.contains("127.0.0.1"), "{request}");
}

#[test]
fn a_trusted_peer_in_front_is_believed() {
    let member = Member::start(&["--echo", "http"]);
    let trusting = listening("trusted = [\"127.0.0.0/8\"]", &[member.address], "");
    let balancer = Balancer::start(&trusting);
    let nginx = Nginx::start(|address| {
        format!(
            "http {{ access_log off; client_body_temp_path temp; proxy_temp_path temp;\n\
             upstream plimsoll {{ server {}; keepalive 8; }}\n\
             server {{ listen {address}; location / {{ proxy_pass http://plimsoll; proxy_http_version 1.1;\n\
             proxy_set_header Connection \"\"; proxy_set_header Host $host;\n\
             proxy_set_header X-Forwarded-For 192.0.2.7; proxy_set_header X-Forwarded-Proto https; }} }} }}",
            balancer.address()
        )
    });
    for _ in 0..20 {
        let request = get(nginx.address, "/").text();
        assert!(request.contains("\r\nX-Forwarded-For: 192.0.2.7, 127.0.0.1\r\n"), "{request}");
        assert!(request.contains("\r\nX-Forwarded-Proto: https\r\n"), "{request}");
    }
    let status = balancer.status();
    assert!(status["listeners"][0]["accepted"].as_u64() < Some(10), "nginx's connections are kept: {status}");
}
