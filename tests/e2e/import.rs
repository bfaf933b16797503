//! `plimsoll config import`: HAProxy and NGINX accept their configurations, Plimsoll accepts the import of
//! them, and requests go the same way.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::stage::{
    Authority, Balancer, Folder, Member, PATIENCE, Process, Run, free_port, listens, part, until,
};

/// A foreign configuration with members, ports and files of the test's.
struct Case {
    folder: Folder,
    text: String,
    ports: BTreeMap<u16, u16>,
    members: Vec<Member>,
}

impl Case {
    fn new(name: &str, kind: &[&str], ports: &[u16]) -> Self {
        let folder = Folder::new();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/import").join(name);
        let mut text = std::fs::read_to_string(path).unwrap();
        let members = Member::several(4, kind);
        for (index, member) in members.iter().enumerate() {
            let port = 8001 + index;
            text = text.replace(&format!("10.0.0.{}:{port}", index + 1), &member.address.to_string());
        }
        let ports = ports.iter().map(|port| (*port, free_port())).collect();
        let mut case = Self { folder, text, ports, members };
        case.text = case.with_ports(&case.ports.clone());
        certificates(&case.folder);
        for place in ["/etc/haproxy/", "/etc/nginx/"] {
            case.text = case.text.replace(place, &format!("{}/", case.folder.path().display()));
        }
        // These lines are for a whole system, and not for a test's process.
        for line in [
            "    log /dev/log local0\n",
            "    log /dev/log local1 notice\n",
            "    user haproxy\n",
            "    group haproxy\n",
            "    daemon\n",
            "user www-data;\n",
            "pid /run/nginx.pid;\n",
        ] {
            case.text = case.text.replace(line, "");
        }
        case.text = case.text.replace("access_log /var/log/nginx/access.log;", "access_log off;");
        case
    }

    fn with_ports(&self, ports: &BTreeMap<u16, u16>) -> String {
        let mut text = self.text.clone();
        for (old, new) in ports {
            for (from, to) in [
                (format!(":{old}\n"), format!(":{new}\n")),
                (format!(":{old} "), format!(":{new} ")),
                (format!(":{old};"), format!(":{new};")),
            ] {
                text = text.replace(&from, &to);
            }
            text = text.replace(&format!("listen {old} "), &format!("listen 127.0.0.1:{new} "));
        }
        text
    }

    fn theirs(&self, port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.ports[&port]))
    }

    /// Starts Plimsoll on the import of the text, with listeners on free ports; returns its listeners and the
    /// messages of the import, too.
    fn ours(&self, from: &str) -> (Balancer, Vec<SocketAddr>, String) {
        let file = self.folder.write("theirs", &self.text);
        let run = Run::plimsoll(&["config", "import", from, file.to_str().unwrap()], self.folder.path());
        // Exit code 1: something differs, as the list tells.
        assert_eq!(run.code, Some(1), "{}", run.err);
        let checked = self.folder.write("made.toml", &run.out);
        let check = Run::plimsoll(&["config", "check", checked.to_str().unwrap()], self.folder.path());
        assert_eq!(check.code, Some(0), "{}\n{}", check.err, run.out);
        let mut text = run.out.clone();
        for port in self.ports.values() {
            for host in ["0.0.0.0", "127.0.0.1", "[::]"] {
                text = text.replace(&format!("\"{host}:{port}\""), "\"127.0.0.1:0\"");
            }
        }
        let balancer = Balancer::start(&text);
        let addresses = balancer.addresses().to_vec();
        until("members that serve", || {
            let status = balancer.status();
            let groups = status["groups"].as_array().unwrap();
            groups
                .iter()
                .flat_map(|group| group["members"].as_array().unwrap())
                .all(|member| member["state"] == "up")
        });
        (balancer, addresses, run.err)
    }

    /// Returns the status of a client that asks for a name by TLS, with a certificate or without; 000 for
    /// none.
    fn status(&self, to: SocketAddr, name: &str, proved: bool) -> String {
        let (certificate, key) = (self.folder.join("client.pem"), self.folder.join("client.key"));
        let resolve = format!("{name}:{}:127.0.0.1", to.port());
        let mut curl = Command::new(part("curl"));
        curl.args(["-sk", "--noproxy", "*", "--max-time", "60", "-o", "/dev/null", "-w", "%{http_code}"]);
        if proved {
            curl.arg("--cert").arg(certificate).arg("--key").arg(key);
        }
        let url = format!("https://{name}:{}/", to.port());
        let output = curl.args(["--resolve", &resolve, &url]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Counts the answers of each member, by its place in the list, of so many requests over new connections.
    fn answers(&self, to: SocketAddr, times: usize, name: Option<&str>) -> Vec<usize> {
        let mut seen = vec![0; self.members.len()];
        for _ in 0..times {
            let url = match name {
                Some(name) => format!("https://{name}:{}/", to.port()),
                None => format!("http://{to}/"),
            };
            let resolve = format!("{}:{}:127.0.0.1", name.unwrap_or("x"), to.port());
            let output = Command::new(part("curl"))
                .args([
                    "-sk",
                    "--noproxy",
                    "*",
                    "--max-time",
                    "60",
                    "-o",
                    "/dev/null",
                    "-D",
                    "-",
                    "--resolve",
                    &resolve,
                    &url,
                ])
                .output()
                .unwrap();
            let head = String::from_utf8_lossy(&output.stdout).to_lowercase();
            let who = head.lines().find_map(|line| line.strip_prefix("x-member:")).map(str::trim);
            let who = who.unwrap_or_else(|| panic!("{url}: {head} {:?}", output.status));
            seen[self.members.iter().position(|member| member.address.to_string() == who).unwrap()] += 1;
        }
        seen
    }
}

/// Makes a certificate for each name, with its key beside it, and appended to it as HAProxy has both in one
/// file.
fn certificates(folder: &Folder) {
    let authority = Authority::new(folder, "authority");
    for (file, name) in [("web", "www.example.org"), ("api", "api.example.org")] {
        authority.issue(folder, file, &[name]);
        let both = folder.read(&format!("{file}.pem")) + &folder.read(&format!("{file}.key"));
        folder.write(&format!("{file}.pem"), both);
    }
}

fn haproxy(case: &Case) -> Process {
    let file = case.folder.write("haproxy.cfg", &case.text);
    let checked = Command::new(part("haproxy")).args(["-c", "-f"]).arg(&file).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    Process::start(&part("haproxy"), &["-db", "-f", file.to_str().unwrap()], case.folder.path())
}

fn nginx(case: &Case, modules: &str) -> Process {
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let before =
        format!("{modules} {user} daemon off; master_process off; pid nginx.pid; error_log stderr;\n");
    // NGINX as one process has no second worker.
    let text = case.text.replace("worker_processes 2;", "");
    let temp = "http {\n client_body_temp_path temp; proxy_temp_path temp; fastcgi_temp_path temp; \
                uwsgi_temp_path temp; scgi_temp_path temp;";
    let text = text.replacen("http {", temp, 1);
    std::fs::create_dir_all(case.folder.join("temp")).unwrap();
    case.folder.write("nginx.conf", before + &text);
    let prefix = format!("{}/", case.folder.path().display());
    let args = ["-p", &prefix, "-e", "stderr", "-c", "nginx.conf"];
    let checked =
        Command::new(part("nginx")).args(args).arg("-t").current_dir(case.folder.path()).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    Process::start(&part("nginx"), &args, case.folder.path())
}

#[test]
fn haproxy_web_goes_the_same_way() {
    let case = Case::new("web.haproxy.cfg", &[], &[8080, 8443]);
    let _theirs = haproxy(&case);
    until("HAProxy listens", || listens(case.theirs(8080)) && listens(case.theirs(8443)));
    let (balancer, ours, said) = case.ours("haproxy");
    assert_eq!(balancer.status()["groups"][1]["strategy"], "first_available");
    for at in [case.theirs(8080), ours[0]] {
        let seen = case.answers(at, 40, None);
        // Each thread of Plimsoll has a round of its own.
        assert!(
            (28..=32).contains(&seen[0]),
            "{at}: three of four go to the one with three times the weight: {seen:?}"
        );
        assert_eq!(seen[0] + seen[1], 40, "{at}: {seen:?}");
    }
    for at in [case.theirs(8443), ours[1]] {
        let seen = case.answers(at, 8, Some("www.example.org"));
        assert!(seen[0] + seen[1] == 8 && seen[0] > seen[1], "{at}: {seen:?}");
        assert_eq!(
            case.answers(at, 4, Some("api.example.org")),
            [0, 0, 4, 0],
            "{at}: by the name that TLS asks for"
        );
    }
    for what in ["acl is_api", "use_backend api if is_api", "http-request", "stats timeout"] {
        assert!(said.contains(what), "{what}: {said}");
    }
    let strict = Run::plimsoll(&["config", "import", "haproxy", "theirs", "--strict"], case.folder.path());
    assert_eq!(strict.code, Some(1));
}

#[test]
fn haproxy_mixed_goes_the_same_way() {
    let mut case = Case::new("mixed.haproxy.cfg", &["--echo", "tcp"], &[5432, 6379, 8081]);
    let _theirs = haproxy(&case);
    until("HAProxy listens", || listens(case.theirs(5432)));
    let (balancer, ours, said) = case.ours("haproxy");
    assert_eq!(ours.len(), 2, "rules alone are no listener: {said}");
    for at in [case.theirs(5432), ours[0]] {
        assert!(talks(at, true), "{at}");
    }
    assert_eq!(requests(&balancer, "postgres"), [1, 0], "the standby is spare");
    for _ in 0..4 {
        assert!(talks(ours[1], false));
    }
    let by_address = requests(&balancer, "redis");
    assert!(by_address == [4, 0] || by_address == [0, 4], "one client stays: {by_address:?}");
    case.members[0].process.kill();
    until("theirs goes to the standby", || talks(case.theirs(5432), true));
    until("ours goes to the standby", || talks(ours[0], true));
}

/// Returns `true` if an echo answers, with the header that names the client before it.
fn talks(at: SocketAddr, header: bool) -> bool {
    use std::io::{Read as _, Write as _};
    let Ok(mut wire) = std::net::TcpStream::connect(at) else { return false };
    let _ = wire.set_read_timeout(Some(PATIENCE));
    if wire.write_all(b"hello").is_err() {
        return false;
    }
    let mut all = vec![0; if header { 16 + 12 + 5 } else { 5 }];
    wire.read_exact(&mut all).is_ok() && all.ends_with(b"hello")
}

fn requests(balancer: &Balancer, group: &str) -> Vec<u64> {
    let mut counts = Vec::new();
    until("all sessions have ended", || {
        let group = balancer.group(group);
        let members = group["members"].as_array().unwrap();
        counts = members.iter().map(|member| member["requests"].as_u64().unwrap()).collect();
        members.iter().all(|member| member["in_flight"] == 0)
    });
    counts
}

#[test]
fn nginx_web_goes_the_same_way() {
    let case = Case::new("web.nginx.conf", &[], &[8080, 8443]);
    let _theirs = nginx(&case, "");
    until("nginx listens", || listens(case.theirs(8080)) && listens(case.theirs(8443)));
    let (balancer, ours, said) = case.ours("nginx");
    assert_eq!(balancer.status()["groups"][0]["strategy"], "least_connections");
    for at in [case.theirs(8080), ours[0]] {
        let seen = case.answers(at, 20, None);
        assert_eq!((seen[0] + seen[1], seen[2], seen[3]), (20, 0, 0), "{at}: {seen:?}");
        assert!(seen[0] > 0 && seen[1] > 0, "{at}: {seen:?}");
    }
    for at in [case.theirs(8443), ours[1]] {
        let seen = case.answers(at, 8, Some("www.example.org"));
        assert_eq!(seen[0] + seen[1], 8, "{at}: {seen:?}");
        assert_eq!(case.answers(at, 4, Some("api.example.org")), [0, 0, 4, 0], "{at}");
    }
    assert!(said.contains("location /static/"), "{said}");
}

#[test]
fn nginx_stream_goes_the_same_way() {
    let case = Case::new("stream.nginx.conf", &["--echo", "tcp"], &[5432, 7007, 7008]);
    let _theirs = nginx(&case, "load_module /usr/lib/nginx/modules/ngx_stream_module.so;");
    until("nginx listens", || listens(case.theirs(5432)) && listens(case.theirs(7007)));
    let (balancer, ours, _) = case.ours("nginx");
    assert_eq!(ours.len(), 3);
    for at in [case.theirs(5432), case.theirs(7007), ours[0], ours[1]] {
        assert!(talks(at, false), "{at}");
    }
    assert_eq!(requests(&balancer, "postgres"), [1, 0], "the spare is spare");
    assert_eq!(balancer.status()["listeners"][2]["protocol"], "udp");
}

#[test]
fn nobody_comes_in_who_showed_nothing_there() {
    let case = Case::new("strict.nginx.conf", &[], &[7443, 8443, 9443]);
    Authority::new(&case.folder, "clients").issue(&case.folder, "client", &["client.example.org"]);
    Authority::new(&case.folder, "others");
    let _theirs = nginx(&case, "");
    until("nginx listens", || listens(case.theirs(8443)));
    let (_balancer, ours, said) = case.ours("nginx");
    assert_eq!(ours.len(), 2, "two authorities are no listener: {said}");
    let (theirs, ours) = (case.theirs(8443), ours[0]);
    for (at, refused) in [(theirs, "400"), (ours, "000")] {
        assert_eq!(case.status(at, "api.example.org", false), refused, "{at}");
        assert_eq!(case.status(at, "api.example.org", true), "200", "{at}");
        assert_eq!(case.status(at, "www.example.org", true), "200", "{at}");
    }
    // A listener asks all of its clients for a certificate, and the import reports that.
    assert_eq!(case.status(theirs, "www.example.org", false), "200");
    assert_eq!(case.status(ours, "www.example.org", false), "000");
    assert!(said.contains("server www.example.org: a listener asks all of its clients alike"), "{said}");
}
