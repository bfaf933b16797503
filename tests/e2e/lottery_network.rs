//! Daemons on hosts of their own: two network namespaces with a cable between them, where only IPv6 is
//! spoken.

use crate::stage::{Folder, Process, Run, binary, until};
use crate::vrrp::{Host, possible};

/// The multicast group of all on the link.
const GROUP: &str = "[ff02::7447]:7447";

/// Makes two hosts, the first at `fd00::1`, the other at `fd00::2`, and at addresses of the link. The names
/// of their ends differ, so that the interface numbers are not equal by chance.
fn cable(folder: &Folder) -> [Host; 2] {
    let hosts = ["one", "other"].map(|name| Host::new(name, folder.path()));
    let pid = hosts[1].holder.pid().to_string();
    hosts[0].run(&["ip", "link", "add", "spare", "type", "veth", "peer", "name", "spared"], folder.path());
    hosts[0].run(
        &["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", &pid],
        folder.path(),
    );
    for (number, host) in (1..).zip(&hosts) {
        host.run(&["ip", "link", "set", "lo", "up"], folder.path());
        host.run(&["ip", "link", "set", "eth0", "up"], folder.path());
        for address in [format!("fd00::{number}/64"), format!("fe80::{number}/64")] {
            host.run(&["ip", "-6", "address", "add", &address, "dev", "eth0", "nodad"], folder.path());
        }
    }
    hosts
}

/// Returns the number of a host's interface.
fn scope(host: &Host, folder: &Folder) -> String {
    // The number is not read from /sys, which is that of another namespace.
    let run = host.run(&["ip", "-o", "link", "show", "dev", "eth0"], folder.path());
    run.out.split(':').next().unwrap().trim().to_owned()
}

fn daemon(host: &Host, folder: &Folder, member: &str, listen: &str, server: &str) -> Process {
    let service = format!("web={server}");
    let program = binary();
    let words = [
        program.to_str().unwrap(),
        "lottery",
        "--member",
        member,
        "--listen",
        listen,
        "--keys",
        "keys",
        "--multicast",
        GROUP,
        "--service",
        &service,
        "--slow-start",
        "0s",
    ];
    let process = host.start(&words, folder.path());
    process.line("listening lottery");
    process
}

fn pick(host: &Host, folder: &Folder, words: &[&str]) -> Run {
    let program = binary();
    host.run(&[&[program.to_str().unwrap(), "pick", "web", "-k", "keys"], words].concat(), folder.path())
}

#[test]
fn daemons_find_one_another_by_multicast_of_ipv6() {
    if !possible() {
        return;
    }
    let folder = Folder::new();
    folder.write("keys", format!("7 {}\n", "6".repeat(64)));
    let hosts = cable(&folder);
    let here = scope(&hosts[0], &folder);
    let addresses = [["[fd00::1]:7447".to_owned(), "[fd00::2]:7447".to_owned()], {
        let there = scope(&hosts[1], &folder);
        [format!("[fe80::1%{here}]:7447"), format!("[fe80::2%{there}]:7447")]
    }];
    // The addresses are those known beyond the link, and those of the link itself.
    for [one, other] in &addresses {
        let _daemons = [
            daemon(&hosts[0], &folder, "1", one, "[fd00::1]:80"),
            daemon(&hosts[1], &folder, "2", other, "[fd00::2]:80"),
        ];
        // A client without the address of a daemon asks all, and each answers for itself. If only one is
        // asked, it refers to the other's server, too, which it can only have learnt by the group.
        for mode in [&["--lottery"][..], &[]] {
            until("both serve", || {
                let run = pick(&hosts[0], &folder, &[&["--multicast", GROUP, "-n", "60"], mode].concat());
                let named = |server: &&str| run.out.lines().any(|line| line == *server);
                ["[fd00::1]:80", "[fd00::2]:80"].iter().all(named)
            });
        }
    }
}
