//! The published examples start and serve, with real members where they name some.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::stage::{Answer, Balancer, Folder, Member, Wire, free_port, get, until};

fn example(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// Starts an example with members of this kind in place of those that it names. Its ports become free ones,
/// and the system's folder becomes one of the test.
fn start(name: &str, kind: &[&str], listeners: &[u16]) -> (Balancer, Vec<Member>) {
    let folder = Folder::new();
    let mut text = example(name);
    let admin = text.find("[admin]").map(|start| start..start + text[start..].find("\n\n").unwrap());
    if let Some(admin) = admin {
        // The test balancer has its own admin section.
        text.replace_range(admin, "");
    }
    text = text.replace("/var/log/plimsoll/access.log", folder.join("access.log").to_str().unwrap());
    let mut ports: BTreeMap<u16, u16> = BTreeMap::new();
    for port in listeners {
        let free = *ports.entry(*port).or_insert_with(free_port);
        text = text.replace(&format!("127.0.0.1:{port}\"\n"), &format!("127.0.0.1:{free}\"\n"));
    }
    let mut members = Vec::new();
    for port in [9001, 9002, 9003, 54321, 54322, 5301, 5302] {
        let named = format!("\"127.0.0.1:{port}\"");
        if text.contains(&named) {
            let member = Member::start(kind);
            text = text.replace(&named, &format!("\"{}\"", member.address));
            members.push(member);
        }
    }
    (Balancer::start_in(folder, &text), members)
}

#[test]
fn every_example_is_tested_here() {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".toml"))
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["corba.toml", "http.toml", "routing.toml", "sticky.toml", "tcp.toml", "udp.toml", "weighted.toml"]
    );
}

/// Sends GETs until every member has answered.
#[track_caller]
fn serves(balancer: &Balancer, members: usize) {
    let mut seen = BTreeMap::new();
    until(&format!("all {members} members serve"), || {
        let answer = get(balancer.address(), "/");
        if let Some(name) = answer.field("x-member") {
            seen.insert(name.to_owned(), ());
        }
        seen.len() == members
    });
}

#[test]
fn http() {
    let (balancer, members) = start("http.toml", &[], &[8080]);
    assert_eq!(members.len(), 3);
    serves(&balancer, 3);
}

#[test]
fn routing() {
    let (balancer, members) = start("routing.toml", &[], &[8080]);
    assert_eq!(members.len(), 3);
    let mut client = Wire::connect(balancer.address());
    let mut ask = |host: &str, path: &str| {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        client.answer().unwrap()
    };
    let member = |answer: &Answer| answer.field("x-member").unwrap_or_default().to_owned();
    assert_eq!(member(&ask("www.example.org", "/")), members[0].address.to_string());
    assert_eq!(member(&ask("shop.example.org", "/")), members[1].address.to_string());
    let canary =
        (0..40).filter(|_| member(&ask("shop.example.org", "/api/orders")) == members[2].address.to_string());
    assert!((1..=3).contains(&canary.count()));
    let moved = ask("example.org", "/a?b");
    assert_eq!((moved.status, moved.field("location")), (301, Some("http://www.example.org/a?b")));
    assert_eq!(ask("shop.example.org", "/internal/x").status, 403);
    assert_eq!(ask("shop.example.org", "/healthz").text(), "ok\n");
    assert_eq!(ask("other.example.org", "/").reason(), Some("no_route"));
}

#[test]
fn weighted() {
    let (balancer, members) = start("weighted.toml", &[], &[8080]);
    assert_eq!(members.len(), 3);
    serves(&balancer, 3);
    let group = balancer.group("app");
    let capacities: Vec<_> = group["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|member| member["capacity"].as_f64().unwrap())
        .collect();
    assert_eq!(capacities, [4.0, 2.0, 1.0]);
}

#[test]
fn sticky() {
    let (balancer, members) = start("sticky.toml", &[], &[8080]);
    assert_eq!(members.len(), 3);
    until("all members up", || {
        let group = balancer.group("sessions");
        group["members"].as_array().unwrap().iter().all(|member| member["state"] != "unchecked")
    });
    // One after the other: concurrent requests of a user may exceed the bound of one member.
    let mut client = Wire::connect(balancer.address());
    let mut ask = |user: usize| {
        client.send(format!("GET / HTTP/1.1\r\nHost: x\r\nX-User: {user}\r\n\r\n"));
        client.answer().unwrap().field("x-member").unwrap().to_owned()
    };
    let first: Vec<String> = (0..30).map(&mut ask).collect();
    let again: Vec<String> = (0..30).map(ask).collect();
    assert_eq!(first, again, "each user stays");
    assert!(members.iter().all(|member| first.contains(&member.address.to_string())), "{first:?}");
}

#[test]
fn tcp() {
    // The balancer first sends the client's address to its members, and an echo returns it.
    let (balancer, members) = start("tcp.toml", &["--echo", "tcp"], &[5432]);
    assert_eq!(members.len(), 2);
    until("the database is up", || balancer.group("database")["members"][0]["state"] == "up");
    let mut client = Wire::connect(balancer.address());
    client.send("hello");
    let echo = client.exactly(16 + 12 + 5).unwrap();
    assert!(echo.starts_with(b"\r\n\r\n\0\r\nQUIT\n") && echo.ends_with(b"hello"), "{echo:?}");
    assert_eq!(balancer.group("database")["members"][1]["requests"], 0, "the spare is spare");
}

#[test]
fn udp() {
    // Members that answer on both transports at one port, as name servers do.
    let (balancer, members) = start("udp.toml", &["--echo", "tcp"], &[5353]);
    let datagrams: Vec<UdpSocket> =
        members.iter().map(|member| UdpSocket::bind(member.address).unwrap()).collect();
    for socket in datagrams {
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((length, client)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..length], client);
            }
        });
    }
    until("both are up", || {
        let group = balancer.group("resolvers");
        group["members"].as_array().unwrap().iter().all(|member| member["state"] == "up")
    });
    assert_eq!(balancer.addresses()[0], balancer.addresses()[1], "one port, two transports");
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(balancer.address()).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut buffer = [0; 16];
    until("an answer", || {
        client.send(b"where?").unwrap();
        client.recv(&mut buffer).is_ok_and(|length| &buffer[..length] == b"where?")
    });
    let mut client = Wire::connect(balancer.addresses()[1]);
    client.send("where?");
    assert_eq!(client.exactly(6).unwrap(), b"where?");
}

#[test]
fn corba() {
    let (balancer, members) = start("corba.toml", &["--iiop"], &[2809]);
    assert_eq!(members.len(), 2);
    until("both have their object", || {
        let group = balancer.group("primes");
        group["members"].as_array().unwrap().iter().all(|member| member["state"] == "up")
    });
    let shown = balancer.run(&["ior", "show", "--group", "primes", "-o", "corbaloc"]);
    let reference = shown.out.trim();
    assert!(reference.ends_with("/primes"), "{reference} {}", shown.err);
    let patient = ["--timeout", "60s", "--connect-timeout", "60s"];
    let load = ["load", reference, "--rate", "200", "--duration", "1s", "-o", "json"];
    let load = balancer.run(&[&load[..], &patient].concat());
    let json: serde_json::Value = serde_json::from_str(&load.out).unwrap();
    // The verdict is ignored: it depends on the load of the machine.
    let (due, failed) = (json["due"].as_u64().unwrap(), json["failed"].as_object().unwrap());
    // 200 are due by a random schedule; 100 is seven standard deviations below.
    assert!(due > 100 && failed.is_empty() && json["forwarded"].as_u64().unwrap() > 0, "{json}");
}
