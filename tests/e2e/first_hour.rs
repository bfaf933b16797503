//! The first hour with Plimsoll: the commands of the guide's page in their order, and the permissions of an
//! ordinary user.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use crate::stage::{Folder, Member, Process, Run, Walk, binary, free_port, part, until};

#[test]
fn the_commands_of_the_page_work_in_their_order() {
    // The punctuality of the generator depends on the load of this machine.
    let hour = Walk::guide("first-hour.md")
        .under("## The first hour")
        .put("plimsoll load ", "plimsoll load --tolerance 10s ");
    // On a busy machine a window of five seconds may hold no useful data.
    let known = "--duration 14s; until plimsoll members | grep -q 'with twice the traffic'; \
                 do plimsoll load --tolerance 10s http://127.0.0.1:8080/ --rate 300 --duration 5s; done";
    // Claims may fail on a machine that is busy with other tests; the report must exist.
    let judged = "plimsoll lab run smoke || [ $? = 1 ]";
    // A busy machine may send the dead server too few requests in four seconds.
    let ejected = "--rate 100 --duration 4s; until plimsoll events | grep -qE 'ejected|down'; \
                   do plimsoll load --tolerance 10s http://127.0.0.1:8080/ --rate 100 --duration 2s; done";
    let hour = hour.put("--rate 100 --duration 4s", ejected);
    let hour = hour.put("--duration 8s", "--duration 4s").put("--duration 14s", known);
    let ran = hour.put("plimsoll lab run smoke", judged).done();
    let said = |begin: &str, nth: usize| {
        let mut found = ran.iter().filter(|(line, _)| line.starts_with(begin));
        &found.nth(nth).unwrap_or_else(|| panic!("no {begin}")).1
    };
    assert!(said("curl", 0).out.contains("x-member: "), "{}", said("curl", 0).out);
    // Side-cars report, and the balancer uses their reports.
    let explained = &said("plimsoll explain", 0).out;
    assert!(
        ["knee=", "work_ms=", "heard_ms_ago="].iter().all(|name| explained.contains(name)),
        "{explained}"
    );
    // The balancer noticed the death, and clients hardly did.
    let events = &said("plimsoll events --since", 0).out;
    assert!(events.contains("ejected") || events.contains("down"), "{events}");
    let members = &said("plimsoll members", 1).out;
    assert!(members.contains("/s") && members.contains("with twice the traffic"), "{members}");
}

/// A user other than root, with a folder of their own. If the tests do not run as root, it is the user who
/// runs them.
struct Somebody {
    folder: Folder,
}

impl Somebody {
    const NUMBER: u32 = 54_321;

    fn new() -> Self {
        let folder = Folder::new();
        folder.install(&binary(), "plimsoll");
        std::fs::create_dir(folder.join("run")).unwrap();
        std::fs::set_permissions(folder.join("run"), std::fs::Permissions::from_mode(0o700)).unwrap();
        if root() {
            for path in [folder.path().to_owned(), folder.join("run")] {
                std::os::unix::fs::chown(path, Some(Self::NUMBER), Some(Self::NUMBER)).unwrap();
            }
        }
        Self { folder }
    }

    /// Returns a command line of that user, with the folder that a login creates or without.
    fn args(&self, login: bool, args: &[&str]) -> Vec<String> {
        let mut all = Vec::new();
        if root() {
            let number = Self::NUMBER.to_string();
            all.extend([part("setpriv").display().to_string(), "--clear-groups".into()]);
            all.extend([format!("--reuid={number}"), format!("--regid={number}"), "--".into()]);
        }
        let run = self.folder.join("run");
        all.extend([
            "env".into(),
            "-u".into(),
            "XDG_RUNTIME_DIR".into(),
            "-u".into(),
            "PLIMSOLL_CONTROL".into(),
        ]);
        all.extend(login.then(|| format!("XDG_RUNTIME_DIR={}", run.display())));
        all.push(self.folder.join("plimsoll").display().to_string());
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        all
    }

    fn start(&self, login: bool, args: &[&str]) -> Process {
        let args = self.args(login, args);
        let rest: Vec<&str> = args[1..].iter().map(String::as_str).collect();
        Process::start(std::path::Path::new(&args[0]), &rest, self.folder.path())
    }

    fn run(&self, login: bool, args: &[&str]) -> Run {
        let args = self.args(login, args);
        let mut command = Command::new(&args[0]);
        let output = command.args(&args[1..]).current_dir(self.folder.path()).stdin(Stdio::null()).output();
        let output = output.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

fn root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Writes the README's configuration with free ports; `[admin]` sets only the port and `admin`.
fn file(somebody: &Somebody, member: &Member, admin: &str) -> u16 {
    let port = free_port();
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:{}\"\ngroup = \"web\"\n[[group]]\nname = \"web\"\nmembers = \
         [\"{}\"]\n\
         [group.health]\ntcp = true\n[admin]\nlisten = \"127.0.0.1:{port}\"\n{admin}",
        free_port(),
        member.address
    );
    somebody.folder.write("plimsoll.toml", text);
    port
}

#[test]
fn an_ordinary_user_looks_and_acts() {
    let (somebody, member) = (Somebody::new(), Member::start(&[]));
    let port = file(&somebody, &member, "");
    let name = member.address.to_string();
    for login in [true, false] {
        let mut up = somebody.start(login, &["up"]);
        until("it serves", || somebody.run(login, &["status"]).code == Some(0));
        let said = up.line("listening control unix:");
        let run = somebody.folder.join("run").display().to_string();
        assert_eq!(said.contains(&run), login, "{said}");
        for look in [&["members"][..], &["top", "--once"], &["events"], &["explain", "group", "web"]] {
            let run = somebody.run(login, look);
            assert_eq!(run.code, Some(0), "{look:?}: {}{}", run.out, run.err);
        }
        for act in [["drain", &name], ["undrain", &name]] {
            let run = somebody.run(login, &act);
            assert_eq!(run.code, Some(0), "{act:?}: {}{}", run.out, run.err);
        }
        // It recognises its own balancer by its listening addresses.
        let check = somebody.run(login, &["check"]);
        assert_eq!(check.code, Some(0), "{}{}", check.out, check.err);
        assert!(!check.out.contains("somebody else"), "{}", check.out);
        // Another user may look, and receives the reason why no more is allowed.
        if root() && !login {
            let look = Run::plimsoll(&["members"], somebody.folder.path());
            assert_eq!(look.code, Some(0), "{}{}", look.out, look.err);
            let act = Run::plimsoll(&["drain", &name], somebody.folder.path());
            assert_eq!(act.code, Some(2), "{}{}", act.out, act.err);
            assert!(
                act.err.contains(&format!("http://127.0.0.1:{port} only shows: cannot reach unix:")),
                "{}",
                act.err
            );
        }
        assert_eq!(somebody.run(login, &["stop"]).code, Some(0));
        assert_eq!(up.end(), Some(0));
    }
    let away = somebody.run(true, &["status"]);
    assert_eq!(away.code, Some(3), "{}", away.err);
    assert!(away.err.contains("plimsoll up"), "{}", away.err);
    let _ = std::fs::remove_dir(format!("/tmp/plimsoll-{}", Somebody::NUMBER));
}

#[test]
fn without_a_control_socket_one_can_look_and_is_told_why_not_act() {
    let (somebody, member) = (Somebody::new(), Member::start(&[]));
    let port = file(&somebody, &member, "control = \"off\"\n");
    let up = somebody.start(true, &["up"]);
    until("it serves", || somebody.run(true, &["status"]).code == Some(0));
    assert_eq!(somebody.run(true, &["members"]).code, Some(0), "{up}");
    let act = somebody.run(true, &["drain", &member.address.to_string()]);
    assert_eq!(act.code, Some(2), "{}", act.err);
    assert!(act.err.contains(&format!("http://127.0.0.1:{port} only shows")), "{}", act.err);
    assert!(act.err.contains("switched off"), "{}", act.err);
    let check = somebody.run(true, &["check"]);
    assert!(check.code == Some(0) && !check.out.contains("somebody else"), "{}{}", check.out, check.err);
}
