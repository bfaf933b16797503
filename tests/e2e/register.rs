//! Servers register themselves by their agents: they come, renew their registration, leave and die.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use rustix::process::Signal;

use crate::stage::{
    Balancer, Etcd, Folder, Load, Member, Process, Run, Script, Wire, binary, free_port, get, until,
};
use crate::upgrade::{program, runs, upgraded};

/// Returns a file with a group that takes registered members, over the address for reports, too. It rejects
/// nothing, however late the machine is.
fn text(rest: &str) -> String {
    format!(
        "{rest}[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n[[group]]\nname = \
         \"web\"\nslow_start = \"0s\"\n\
         strategy = \"least_connections\"\ntimeouts = {{ connect = \"20s\" }}\ndiscover = \
         [{{ registered = true }}]\n[admin]\nregister = true\n"
    )
}

/// An agent that registers a server as a member.
struct Agent {
    process: Process,
    _folder: Folder,
}

/// The time after which a silent member is forgotten: no machine stands still for so long.
const LONG: &str = "1m";

/// The same time for members that are to be forgotten.
const SHORT: &str = "3s";

impl Agent {
    fn start(member: SocketAddr, balancers: &[SocketAddr], ttl: &str, more: &[&str]) -> Self {
        let folder = Folder::new();
        let to: Vec<String> = balancers.iter().map(|address| format!("http://{address}")).collect();
        let (member, to) = (member.to_string(), to.join(","));
        let own =
            ["agent", "--register", "--group", "web", "--member", &member, "--report-to", &to, "--ttl", ttl];
        let process = Process::start(&binary(), &[&own[..], more].concat(), folder.path());
        Self { process, _folder: folder }
    }
}

/// Passes requests on to a balancer, each on a connection of its own, and counts answers with this status.
fn relayed(wire: &mut Wire, to: SocketAddr, status: u16, count: &AtomicUsize) -> std::io::Result<()> {
    while let Some(head) = wire.head()? {
        let body = wire.body(&head, false)?;
        let mut onward = Wire::over(TcpStream::connect(to)?);
        onward.try_send([head.as_bytes(), &body].concat())?;
        let answer = onward.answer()?;
        wire.try_send([answer.head.as_bytes(), &answer.body].concat())?;
        count.fetch_add(usize::from(answer.status == status), SeqCst);
    }
    Ok(())
}

#[track_caller]
fn has(balancer: &Balancer, wanted: &[SocketAddr]) {
    let mut wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
    wanted.sort();
    until(&format!("members {wanted:?}"), || {
        let group = balancer.group("web");
        let all = group["members"].as_array().unwrap();
        let mut names: Vec<&str> = all.iter().map(|one| one["name"].as_str().unwrap()).collect();
        names.sort_unstable();
        names == wanted
    });
}

#[test]
fn a_server_comes_and_goes_under_load_and_no_request_fails() {
    let members = Member::several(3, &["--service", "const:20ms", "--workers", "64"]);
    let [a, b, c] = [0, 1, 2].map(|at: usize| members[at].address);
    let balancer = Balancer::start(&text(""));
    let refused = get(balancer.address(), "/");
    assert_eq!((refused.status, refused.reason()), (503, Some("no_member")));
    let to = [balancer.reports()];
    let _stays = Agent::start(a, &to, LONG, &[]);
    has(&balancer, &[a]);
    let mut load = Load::start(balancer.address(), "POST", 30.0);
    let mut goes = Agent::start(b, &to, LONG, &["--capacity", "2.5", "--max-connections", "77"]);
    has(&balancer, &[a, b]);
    let found = balancer.member(b);
    assert_eq!((found["capacity"].as_f64(), found["limit"].as_u64()), (Some(2.5), Some(77)));
    load.more(50);
    assert!(balancer.member(b)["requests"].as_u64().unwrap() > 0);
    // The agent reports that it leaves, its work ends, and then the member is gone.
    goes.process.signal(Signal::TERM);
    assert_eq!(goes.process.end(), Some(0));
    has(&balancer, &[a]);
    assert_eq!(balancer.events(b, "draining").len(), 1);
    load.more(50);
    // A member that dies is forgotten when it was silent for long enough.
    let mut dies = Agent::start(c, &to, SHORT, &[]);
    has(&balancer, &[a, c]);
    dies.process.kill();
    has(&balancer, &[a]);
    load.more(20);
    load.stop_unharmed();
    let group = balancer.group("web");
    assert_eq!(group["discovery"][0]["kind"], "registered");
}

#[test]
fn with_a_store_members_outlive_the_balancer() {
    let members = Member::several(2, &[]);
    let [a, b] = [members[0].address, members[1].address];
    let folder = Folder::new();
    let config = text(&format!("[store]\nfile = \"{}\"\n", folder.join("state.json").display()));
    let balancer = Balancer::start_in(folder, &config);
    let (one, other) = (a.to_string(), b.to_string());
    let run = balancer.run(&["add", "member", &one, "--group", "web", "--capacity", "3"]);
    assert_eq!((run.code, &*run.err), (Some(0), &*format!("{one}: a member of group web\n")), "{}", run.out);
    // A member whose agent is gone has its whole time after the start.
    let mut agent = Agent::start(b, &[balancer.reports()], SHORT, &[]);
    has(&balancer, &[a, b]);
    agent.process.kill();
    let balancer = Balancer::start_in(balancer.killed(), &config);
    assert_eq!(balancer.member(a)["capacity"], 3.0);
    has(&balancer, &[a]);
    assert_eq!(get(balancer.address(), "/").status, 200);
    let run = balancer.run(&["remove", "member", &one, "-g", "web"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    has(&balancer, &[]);
    for (args, why) in [
        (["remove", "member", &*other, "-g", "web"], "was registered"),
        (["add", "member", &*other, "-g", "none"], "there is no group none"),
        (["add", "member", "127.0.0.1", "-g", "web"], "has no port"),
        (["add", "member", "no.such.host.invalid:1", "-g", "web"], "cannot be looked up"),
    ] {
        let run = balancer.run(&args);
        assert!(run.code == Some(2) && run.err.contains(why), "{args:?}: {:?} {}", run.code, run.err);
    }
}

#[test]
fn who_may_register_where() {
    let member = Member::start(&[]);
    let body = "{\"ttl_seconds\":600}";
    let path = format!("/v1/groups/web/members/{}", member.address);
    let put = |address: SocketAddr| {
        let url = format!("http://{address}{path}");
        let run = crate::stage::curl(
            &["-X", "PUT", "-d", body, "-w", "%{http_code}", "-o", "/dev/null", &url],
            b"",
        );
        String::from_utf8(run.body).unwrap()
    };
    // The address for reports registers no member without that option, and the listener that only shows never
    // does.
    let balancer = Balancer::start(&text("").replace("register = true", ""));
    assert_eq!((&*put(balancer.reports()), &*put(balancer.admin())), ("404", "405"));
    has(&balancer, &[]);
    let audit = balancer.folder().join("audit.log");
    let config =
        text("").replace("register = true", &format!("register = true\naudit = \"{}\"", audit.display()));
    let balancer = Balancer::start(&config);
    for _ in 0..3 {
        assert_eq!((&*put(balancer.reports()), &*put(balancer.admin())), ("200", "405"));
    }
    has(&balancer, &[member.address]);
    // The audit log records that the member came, and not that it is still there.
    let written = std::fs::read_to_string(audit).unwrap();
    let lines = written.lines().filter(|line| line.contains("\"register\"")).count();
    assert!(lines == 2 && written.contains("ttl_seconds"), "{written}");
    // A group without that source takes no member.
    let closed = config.replace("registered = true", "file = \"/dev/null\"");
    balancer.reload(&closed);
    assert_eq!(put(balancer.reports()), "422");
}

/// Returns the table of a store in etcd, with a long timeout.
fn in_etcd(etcd: &Etcd) -> String {
    format!("[store]\netcd = \"/plimsoll/\"\n[etcd]\nendpoints = {}\ntimeout = \"20s\"\n", etcd.endpoints())
}

/// Returns the seconds that are left of a registered member's lease.
#[track_caller]
fn left(etcd: &Etcd, member: SocketAddr) -> i64 {
    let key = format!("/plimsoll/members/web/{member}");
    let said = etcd.ctl(&["get", &key, "-w", "json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let lease = said["kvs"][0]["lease"].as_i64().unwrap_or_else(|| panic!("no lease of {key} in {said}"));
    let said = etcd.ctl(&["lease", "timetolive", &format!("{lease:x}")]);
    let seconds = said.split_once("remaining(").and_then(|(_, rest)| rest.split_once("s)")?.0.parse().ok());
    seconds.unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn with_etcd_all_balancers_have_a_member_and_any_keeps_it() {
    let etcd = Etcd::start(1);
    let member = Member::start(&[]);
    let store = in_etcd(&etcd);
    let (one, other) = (Balancer::start(&text(&store)), Balancer::start(&text(&store)));
    let mut agent = Agent::start(member.address, &[one.reports(), other.reports()], "15s", &[]);
    has(&one, &[member.address]);
    has(&other, &[member.address]);
    let mut load = Load::start(other.address(), "GET", 50.0);
    drop(one.killed());
    // The rest of its lease grows only if a balancer renews it.
    let mut before = left(&etcd, member.address);
    let mut renewed = 0;
    until("it is renewed by the other", || {
        let now = left(&etcd, member.address);
        renewed += usize::from(now > before);
        before = now;
        renewed == 2
    });
    load.more(20);
    has(&other, &[member.address]);
    load.stop_unharmed();
    agent.process.signal(Signal::TERM);
    assert_eq!(agent.process.end(), Some(0));
    has(&other, &[]);
}

#[test]
fn with_and_without_a_store_members_and_what_operators_did_outlive_an_upgrade() {
    let members = Member::several(2, &[]);
    let [a, b] = [members[0].address, members[1].address];
    for stores in [false, true] {
        let folder = Folder::new();
        let store = format!("[store]\nfile = \"{}\"\n", folder.join("state.json").display());
        let balancer = Balancer::start_in(folder, &text(if stores { &store } else { "" }));
        // The relay between the agent and the balancer counts how often the member's registration was
        // confirmed.
        let (to, confirmed) = (balancer.reports(), Arc::<AtomicUsize>::default());
        let count = Arc::clone(&confirmed);
        let relay = Script::start(move |wire| relayed(wire, to, 200, &count));
        let mut agent = Agent::start(a, &[relay.address], "9s", &[]);
        let name = b.to_string();
        for args in [
            &["add", "member", &*name, "--group", "web", "--capacity", "3"][..],
            &["set", "group", "web.strategy=random"],
        ] {
            assert_eq!(balancer.run(args).code, Some(0), "{args:?}");
        }
        has(&balancer, &[a, b]);
        assert_eq!(balancer.run(&["drain", &name]).code, Some(0));
        // The old process stays for a while.
        let mut kept = TcpStream::connect(balancer.address()).unwrap();
        kept.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        assert!(kept.read(&mut [0; 1024]).unwrap() > 0);
        let _heir = upgraded(&balancer);
        let state = |member| balancer.member(member)["state"].clone();
        assert_eq!((state(a), state(b)), ("up".into(), "draining".into()));
        assert_eq!(balancer.member(b)["capacity"], 3.0);
        assert_eq!(balancer.group("web")["strategy"], "random");
        // The agent renews the registration with the new process.
        let before = confirmed.load(SeqCst);
        until("it is confirmed twice", || {
            assert_eq!((state(a), state(b)), ("up".into(), "draining".into()), "store: {stores}");
            confirmed.load(SeqCst) >= before + 2
        });
        assert!(runs(balancer.process.pid()), "the process before was not there");
        drop(kept);
        agent.process.kill();
        has(&balancer, &[b]);
        for args in [["undrain", &*name].as_slice(), &["remove", "member", &name, "-g", "web"]] {
            let run = balancer.run(args);
            assert_eq!(run.code, Some(0), "{}", run.err);
        }
        has(&balancer, &[]);
    }
}

#[test]
fn who_starts_misses_nobody_who_registers_meanwhile() {
    let etcd = Etcd::start(1);
    let member = Member::start(&[]);
    let store = in_etcd(&etcd);
    let one = Balancer::start(&text(&store));
    // The balancer waits for a source that never answers.
    let slow = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let source = format!("{{ registered = true }}, {{ http = \"http://{}/\" }}", slow.local_addr().unwrap());
    let other = text(&store).replace("{ registered = true }", &source);
    thread::scope(|scope| {
        let coming = scope.spawn(|| {
            // The store was read before that.
            let asked = slow.accept().unwrap();
            let run = one.run(&["add", "member", &member.address.to_string(), "--group", "web"]);
            assert_eq!(run.code, Some(0), "{}", run.err);
            asked
        });
        let other = Balancer::start(&other);
        let _asked = coming.join().unwrap();
        has(&other, &[member.address]);
    });
}

#[test]
fn who_leaves_during_an_upgrade_is_heard_after_it() {
    let member = Member::start(&[]);
    let balancer = Balancer::start(&text(""));
    let (to, refused) = (balancer.reports(), Arc::<AtomicUsize>::default());
    let count = Arc::clone(&refused);
    let relay = Script::start(move |wire| relayed(wire, to, 503, &count));
    let (address, to) = (member.address.to_string(), format!("http://{}", relay.address));
    let folder = Folder::new();
    let args = ["agent", "--register", "--group", "web", "--member", &address, "--report-to", &to];
    let mut agent =
        Process::start(&binary(), &[&args[..], &["--ttl", "10m", "--drain", "10m"]].concat(), folder.path());
    has(&balancer, &[member.address]);
    // The program ends when the test lets it.
    let hangs = program(&folder, "hangs", ": > started; until [ -e over ]; do sleep 0.05; done; exit 7");
    let place = balancer.folder().path().to_owned();
    let (started, over) = (place.join("started"), place.join("over"));
    let upgrade = thread::spawn(move || {
        Run::plimsoll(&["upgrade", "--binary", hangs.to_str().unwrap(), "--timeout", "10m"], &place)
    });
    until("the upgrade has begun", || started.exists());
    agent.signal(Signal::TERM);
    until("it is refused", || refused.load(SeqCst) >= 2);
    std::fs::write(over, "").unwrap();
    assert_eq!(agent.end(), Some(0));
    has(&balancer, &[]);
    assert_eq!(upgrade.join().unwrap().code, Some(2));
}
