//! Configurations that cannot be started: one line that names the error, its place and the remedy, and an
//! exit code.

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::stage::{Balancer, Folder, Member, Run, binary, curl_status, part, refusing, until, web};

/// Runs `up` where it cannot run; returns its exit code and the one line that it prints.
#[track_caller]
fn refused(text: &str) -> (Option<i32>, String) {
    let folder = Folder::new();
    let control = format!("\n[admin]\nlisten = \"off\"\ncontrol = \"unix:{}\"\n", folder.join("c").display());
    let admin = if text.contains("[admin]") { "" } else { &control };
    folder.write("plimsoll.toml", text.to_owned() + admin);
    let run = Run::plimsoll(&["up"], folder.path());
    let lines: Vec<&str> = run.err.lines().collect();
    assert!(
        run.out.is_empty() && lines.len() == 1 && lines[0].starts_with("error: "),
        "{}{}",
        run.out,
        run.err
    );
    (run.code, lines[0].to_owned())
}

#[test]
fn a_log_that_cannot_be_written() {
    let (_held, member) = refusing();
    let text = web(&[member], "[access_log]\npath = \"/nowhere/at/all/access.log\"\n");
    let (code, said) = refused(&text);
    assert!(code == Some(1) && said.contains("the access log /nowhere/at/all/access.log"), "{code:?} {said}");

    // The open of a pipe without a reader would block for ever.
    let folder = Folder::new();
    let pipe = folder.join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let (code, said) = refused(&web(&[member], &format!("[access_log]\npath = \"{}\"\n", pipe.display())));
    assert!(code == Some(1) && said.contains("the access log"), "{code:?} {said}");
}

#[test]
fn a_control_socket_that_cannot_be_made() {
    let (_held, member) = refusing();
    let text = web(&[member], "[admin]\nlisten = \"off\"\ncontrol = \"unix:/nowhere/at/all/c.sock\"\n");
    let (code, said) = refused(&text);
    assert!(code == Some(1) && said.contains("/nowhere/at/all/c.sock"), "{code:?} {said}");
}

#[test]
fn an_address_of_somebody_else() {
    let (_held, member) = refusing();
    let (code, said) = refused(&web(&[member], "").replace("127.0.0.1:0", "192.0.2.1:8080"));
    assert!(code == Some(1) && said.contains("192.0.2.1:8080") && said.contains("no such address"), "{said}");
}

#[test]
fn a_port_that_needs_rights() {
    let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    let Some(port @ 1..) = first.trim().parse::<u16>().unwrap().checked_sub(1) else {
        return eprintln!("here every port is for everybody: nothing can be refused");
    };
    let (_held, member) = refusing();
    let folder = Folder::new();
    folder.write("plimsoll.toml", web(&[member], "").replace("127.0.0.1:0", &format!("127.0.0.1:{port}")));
    let binary = binary();
    let mut args = vec!["--", binary.to_str().unwrap(), "up"];
    if rustix::process::geteuid().is_root() {
        args.insert(0, "--bounding-set=-net_bind_service");
    }
    let run = Run::of(&part("setpriv"), &args, folder.path());
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert!(run.err.contains(&format!("127.0.0.1:{port}")) && run.err.contains("setcap"), "{}", run.err);
}

#[test]
fn a_file_that_is_not_there() {
    let folder = Folder::new();
    let run = Run::plimsoll(&["up", "-c", "missing.toml"], folder.path());
    assert_eq!(run.code, Some(2), "{}", run.err);
    assert!(run.err.contains("missing.toml") && run.err.lines().count() == 1, "{}", run.err);
}

#[test]
fn a_name_without_an_address_stops_neither_start_nor_reload() {
    let member = Member::start(&["--echo", "http"]);
    // `.invalid` is never assigned (RFC 6761).
    let text = |name: &str| {
        let listed = format!("[\"{name}.invalid:80\", \"{}\"]", member.address);
        format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n[[group]]\nname = \"web\"\nmembers = \
             {listed}\n"
        )
    };
    let balancer = Balancer::start(&text("first"));
    let down = |name: &str| {
        until("the member is down", || {
            let group = balancer.group("web");
            let members = group["members"].as_array().unwrap().clone();
            let found = members.iter().find(|member| member["name"] == format!("{name}.invalid:80"));
            found
                .is_some_and(|member| member["state"] == "down" && member["why"] == "its name has no address")
        });
    };
    down("first");
    for _ in 0..4 {
        assert_eq!(curl_status(&[&balancer.url("/")], b""), 200);
    }
    balancer.reload(&text("second"));
    down("second");
    assert_eq!(curl_status(&[&balancer.url("/")], b""), 200);
}
