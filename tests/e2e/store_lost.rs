//! An etcd has lost the balancers' entries, in part or whole: the known state stays in force until an
//! operator decides.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_cluster::etcd::{EtcdEndpoint, EtcdSettings, TlsFiles};
use plimsoll_cluster::store::{EtcdStore, EtcdStoreSettings, Store, StoreChange, StoreSnapshot};
use serde_json::Value;

use crate::stage::{Balancer, Etcd, Folder, Member, Process, binary, get, until, web};

/// Returns a balancer's own file; groups and listeners are in the store.
fn own(etcd: &Etcd) -> String {
    format!(
        "[store]\netcd = \"/plimsoll/\"\nconfig = true\n[etcd]\nendpoints = {}\ntimeout = \
         \"20s\"\n[admin]\nregister = true\n",
        etcd.endpoints()
    )
}

#[track_caller]
fn told(balancer: &Balancer, args: &[&str]) -> String {
    let run = balancer.run(args);
    assert_eq!(run.code, Some(0), "{args:?}: {}{}", run.out, run.err);
    run.out
}

fn events(balancer: &Balancer, kind: &str) -> Vec<String> {
    let out = told(balancer, &["events", "-o", "json"]);
    let all = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|event| event["kind"] == kind).map(|event| event["why"].as_str().unwrap().to_owned()).collect()
}

fn doubt(balancer: &Balancer) -> Option<String> {
    balancer.status()["store"]["doubt"].as_str().map(str::to_owned)
}

/// Returns the metrics of the store: 1 if it can be used, and 1 if its losses are doubted.
fn measured(balancer: &Balancer, etcd: &Etcd) -> (f64, f64) {
    let label = format!("{{store=\"etcd http://127.0.0.1:{} /plimsoll/\"}}", etcd.port());
    let one = |name: &str| balancer.metric(&format!("plimsoll_store_{name}{label}"));
    (one("up"), one("doubted"))
}

/// Returns the state of a member of the group `web`; an empty string if there is none.
fn state(balancer: &Balancer, member: SocketAddr) -> String {
    let status: Value = serde_json::from_str(&get(balancer.admin(), "/status").text()).unwrap();
    let groups = status["groups"].as_array().unwrap();
    let web = groups.iter().find(|group| group["name"] == "web").cloned().unwrap_or_default();
    let members = web["members"].as_array().cloned().unwrap_or_default();
    let found = members.iter().find(|one| one["name"] == member.to_string());
    found.map_or_else(String::new, |found| found["state"].as_str().unwrap().to_owned())
}

#[track_caller]
fn becomes(balancer: &Balancer, member: SocketAddr, wanted: &str) {
    until(&format!("{member} {wanted:?}"), || state(balancer, member) == wanted);
}

fn listeners(balancer: &Balancer) -> usize {
    balancer.status()["listeners"].as_array().unwrap().len()
}

/// Returns the status that a client gets at the shared listener.
fn served(balancer: &Balancer) -> u16 {
    let status = balancer.status();
    let door = status["listeners"][0]["address"].as_str().unwrap();
    get(door.parse().unwrap(), "/").status
}

#[test]
fn groups_and_listeners_that_vanish_stay_until_others_are_pushed() {
    let etcd = Etcd::start(1);
    let member = Member::start(&[]);
    let balancer = Balancer::start(&own(&etcd));
    balancer.folder().write("shared.toml", web(&[member.address], ""));
    told(&balancer, &["config", "push", "shared.toml"]);
    until("the shared listener", || listeners(&balancer) == 1);
    assert_eq!((served(&balancer), doubt(&balancer)), (200, None));
    assert_eq!(measured(&balancer, &etcd), (1.0, 0.0));
    let reloads = || events(&balancer, "reloaded").len();
    let before = reloads();
    etcd.ctl(&["del", "/plimsoll/config"]);
    until("it is told", || events(&balancer, "store_lost").len() == 1);
    let why = events(&balancer, "store_lost").remove(0);
    assert!(why.contains("stay in force") && why.contains("plimsoll config push FILE"), "{why}");
    assert!(doubt(&balancer).is_some_and(|doubt| why.ends_with(&doubt)));
    assert_eq!(measured(&balancer, &etcd), (1.0, 1.0), "it can be used, and is not believed");
    // The store can be used, and another change in it does not end the doubt.
    let name = member.address.to_string();
    told(&balancer, &["drain", &name]);
    told(&balancer, &["undrain", &name]);
    assert!(told(&balancer, &["status"]).contains("has no groups and listeners for all balancers any more"));
    assert_eq!((served(&balancer), listeners(&balancer), reloads()), (200, 1, before));
    // A reload of the file does not end it either.
    told(&balancer, &["reload"]);
    assert_eq!((served(&balancer), listeners(&balancer)), (200, 1));
    assert_eq!((events(&balancer, "store_lost").len(), reloads()), (1, before + 1));
    assert!(doubt(&balancer).is_some());
    // A push of the same file restores everything.
    told(&balancer, &["config", "push", "shared.toml"]);
    until("it is believed", || doubt(&balancer).is_none());
    assert_eq!(measured(&balancer, &etcd), (1.0, 0.0));
    until("that is told", || events(&balancer, "store_recovered").len() == 1);
    assert_eq!(served(&balancer), 200);
    // An operator pushes an empty file to confirm the loss.
    balancer.folder().write("none.toml", "");
    told(&balancer, &["config", "push", "none.toml"]);
    until("none are left", || listeners(&balancer) == 0);
    assert_eq!((doubt(&balancer), events(&balancer, "store_lost").len()), (None, 1));
}

/// Starts an agent that registers a member of the group `web`, which is forgotten after `ttl` without a
/// renewal.
fn agent(folder: &Folder, member: SocketAddr, balancer: &Balancer, ttl: &str) -> Process {
    let (member, to) = (member.to_string(), format!("http://{}", balancer.reports()));
    let args =
        ["agent", "--register", "--group", "web", "--member", &member, "--report-to", &to, "--ttl", ttl];
    Process::start(&binary(), &args, folder.path())
}

#[test]
fn an_etcd_that_is_wiped_ends_nothing() {
    let mut etcd = Etcd::start(1);
    let members = Member::several(4, &[]);
    let [a, b, alive, dead] = [0, 1, 2, 3].map(|at: usize| members[at].address);
    let (one, other) = (Balancer::start(&own(&etcd)), Balancer::start(&own(&etcd)));
    let both = [&one, &other];
    one.folder().write("shared.toml", web(&[a, b], "discover = [{ registered = true }]\n"));
    told(&one, &["config", "push", "shared.toml"]);
    for balancer in both {
        until("the shared listener", || listeners(balancer) == 1);
    }
    told(&one, &["drain", &a.to_string()]);
    let folder = Folder::new();
    let _lives = agent(&folder, alive, &one, "15s");
    let mut dies = agent(&folder, dead, &one, "6s");
    for balancer in both {
        becomes(balancer, a, "draining");
        becomes(balancer, alive, "up");
        becomes(balancer, dead, "up");
    }
    dies.kill();
    etcd.wipe(0);
    for balancer in both {
        until("it is told", || doubt(balancer).is_some_and(|why| why.contains("has lost what it had")));
        until("it can be used", || balancer.status()["store"]["error"].is_null());
        assert_eq!(
            (state(balancer, a), state(balancer, b), listeners(balancer)),
            ("draining".into(), "up".into(), 1)
        );
        assert_eq!(state(balancer, alive), "up");
        assert_eq!(measured(balancer, &etcd), (1.0, 1.0));
        until("it is an event, too", || {
            events(balancer, "store_lost").iter().any(|why| why.contains("stay in force"))
        });
    }
    // A live member registers anew, which does not end the doubt about operators' changes. A dead one is
    // forgotten after its time.
    until("the agent is there again", || {
        etcd.ctl(&["get", "--prefix", "/plimsoll/members/"]).contains("members/web")
    });
    for balancer in both {
        becomes(balancer, dead, "");
        becomes(balancer, alive, "up");
        assert_eq!(state(balancer, a), "draining");
        assert_eq!((served(balancer), listeners(balancer)), (200, 1));
    }
    // The next change of an operator writes all of them again, also for balancers that start later.
    told(&one, &["disable", "member", &b.to_string()]);
    for balancer in both {
        until("it is believed", || doubt(balancer).is_none());
        assert_eq!(measured(balancer, &etcd), (1.0, 0.0));
        becomes(balancer, b, "disabled");
        assert_eq!((state(balancer, a), listeners(balancer)), ("draining".into(), 1));
    }
    let third = Balancer::start(&own(&etcd));
    assert_eq!(
        (state(&third, a), state(&third, b), listeners(&third)),
        ("draining".into(), "disabled".into(), 1)
    );
    told(&other, &["undrain", &a.to_string()]);
    becomes(&one, a, "up");
    becomes(&third, a, "up");
}

fn shared(etcd: &Etcd, copy: Option<&Path>) -> EtcdStore {
    let settings = EtcdStoreSettings {
        etcd: EtcdSettings {
            endpoints: vec![EtcdEndpoint { https: false, host: "127.0.0.1".into(), port: etcd.port() }],
            user: None,
            tls: TlsFiles::default(),
            timeout: Duration::from_secs(20),
        },
        prefix: "/c/".into(),
        copy: copy.map(Path::to_owned),
    };
    let (store, said) = EtcdStore::open(settings).unwrap();
    assert_eq!(said, None);
    store
}

#[test]
fn a_copy_is_what_was_known_after_a_start_and_is_taken_back_for_all() {
    let mut etcd = Etcd::start(1);
    let folder = Folder::new();
    let copy = folder.join("copy.json");
    let view = |store: &EtcdStore| -> Arc<StoreSnapshot> { Arc::clone(&store.snapshots().borrow()) };
    let keys = |store: &EtcdStore| view(store).entries.keys().cloned().collect::<Vec<_>>();
    let store = shared(&etcd, Some(&copy));
    for number in 0..70 {
        store.commit(&StoreChange::put(format!("k{number}"), "x")).unwrap();
    }
    until("a copy", || copy.exists() && folder.read("copy.json").contains("\"k69\""));
    drop(store);
    etcd.wipe(0);
    // A start, and another after the copy was written once more.
    for _ in 0..2 {
        let store = shared(&etcd, Some(&copy));
        assert_eq!((keys(&store).len(), view(&store).revision_of("k1")), (70, 0));
        assert!(store.health().distrust.is_some());
        until("the copy is written", || folder.read("copy.json").contains("\"revision\":0"));
    }
    let (store, other) = (shared(&etcd, Some(&copy)), shared(&etcd, None));
    // A store that began without a copy knows of nothing.
    assert_eq!((keys(&other).len(), other.health().distrust), (0, None));
    // The deleted key is gone for all, and the rest is there.
    store.commit(&StoreChange::delete("k1").if_unchanged_since(&view(&store))).unwrap();
    until("all is there", || keys(&store).len() == 69 && keys(&other).len() == 69);
    assert!(!keys(&other).contains(&"k1".to_owned()) && view(&store) == view(&other));
    assert_eq!(store.health().distrust, None);
}
