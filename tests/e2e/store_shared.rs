//! The store in etcd from the view of its writers: one of two concurrent writers is refused, and leases are
//! etcd's.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use plimsoll_cluster::etcd::{EtcdEndpoint, EtcdSettings, TlsFiles};
use plimsoll_cluster::store::{EtcdStore, EtcdStoreSettings, Store, StoreChange, StoreError};

use crate::stage::{Etcd, until};

fn shared(etcd: &Etcd, prefix: &str) -> EtcdStore {
    let settings = EtcdStoreSettings {
        etcd: EtcdSettings {
            endpoints: vec![EtcdEndpoint { https: false, host: "127.0.0.1".into(), port: etcd.port() }],
            user: None::<(String, PathBuf)>,
            tls: TlsFiles::default(),
            timeout: Duration::from_secs(20),
        },
        prefix: prefix.into(),
        copy: None,
    };
    let (store, said) = EtcdStore::open(settings).unwrap();
    assert_eq!(said, None);
    store
}

#[test]
fn of_two_writers_one_is_refused() {
    let etcd = Etcd::start(1);
    let (one, other) = (shared(&etcd, "/w/"), shared(&etcd, "/w/"));
    let view = |store: &EtcdStore| std::sync::Arc::clone(&store.snapshots().borrow());
    for round in 0..20 {
        let key = format!("k{}", round % 4);
        // Both have seen the same revision, and write different values.
        until("both have seen the same", || view(&one) == view(&other));
        let change = |who: &str| {
            StoreChange::put(key.as_str(), format!("{who} {round}")).if_unchanged_since(&view(&one))
        };
        let changes = [(&one, change("one")), (&other, change("other"))];
        let made = thread::scope(|scope| {
            let all = changes.each_ref().map(|(store, change)| scope.spawn(move || store.commit(change)));
            all.map(|made| made.join().unwrap())
        });
        let refused = made.iter().filter(|made| **made == Err(StoreError::Conflict(key.clone()))).count();
        assert_eq!((made.iter().filter(|made| made.is_ok()).count(), refused), (1, 1), "{made:?}");
        let winner = if made[0].is_ok() { "one" } else { "other" };
        until("all know who was faster", || {
            let said = format!("{winner} {round}");
            [&one, &other]
                .iter()
                .all(|store| view(store).entries.get(&key).is_some_and(|entry| *entry.value == said))
        });
    }
    assert_eq!(one.health().conflicts + other.health().conflicts, 20);
    // The delete of a missing key does not wait for the watch: a writer that waits for an event that never
    // comes would be refused.
    one.commit(&StoreChange::delete("nobody")).unwrap();
    etcd.ctl(&["put", "elsewhere", "1"]);
    one.commit(&StoreChange::delete("nobody")).unwrap();
}

#[test]
fn leases_are_etcds() {
    let etcd = Etcd::start(1);
    let (one, other) = (shared(&etcd, "/l/"), shared(&etcd, "/l/"));
    let has = |store: &EtcdStore, key: &str| store.snapshots().borrow().entries.contains_key(key);
    let [short, long] = [4, 600].map(|seconds| Some(Duration::from_secs(seconds)));
    one.commit(&StoreChange::default().and_put("kept", "1", long).and_put("lost", "2", short)).unwrap();
    until("seen by the other", || has(&other, "kept"));
    until("one is over", || !has(&one, "lost") && !has(&other, "lost"));
    assert_eq!(other.renew("lost"), Ok(false));
    // The rest of a lease grows only if it is renewed, by any of the balancers.
    let left = || {
        let lease = one.snapshots().borrow().entries["kept"].lease;
        let said = etcd.ctl(&["lease", "timetolive", &format!("{lease:x}")]);
        let left = said.split_once("remaining(").and_then(|(_, rest)| rest.split_once("s)")?.0.parse().ok());
        left.unwrap_or_else(|| panic!("{said}"))
    };
    let before: i64 = left();
    assert!(before < 600, "{before}");
    until("it is renewed", || {
        assert_eq!(other.renew("kept"), Ok(true));
        left() > before
    });
    assert!(has(&one, "kept") && has(&other, "kept"));
}
