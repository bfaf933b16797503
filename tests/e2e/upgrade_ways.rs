//! Ways to start an upgrade, and its effects on others: signals, service managers, a Supervisor; datagrams
//! and sessions that go on.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::thread;

use rustix::process::{Signal, kill_process};

use crate::stage::{
    Balancer, Folder, Member, PATIENCE, Run, Wire, binary, found, free_port, get, listening, part, until, web,
};
use crate::upgrade::{Ends, Line, number, runs};

#[test]
fn a_signal_upgrades_and_the_service_manager_knows_the_main_process() {
    let member = Member::start(&[]);
    let folder = Folder::new();
    let socket = folder.join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let text = format!(
        "{}[admin]\nlisten = \"off\"\ncontrol = \"unix:{}\"\n",
        web(&[member.address], ""),
        folder.join("c.sock").display()
    );
    folder.write("plimsoll.toml", text);
    let variable = format!("NOTIFY_SOCKET={}", socket.display());
    let program = binary();
    let mut process = crate::stage::Process::start(
        &part("env"),
        &[&variable, program.to_str().unwrap(), "up"],
        folder.path(),
    );
    let told = |wanted: &str| {
        let mut buffer = [0; 4096];
        loop {
            let length = manager.recv(&mut buffer).unwrap();
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if let Some(rest) = text.lines().find_map(|line| line.strip_prefix(wanted)) {
                return rest.to_owned();
            }
        }
    };
    told("READY=1");
    process.signal(Signal::USR2);
    let pid: u32 = told("MAINPID=").parse().unwrap();
    let _end = Ends(pid);
    assert!(pid != process.pid() && runs(pid));
    told("READY=1");
    assert_eq!(process.end(), Some(0));
    // The new process stops as any other does, and notifies the manager.
    kill_process(number(pid), Signal::TERM).unwrap();
    told("STOPPING=1");
    until("it has ended", || !runs(pid));
    assert!(!folder.join("c.sock").exists(), "its socket is gone");
}

/// A program that binds sockets as a service manager does, and starts a process with them for each line that
/// it reads.
const PARENT: &str = r#"
import os, socket, sys
program, folder, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
tcp = socket.socket()
tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
tcp.bind(("127.0.0.1", port))
tcp.listen(64)
control = socket.socket(socket.AF_UNIX)
os.umask(0o177)
control.bind(folder + "/control.sock")
control.listen(16)
sockets = [os.dup(one.fileno()) for one in (tcp, control)]
print("listening", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        # Far away first: neither may lie where the other goes.
        far = [os.dup2(one, 100 + place) for place, one in enumerate(sockets)]
        for place, one in enumerate(far):
            os.dup2(one, 3 + place, inheritable=True)
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=line.strip(), LISTEN_FDNAMES="web:control")
        os.execv(program, [program, "up"])
    print(pid, flush=True)
    os.waitpid(pid, 0)
"#;

#[test]
fn sockets_of_a_service_manager_are_there_before_the_process_and_after_it() {
    let member = Member::start(&[]);
    let folder = Folder::new();
    let port = free_port();
    let file = |port: u16| {
        format!(
            "{}[group.health]\ntcp = true\n[admin]\nlisten = \"off\"\ncontrol = \"unix:{}\"\n",
            web(&[member.address], "").replace("127.0.0.1:0", &format!("127.0.0.1:{port}")),
            folder.join("control.sock").display()
        )
    };
    folder.write("plimsoll.toml", file(port));
    let script = folder.write("parent.py", PARENT);
    let mut command = Command::new(part("setpriv"));
    command
        .args(["--pdeathsig", "KILL", "--", "/usr/bin/python3"])
        .arg(script)
        .arg(binary())
        .arg(folder.path());
    command.arg(port.to_string()).current_dir(folder.path()).env_remove("NOTIFY_SOCKET");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut parent = command.spawn().unwrap();
    let mut out = BufReader::new(parent.stdout.take().unwrap());
    let mut orders = parent.stdin.take().unwrap();
    out.read_line(&mut String::new()).unwrap();
    let mut start = |sockets: usize| {
        writeln!(orders, "{sockets}").unwrap();
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        line.trim().parse::<u32>().unwrap()
    };
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    // A client that comes before there is a process waits for it, and until the member's health is known.
    let come = || {
        let clients = (0..30).map(|_| Wire::connect(address));
        let ask = |mut client: Wire| {
            client.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            client
        };
        clients.map(ask).collect::<Vec<_>>()
    };
    let served = |clients: Vec<Wire>| {
        let statuses = clients.into_iter().map(|mut client| client.answer().unwrap().status);
        assert_eq!(statuses.collect::<Vec<_>>(), [200; 30]);
    };
    let early = come();
    let first = start(2);
    let _end = Ends(first);
    served(early);
    let status = || Run::plimsoll(&["status", "-o", "json"], folder.path());
    until("control answers", || status().code == Some(0));
    assert_eq!(status().json()["pid"], first);
    // The process ends, and another one is started, which serves the clients that come in between.
    kill_process(number(first), Signal::TERM).unwrap();
    until("it has ended", || !runs(first));
    let between = come();
    let second = start(2);
    let _end = Ends(second);
    served(between);
    // An upgrade of such a process takes over the same sockets.
    let run = Run::plimsoll(&["upgrade", "-o", "json"], folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let third = u32::try_from(run.json()["pid"].as_u64().unwrap()).unwrap();
    let _end = Ends(third);
    assert_eq!(get(address, "/").status, 200);
    assert_eq!(status().json()["pid"], third);
    kill_process(number(third), Signal::TERM).unwrap();
    until("both have ended", || !runs(second) && !runs(third));
    // A socket without a listener in the file is an error that is reported.
    folder.write("plimsoll.toml", file(free_port()));
    start(2);
    drop(orders);
    let mut said = String::new();
    parent.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    parent.wait().unwrap();
    assert!(
        said.contains(&format!("a socket for tcp {address}, where the configuration has nothing")),
        "{said}"
    );
}

#[test]
fn sessions_of_tls_and_cookies_go_on() {
    let members = Member::several(2, &[]);
    let folder = Folder::new();
    crate::stage::Authority::new(&folder, "ca").issue(&folder, "one", &["one.test"]);
    let tls = "protocol = \"https\"\ntls = \
        { certificates = [{ certificate = \"one.pem\", key = \"one.key\" }] }\naffinity = {}\n";
    let all: Vec<SocketAddr> = members.iter().map(|member| member.address).collect();
    let balancer = Balancer::start_in(folder, &listening(tls, &all, ""));
    let pids = vec![balancer.process.pid()];
    let mut line = Line { balancer, pids };
    let address = line.balancer.address().to_string();
    let session = line.balancer.folder().join("session");
    let ca = line.balancer.folder().join("ca.pem");
    let ask = |option: &str, cookie: &str| {
        let mut command = Command::new(part("openssl"));
        command.args(["s_client", "-connect", &address, "-servername", "one.test", "-CAfile"]).arg(&ca);
        command.arg(option).arg(&session).args(["-ign_eof", "-tls1_3"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let cookie = if cookie.is_empty() { String::new() } else { format!("Cookie: {cookie}\r\n") };
        let request = format!("GET / HTTP/1.1\r\nHost: one.test\r\n{cookie}Connection: close\r\n\r\n");
        child.stdin.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = ask("-sess_out", "");
    assert!(said.contains("New, TLSv1.3") && said.contains("200 OK"), "{said}");
    let cookie = said.lines().find_map(|line| line.strip_prefix("Set-Cookie: ")).unwrap();
    let cookie = cookie.split(';').next().unwrap().to_owned();
    line.upgrade();
    let said = ask("-sess_in", &cookie);
    assert!(said.contains("Reused, TLSv1.3") && said.contains("200 OK"), "{said}");
    assert!(!said.contains("Set-Cookie"), "its cookie counts: {said}");
}

#[test]
fn a_supervisor_knows_who_took_over() {
    let member = Member::start(&[]);
    let folder = Folder::new();
    let port = free_port();
    let text = format!(
        "{}[admin]\nlisten = \"off\"\ncontrol = \"unix:{}\"\n",
        web(&[member.address], "").replace("127.0.0.1:0", &format!("127.0.0.1:{port}")),
        folder.join("up.sock").display()
    );
    folder.write("up.toml", &text);
    let processes = crate::supervise::process("web", &["up", "-c", "up.toml"], "");
    let house = crate::supervise::House::start_in(folder, &processes);
    let first = house.runs("web", None);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let control = format!("unix:{}", house.folder.join("up.sock").display());
    // The listeners are open before it answers commands.
    until("it serves", || {
        Run::plimsoll(&["status", "--control", &control], house.folder.path()).code == Some(0)
    });
    let run = Run::plimsoll(&["upgrade", "--control", &control, "-o", "json"], house.folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let second = u32::try_from(run.json()["pid"].as_u64().unwrap()).unwrap();
    let _end = Ends(second);
    let known = found("the Supervisor knows", || {
        Some(house.of("web")).filter(|web| web["pid"] == second && web["state"] == "running")
    });
    assert_eq!((&known["restarts"], &known["failures"]), (&0.into(), &0.into()), "{known}");
    assert_eq!(get(address, "/").status, 200);
    until("the first has ended", || !runs(first.unsigned_abs()));
    assert_eq!(house.of("web")["pid"], second);
    // The Supervisor watches it like the first: killed, it is started again; asked to stop, it stops.
    kill_process(number(second), Signal::KILL).unwrap();
    let third = house.runs("web", i32::try_from(second).ok());
    until("it serves again", || crate::stage::listens(address));
    house.well(&["stop", "web"]);
    until("it has stopped", || !runs(third.unsigned_abs()));
}

#[test]
fn flows_of_datagrams_go_on_by_the_sockets_that_they_had() {
    // The member answers with the port that a question came from.
    let member = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = member.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = member.recv_from(&mut buffer) {
            let _ = member.send_to(from.port().to_string().as_bytes(), from);
        }
    });
    let mut line =
        Line::start(&("threads = 2\n".to_owned() + &listening("protocol = \"udp\"", &[address], "")));
    let clients: Vec<UdpSocket> = (0..20)
        .map(|_| {
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.connect(line.balancer.address()).unwrap();
            client
        })
        .collect();
    let asked = |client: &UdpSocket| {
        client.send(b"who am I?").unwrap();
        let mut buffer = [0; 64];
        let length = client.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let before: Vec<String> = clients.iter().map(asked).collect();
    assert_eq!(line.balancer.member(address)["in_flight"], 20);
    for _ in 0..3 {
        line.upgrade();
        // From the member's view no flow has moved.
        let after: Vec<String> = clients.iter().map(asked).collect();
        assert_eq!(after, before);
        until("the process before has let go of them", || line.balancer.member(address)["in_flight"] == 20);
    }
    let listener = &line.balancer.status()["listeners"][0];
    assert_eq!((&listener["accepted"], &listener["connections"]), (&20.into(), &20.into()));
    assert_eq!(line.balancer.member(address)["requests"], 0, "none of them has ended");
}
