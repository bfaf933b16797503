use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;

use super::*;

/// A temporary folder, removed after its test.
struct StoreTempDir(PathBuf);

impl StoreTempDir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let path = std::env::temp_dir().join(format!("plimsoll-store-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("state.json")
    }

    fn open(&self) -> LocalStore {
        let (store, said) = LocalStore::open(Some(&self.file())).unwrap();
        assert_eq!(said, None);
        store
    }
}

impl Drop for StoreTempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn value(store: &LocalStore, key: &str) -> Option<String> {
    (store as &dyn Store).snapshot().entries.get(key).map(|entry| entry.value.to_string())
}

/// The limit of every wait: longer than any operation on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not {what}");
        thread::sleep(Duration::from_millis(5)); // sleeps: polls
    }
}

#[test]
fn what_was_committed_is_there_for_the_next_one() {
    let folder = StoreTempDir::new();
    let store = folder.open();
    assert_eq!((store.kind(), store.location()), ("file", folder.file().display().to_string()));
    store.commit(&StoreChange::put("a", "1").and_put("b", "2", None)).unwrap();
    store.commit(&StoreChange::delete("a").and_delete("nobody")).unwrap();
    drop(store);
    let store = folder.open();
    assert_eq!((value(&store, "a"), value(&store, "b")), (None, Some("2".into())));
    assert_eq!((&store as &dyn Store).snapshot().revision, 2);
    // Other users must not read the addresses of all servers.
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(folder.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn two_writers_do_not_overwrite_each_other() {
    let folder = StoreTempDir::new();
    let (one, other) = (folder.open(), folder.open());
    let seen = (&one as &dyn Store).snapshot();
    one.commit(&StoreChange::put("k", "one").if_unchanged_since(&seen)).unwrap();
    // The other store has not seen the change yet, and is rejected nevertheless.
    let refused = other.commit(&StoreChange::put("k", "other").if_unchanged_since(&seen)).unwrap_err();
    assert_eq!(refused, StoreError::Conflict("k".into()));
    assert_eq!((value(&other, "k"), other.health().conflicts), (Some("one".into()), 1));
    // It may change a state that it has seen.
    let seen = (&other as &dyn Store).snapshot();
    other.commit(&StoreChange::put("k", "other").if_unchanged_since(&seen)).unwrap();
    wait_until("seen by the first", || value(&one, "k").as_deref() == Some("other"));
    let (one, other) = (Arc::new(one), Arc::new(other));
    let count = |store: &Arc<LocalStore>, name: &'static str| {
        let store = Arc::clone(store);
        thread::spawn(move || {
            for number in 0..50 {
                store.commit(&StoreChange::put(format!("{name}/{number}"), "x")).unwrap();
            }
        })
    };
    let counts = [count(&one, "one"), count(&other, "other")];
    counts.into_iter().for_each(|counting| counting.join().unwrap());
    wait_until("all there", || (&*one as &dyn Store).snapshot().entries.len() == 101);
}

#[test]
fn a_file_that_is_none_is_set_aside_and_told() {
    for (content, why) in [(&b"{\"members\": []}"[..], "no store of plimsoll's"), (b"", "it is empty")] {
        let folder = StoreTempDir::new();
        std::fs::write(folder.file(), content).unwrap();
        let (store, said) = LocalStore::open(Some(&folder.file())).unwrap();
        let said = said.unwrap();
        assert!(said.contains(why) && said.contains("set aside as"), "{said}");
        let aside = said.split("set aside as ").nth(1).unwrap().split(',').next().unwrap();
        assert_eq!(std::fs::read(aside).unwrap(), content);
        store.commit(&StoreChange::put("a", "1")).unwrap();
        drop(store);
        assert_eq!(value(&folder.open(), "a"), Some("1".into()));
    }
    let folder = StoreTempDir::new();
    folder.open().commit(&StoreChange::put("a", "1")).unwrap();
    let whole = std::fs::read(folder.file()).unwrap();
    std::fs::write(folder.file(), &whole[..whole.len() - 9]).unwrap();
    let (_, said) = LocalStore::open(Some(&folder.file())).unwrap();
    assert!(said.unwrap().contains("it is torn"));
    let nowhere = LocalStore::open(Some(&folder.0.join("no/such/folder/state.json"))).err().unwrap();
    assert!(nowhere.contains("make its folder"), "{nowhere}");
}

#[test]
fn leases_end_unless_they_are_renewed() {
    let folder = StoreTempDir::new();
    let store = folder.open();
    let short = Duration::from_millis(300);
    let kept = || StoreChange::default().and_put("kept", "1", Some(short));
    let mut renewed = Instant::now();
    store.commit(&kept().and_put("lost", "2", Some(short))).unwrap();
    store.commit(&StoreChange::put("stays", "3")).unwrap();
    assert_eq!(store.renew("stays"), Ok(false));
    assert_eq!(store.renew("nobody"), Ok(false));
    let mut views = store.snapshots();
    wait_until("one is over", || {
        let now = Instant::now();
        if store.renew("kept") == Ok(true) {
            renewed = now;
        } else {
            // The entry expired on a machine that was suspended for that time.
            assert!(renewed.elapsed() >= short, "{:?} after it was renewed", renewed.elapsed());
            renewed = Instant::now();
            store.commit(&kept()).unwrap();
        }
        value(&store, "lost").is_none()
    });
    assert!(views.has_changed().unwrap());
    let there =
        Arc::clone(&views.borrow_and_update()).entries.keys().map(ToString::to_string).collect::<Vec<_>>();
    assert!(there == ["kept", "stays"] || renewed.elapsed() >= short, "{there:?}");
    // A closed store removes nothing.
    store.close();
    let over = kept().and_put("last", "4", Some(Duration::from_millis(1)));
    store.commit(&over).unwrap();
    thread::sleep(CHECK_INTERVAL * 3); // sleeps: nothing happens meanwhile, however long that is
    assert_eq!(value(&store, "last"), Some("4".into()));
    // After a start the entry has its full time again, and then it expires.
    drop(store);
    let opened = Instant::now();
    let store = folder.open();
    wait_until("the other is over", || value(&store, "kept").is_none());
    assert!(opened.elapsed() >= short, "{:?}", opened.elapsed());
    assert_eq!(value(&store, "stays"), Some("3".into()));
    wait_until("so is the last", || value(&store, "last").is_none());
    store.close();
    store.commit(&over).unwrap();
    store.reopen();
    wait_until("it goes on", || value(&store, "last").is_none());
}

#[test]
fn what_cannot_be_written_is_refused_and_told() {
    let folder = StoreTempDir::new();
    let store = folder.open();
    store.commit(&StoreChange::put("a", "1")).unwrap();
    // Root may write anywhere, but not over a folder.
    std::fs::create_dir(folder.file().with_added_extension("new")).unwrap();
    let refused = store.commit(&StoreChange::put("a", "2")).unwrap_err();
    assert!(matches!(&refused, StoreError::Unavailable(_)), "{refused}");
    assert_eq!(value(&store, "a"), Some("1".into()));
    assert!(store.health().problem.is_some() && store.health().failures == 1);
    std::fs::remove_dir(folder.file().with_added_extension("new")).unwrap();
    store.commit(&StoreChange::put("a", "2")).unwrap();
    assert_eq!((value(&store, "a"), store.health().problem), (Some("2".into()), None));
    // The store writes the removed file again.
    std::fs::remove_file(folder.file()).unwrap();
    wait_until("told", || store.health().problem.is_some());
    store.commit(&StoreChange::put("b", "3")).unwrap();
    drop(store);
    assert_eq!((&folder.open() as &dyn Store).snapshot().entries.len(), 2);
}

#[test]
fn one_without_a_file_is_the_same_but_forgets() {
    let (store, said) = LocalStore::open(None).unwrap();
    assert_eq!((store.kind(), store.location(), said), ("memory", String::new(), None));
    store.commit(&StoreChange::put("a", "1")).unwrap();
    let conflict = StoreChange { unchanged: vec![("a".into(), 7)], ..StoreChange::put("a", "2") };
    assert_eq!(store.commit(&conflict), Err(StoreError::Conflict("a".into())));
    assert_eq!(value(&store, "a"), Some("1".into()));
}

#[test]
fn a_disk_that_hangs_is_waited_for_by_nobody_but_who_changes_something() {
    let folder = StoreTempDir::new();
    let store = Arc::new(folder.open());
    let lease = Some(Duration::from_secs(3600));
    store.commit(&StoreChange::default().and_put("leased", "1", lease)).unwrap();
    // While this lock is held, a change waits as for a disk that does not respond.
    let disk = file::lock(&folder.file()).unwrap();
    let committing = {
        let store = Arc::clone(&store);
        thread::spawn(move || store.commit(&StoreChange::put("a", "1")))
    };
    use std::os::unix::fs::MetadataExt as _;
    let inode = format!(":{} ", disk.metadata().unwrap().ino());
    wait_until("waiting for the disk", || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|lock| lock.contains(" -> ") && lock.contains(&inode))
    });
    let (told, heard) = mpsc::channel();
    let asking = {
        let store = Arc::clone(&store);
        thread::spawn(move || {
            let asked = (store.health(), (&*store as &dyn Store).snapshot().revision, store.renew("leased"));
            store.close();
            store.reopen();
            told.send(asked).unwrap();
        })
    };
    let asked = heard.recv_timeout(PATIENCE);
    assert!(store.shared.state.try_lock().is_err(), "it waits still");
    drop(disk);
    let (health, revision, renewed) = asked.expect("an answer while the disk hangs");
    assert_eq!((health.problem, revision, renewed), (None, 1, Ok(true)));
    asking.join().unwrap();
    assert_eq!(committing.join().unwrap(), Ok(()));
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    let folder = StoreTempDir::new();
    rustix::fs::mknodat(rustix::fs::CWD, folder.file(), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let why = LocalStore::open(Some(&folder.file())).err().unwrap();
    assert!(why.contains("state.json") && why.contains("it is no regular file"), "{why}");
}

#[test]
fn a_file_that_cannot_be_written_leaves_nothing_beside() {
    let folder = StoreTempDir::new();
    // A folder in its place: all but the last step succeeds.
    std::fs::create_dir(folder.file()).unwrap();
    assert!(file::save(&folder.file(), &StoreSnapshot::default()).is_err());
    assert!(!folder.file().with_added_extension("new").exists());
}
