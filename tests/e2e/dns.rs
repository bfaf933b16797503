//! A group as a domain, queried with dig.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use crate::stage::{Balancer, Folder, Member, Run, free_port, members_list, part, until};

struct Zone {
    balancer: Balancer,
    text: String,
    port: u16,
}

impl Zone {
    #[track_caller]
    fn start(members: &str, rest: &str) -> Self {
        // dig would wait for answers that are dropped.
        Self::limited(0, members, rest)
    }

    #[track_caller]
    fn limited(rate: u32, members: &str, rest: &str) -> Self {
        let port = free_port();
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:{port}\"\nprotocol = \"dns\"\ndomain = \
             \"web.example.\"\nttl = \"1s\"\nanswer_rate = {rate}\ngroup = \"web\"\n\
             [[group]]\nname = \"web\"\nslow_start = \"0s\"\nmembers = {members}\n{rest}"
        );
        Self { balancer: Balancer::start(&text), text, port }
    }

    /// Returns the output of dig.
    #[track_caller]
    fn dig(&self, args: &[&str]) -> String {
        let mut command = Command::new(part("dig"));
        command.args(["-r", "@127.0.0.1", "-p", &self.port.to_string(), "+tries=3", "+time=20"]).args(args);
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn short(&self, args: &[&str]) -> Vec<String> {
        self.dig(&[&["+short"], args].concat()).lines().map(str::to_owned).collect()
    }
}

#[test]
fn dig_is_answered() {
    let zone = Zone::start("[\"127.0.0.1:8080\"]", "");
    assert_eq!(zone.short(&["web.example", "A"]), ["127.0.0.1"]);
    assert_eq!(zone.short(&["+tcp", "WEB.example", "A"]), ["127.0.0.1"]);
    assert_eq!(zone.short(&["_http._tcp.web.example", "SRV"]), ["0 1 8080 127-0-0-1.web.example."]);
    assert_eq!(zone.short(&["127-0-0-1.web.example", "A"]), ["127.0.0.1"]);
    let https = zone.dig(&["web.example", "TYPE65"]);
    assert!(https.contains("ANSWER: 1,") && https.contains("status: NOERROR"), "{https}");
    let answer = zone.dig(&["web.example", "A"]);
    assert!(answer.contains("flags: qr aa rd;") && answer.contains("udp: 1232"), "{answer}");
    let record = answer.lines().find(|line| line.starts_with("web.example.")).unwrap();
    assert_eq!(record.split_whitespace().collect::<Vec<_>>(), ["web.example.", "1", "IN", "A", "127.0.0.1"]);
    for (name, kind, status) in [
        ("web.example", "AAAA", "NOERROR"),
        ("no.web.example", "A", "NXDOMAIN"),
        ("web.example", "MX", "NOERROR"),
    ] {
        let answer = zone.dig(&[name, kind]);
        assert!(
            answer.contains(&format!("status: {status}")) && answer.contains("ANSWER: 0, AUTHORITY: 1"),
            "{answer}"
        );
        assert!(answer.contains("SOA\tweb.example. hostmaster.web.example."), "{answer}");
    }
    assert!(zone.dig(&["example.org", "A"]).contains("status: REFUSED"));
    assert!(zone.dig(&["+noedns", "web.example", "A"]).contains("ADDITIONAL: 0"));
    assert!(zone.dig(&["+edns=1", "+noednsneg", "web.example", "A"]).contains("status: BADVERS"));
}

#[test]
fn a_long_answer_is_asked_for_again_over_tcp() {
    let members: Vec<SocketAddr> = (1..=60).map(|host| ([127, 0, 0, host], 8080).into()).collect();
    let zone = Zone::start(&members_list(&members), "");
    let cut = zone.dig(&["+ignore", "+noedns", "_http._tcp.web.example", "SRV"]);
    assert!(cut.contains("flags: qr aa tc rd;"), "{cut}");
    // dig retries over TCP by itself, as clients do.
    assert_eq!(zone.short(&["+noedns", "_http._tcp.web.example", "SRV"]).len(), 60);
}

#[test]
fn a_network_above_its_rate_is_answered_over_tcp_or_with_a_cookie() {
    let zone = Zone::limited(1, "[\"127.0.0.1:8080\"]", "");
    zone.dig(&["+nocookie", "web.example", "A"]);
    // Every second answer is truncated, so that dig uses TCP; the others are dropped, and dig repeats the
    // query.
    let again = |args: &[&str]| {
        let mut lines = zone.short(&[&["+tries=20", "+time=1"], args].concat());
        lines.retain(|line| !line.starts_with(";;"));
        lines
    };
    for _ in 0..3 {
        assert_eq!(again(&["+nocookie", "web.example", "A"]), ["127.0.0.1"]);
    }
    let told = zone.dig(&["+tries=20", "+time=1", "web.example", "A"]);
    assert!(told.contains("127.0.0.1") && told.contains("(good)"), "{told}");
    let refused = || zone.balancer.status()["listeners"][0]["refused"].as_u64().unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let question = [b"\x00\x07\0\0\0\x01\0\0\0\0\0\0\x03web\x07example\0", &[0, 1, 0, 1][..]].concat();
    until("answers are refused", || {
        client.send_to(&question, ("127.0.0.1", zone.port)).unwrap();
        refused() >= 10
    });
    assert!(zone.dig(&["+tcp", "web.example", "A"]).contains("127.0.0.1"));
}

#[test]
fn what_is_no_question_for_data_is_refused() {
    let zone = Zone::start("[\"127.0.0.1:8080\"]", "");
    assert!(zone.dig(&["web.example", "AXFR"]).contains("Transfer failed"));
    assert!(zone.dig(&["+tcp", "web.example", "IXFR=1"]).contains("Transfer failed"));
    assert!(zone.dig(&["web.example", "TYPE253"]).contains("status: NOTIMP"));
    assert!(zone.dig(&["+dnssec", "web.example", "A"]).contains("flags: do;"));
}

#[test]
fn answers_follow_the_strategy_and_the_health_of_members() {
    let mut members = [Member::start(&[]), Member::start(&[])];
    let list = format!(
        "[{{ address = \"{}\", capacity = 3 }}, {{ address = \"{}\", capacity = 1 }}]",
        members[0].address, members[1].address
    );
    let zone = Zone::start(
        &list,
        "strategy = \"weighted_round_robin\"\nhealth = \
         { http = \"/\", interval = \"50ms\", timeout = \"30s\", rise = 1, fall = 1 }\n",
    );
    // Both members have the same address: their ports tell them apart.
    let asked: Vec<&str> = std::iter::repeat_n(["_http._tcp.web.example", "SRV"], 100).flatten().collect();
    let first = |zone: &Zone| {
        let mut ports: BTreeMap<u16, usize> = BTreeMap::new();
        for line in zone.short(&asked).iter().filter(|line| line.starts_with("0 ")) {
            *ports.entry(line.split(' ').nth(2).unwrap().parse().unwrap()).or_default() += 1;
        }
        ports
    };
    let [heavy, light] = [members[0].address.port(), members[1].address.port()];
    until("shares follow the capacities", || {
        let ports = first(&zone);
        ports.values().sum::<usize>() == 100 && ports.get(&heavy).is_some_and(|count| count.abs_diff(75) <= 4)
    });
    members[0].process.kill();
    until("only one is named", || first(&zone) == BTreeMap::from([(light, 100)]));
    members[1].process.kill();
    until("none is", || zone.dig(&["web.example", "A"]).contains("status: SERVFAIL"));
    // A name without usable members differs from a name that does not exist.
    assert!(zone.dig(&["no.web.example", "A"]).contains("status: NXDOMAIN"));
    zone.balancer.reload(&zone.text.replace("web.example.", "mail.example."));
    until("each thread knows", || zone.dig(&["web.example", "A"]).contains("status: REFUSED"));
}

#[test]
fn what_is_wrong_with_a_dns_listener_is_told() {
    let folder = Folder::new();
    for (rest, why) in [
        ("", "needs the `domain`"),
        ("domain = \"web..example\"", "label of no bytes"),
        ("domain = \"web.example\"\nttl = \"1500ms\"", "whole number of seconds"),
        ("domain = \"web.example\"\nbinding = \"per_session\"", "are not bound"),
        ("domain = \"web.example\"\naccept_proxy = true", "not supported for dns"),
    ] {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"dns\"\ngroup = \
             \"web\"\n{rest}\n[[group]]\nname = \"web\"\n\
             members = [\"127.0.0.1:1\"]\n"
        );
        folder.write("plimsoll.toml", text);
        let run = Run::plimsoll(&["config", "check"], folder.path());
        assert!(run.code == Some(2) && run.err.contains(why), "{rest}: {:?} {}", run.code, run.err);
    }
}
