//! One group with clients of every kind at once: they are shared out alike, all see a drain, and the work of
//! one kind moves the choices of all others.
//!
//! The members are servers that know nothing of the balancer: nginx, grpcio and omniORB behind one port of a
//! host.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use serde_json::Value;

use crate::lottery::Cluster;
use crate::stage::{
    Balancer, Folder, Nginx, Orb, OrbClient, OrbMember, Told, Wire, curl, found, free_port, get, part, shown,
    until,
};

/// Servers and clients of gRPC.
struct Grpc {
    program: Told,
    servers: Vec<u16>,
}

impl Grpc {
    fn start() -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/grpc/group.py");
        let (program, servers) = Told::start(Command::new("/usr/bin/python3").arg(script));
        Self { program, servers }
    }

    /// Returns the number of calls that each server answered.
    #[track_caller]
    fn counts(&mut self, target: &str, calls: usize) -> Vec<usize> {
        self.program
            .tell(&format!("call {target} {calls}"))
            .split(' ')
            .map(|count| count.parse().unwrap())
            .collect()
    }
}

/// A member: a host with one port, on which three servers are reached.
struct Host {
    address: SocketAddr,
    _http: Nginx,
    orb: OrbMember,
}

impl Host {
    /// Starts `count` hosts, called `m0`, `m1` and so on.
    fn several(count: usize, grpc: &Grpc) -> Vec<Self> {
        let start = |number: usize| {
            let (name, calls) = (format!("m{number}"), grpc.servers[number]);
            let http = Nginx::start(|address| {
                format!(
                    "http {{ access_log off; keepalive_requests 1000000; client_body_temp_path temp; \
                     proxy_temp_path temp;\n\
                     fastcgi_temp_path temp; uwsgi_temp_path temp; scgi_temp_path temp;\n\
                     server {{ listen {address} http2 backlog=4096; root files; add_header who {name};\n\
                     location / {{ return 200 {name}; }}\n\
                     location = /slow {{ limit_rate 1k; }}\n\
                     location /t/ {{ grpc_pass grpc://127.0.0.1:{calls}; }} }} }}"
                )
            });
            // The file takes an hour at that rate.
            http.file("slow", &[b'x'; 3_600_000]);
            let orb = OrbMember::start(Orb::Omni, &name, &["--key", "web"]);
            Self { address: front(name, http.address, orb.address), _http: http, orb }
        };
        (0..count).map(start).collect()
    }
}

/// Opens a port behind which the servers of a host are, told apart by a connection's first bytes.
fn front(name: String, http: SocketAddr, orb: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let name = name.clone();
            // An error of a relayed connection is left to its two ends.
            thread::spawn(move || drop(relay(stream, &name, http, orb)));
        }
    });
    address
}

fn relay(mut stream: TcpStream, name: &str, http: SocketAddr, orb: SocketAddr) -> io::Result<()> {
    let mut first = [0; 4];
    stream.read_exact(&mut first)?;
    let server = match &first {
        b"WHO?" => {
            stream.write_all(name.as_bytes())?;
            return io::copy(&mut stream, &mut io::sink()).map(drop);
        }
        b"GIOP" => orb,
        _ => http,
    };
    let mut server = TcpStream::connect(server)?;
    server.set_nodelay(true)?;
    stream.set_nodelay(true)?;
    server.write_all(&first)?;
    let (mut from, mut to) = (stream.try_clone()?, server.try_clone()?);
    let up = thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        to.shutdown(Shutdown::Write)
    });
    let _ = io::copy(&mut server, &mut stream);
    // The other side may have closed first.
    let _ = stream.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
    drop(up.join());
    Ok(())
}

/// A balancer on one group that is reached in five ways.
struct Ways {
    balancer: Balancer,
    http: SocketAddr,
    xds: SocketAddr,
    tcp: SocketAddr,
    dns: u16,
    ior: String,
}

impl Ways {
    /// Starts a balancer; `group` is the group's table.
    #[track_caller]
    fn start(folder: Folder, iiop: &str, group: &str) -> Self {
        let dns = free_port();
        // The ports are not the system's choice: a group that a lottery draws is applied anew with each new
        // member.
        let listener = |protocol: &str, port: u16, rest: &str| {
            format!(
                "[[listener]]\naddress = \"127.0.0.1:{port}\"\nprotocol = \"{protocol}\"\ngroup = \
                 \"web\"\n{rest}\n"
            )
        };
        let listeners = [
            listener("http", free_port(), ""),
            listener("xds", free_port(), ""),
            listener("tcp", free_port(), ""),
            listener("iiop", free_port(), iiop),
            listener("dns", dns, "domain = \"web.example.\"\nttl = \"0s\""),
        ];
        let group = format!("[[group]]\nname = \"web\"\nprotocol = \"h2\"\nslow_start = \"0s\"\n{group}");
        let balancer = Balancer::start_in(folder, &format!("{}{group}\n", listeners.concat()));
        let ior = shown(&balancer, "ior");
        let [http, xds, tcp, ..] = *balancer.addresses() else { panic!("{:?}", balancer.addresses()) };
        Self { balancer, http, xds, tcp, dns, ior }
    }

    /// Counts the members that answer so many requests of a plain client.
    #[track_caller]
    fn http(&self, hosts: &[Host], requests: usize) -> Vec<usize> {
        let url = format!("http://{}/[1-{requests}]", self.http);
        let curled = curl(&["-w", "\n", &url], b"");
        assert_eq!(curled.code, Some(0), "{}", curled.talk);
        let text = String::from_utf8(curled.body).unwrap();
        counted(hosts, text.split_whitespace().map(str::to_owned))
    }

    /// Counts the members that answer so many calls of an object's client.
    #[track_caller]
    fn iiop(&self, hosts: &[Host], calls: usize) -> Vec<usize> {
        let calls = Orb::Omni.calls(&self.ior, &vec!["who"; calls].join(" "));
        counted(hosts, calls.iter().map(|call| call.who().to_owned()))
    }

    /// Counts the members that are first in so many answers.
    #[track_caller]
    fn dns(&self, hosts: &[Host], questions: usize) -> Vec<usize> {
        let mut command = Command::new(part("dig"));
        command.args(["-r", "@127.0.0.1", "-p", &self.dns.to_string(), "+tries=5", "+time=5", "+short"]);
        command.args(std::iter::repeat_n(["_http._tcp.web.example", "SRV"], questions).flatten());
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let first = said.lines().filter(|line| line.starts_with("0 "));
        let ports = first.map(|line| line.split(' ').nth(2).unwrap().to_owned());
        counted_at(hosts, ports.map(|port| format!("127.0.0.1:{port}")))
    }

    /// Opens a connection; returns the name of the member that answers, and the open connection.
    #[track_caller]
    fn tcp(&self) -> (String, Wire) {
        let mut wire = Wire::connect(self.tcp);
        wire.send("WHO?");
        let who = String::from_utf8(wire.exactly(2).unwrap()).unwrap();
        (who, wire)
    }

    /// Takes a lease; returns the member's address and the URL that ends the lease.
    #[track_caller]
    fn lease(&self) -> (String, String) {
        let url = format!("http://{}/v1/groups/web/bind", self.balancer.reports());
        // The lease is longer than any test.
        let curled = curl(&["-d", "{\"lease_seconds\": 3600}", &url], b"");
        let lease: Value = serde_json::from_slice(&curled.body).unwrap();
        let text = |key: &str| lease[key].as_str().unwrap_or_else(|| panic!("{lease}")).to_owned();
        (text("address"), format!("{url}/{}", text("lease")))
    }

    fn in_flight(&self, hosts: &[Host]) -> Vec<u64> {
        hosts.iter().map(|host| self.balancer.member(host.address)["in_flight"].as_u64().unwrap()).collect()
    }
}

/// Counts how often each member's name occurs.
#[track_caller]
fn counted(hosts: &[Host], names: impl Iterator<Item = String>) -> Vec<usize> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    names.for_each(|name| *counts.entry(name).or_default() += 1);
    let found: Vec<usize> =
        (0..hosts.len()).map(|number| counts.remove(&format!("m{number}")).unwrap_or_default()).collect();
    assert!(counts.is_empty(), "others answered, too: {counts:?}");
    found
}

/// Counts how often each member's address occurs.
#[track_caller]
fn counted_at(hosts: &[Host], addresses: impl Iterator<Item = String>) -> Vec<usize> {
    let number = |address: String| {
        let place = hosts.iter().position(|host| host.address.to_string() == address);
        format!("m{}", place.unwrap_or_else(|| panic!("{address} is no member")))
    };
    counted(hosts, addresses.map(number))
}

fn shares(counts: &[usize]) -> Vec<f64> {
    let all: usize = counts.iter().sum();
    counts.iter().map(|count| *count as f64 / all.max(1) as f64).collect()
}

/// Waits until each kind of client has these shares, with all kinds at once.
#[track_caller]
fn all_are(
    what: &str,
    kinds: &[(&str, &(dyn Fn() -> Vec<usize> + Sync))],
    right: &(dyn Fn(&[f64]) -> bool + Sync),
) {
    thread::scope(|scope| {
        let ask = |(kind, count): &(&str, &(dyn Fn() -> Vec<usize> + Sync))| {
            let mut last = Vec::new();
            let done = crate::stage::patiently(|| {
                last = shares(&count());
                right(&last)
            });
            assert!(done, "{kind}: not {what}: {last:?}");
        };
        let threads: Vec<_> = kinds.iter().map(|kind| scope.spawn(move || ask(kind))).collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap_or_else(|why| std::panic::resume_unwind(why)));
    });
}

fn near(due: [f64; 3]) -> impl Fn(&[f64]) -> bool + Sync {
    // Some shares are drawn by chance, 300 at a time: the range is three standard deviations.
    move |shares| shares.iter().zip(due).all(|(share, due)| (share - due).abs() < 0.09)
}

#[test]
fn six_kinds_of_clients_are_shared_out_as_the_lottery_draws() {
    let mut grpc = Grpc::start();
    let hosts = Host::several(3, &grpc);
    let mut cluster = Cluster::new("127.0.0.1");
    for (at, (host, capacity)) in hosts.iter().zip([100, 200, 300]).enumerate() {
        let service = format!("web={},capacity={capacity},load=busy", host.address);
        let control = cluster.control(&format!("m{at}.sock"));
        cluster.join(&["--service", &service, "--slow-start", "0s", &control[0], &control[1]]);
    }
    cluster.wait();
    let folder = Folder::new();
    folder.write("keys", cluster.folder.read("keys"));
    let daemons: Vec<String> = cluster.daemons.iter().map(|one| format!("\"{}\"", one.address)).collect();
    let daemons = daemons.join(", ");
    let lottery = format!("lottery = {{ service = \"web\", daemons = [{daemons}], keys = \"keys\" }}");
    let iiop = "\niiop.type_id = \"IDL:Test/Latency:1.0\"";
    let ways = Ways::start(folder, "binding = \"per_request\"", &format!("{lottery}{iiop}"));
    let members = || ways.balancer.group("web")["members"].as_array().map(Vec::len);
    until("it has the lottery's members", || members() == Some(3));
    grpc.program.tell(&format!("bootstrap {}", ways.xds));
    let through = ways.http.to_string();
    let grpc = Mutex::new(grpc);
    let (hosts, cluster) = (&hosts, &cluster);
    let kinds: [(&str, &(dyn Fn() -> Vec<usize> + Sync)); 6] = [
        ("http", &|| ways.http(hosts, 120)),
        ("grpc", &|| grpc.lock().unwrap().counts(&through, 120)),
        ("xds", &|| grpc.lock().unwrap().counts("xds:///web", 300)),
        ("iiop", &|| ways.iiop(hosts, 120)),
        ("dns", &|| ways.dns(hosts, 60)),
        ("lottery", &|| {
            let picks = cluster.picks(&[0, 1, 2], &["-n", "300"]);
            counted_at(hosts, picks.into_iter().flat_map(|(at, count)| std::iter::repeat_n(at, count)))
        }),
    ];
    all_are("as the capacities", &kinds, &near([1.0 / 6.0, 1.0 / 3.0, 0.5]));

    // The load of a server counts for all kinds.
    let tell = |of: usize, busy: &str| {
        let target = format!("http://{}/v1/report", cluster.daemons[of].status);
        let told = curl(&["-d", &format!("name=busy&value={busy}"), "-w", "%{http_code}", &target], b"");
        assert_eq!(String::from_utf8(told.body).unwrap(), "204", "{}", told.talk);
    };
    let busy = |shares: &[f64]| {
        // The report is repeated: an old one expires.
        tell(0, "0");
        tell(1, "0");
        tell(2, "4");
        shares[2] > 0.0 && shares[2] < 0.3
    };
    all_are("less for who is busy", &kinds, &busy);

    // A drain counts for all kinds, too.
    tell(2, "0");
    cluster.tell("m2.sock", &["drain"]);
    all_are("nothing for who is drained", &kinds, &|shares| {
        shares[2] == 0.0 && shares[0] > 0.0 && shares[1] > 0.0
    });
    cluster.tell("m2.sock", &["undrain"]);
    all_are("something for who is back", &kinds, &|shares| shares[2] > 0.2);
}

/// Work that is in flight at a member until it is ended.
enum Held {
    Lease(String),
    Tcp(Wire),
    Http(Wire),
    Grpc,
    Iiop(OrbClient),
}

#[test]
fn what_one_kind_of_client_has_under_way_moves_all_others() {
    let mut grpc = Grpc::start();
    let hosts = Host::several(2, &grpc);
    let members: Vec<String> = hosts.iter().map(|host| format!("\"{}\"", host.address)).collect();
    let rest = format!(
        "strategy = \"least_connections\"\nmembers = [{}]\niiop.type_id = \"IDL:Test/Latency:1.0\"",
        members.join(", ")
    );
    let ways = Ways::start(Folder::new(), "binding = \"per_session\"", &rest);
    grpc.program.tell(&format!("bootstrap {}", ways.xds));
    let through = ways.http.to_string();
    // The control plane is connected.
    grpc.counts("xds:///web", 1);
    let number = |name: &str| name.strip_prefix('m').unwrap().parse::<usize>().unwrap();
    let at = |address: &str| hosts.iter().position(|host| host.address.to_string() == address).unwrap();
    let quiet = |ways: &Ways| until("nothing is under way", || ways.in_flight(&hosts) == [0, 0]);
    /// Asserts that every kind of client gets this member, and none the other one.
    #[track_caller]
    fn all_get(
        ways: &Ways,
        grpc: &mut Grpc,
        hosts: &[Host],
        through: &str,
        member: usize,
        under_way: &[u64],
    ) {
        let settled = || until("others have ended", || ways.in_flight(hosts) == under_way);
        let only = |kind: &str, counts: &[usize]| {
            let all: usize = counts.iter().sum();
            assert!(all > 0 && counts[member] == all, "{kind}: {counts:?} with {under_way:?} under way");
        };
        only("http", &ways.http(hosts, 6));
        settled();
        // Calls come one after the other, and each has ended when its client knows it.
        for _ in 0..4 {
            only("grpc", &grpc.counts(through, 1));
            settled();
        }
        only("dns", &ways.dns(hosts, 10));
        for _ in 0..3 {
            let (who, wire) = ways.tcp();
            only("tcp", &counted(hosts, std::iter::once(who)));
            drop(wire);
            settled();
            let (address, lease) = ways.lease();
            only("lease", &counted_at(hosts, std::iter::once(address)));
            assert_eq!(curl(&["-X", "DELETE", &lease], b"").code, Some(0));
            settled();
        }
        only("iiop", &ways.iiop(hosts, 1));
        settled();
        until("calls by xds follow", || {
            let counts = grpc.counts("xds:///web", 60);
            (counts[member] as f64) > 0.65 * 60.0
        });
        settled();
    }
    for kind in ["lease", "tcp", "http", "grpc", "iiop", "xds"] {
        quiet(&ways);
        let (member, held) = match kind {
            "lease" => {
                let (address, lease) = ways.lease();
                (at(&address), Held::Lease(lease))
            }
            "tcp" => {
                let (who, wire) = ways.tcp();
                (number(&who), Held::Tcp(wire))
            }
            "http" => {
                let mut wire = Wire::connect(ways.http);
                wire.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
                let head = wire.head().unwrap().unwrap();
                let who = head.lines().find_map(|line| line.strip_prefix("who: ")).unwrap();
                (number(who), Held::Http(wire))
            }
            "grpc" => (number(&grpc.program.tell(&format!("hold {through}"))), Held::Grpc),
            "xds" => (number(&grpc.program.tell("hold xds:///web")), Held::Grpc),
            _ => {
                let client = OrbClient::start(Orb::Omni, &ways.ior, "who loop 3600");
                let who = found("who serves it", || client.calls().first().map(|call| call.who().to_owned()));
                (number(&who), Held::Iiop(client))
            }
        };
        let mut under_way = [0, 0];
        under_way[member] = 1;
        until(&format!("what {kind} holds is seen"), || ways.in_flight(&hosts) == under_way);
        all_get(&ways, &mut grpc, &hosts, &through, 1 - member, &under_way);
        match held {
            Held::Lease(lease) => drop(curl(&["-X", "DELETE", &lease], b"")),
            Held::Tcp(wire) | Held::Http(wire) => drop(wire),
            Held::Grpc => drop(grpc.program.tell("release")),
            Held::Iiop(client) => drop(client),
        }
    }
    quiet(&ways);
    // One command drains the member for all of them.
    let drained = ways.balancer.run(&["drain", &hosts[0].address.to_string()]);
    assert_eq!(drained.code, Some(0), "{}", drained.err);
    all_get(&ways, &mut grpc, &hosts, &through, 1, &[0, 0]);
    assert_eq!(get(ways.http, "/").text(), "m1");
    assert!(hosts.iter().all(|host| host.orb.ior.starts_with("IOR:")));
}
