//! Several balancers with one store in Debian's etcd: a change at one applies to all, and etcd fails in part
//! and whole.

use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::Value;

use crate::stage::{Authority, Balancer, Etcd, Folder, Load, Member, get, until, web};

/// Returns a file that waits for etcd, however late the machine is. `more` goes into the table of etcd,
/// `rest` into the group's.
fn text(etcd: &Etcd, members: &[SocketAddr], more: &str, rest: &str) -> String {
    format!(
        "[store]\netcd = \"/plimsoll/\"\n[etcd]\nendpoints = {}\ntimeout = \"20s\"\n{more}{}",
        etcd.endpoints(),
        web(members, rest)
    )
}

/// The settings of a group that rejects no request, however many come at once, and whose members do not fail
/// because the balancer stood still.
const ALL: &str = "admission = false\ntimeouts = { connect = \"20s\" }\n";

#[track_caller]
fn told(balancer: &Balancer, args: &[&str]) {
    let run = balancer.run(args);
    assert_eq!(run.code, Some(0), "{args:?}: {}{}", run.out, run.err);
}

/// Returns the state of a member, without a command's process.
fn state(balancer: &Balancer, member: SocketAddr) -> String {
    let status: Value = serde_json::from_str(&get(balancer.admin(), "/status").text()).unwrap();
    let members = status["groups"][0]["members"].as_array().unwrap().clone();
    let found = members.iter().find(|one| one["name"] == member.to_string()).cloned();
    found.map_or_else(String::new, |found| found["state"].as_str().unwrap().to_owned())
}

#[track_caller]
fn becomes(balancer: &Balancer, member: SocketAddr, wanted: &str) {
    until(&format!("{member} {wanted}"), || state(balancer, member) == wanted);
}

fn store(balancer: &Balancer) -> Value {
    balancer.status()["store"].clone()
}

#[track_caller]
fn lost(balancer: &Balancer) {
    until("a balancer that says that the store is lost", || !store(balancer)["error"].is_null());
}

#[track_caller]
fn back(balancer: &Balancer) {
    until("a store that is back", || store(balancer)["error"].is_null());
}

fn events(balancer: &Balancer, kind: &str) -> usize {
    let run = balancer.run(&["events", "-o", "json"]);
    let all = run.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|event| event["kind"] == kind).count()
}

#[test]
fn what_one_is_told_all_do_by_a_watch() {
    let etcd = Etcd::start(1);
    let members = Member::several(2, &[]);
    let [a, b] = [members[0].address, members[1].address];
    let config = text(&etcd, &[a, b], "", "");
    let one = Balancer::start(&config);
    let other = Balancer::start(&config);
    let name = a.to_string();
    for _ in 0..5 {
        told(&one, &["drain", &name]);
        becomes(&other, a, "draining");
        told(&other, &["undrain", &name]);
        becomes(&one, a, "up");
    }
    // Only etcd and its watch stand between the two: neither has read the prefix again.
    assert_eq!((&store(&one)["reads"], &store(&other)["reads"]), (&1.into(), &1.into()));
    told(&one, &["set", "group", "web.strategy=random"]);
    until("the other's strategy", || other.group("web")["strategy"] == "random");
    told(&other, &["disable", "member", &b.to_string()]);
    becomes(&one, b, "disabled");
    // A balancer that starts later has all changes, without a new command.
    let third = Balancer::start(&config);
    assert_eq!((state(&third, b), &third.group("web")["strategy"]), ("disabled".into(), &"random".into()));
    told(&third, &["enable", "member", &b.to_string()]);
    becomes(&other, b, "up");
    // A reload of one balancer ends the operators' changes for all.
    told(&third, &["reload"]);
    for balancer in [&one, &other, &third] {
        until("the file's strategy", || balancer.group("web")["strategy"] == "adaptive");
    }
}

#[test]
fn scalers_balancing_and_listeners_are_told_to_all() {
    let etcd = Etcd::start(1);
    let members = Member::several(2, &[]);
    let all: Vec<SocketAddr> = members.iter().map(|member| member.address).collect();
    let port = crate::stage::free_port();
    let listener = format!("[[listener]]\naddress = \"127.0.0.1:{port}\"\ngroup = \"web\"\n");
    let counted = "[group.scaler]\nmin = 1\nmax = 5\ntarget = { headroom = 0.3 }\ninterval = \
        \"100ms\"\nadvice = true\n";
    let plain = text(&etcd, &all, "", "") + counted;
    let (one, other) = (Balancer::start(&plain), Balancer::start(&plain));
    let scaler = |balancer: &Balancer, key: &str| balancer.group("web")["scaler"][key].clone();
    told(&one, &["set", "group", "web.scaler.min=3"]);
    until("the other's least", || scaler(&other, "min") == 3);
    told(&other, &["set", "group", "web.scaler.max=3"]);
    told(&other, &["set", "group", "web.scaler.pause=true"]);
    until("the one's most", || (scaler(&one, "max"), scaler(&one, "paused")) == (3.into(), true.into()));
    // A balancer checks a change against the changes of the other.
    let refused = one.run(&["set", "group", "web.scaler.min=4"]);
    assert!(refused.code == Some(2) && refused.err.contains("above scaler.max (3)"), "{}", refused.err);
    told(&one, &["disable", "balancing", "web"]);
    until("the other's turns", || other.group("web")["balancing_disabled"] == true);
    assert_eq!(other.group("web")["strategy"], "round_robin");
    told(&other, &["enable", "balancing", "web"]);
    until("the one's strategy", || one.group("web")["strategy"] == "adaptive");
    told(&other, &["reload"]);
    for balancer in [&one, &other] {
        until("the file's bounds", || {
            (scaler(balancer, "min"), scaler(balancer, "max"), scaler(balancer, "paused"))
                == (1.into(), 5.into(), false.into())
        });
    }
    // The listeners of two hosts have one address: here the second balancer starts once the first has closed
    // its own.
    let both = text(&etcd, &all, &listener, "") + counted;
    let third = Balancer::start(&both);
    let at = |balancer: &Balancer| {
        let status = balancer.status();
        let found = status["listeners"].as_array().unwrap().iter();
        let found = found.filter(|one| one["address"].as_str().unwrap().ends_with(&format!(":{port}")));
        found.map(|one| one["disabled"] == true).next().unwrap()
    };
    let address = format!("127.0.0.1:{port}");
    told(&third, &["disable", "listener", &address]);
    let fourth = Balancer::start(&both);
    assert!(at(&third) && at(&fourth), "closed at both");
    told(&third, &["enable", "listener", &address]);
    assert!(!at(&third) && get(address.parse().unwrap(), "/").status == 200);
    told(&third, &["disable", "listener", &address]);
    until("closed at both again", || at(&fourth));
}

/// The one node that the balancer knows runs on, and has no quorum.
#[test]
fn a_node_without_its_quorum_is_no_store() {
    let mut etcd = Etcd::start(3);
    let members = Member::several(2, &[]);
    let [a, b] = [members[0].address, members[1].address];
    // A request without an answer is given up soon.
    let config = text(&etcd, &[a, b], "", ALL)
        .replace(&etcd.endpoints(), &format!("[\"http://127.0.0.1:{}\"]", etcd.port()))
        .replace("timeout = \"20s\"", "timeout = \"3s\"");
    let balancer = Balancer::start(&config);
    until("a drain", || balancer.run(&["drain", &a.to_string()]).code == Some(0));
    let mut load = Load::start(balancer.address(), "GET", 30.0);
    load.more(20);
    let before = events(&balancer, "store_lost");
    etcd.kill(1);
    etcd.kill(2);
    lost(&balancer);
    // The known state is in force, and nothing else can be.
    let refused = balancer.run(&["undrain", &a.to_string()]);
    assert_eq!(refused.code, Some(2), "{}{}", refused.out, refused.err);
    assert!(refused.err.contains("the store"), "{}", refused.err);
    assert_eq!((state(&balancer, a), state(&balancer, b)), ("draining".into(), "up".into()));
    until("it is told", || events(&balancer, "store_lost") > before);
    load.more(50);
    etcd.restart(1);
    etcd.restart(2);
    etcd.healthy();
    back(&balancer);
    // The change of another client reaches it: the balancer really follows anew.
    etcd.ctl(&["del", &format!("/plimsoll/drain/web/{a}")]);
    becomes(&balancer, a, "up");
    etcd.ctl(&["put", &format!("/plimsoll/disable/member/web/{b}"), "{}"]);
    becomes(&balancer, b, "disabled");
    until("it is taken back", || balancer.run(&["enable", "member", &b.to_string()]).code == Some(0));
    becomes(&balancer, b, "up");
    until("it is told that it is back", || events(&balancer, "store_recovered") >= 1);
    load.stop_unharmed();
}

#[test]
fn one_of_three_nodes_is_killed_under_load() {
    let mut etcd = Etcd::start(3);
    let members = Member::several(3, &[]);
    let all: Vec<SocketAddr> = members.iter().map(|member| member.address).collect();
    let config = text(&etcd, &all, "", ALL);
    let balancers = [Balancer::start(&config), Balancer::start(&config)];
    let mut load = Load::start(balancers[0].address(), "GET", 30.0);
    let name = all[0].to_string();
    for node in 0..3 {
        load.more(20);
        etcd.kill(node);
        // A balancer that used that node may not know of its end yet: a repeated command succeeds.
        until("a drain", || balancers[0].run(&["drain", &name]).code == Some(0));
        becomes(&balancers[1], all[0], "draining");
        until("it is taken back", || balancers[1].run(&["undrain", &name]).code == Some(0));
        becomes(&balancers[0], all[0], "up");
        load.more(20);
        etcd.restart(node);
        etcd.healthy();
    }
    load.stop_unharmed();
    balancers.iter().for_each(back);
}

#[test]
fn etcd_goes_as_a_whole_and_comes_back() {
    let mut etcd = Etcd::start(1);
    let members = Member::several(2, &[]);
    let [a, b] = [members[0].address, members[1].address];
    let folder = Folder::new();
    let copy = format!("[store]\nfile = \"{}\"\n", folder.join("copy.json").display());
    let config = text(&etcd, &[a, b], "", ALL);
    let with_copy = config.replace("[store]\n", &copy);
    let one = Balancer::start_in(folder, &with_copy);
    let other = Balancer::start(&config);
    told(&one, &["drain", &a.to_string()]);
    becomes(&other, a, "draining");
    until("a copy", || {
        one.folder().join("copy.json").exists() && one.folder().read("copy.json").contains("drain/web/")
    });
    let mut load = Load::start(one.address(), "GET", 30.0);
    etcd.kill(0);
    lost(&one);
    lost(&other);
    load.more(50);
    // The balancer goes on with its state, reports the loss, and refuses changes that the others would not
    // know of.
    assert_eq!(state(&one, a), "draining");
    let refused = one.run(&["undrain", &a.to_string()]);
    assert_eq!(refused.code, Some(2), "{}{}", refused.out, refused.err);
    assert!(
        refused.err.contains("the store cannot be written") && refused.err.contains("nothing was changed"),
        "{}",
        refused.err
    );
    assert_eq!(state(&one, a), "draining");
    let shown = one.run(&["status"]).out;
    assert!(shown.contains("the store in etcd") && shown.contains("cannot be used"), "{shown}");
    let label = format!("{{store=\"etcd http://127.0.0.1:{} /plimsoll/\"}}", etcd.port());
    assert_eq!(one.metric(&format!("plimsoll_store_up{label}")), 0.0);
    // A balancer that starts meanwhile has its copy.
    load.more(20);
    load.stop_unharmed();
    let one = Balancer::start_in(one.killed(), &with_copy);
    assert_eq!(state(&one, a), "draining");
    one.process.line("going on with the copy");
    // The balancer catches up, also with changes that others made before it was back.
    etcd.restart(0);
    etcd.healthy();
    back(&one);
    back(&other);
    told(&other, &["undrain", &a.to_string()]);
    becomes(&one, a, "up");
    until("it is said", || events(&other, "store_recovered") > 0);
    assert_eq!((events(&other, "store_lost"), events(&other, "store_recovered")), (1, 1));
    assert_eq!(one.metric(&format!("plimsoll_store_up{label}")), 1.0);
    assert_eq!(store(&other)["reads"], 1, "it went on where it had been");
}

#[test]
fn what_was_compacted_meanwhile_is_read_anew() {
    let mut etcd = Etcd::start(1);
    let members = Member::several(2, &[]);
    let [a, b] = [members[0].address, members[1].address];
    let config = text(&etcd, &[a, b], "", "");
    let (one, other) = (Balancer::start(&config), Balancer::start(&config));
    told(&one, &["drain", &a.to_string()]);
    becomes(&other, a, "draining");
    // The balancer stands still while its connection breaks, things change and their history is compacted.
    other.process.signal(Signal::STOP);
    etcd.kill(0);
    etcd.restart(0);
    etcd.healthy();
    back(&one);
    told(&one, &["undrain", &a.to_string()]);
    told(&one, &["drain", &b.to_string()]);
    etcd.compact();
    other.process.signal(Signal::CONT);
    becomes(&other, b, "draining");
    becomes(&other, a, "up");
    assert_eq!((&store(&other)["reads"], &store(&one)["reads"]), (&2.into(), &1.into()));
}

#[test]
fn over_tls_with_a_user_whose_token_is_renewed() {
    let folder = Folder::new();
    let authority = Authority::new(&folder, "ca");
    authority.issue(&folder, "etcd", &["127.0.0.1"]);
    authority.issue(&folder, "client", &[]);
    let path = folder.path().to_owned();
    let file = |name: &str| path.join(name).display().to_string();
    std::fs::write(path.join("password"), "geheim\n").unwrap();
    let mut etcd = Etcd::secure(folder);
    for args in [
        &["user", "add", "root:root"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "lb"],
        &["role", "grant-permission", "lb", "--prefix=true", "readwrite", "/plimsoll/"],
        &["user", "add", "lb:geheim"],
        &["user", "grant-role", "lb", "lb"],
        &["auth", "enable"],
    ] {
        etcd.ctl(args);
    }
    etcd.login("root:root");
    let member = Member::start(&[]);
    let name = member.address.to_string();
    let more = format!(
        "ca = \"{}\"\ncertificate = \"{}\"\nkey = \"{}\"\nuser = \"lb\"\npassword_file = \"{}\"\n",
        file("ca.pem"),
        file("client.pem"),
        file("client.key"),
        file("password")
    );
    let config = text(&etcd, &[member.address], &more, "");
    let (one, other) = (Balancer::start(&config), Balancer::start(&config));
    told(&one, &["drain", &name]);
    becomes(&other, member.address, "draining");
    // A change of permissions makes old tokens invalid.
    etcd.ctl(&["user", "add", "else:else"]);
    etcd.ctl(&["user", "grant-role", "else", "lb"]);
    told(&one, &["undrain", &name]);
    becomes(&other, member.address, "up");
    // Without a certificate, or with another password, the balancer reports the reason.
    let wrong = |config: &str, why: &str| {
        let balancer = Balancer::start(config);
        lost(&balancer);
        until(why, || store(&balancer)["error"].as_str().is_some_and(|said| said.contains(why)));
    };
    std::fs::write(path.join("password2"), "falsch").unwrap();
    wrong(&config.replace(&file("password"), &file("password2")), "authentication failed");
    wrong(&config.replace(&file("ca.pem"), &file("client.pem")), "TLS: ");
}

#[test]
fn members_are_found_below_a_prefix() {
    let mut etcd = Etcd::start(1);
    let three = Member::several(3, &[]);
    let [a, b, c] = [0, 1, 2].map(|at: usize| three[at].address);
    let put = |etcd: &Etcd, key: &str, value: &str| {
        drop(etcd.ctl(&["put", &format!("/services/web/{key}"), value]))
    };
    put(&etcd, "a", &a.to_string());
    put(&etcd, "else/where", "{\"Op\":0,\"Addr\":\"127.0.0.1:1\"}");
    etcd.ctl(&["del", "/services/web/else/where"]);
    let config = format!(
        "[etcd]\nendpoints = {}\ntimeout = \"20s\"\n[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \
         \"web\"\n[[group]]\nname = \"web\"\n\
         {ALL}slow_start = \"0s\"\n[[group.discover]]\netcd = \"/services/web/\"\n",
        etcd.endpoints()
    );
    let balancer = Balancer::start(&config);
    let names = || {
        let group = balancer.group("web");
        let mut names: Vec<String> = group["members"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    let has = |wanted: &[SocketAddr]| {
        let mut wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
        wanted.sort();
        until(&format!("{wanted:?}"), || names() == wanted);
    };
    let source = || balancer.group("web")["discovery"][0].clone();
    assert_eq!(names(), [a.to_string()]);
    let mut load = Load::start(balancer.address(), "GET", 30.0);
    load.more(20);
    put(&etcd, "b", &format!("{{\"address\": \"{b}\", \"capacity\": 2.5, \"max_connections\": 7}}"));
    until("it is there", || state(&balancer, b) == "up");
    let found = balancer.member(b);
    assert_eq!((found["capacity"].as_f64(), found["limit"].as_u64()), (Some(2.5), Some(7)));
    put(&etcd, "c", &c.to_string());
    etcd.ctl(&["del", "/services/web/a"]);
    has(&[b, c]);
    // An unreadable entry is reported, and changes nothing.
    put(&etcd, "bad", "127.0.0.1");
    until("it is told", || {
        source()["error"]
            .as_str()
            .is_some_and(|why| why.contains("/services/web/bad: `127.0.0.1` has no port"))
    });
    etcd.ctl(&["del", "/services/web/bad"]);
    until("it is mended", || source()["error"].is_null());
    // The balancer does not accept an empty list, nor that of an etcd that is away.
    etcd.ctl(&["del", "/services/web/", "--prefix"]);
    until("it is not believed", || {
        source()["error"].as_str().is_some_and(|why| why.contains("not believed"))
    });
    has(&[b, c]);
    put(&etcd, "b", &b.to_string());
    has(&[b]);
    load.more(20);
    etcd.kill(0);
    until("it is away", || !source()["error"].is_null());
    has(&[b]);
    load.more(20);
    etcd.restart(0);
    etcd.healthy();
    put(&etcd, "c", &c.to_string());
    has(&[b, c]);
    until("it is back", || source()["error"].is_null());
    load.stop_unharmed();
}

#[test]
fn groups_and_listeners_are_shared() {
    let etcd = Etcd::start(1);
    let members = Member::several(2, &[]);
    let [a, b] = [members[0].address, members[1].address];
    let own = format!(
        "[store]\netcd = \"/plimsoll/\"\nconfig = true\n[etcd]\nendpoints = {}\n[[listener]]\naddress = \
         \"127.0.0.1:0\"\ngroup = \"own\"\n\
         [[group]]\nname = \"own\"\nmembers = [\"{a}\"]\n",
        etcd.endpoints()
    );
    let shared =
        |members: &[SocketAddr]| web(members, "").replace("name = \"web\"", "name = \"web\" # shared");
    let (one, other) = (Balancer::start(&own), Balancer::start(&own));
    let groups = |balancer: &Balancer| balancer.status()["groups"].as_array().unwrap().len();
    assert_eq!((groups(&one), groups(&other)), (1, 1));
    one.folder().write("shared.toml", shared(&[a]));
    told(&one, &["config", "push", "shared.toml"]);
    // The group may not be there yet.
    let members_of = |balancer: &Balancer| {
        let status = balancer.status();
        let web = status["groups"].as_array().unwrap().iter().find(|group| group["name"] == "web");
        web.map_or(0, |web| web["members"].as_array().unwrap().len())
    };
    for balancer in [&one, &other] {
        until("the shared group", || members_of(balancer) == 1);
        assert_eq!(balancer.status()["listeners"].as_array().unwrap().len(), 2);
    }
    assert_eq!(other.run(&["config", "pull"]).out, shared(&[a]));
    // A balancer that starts later has them from the beginning; operators' settings stay while the groups
    // change.
    let third = Balancer::start(&own);
    assert_eq!((third.addresses().len(), get(third.addresses()[1], "/").status), (2, 200));
    told(&third, &["set", "group", "web.strategy=random"]);
    one.folder().write("shared.toml", shared(&[a, b]));
    told(&one, &["config", "push", "shared.toml"]);
    for balancer in [&one, &other, &third] {
        until("another member", || members_of(balancer) == 2);
        until("the strategy stays", || balancer.group("web")["strategy"] == "random");
    }
    // A wrong file is reported, and not pushed.
    for (text, why) in [
        ("[[group]]\nname = \"web\"\nmembers = [\"a\"]\n", "shared.toml:3:12: `members`: `a` has no port"),
        ("[admin]\n", "`admin` cannot be shared"),
        ("[[group]]\nname = \"own\"\nmembers = [\"a:1\"]\n", "a second group named `own`"),
    ] {
        one.folder().write("shared.toml", text);
        let run = one.run(&["config", "push", "shared.toml"]);
        assert!(run.code == Some(2) && run.err.contains(why), "{:?} {}", run.code, run.err);
    }
    assert_eq!(members_of(&one), 2);
    assert_eq!(one.status()["last_reload_successful"], true);
}
