//! Service discovery: in a file, by a real name server, behind plimsoll's own name server, over HTTP; and
//! sources that fail, are empty or return nonsense.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;

use crate::stage::{
    Balancer, Folder, Load, Member, Process, Script, free_port, get, members_list, nobody, part, until,
};

/// Returns a file with one http listener on group `web`. A machine that stands still must not cause overload:
/// nothing is rejected for it.
fn text(group: &str) -> String {
    format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n[[group]]\nname = \"web\"\nslow_start = \
         \"0s\"\n\
         admission = false\n{group}"
    )
}

/// Returns the members of the group `web` in order.
fn members(balancer: &Balancer) -> Vec<String> {
    let group = balancer.group("web");
    group["members"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn has(balancer: &Balancer, wanted: &[SocketAddr]) {
    let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
    until(&format!("members {wanted:?}"), || {
        let mut found = members(balancer);
        found.sort();
        let mut wanted = wanted.clone();
        wanted.sort();
        found == wanted
    });
}

/// Returns the status of the first source.
fn source(balancer: &Balancer) -> Value {
    balancer.group("web")["discovery"][0].clone()
}

/// Waits until the first source has failed for a reason with this text.
#[track_caller]
fn fails(balancer: &Balancer, why: &str) {
    until(&format!("a source that failed: {why}"), || {
        source(balancer)["error"].as_str().is_some_and(|error| error.contains(why))
    });
}

#[track_caller]
fn recovers(balancer: &Balancer) {
    until("a source that answers", || source(balancer)["error"].is_null());
}

fn events(balancer: &Balancer, kind: &str) -> Vec<Value> {
    let run = balancer.run(&["events", "-o", "json"]);
    let all = run.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|event| event["kind"] == kind).collect()
}

/// Replaces a file atomically, as programs should that write such files.
fn replace(folder: &Folder, name: &str, text: &str) {
    let half = folder.write("half", text);
    std::fs::rename(half, folder.join(name)).unwrap();
}

fn list(members: &[SocketAddr]) -> String {
    format!("members = {}\n", members_list(members))
}

#[test]
fn a_file_changes_under_load_and_no_request_fails() {
    let three = Member::several(3, &[]);
    let [a, b, c] = [0, 1, 2].map(|at: usize| three[at].address);
    let folder = Folder::new();
    let file = folder.write("web.members", list(&[a]));
    let config = text(&format!("[[group.discover]]\nfile = \"{}\"\ninterval = \"100ms\"\n", file.display()));
    let begun = Instant::now();
    let balancer = Balancer::start_in(folder, &config);
    // The file was read before anything listened.
    assert_eq!(members(&balancer), [a.to_string()]);
    assert_eq!(get(balancer.address(), "/").status, 200);
    let folder = balancer.folder();
    let mut load = Load::start(balancer.address(), "GET", 100.0);
    replace(folder, "web.members", &list(&[a, b]));
    has(&balancer, &[a, b]);
    load.more(50);
    for (wrong, why) in [
        ("members = [\n\"127.0.0.1\"]", "web.members:2:1: `members`: `127.0.0.1` has no port"),
        ("members = []", "not believed"),
        ("<html>", "web.members:1:"),
    ] {
        replace(folder, "web.members", wrong);
        fails(&balancer, why);
        has(&balancer, &[a, b]);
        load.more(20);
    }
    std::fs::remove_file(folder.join("web.members")).unwrap();
    fails(&balancer, "No such file");
    has(&balancer, &[a, b]);
    // Overwriting in place works, too.
    folder.write("web.members", list(&[b, c]));
    has(&balancer, &[b, c]);
    recovers(&balancer);
    load.more(50);
    replace(
        folder,
        "web.members",
        &format!("members = [{{ address = \"{c}\", capacity = 2.5, max_connections = 7 }}]"),
    );
    has(&balancer, &[c]);
    let member = balancer.member(c);
    assert_eq!((member["capacity"].as_f64(), member["limit"].as_u64()), (Some(2.5), Some(7)));
    load.more(20);
    load.stop_unharmed();
    let found = events(&balancer, "members_discovered");
    let said: Vec<&str> = found.iter().map(|event| event["why"].as_str().unwrap()).collect();
    assert_eq!(said[0], format!("1 member is found: +{a}"));
    assert_eq!(said[1], format!("2 members are found: +{b}"));
    assert_eq!(
        (found[2]["inputs"]["came"].as_f64(), found[2]["inputs"]["went"].as_f64()),
        (Some(1.0), Some(1.0))
    );
    // Several consecutive failures of one source count as one.
    assert_eq!(events(&balancer, "discovery_failed").len(), 1);
    assert_eq!(events(&balancer, "discovery_recovered").len(), 1);
    let labels = format!("{{group=\"web\",source=\"file {}\"}}", file.display());
    assert_eq!(balancer.metric(&format!("plimsoll_discovery_members{labels}")), 1.0);
    assert!(balancer.metric(&format!("plimsoll_discovery_failures_total{labels}")) >= 4.0);
    // bound: the time that all of this test has taken
    let age = balancer.metric(&format!("plimsoll_discovery_age_seconds{labels}"));
    assert!(age < begun.elapsed().as_secs_f64(), "{age}");
    // A discovery change is no reload.
    assert_eq!(balancer.status()["reloads"], 0);
    let shown = balancer.run(&["status"]).out;
    assert!(shown.contains("web.members  1 member"), "{shown}");
}

#[test]
fn sources_merge_and_a_reload_keeps_those_that_stay() {
    let three = Member::several(3, &[]);
    let [a, b, c] = [0, 1, 2].map(|at: usize| three[at].address);
    let folder = Folder::new();
    folder.write("one", list(&[b, a]));
    folder.write("two.json", format!("[\"{b}\", {{\"address\": \"{c}\", \"capacity\": 3}}]"));
    let path = |name: &str| folder.join(name).display().to_string();
    let (one, two, missing) = (path("one"), path("two.json"), path("three"));
    let with = |files: &[&str]| {
        let sources: Vec<String> =
            files.iter().map(|file| format!("{{ file = \"{file}\", interval = \"100ms\" }}")).collect();
        text(&format!("members = [\"{a}\"]\ndiscover = [{}]\n", sources.join(", ")))
    };
    let balancer = Balancer::start_in(folder, &with(&[&one, &two]));
    let names = |all: &[SocketAddr]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(members(&balancer), names(&[a, b, c]));
    let mut load = Load::start(balancer.address(), "GET", 100.0);
    load.more(20);
    let requests = |address| balancer.member(address)["requests"].as_u64().unwrap();
    let before = requests(c);
    // One source is replaced by one that does not exist: its members stay because there is no answer, and the
    // other's are kept.
    balancer.reload(&with(&[&missing, &two]));
    assert_eq!(members(&balancer), names(&[a, b, c]));
    assert!(requests(c) >= before, "it was kept with what was counted");
    fails(&balancer, "No such file");
    // The new source answers, and members that only the old one had are removed.
    balancer.folder().write("two.json", format!("[\"{c}\"]"));
    until("two.json was read", || balancer.group("web")["discovery"][1]["members"] == 1);
    balancer.folder().write("three", list(&[c]));
    has(&balancer, &[a, c]);
    recovers(&balancer);
    assert_eq!(balancer.group("web")["discovery"].as_array().unwrap().len(), 2);
    // Without sources the configured members apply.
    let changes = balancer.reload(&text(&format!("members = [\"{a}\"]\n")));
    assert!(changes.contains(&format!("- group web: member {c}")), "{changes}");
    assert_eq!(members(&balancer), names(&[a]));
    load.more(20);
    load.stop_unharmed();
}

#[test]
fn a_group_that_nobody_was_found_for_says_so() {
    let (_kept, silent) = nobody();
    let config = text(&format!("[[group.discover]]\nhttp = \"http://{silent}/\"\ninterval = \"100ms\"\n"));
    let balancer = Balancer::start(&config);
    let refused = get(balancer.address(), "/");
    assert_eq!((refused.status, refused.reason()), (503, Some("no_member")));
    until("it is told why", || {
        let run = balancer.run(&["status"]);
        assert_eq!(run.code, Some(1));
        run.out.contains("no answer yet") && run.out.contains("cannot connect")
    });
    balancer.process.line("it has no members yet");
}

/// The name server dnsmasq, as in Debian.
struct Dnsmasq {
    process: Process,
    folder: Folder,
    port: u16,
}

impl Dnsmasq {
    /// Starts it with these hosts and further arguments.
    fn start(hosts: &str, more: &[String]) -> Self {
        let port = free_port();
        let folder = Folder::new();
        let process = Self::run(&folder, port, hosts, more);
        Self { process, folder, port }
    }

    fn run(folder: &Folder, port: u16, hosts: &str, more: &[String]) -> Process {
        let file = folder.write("hosts", hosts);
        let fixed = [
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--no-resolv",
            "--no-hosts",
            "--listen-address=127.0.0.1",
            "--bind-interfaces",
            "--local=/test/",
            "--local-ttl=1",
            "--user=root",
            "--log-facility=-",
            "--pid-file=",
        ];
        let own = [format!("--port={port}"), format!("--addn-hosts={}", file.display())];
        let args: Vec<&str> = fixed.into_iter().chain(own.iter().chain(more).map(String::as_str)).collect();
        let process = Process::start(&part("dnsmasq"), &args, folder.path());
        process.line("started, version");
        process
    }

    fn hosts(&self, hosts: &str) {
        self.folder.write("hosts", hosts);
        self.process.signal(Signal::HUP);
    }

    fn restart(&mut self, hosts: &str, more: &[String]) {
        self.process.kill();
        self.process = Self::run(&self.folder, self.port, hosts, more);
    }
}

#[test]
fn addresses_of_a_name() {
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let one = Script::answering(ok);
    let port = one.address.port();
    let at = |last: u8| SocketAddr::from(([127, 0, 0, last], port));
    let six = SocketAddr::from(("::1".parse::<IpAddr>().unwrap(), port));
    let _others = [at(2), six].map(|address| Script::answering_at(address, ok));
    let mut server = Dnsmasq::start("127.0.0.1 web.test\n", &[]);
    let dns = format!(
        "[[group.discover]]\ndns = \"web.test:{port}\"\nresolver = [\"127.0.0.1:{}\"]\nmin = \"100ms\"\nmax \
         = \"200ms\"\n",
        server.port
    );
    let balancer = Balancer::start(&text(&dns));
    has(&balancer, &[at(1)]);
    let mut load = Load::start(balancer.address(), "GET", 100.0);
    load.more(20);
    server.hosts("127.0.0.1 web.test\n127.0.0.2 web.test\n::1 web.test\n");
    has(&balancer, &[at(1), at(2), six]);
    server.hosts("127.0.0.1 web.test\n");
    has(&balancer, &[at(1)]);
    // The name does not exist.
    server.hosts("127.0.0.1 other.test\n");
    fails(&balancer, "NXDOMAIN");
    has(&balancer, &[at(1)]);
    // The name server is down.
    server.process.kill();
    fails(&balancer, "refused");
    has(&balancer, &[at(1)]);
    server.restart("127.0.0.1 web.test\n", &[]);
    recovers(&balancer);
    load.more(20);
    load.stop_unharmed();
    // An empty list is accepted where that is allowed.
    balancer.reload(&text(&format!("{dns}allow_empty = true\n")));
    has(&balancer, &[at(1)]);
    server.hosts("127.0.0.1 other.test\n");
    has(&balancer, &[]);
    recovers(&balancer);
    let refused = get(balancer.address(), "/");
    assert_eq!((refused.status, refused.reason()), (503, Some("no_member")));
}

#[test]
fn servers_of_a_service() {
    let at = |last: u8, port: u16| SocketAddr::from(([127, 0, 0, last], port));
    let hosts =
        "127.0.0.1 one.web.test\n127.0.0.2 two.web.test\n127.0.0.3 two.web.test\n127.0.0.4 spare.web.test\n";
    let record = |target: &str, port: u16, priority: u16, weight: u16| {
        format!("--srv-host=_http._tcp.web.test,{target}.web.test,{port},{priority},{weight}")
    };
    let all = [record("one", 81, 1, 30), record("two", 82, 1, 10), record("spare", 84, 2, 99)];
    let mut server = Dnsmasq::start(hosts, &all);
    let srv = format!(
        "[[group.discover]]\nsrv = \"_http._tcp.web.test\"\nresolver = [\"127.0.0.1:{}\"]\nmin = \
         \"100ms\"\nmax = \"200ms\"\n",
        server.port
    );
    let balancer = Balancer::start(&text(&srv));
    has(&balancer, &[at(1, 81), at(2, 82), at(3, 82)]);
    let capacity = |address| balancer.member(address)["capacity"].as_f64().unwrap();
    assert_eq!([at(1, 81), at(2, 82), at(3, 82)].map(capacity), [30.0, 5.0, 5.0]);
    server.restart(hosts, &all[2..]);
    has(&balancer, &[at(4, 84)]);
    server.restart(hosts, &[]);
    fails(&balancer, "not believed");
    has(&balancer, &[at(4, 84)]);
    // More than fits into a datagram.
    let many: Vec<String> = (1..=120).map(|port| record("one", 1000 + port, 1, port)).collect();
    server.restart(hosts, &many);
    until("all servers", || members(&balancer).len() == 120);
    recovers(&balancer);
}

#[test]
fn one_balancer_finds_members_by_the_domain_of_another() {
    let mut two = Member::several(2, &[]);
    let [a, b] = [two[0].address, two[1].address];
    let port = free_port();
    let inner = format!(
        "[[listener]]\naddress = \"127.0.0.1:{port}\"\nprotocol = \"dns\"\ndomain = \"web.test.\"\nttl = \
         \"1s\"\ngroup = \"web\"\n\
         [[group]]\nname = \"web\"\nslow_start = \"0s\"\nstrategy = \"round_robin\"\nmembers = {}\n\
         health = {{ tcp = true, interval = \"50ms\", timeout = \"30s\", rise = 1, fall = 1 }}\n",
        members_list(&[a, b])
    );
    let inner = Balancer::start(&inner);
    until("both are up", || {
        let group = inner.group("web");
        group["members"].as_array().unwrap().iter().all(|member| member["state"] == "up")
    });
    // The inner balancer alternates the first member; `stale_ttl` is for the other one.
    let config = text(&format!(
        "[[group.discover]]\nsrv = \"_http._tcp.web.test\"\nresolver = [\"127.0.0.1:{port}\"]\nmin = \
         \"100ms\"\nmax = \"100ms\"\nstale_ttl = \"1m\"\n"
    ));
    let balancer = Balancer::start(&config);
    has(&balancer, &[a, b]);
    assert_eq!(get(balancer.address(), "/").status, 200);
    two.iter_mut().for_each(|member| member.process.kill());
    fails(&balancer, "SERVFAIL");
    has(&balancer, &[a, b]);
    two.iter_mut().for_each(Member::restart);
    recovers(&balancer);
    assert_eq!(get(balancer.address(), "/").status, 200);
}

#[test]
fn a_list_over_http() {
    let two = Member::several(2, &[]);
    let [a, b] = [two[0].address, two[1].address];
    // The current answer, and the heads of all requests.
    let answer = Arc::new(Mutex::new(Vec::<u8>::new()));
    let heads = Arc::new(Mutex::new(Vec::<String>::new()));
    let ok = |tag: &str, body: &str| {
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\nETag: \"{tag}\"\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
    };
    let say = |bytes: Vec<u8>| *answer.lock().unwrap() = bytes;
    say(ok("1", &format!("[\"{a}\"]")));
    let server = {
        let (answer, heads) = (Arc::clone(&answer), Arc::clone(&heads));
        Script::start(move |wire| {
            let Some(head) = wire.head()? else { return Ok(()) };
            let answer = answer.lock().unwrap().clone();
            let known = answer
                .windows(3)
                .any(|part| head.contains("if-none-match: ") && part == b"\"1\"" && head.contains("\"1\""));
            heads.lock().unwrap().push(head);
            if known {
                return wire.try_send("HTTP/1.1 304 Not Modified\r\n\r\n");
            }
            wire.try_send(&answer)?;
            // An endless answer.
            while answer.ends_with(b"chunked\r\n\r\n") {
                wire.try_send([&b"10000\r\n"[..], &[b' '; 0x1_0000], b"\r\n"].concat())?;
            }
            std::io::Result::Ok(())
        })
    };
    let config = text(&format!(
        "[[group.discover]]\nhttp = \"http://{}/v1/members\"\ninterval = \"100ms\"\ntimeout = \"1m\"\n",
        server.address
    ));
    let balancer = Balancer::start(&config);
    has(&balancer, &[a]);
    let mut load = Load::start(balancer.address(), "GET", 100.0);
    until("it is asked whether anything is new", || {
        let heads = heads.lock().unwrap();
        heads.iter().filter(|head| head.contains("if-none-match: \"1\"")).count() > 2
    });
    recovers(&balancer);
    let head = heads.lock().unwrap()[0].clone();
    assert!(
        head.starts_with("GET /v1/members HTTP/1.1\r\n") && head.contains("accept: application/json"),
        "{head}"
    );
    say(ok(
        "2",
        &format!("{{\"index\": 7, \"members\": [{{\"address\": \"{b}\", \"id\": \"b\"}}, \"{a}\"]}}"),
    ));
    has(&balancer, &[a, b]);
    for (bytes, why) in [
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n".to_vec(), "it answered 500"),
        (ok("3", "<html>"), "the answer:1:1: expected value"),
        (ok("4", "[]"), "not believed"),
        (ok("5", "[\"127.0.0.1:80\", \"127.0.0.1\"]"), "`127.0.0.1` has no port"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(), "longer than 4 MiB"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n[".to_vec(), "broke off"),
        (b"\x16\x03\x01".to_vec(), ""),
    ] {
        say(bytes);
        fails(&balancer, why);
        has(&balancer, &[a, b]);
    }
    let many: Vec<String> = (1..=4097).map(|port| format!("\"127.0.0.1:{port}\"")).collect();
    say(ok("6", &format!("[{}]", many.join(","))));
    fails(&balancer, "lists 4097 members");
    has(&balancer, &[a, b]);
    say(ok("7", &format!("[\"{b}\"]")));
    has(&balancer, &[b]);
    recovers(&balancer);
    load.more(20);
    load.stop_unharmed();
}

#[test]
fn a_source_that_flaps_changes_little() {
    let two = Member::several(2, &[]);
    let [a, b] = [two[0].address, two[1].address];
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let server = {
        let asked = Arc::clone(&asked);
        Script::start(move |wire| {
            wire.head()?;
            let turn = asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let body = if turn.is_multiple_of(2) { format!("[\"{a}\"]") } else { format!("[\"{b}\"]") };
            wire.try_send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
        })
    };
    let source = format!("http = \"http://{}/\"\ninterval = \"100ms\"\n", server.address);
    let balancer = Balancer::start(&text(&format!("[[group.discover]]\n{source}stale_ttl = \"1m\"\n")));
    has(&balancer, &[a, b]);
    let load = Load::start(balancer.address(), "GET", 100.0);
    let count = |what: &std::sync::atomic::AtomicUsize| what.load(std::sync::atomic::Ordering::SeqCst);
    let before = count(&asked);
    until("twenty more answers", || count(&asked) > before + 20);
    assert!(events(&balancer, "members_discovered").len() <= 2, "they are held");
    // Without `stale_ttl` members come and go, no request fails, and there are fewer changes than answers.
    balancer.reload(&text(&format!("[[group.discover]]\n{source}")));
    let (begun, told) = (count(&asked), events(&balancer, "members_discovered").len());
    until("forty more answers", || count(&asked) > begun + 40);
    let (asked, told) = (count(&asked) - begun, events(&balancer, "members_discovered").len() - told);
    assert!(told > 0 && told <= asked, "{told} of {asked}");
    load.stop_unharmed();
}
