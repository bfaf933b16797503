//! The C library of the lottery's clients as a program uses it: installed, found by pkg-config, compiled by
//! gcc and g++, linked both ways, under valgrind, with real daemons. The Python package has its own tests
//! (`clients/python/tests`).

use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Instant;

use crate::lottery::Cluster;
use crate::stage::{Balancer, Folder, Member, Run, part, refusing, until, web};

/// The way in which a program is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Shared,
    Static,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the installation: with the shared library, or without it, so that the same flags find the static
/// one.
fn installed(link: Link) -> &'static Path {
    static PLACES: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    let (shared, fixed) = PLACES.get_or_init(|| {
        // Cargo's folder for tests is within its target folder.
        let own = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let places = (own.join("plimsoll-c"), own.join("plimsoll-c-static"));
        for place in [&places.0, &places.1] {
            let _ = fs::remove_dir_all(place);
            let mut make = Command::new("make");
            make.args(["--no-print-directory", "install-c"]).arg(format!("PREFIX={}", place.display()));
            make.env("CARGO_TARGET_DIR", own.parent().unwrap());
            // The last is for libtest (scripts/run-tests): with it cargo would rebuild everything.
            for name in ["MAKEFLAGS", "MAKELEVEL", "RUSTC_BOOTSTRAP"] {
                make.env_remove(name);
            }
            let made = make.current_dir(root()).output().unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        for entry in fs::read_dir(places.1.join("lib")).unwrap() {
            let path = entry.unwrap().path();
            if path.to_str().unwrap().contains(".so") {
                fs::remove_file(path).unwrap();
            }
        }
        places
    });
    if link == Link::Shared { shared } else { fixed }
}

/// Returns the flags from pkg-config.
fn flags(link: Link, args: &[&str]) -> Vec<String> {
    let place = installed(link).join("lib/pkgconfig");
    let asked =
        Command::new(part("pkg-config")).args(args).arg("plimsoll").env("PKG_CONFIG_PATH", place).output();
    let asked = asked.unwrap();
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    String::from_utf8(asked.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

/// Compiles and links a program.
#[track_caller]
fn program(source: &Path, language: &str, link: Link, folder: &Folder) -> PathBuf {
    let name = format!("{}-{language}-{link:?}", source.file_stem().unwrap().to_str().unwrap());
    let out = folder.join(&name);
    let (compiler, standard) = if language == "c" { ("gcc", "-std=c99") } else { ("g++", "-std=c++11") };
    let libs = if link == Link::Static { &["--libs", "--static"][..] } else { &["--libs"] };
    let mut command = Command::new(part(compiler));
    command.args([standard, "-D_POSIX_C_SOURCE=200809L", "-O1", "-g", "-pthread"]);
    command.args(["-Wall", "-Wextra", "-Werror", "-pedantic"]);
    command.args(flags(link, &["--cflags"])).args(["-x", language]).arg(source).args(["-x", "none"]);
    command.arg("-o").arg(&out).args(flags(link, libs));
    let built = command.output().unwrap();
    assert!(built.status.success(), "{name}: {}", String::from_utf8_lossy(&built.stderr));
    out
}

/// Runs a program to its end under valgrind, which must report no error.
#[track_caller]
fn valgrind(program: &Path, args: &[&str], folder: &Folder) -> Run {
    // Rust's runtime keeps some reachable memory to the end.
    let kinds = "definite,indirect,possible";
    let lib = format!("LD_LIBRARY_PATH={}", installed(Link::Shared).join("lib").display());
    let (errors, shown) = (format!("--errors-for-leak-kinds={kinds}"), format!("--show-leak-kinds={kinds}"));
    let valgrind = part("valgrind");
    let mut all =
        vec![&*lib, valgrind.to_str().unwrap(), "--quiet", "--error-exitcode=99", "--leak-check=full"];
    all.extend([&*errors, &*shown, "--fair-sched=yes", program.to_str().unwrap()]);
    all.extend(args);
    let run = Run::of(&part("env"), &all, folder.path());
    assert!(run.code != Some(99) && !run.err.contains("=="), "{program:?} {args:?}: {}", run.err);
    run
}

fn source(name: &str) -> PathBuf {
    root().join("clients/c/tests").join(name)
}

/// Starts two daemons with serving members.
fn cluster() -> Cluster {
    let cluster = Cluster::start("127.0.0.1", &["web=127.0.0.1:1", "web=127.0.0.1:2"]);
    until("both serve", || {
        cluster.pick(&[0, 1], &["-n", "20"]).out.lines().collect::<BTreeSet<_>>().len() == 2
    });
    cluster
}

const WAYS: [(&str, Link); 4] =
    [("c", Link::Shared), ("c", Link::Static), ("c++", Link::Shared), ("c++", Link::Static)];

#[test]
fn threads_pick_with_one_client() {
    let (cluster, folder) = (cluster(), Folder::new());
    let (daemons, keys) = (cluster.addresses(&[0, 1]), cluster.folder.join("keys"));
    for (language, link) in WAYS {
        let program = program(&source("threads.c"), language, link, &folder);
        let run = valgrind(&program, &["web", &daemons, keys.to_str().unwrap(), "4", "50"], &folder);
        let picks: BTreeSet<&str> = run.out.lines().collect();
        assert_eq!((run.code, run.out.lines().count()), (Some(0), 200), "{language} {link:?}: {}", run.err);
        assert_eq!(picks, BTreeSet::from(["127.0.0.1:1", "127.0.0.1:2"]));
    }
}

#[test]
fn an_event_loop_asks_much_at_once() {
    let (cluster, folder) = (cluster(), Folder::new());
    let (daemons, keys) = (cluster.addresses(&[0, 1]), cluster.folder.join("keys"));
    for (language, link) in WAYS {
        let program = program(&source("loop.c"), language, link, &folder);
        let run = valgrind(&program, &["web", &daemons, keys.to_str().unwrap(), "300"], &folder);
        assert_eq!((run.code, run.out.lines().count()), (Some(0), 300), "{language} {link:?}: {}", run.err);
    }
}

#[test]
fn what_is_wrong_has_a_code_and_a_message() {
    let (cluster, folder) = (cluster(), Folder::new());
    let (daemons, keys, bad) =
        (cluster.addresses(&[0, 1]), cluster.folder.join("keys"), folder.write("bad", "7 66"));
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent_at = silent.local_addr().unwrap().to_string();
    for (language, link) in WAYS {
        let program = program(&source("wrong.c"), language, link, &folder);
        let args = [&*daemons, keys.to_str().unwrap(), bad.to_str().unwrap(), &silent_at];
        let run = valgrind(&program, &args, &folder);
        assert_eq!(run.code, Some(0), "{language} {link:?}: {}", run.err);
    }
}

#[test]
fn a_balancer_lends_members_to_c() {
    let members = [Member::start(&[]), Member::start(&[])];
    let addresses = members.each_ref().map(|member| member.address);
    let balancer = Balancer::start(&web(&addresses, "strategy = \"least_connections\"\n"));
    let (url, folder) = (format!("http://{}", balancer.reports()), Folder::new());
    for (language, link) in WAYS {
        let program = program(&source("lease.c"), language, link, &folder);
        let run = valgrind(&program, &[&url, "web", "me", "3"], &folder);
        assert_eq!(run.code, Some(0), "{language} {link:?}: {}", run.err);
        let picked: BTreeSet<&str> = run.out.lines().collect();
        assert_eq!(picked, addresses.each_ref().map(ToString::to_string).iter().map(|it| &**it).collect());
    }
    until("all are given back", || addresses.iter().all(|address| balancer.member(*address)["leases"] == 0));
    // The guide's example.
    let guide = fs::read_to_string(root().join("docs/guide/lookaside.md")).unwrap();
    let (_, rest) = guide.split_once("```c\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let asked = "http://10.0.0.9:9901";
    assert!(example.contains(asked));
    let file = folder.write("example.c", example.replace(asked, &url));
    let run = valgrind(&program(&file, "c", Link::Shared, &folder), &[], &folder);
    assert!(run.code == Some(0) && run.out.starts_with("127.0.0.1:"), "{}{}", run.out, run.err);
}

#[test]
fn the_example_connects_to_who_can_be_reached() {
    let member = Member::start(&[]);
    let (_held, refuses) = refusing();
    let servers = [member.address, refuses].map(|address| format!("web={address}"));
    let cluster = Cluster::start("127.0.0.1", &servers.each_ref().map(String::as_str));
    until("both are picked", || {
        cluster.pick(&[0, 1], &["-n", "20"]).out.lines().collect::<BTreeSet<_>>().len() == 2
    });
    let folder = Folder::new();
    for name in ["pick.c", "Makefile"] {
        fs::copy(root().join("examples/pick-c").join(name), folder.join(name)).unwrap();
    }
    let mut make = Command::new("make");
    make.env("PKG_CONFIG_PATH", installed(Link::Shared).join("lib/pkgconfig"))
        .env("CFLAGS", "-g -Wall -Wextra -Werror");
    let made = make.env_remove("MAKEFLAGS").current_dir(folder.path()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let keys = cluster.folder.join("keys");
    let args = ["web", &cluster.addresses(&[0, 1]), keys.to_str().unwrap(), "40"];
    let begun = Instant::now();
    let run = valgrind(&folder.join("pick-c"), &args, &folder);
    assert_eq!(run.code, Some(0), "{}", run.err);
    let reached: Vec<&str> = run.out.lines().collect();
    assert_eq!(reached, vec![member.address.to_string(); 40]);
    // With random choices alone, the other member is never first once in 2^40 runs. After a failure it is
    // avoided for five seconds.
    let failures = run.err.matches(&refuses.to_string()).count() as u64;
    // bound: so many fit into the time that has passed
    let times = 1 + begun.elapsed().as_secs() / 5;
    assert!((1..=2 + times).contains(&failures), "{}", run.err);
}

#[test]
fn the_guide_s_example_compiles_and_runs() {
    let cluster = cluster();
    let guide = fs::read_to_string(root().join("docs/guide/lottery.md")).unwrap();
    let (_, rest) = guide.split_once("```c\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let asked = "10.0.0.1:7447,10.0.0.2:7447";
    assert!(example.contains(asked));
    let text = example.replace(asked, &cluster.addresses(&[0, 1]));
    fs::copy(cluster.folder.join("keys"), cluster.folder.join("lottery.keys")).unwrap();
    let file = cluster.folder.write("example.c", text);
    let program = program(&file, "c", Link::Shared, &cluster.folder);
    let run = valgrind(&program, &[], &cluster.folder);
    assert!(
        run.code == Some(0) && run.out.starts_with("127.0.0.1:"),
        "{:?} {}{}",
        run.code,
        run.out,
        run.err
    );
}

#[test]
fn the_library_has_its_name_and_shows_nothing_but_its_functions() {
    let library = fs::canonicalize(installed(Link::Shared).join("lib/libplimsoll.so")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(library.ends_with(format!("libplimsoll.so.{version}")), "{library:?}");
    assert_eq!(flags(Link::Shared, &["--modversion"]), [version]);
    let folder = Folder::new();
    let library = library.to_str().unwrap();
    let run = Run::of(&part("readelf"), &["--wide", "--dynamic", library], folder.path());
    let name = run.out.lines().find(|line| line.contains("SONAME")).unwrap();
    let name = name.split(['[', ']']).nth(1).unwrap();
    assert!(version.starts_with(name.strip_prefix("libplimsoll.so.").unwrap()), "{name}");
    assert!(installed(Link::Shared).join("lib").join(name).exists());
    let run = Run::of(&part("nm"), &["--dynamic", "--defined-only", library], folder.path());
    let shown: Vec<&str> = run.out.lines().filter_map(|line| line.split(' ').next_back()).collect();
    assert!(shown.len() >= 17 && shown.iter().all(|symbol| symbol.starts_with("plimsoll_")), "{shown:?}");
}
