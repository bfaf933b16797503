//! Configurations and commands of the guide's pages, with members and ports of the test.

use std::io::Write as _;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::stage::{Balancer, Member, Run, Wire, binary, get, until};

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// Returns the complete configurations of a page.
fn configurations(name: &str) -> Vec<String> {
    let page = page(name);
    let blocks = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.filter(|block| block.contains("[[listener]]")).map(str::to_owned).collect()
}

/// Replaces an address of the page, which must exist, by one of the test.
fn put(text: &mut String, old: &str, new: impl std::fmt::Display) {
    let (old, new) = (format!("\"{old}\""), format!("\"{new}\""));
    assert!(text.contains(&old), "{old} in {text}");
    *text = text.replace(&old, &new);
}

#[test]
fn getting_started() {
    let text = page("getting-started.md");
    // The members as the page starts them, each at a free port.
    let mut members = Vec::new();
    for line in text.lines().filter_map(|line| line.trim().strip_prefix("plimsoll member --listen ")) {
        let args: Vec<&str> = line.trim_end_matches('&').split_whitespace().skip(1).collect();
        members.push(Member::start(&args));
    }
    assert_eq!(members.len(), 2);
    let mut config = configurations("getting-started.md").remove(0);
    let admin = config.find("[[listener]]").unwrap();
    config.replace_range(..admin, "");
    put(&mut config, "127.0.0.1:8080", "127.0.0.1:0");
    put(&mut config, "127.0.0.1:9001", members[0].address);
    put(&mut config, "127.0.0.1:9002", members[1].address);
    let balancer = Balancer::start(&config);
    until("both have answered", || {
        let names: Vec<String> = (0..8)
            .filter_map(|_| get(balancer.address(), "/").field("x-member").map(str::to_owned))
            .collect();
        ["one", "two"].iter().all(|name| names.iter().any(|seen| seen == name))
    });
    for command in ["config check", "status", "members", "events", "top --once", "check"] {
        assert!(page("getting-started.md").contains(command) || ["top --once", "check"].contains(&command));
        let args: Vec<&str> = command.split(' ').collect();
        let run: Run = balancer.run(&args);
        assert_eq!(run.code, Some(0), "{command}: {}{}", run.out, run.err);
    }
}

#[test]
fn adaptive() {
    let members = Member::several(2, &[]);
    let mut config = configurations("adaptive.md").remove(0);
    put(&mut config, "127.0.0.1:8080", "127.0.0.1:0");
    put(&mut config, "127.0.0.1:9001", members[0].address);
    put(&mut config, "127.0.0.1:9002", members[1].address);
    let balancer = Balancer::start(&config);
    assert_eq!(get(balancer.address(), "/").status, 200);
    assert_eq!(balancer.group("web")["strategy"], "adaptive");
    assert_eq!(balancer.run(&["explain", "group", "web"]).code, Some(0));
}

#[test]
fn tcp_and_udp() {
    let [mut tcp, mut udp] = <[String; 2]>::try_from(configurations("tcp-udp.md")).unwrap();
    let members = Member::several(2, &["--echo", "tcp"]);
    put(&mut tcp, "0.0.0.0:5432", "127.0.0.1:0");
    put(&mut tcp, "10.0.0.1:5432", members[0].address);
    put(&mut tcp, "10.0.0.2:5432", members[1].address);
    let balancer = Balancer::start(&tcp);
    until("the database is up", || balancer.group("database")["members"][0]["state"] == "up");
    let mut client = Wire::connect(balancer.address());
    client.send("hello");
    assert_eq!(client.exactly(5).unwrap(), b"hello");
    assert_eq!(balancer.group("database")["members"][1]["requests"], 0, "the spare is spare");
    assert_eq!(balancer.run(&["bindings"]).code, Some(0));

    put(&mut udp, "0.0.0.0:53", "127.0.0.1:0");
    put(&mut udp, "10.0.0.1:53", members[0].address);
    put(&mut udp, "10.0.0.2:53", members[1].address);
    for member in &members {
        let socket = UdpSocket::bind(member.address).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((length, client)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..length], client);
            }
        });
    }
    let balancer = Balancer::start(&udp);
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(balancer.address()).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut buffer = [0; 16];
    until("an answer", || {
        client.send(b"where?").unwrap();
        client.recv(&mut buffer).is_ok_and(|length| &buffer[..length] == b"where?")
    });
}

/// The blocks that are no balancer's configuration: the page, and their beginnings.
const OTHERS: [(&str, &str); 7] = [
    ("access.md", "[[grant]]"),
    ("access.md", "[[role]]"),
    ("lab.md", ""),
    ("lottery.md", "[[service]]"),
    ("lottery.md", "member ="),
    ("model.md", ""),
    ("supervise.md", ""),
];

const GROUP: &str = "members = [\"127.0.0.1:9001\"]\n";

/// Returns a block of a page completed to whole configurations.
fn filled(block: &str) -> Vec<String> {
    let listener = |group: &str| format!("[[listener]]\naddress = \"127.0.0.1:8080\"\ngroup = \"{group}\"\n");
    let group = |name: &str| format!("[[group]]\nname = \"{name}\"\n{GROUP}");
    let web = listener("web") + &group("web");
    // Alternative lines.
    let lines = || block.lines().filter(|line| !line.trim().is_empty());
    if block.starts_with("strategy =") {
        return lines().map(|line| format!("{web}{line}\n")).collect();
    }
    if block.starts_with("metric =") {
        return lines().map(|line| format!("{web}[group.monitor]\n{line}\n")).collect();
    }
    let of_group = ["[group.", "[[group."].iter().filter_map(|part| block.find(part)).min();
    if let Some(of_group) = of_group.filter(|_| !block.contains("[[group]]")) {
        let (before, of_group) = block.split_at(of_group);
        let scaler = match of_group.starts_with("[group.scaler.") {
            true => "health = { tcp = true }\n[group.scaler]\nmax = 2\ntarget = { headroom = 0.3 }\n",
            false => "",
        };
        return vec![format!("{before}{web}{scaler}{of_group}")];
    }
    let names = |key: &str| -> Vec<String> {
        let value = |line: &str| {
            let value = line.split('#').next()?.split_once(key)?.1;
            Some(value.split('"').nth(1)?.to_owned())
        };
        block.lines().filter_map(value).collect()
    };
    let mut whole = block.to_owned() + "\n";
    let there = names("name = ");
    for missing in names("group = ").iter().filter(|name| !there.contains(name)) {
        if !whole.contains(&format!("name = \"{missing}\"")) {
            whole += &group(missing);
        }
    }
    if !block.contains("[[listener]]") {
        let first = there.first().filter(|_| block.contains("[[group]]"));
        whole += &first.map_or(web, |name| listener(name));
    }
    vec![whole]
}

#[test]
fn no_page_has_a_configuration_that_would_be_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
    let (mut seen, mut wrong) = (0, Vec::new());
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".md") {
            continue;
        }
        let page = page(&name);
        // A placeholder for a measurement.
        assert!(!page.contains("@MEASURED"), "{name} waits for a measurement");
        for block in page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            if OTHERS.iter().any(|(page, begins)| *page == name && block.starts_with(begins)) {
                continue;
            }
            for text in filled(block) {
                let mut check = Command::new(binary());
                check.args(["config", "check", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
                let mut child = check.stdout(Stdio::null()).spawn().unwrap();
                child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
                let said = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
                // The page's files do not exist here, its abbreviated references are invalid, and some builds
                // lack features.
                let known = |line: &&str| {
                    [
                        "cannot read ",
                        "cannot be read",
                        "No such file",
                        "built without",
                        "...` is no object reference",
                    ]
                    .iter()
                    .any(|text| line.contains(text))
                };
                let errors: Vec<&str> = said
                    .lines()
                    .filter(|line| line.starts_with("error"))
                    .filter(|line| !known(line))
                    .collect();
                if !errors.is_empty() {
                    wrong.push(format!("{name}: {}\n{text}", errors.join("\n")));
                }
                seen += 1;
            }
        }
    }
    assert!(wrong.is_empty() && seen > 50, "{seen} seen, of which\n{}", wrong.join("\n"));
}
