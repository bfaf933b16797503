//! docs/guide/report-load.md: each of its servers, exactly as printed there, reports its load to the
//! balancer.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stage::{
    Balancer, Folder, Process, free_port, get, listens, part, patiently, refusing, until, web,
};

/// Returns the block of a language in the page, which must have it exactly once.
fn block(language: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/report-load.md");
    let page = std::fs::read_to_string(page).unwrap();
    let begin = format!("```{language}\n");
    let parts: Vec<&str> = page.split(&begin).skip(1).collect();
    assert_eq!(parts.len(), 1, "{language}");
    parts[0].split("```").next().unwrap().to_owned()
}

/// Starts the server of a language in a folder, at a free port, and asserts that its load arrives.
fn tells(language: &str, start: impl Fn(&Folder, &str) -> (PathBuf, Vec<String>)) {
    let folder = Folder::new();
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let text = block(language).replace("9001", &address.port().to_string());
    let (program, args) = start(&folder, &text);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut process = Process::start(&program, &args, folder.path());
    // Some compile themselves first, which takes its time on a busy machine.
    let mut up = || {
        assert!(!process.ended(), "{process}");
        listens(address)
    };
    assert!(
        patiently(&mut up) || patiently(&mut up) || patiently(&mut up),
        "the server in {language} listens"
    );
    let balancer = Balancer::start(&web(
        &[address],
        "[group.monitor]\nsource = \"orca\"\nmetric = \"cpu_utilization\"\n",
    ));
    until(&format!("the load by {language} is known"), || {
        let answer = get(balancer.address(), "/");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.field("endpoint-load-metrics"), None, "clients do not see it");
        balancer.member(address)["load"]["value"].as_f64().is_some_and(|load| load >= 0.0)
    });
}

#[test]
fn python() {
    tells("python", |folder, text| {
        let file = folder.write("server.py", text);
        (part("python3"), vec!["-B".into(), file.display().to_string()])
    });
}

#[test]
fn node() {
    tells("javascript", |folder, text| {
        let file = folder.write("server.js", text);
        (part("node"), vec![file.display().to_string()])
    });
}

#[test]
fn java() {
    tells("java", |folder, text| {
        let file = folder.write("Hello.java", text);
        (part("java"), vec![file.display().to_string()])
    });
}

#[test]
fn go() {
    tells("go", |folder, text| {
        let file = folder.write("server.go", text);
        let program = folder.join("server");
        // The Go project's own build is unpacked here, which may not be in the PATH.
        let usual = PathBuf::from("/usr/local/go/bin/go");
        let go = if usual.exists() { usual } else { part("go") };
        let built = Command::new(go)
            .args(["build", "-o"])
            .args([&program, &file])
            // The cache is that of the tests' other programs in Go, so that the standard library is compiled
            // once.
            .env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("go/cache"))
            .env("GOFLAGS", "-buildvcs=false")
            .env("GOTOOLCHAIN", "local")
            .env("CGO_ENABLED", "0")
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        (program, Vec::new())
    });
}

#[test]
fn c() {
    let folder = Folder::new();
    let (_socket, member) = refusing();
    let balancer = Balancer::start(&web(&[member], "[group.monitor]\nmetric = \"cpu\"\n"));
    let text = block("c")
        .replace("9901", &balancer.reports().port().to_string())
        .replace("127.0.0.1:9001", &member.to_string());
    let file = folder.write("tells.c", text);
    let program = folder.join("tells");
    let built = Command::new(part("cc"))
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &file])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let _process = Process::start(&program, &[], folder.path());
    until("the load by C is known", || balancer.member(member)["load"]["value"].is_number());
}
