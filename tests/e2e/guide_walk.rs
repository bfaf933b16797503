//! Pages of the guide, each executed from its first line to its last: see `stage/walk.rs`. Steps that are not
//! executed stand behind `skip`, with the reason.

use std::net::SocketAddr;
use std::process::Command;

use crate::stage::{Walk, binary, free_port};

/// The balancer that pages without their own configuration refer to.
const WEB: &str = "[admin]\nreports = \"10.0.0.250:9901\"\n\n[[listener]]\naddress = \"0.0.0.0:8080\"\ngroup \
     = \"web\"\n\n\
     [[group]]\nname = \"web\"\nmembers = [\"10.0.0.1:80\", \"10.0.0.2:80\"]\n";

const OTHER_HOST: &str = "it is for another host";
const OWN: &str = "the experiment is the reader's own";
const LONG: &str = "it takes minutes";
/// Claims may fail on a machine that is busy with other tests; the report must exist. The two spaces prevent
/// a second replacement.
const JUDGED: &str = "judged() { plimsoll  lab \"$@\" || [ $? = 1 ]; }; judged list";
const STAYS: &str = "it stays on the screen until somebody ends it";

#[test]
fn getting_started() {
    Walk::guide("getting-started.md").go();
}

#[test]
fn adaptive() {
    Walk::guide("adaptive.md")
        .traffic()
        .put("plimsoll top ", "plimsoll top --once ")
        .skip("plimsoll demo", "half a minute; tests of the demo have it shorter")
        .skip("plimsoll lab run", LONG)
        .go();
}

#[test]
fn binding() {
    Walk::guide("binding.md").go();
}

#[test]
fn capacity() {
    Walk::guide("capacity.md").with(WEB).traffic().go();
}

#[test]
fn check() {
    Walk::guide("check.md")
        .with(WEB)
        .with("[group.health]\ntcp = true\n")
        .skip("plimsoll status --fail-headroom", "what is free is known after some thousand requests")
        .go();
}

#[test]
fn tcp_udp() {
    Walk::guide("tcp-udp.md").members(&["--echo", "tcp"]).put("plimsoll top", "plimsoll top --once").go();
}

#[test]
fn agent() {
    Walk::guide("agent.md")
        .with(WEB)
        .put(
            "agent --member 10.0.0.1:80 --report-to http://10.0.0.250:9901",
            "agent --member 10.0.0.1:80 --report-to http://10.0.0.250:9901 --listen 127.0.0.1:9902",
        )
        .go();
}

#[test]
fn report_load() {
    Walk::guide("report-load.md").config(1).traffic().go();
}

#[test]
fn monitoring() {
    Walk::guide("monitoring.md").with(WEB).put("127.0.0.1:9901", "10.0.0.250:9901").part(1).traffic().go();
}

#[test]
fn observability() {
    Walk::guide("observability.md").with(WEB).traffic().go();
}

#[test]
fn reload_drain_stop() {
    Walk::guide("reload-drain-stop.md").with(WEB).traffic().go();
}

#[test]
fn top() {
    Walk::guide("top.md")
        .with(WEB)
        .traffic()
        .skip("plimsoll top\n", STAYS)
        .skip("plimsoll top web --interval", STAYS)
        .go();
}

#[test]
fn upgrade() {
    Walk::guide("upgrade.md").with(WEB).go();
}

#[test]
fn scaler() {
    let scaler = "health = { tcp = true }\n[group.scaler]\nmin = 2\nmax = 10\ntarget = { headroom = 0.3 }\n\
                  [group.scaler.process]\ncommand = [\"plimsoll\", \"member\", \"--listen\", \
                  \"{address}\"]\n";
    Walk::guide("scaler.md").with(WEB).with(scaler).go();
}

#[test]
fn fleet() {
    Walk::guide("fleet.md").with(WEB).go();
}

#[test]
fn lookaside() {
    Walk::guide("lookaside.md").with(WEB).put("10.0.0.9:9901", "10.0.0.250:9901").go();
}

#[test]
fn coming_from() {
    let haproxy = "defaults\n  mode http\n  timeout connect 1s\n  timeout client 30s\n  timeout server 30s\n\
                   frontend in\n  bind 127.0.0.1:8080\n  default_backend web\n\
                   backend web\n  balance leastconn\n  server a 10.0.0.1:80 check\n";
    Walk::guide("coming-from.md")
        .file("haproxy.cfg", haproxy)
        .put("/etc/haproxy/haproxy.cfg", "haproxy.cfg")
        .skip(
            "plimsoll up -c",
            "what is imported has the control socket and the port of a host's only balancer",
        )
        .go();
}

#[test]
fn papers() {
    Walk::guide("papers.md")
        .with(WEB)
        .put("--rate 500 --duration 30s", "--rate 50 --duration 1s --tolerance 10s")
        .skip("plimsoll lab run l3b", LONG)
        .skip("plimsoll lab run ./mine.toml", OWN)
        .put("plimsoll lab run smoke", "plimsoll lab run smoke || [ $? = 1 ]")
        .go();
}

#[test]
fn lab() {
    Walk::guide("lab.md")
        .put("l3b", "smoke")
        .put("plimsoll lab list", JUDGED)
        .put("plimsoll lab ", "judged ")
        .skip("plimsoll lab run ./mine.toml", OWN)
        .skip("plimsoll lab compare", "it compares with what another machine measured")
        .go();
}

#[test]
fn load() {
    Walk::guide("load.md")
        .with(WEB)
        .put("--rate 5000 --duration 6s", "--rate 50 --duration 1s --tolerance 10s")
        .skip("plimsoll load http://web/", "it needs a lottery; tests of the lottery do it")
        .go();
}

#[test]
fn troubleshooting() {
    Walk::guide("troubleshooting.md").with(WEB).with("[group.health]\ntcp = true\n").go();
}

#[test]
fn store() {
    let balancer =
        "[admin]\nreports = \"10.0.0.1:9901\"\n\n[store]\nfile = \"FOLDER/state.json\"\nconfig = true\n";
    let groups = WEB.split_once("\n\n").unwrap().1;
    Walk::guide("store.md")
        .file("shared.toml", groups)
        .with(balancer)
        .skip(
            "plimsoll agent --register",
            "it is beside a server of another host; tests of registered members do it",
        )
        .go();
}

#[test]
fn model() {
    let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/lqn/");
    Walk::guide("model.md").with(WEB).put("crates/lqn/", models).go();
}

#[test]
fn supervise() {
    let web = "[admin]\nlisten = \"127.0.0.1:9900\"\ncontrol = \"unix:FOLDER/web.sock\"\n";
    let groups = WEB.split_once("\n\n").unwrap().1;
    let lottery = "member = 1\nlisten = \"127.0.0.1:7447\"\nkeys = \"FOLDER/lottery.keys\"\n\
                   [[service]]\nname = \"shop\"\nserver = \"127.0.0.1:8081\"\n";
    Walk::guide("supervise.md")
        .file("web.toml", &format!("{web}\n{groups}"))
        .file("lottery.toml", lottery)
        .put("/etc/plimsoll/plimsoll.toml", "FOLDER/web.toml")
        .put("/etc/plimsoll/lottery.toml", "FOLDER/lottery.toml")
        .put("/run/plimsoll-supervise.sock", "FOLDER/supervise.sock")
        .skip("plimsoll supervise status --host", OTHER_HOST)
        .skip("plimsoll supervise restart web --wait --host", OTHER_HOST)
        .skip("curl --unix-socket", "the Supervisor has been shut down by then; its tests do it")
        .go();
}

#[test]
fn access() {
    Walk::guide("access.md")
        .with(WEB.split_once("\n\n").unwrap().1)
        .put("/etc/plimsoll/ca.pem", "FOLDER/ca/ca.pem")
        .put("/etc/plimsoll/", "FOLDER/")
        .put("/var/log/plimsoll/", "FOLDER/")
        .put("/run/plimsoll.sock", "FOLDER/control.sock")
        .code("plimsoll drain 10.0.0.2:80 --host https://127.0.0.1:9905 --certificate bob.pem", 1)
        .skip(
            "plimsoll drain 10.0.0.2:80 --host https://lb1.example.org:9905",
            "it needs a KDC; its tests have one",
        )
        .skip("plimsoll undrain 10.0.0.2:80 --host https://lb1:9905", OTHER_HOST)
        .skip("curl --cacert", "the authority has been changed by then")
        .go();
}

#[test]
fn http() {
    Walk::guide("http.md").go();
}

#[test]
fn tls() {
    Walk::guide("tls.md")
        .skip("openssl ocsp", "it asks an authority on the network; tests of TLS have answers of one")
        .go();
}

#[test]
fn corba() {
    let reference = |host: &str| {
        let made = Command::new(binary())
            .args([
                "ior",
                "make",
                "--address",
                host,
                "--key",
                "Accounts",
                "--type-id",
                "IDL:Bank/Account:1.0",
            ])
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    };
    let runs = Walk::guide("corba.md")
        .put("IOR:010000001b000000...", &reference("127.0.0.2:4001"))
        .put("/run/", "FOLDER/")
        .file("account.ior", &reference("127.0.0.1:4001"))
        .file("account-1.ior", &reference("127.0.0.1:4001"))
        .done();
    let said: Vec<&str> = runs.iter().map(|(_, run)| run.out.trim()).collect();
    assert!(said[0].contains("IDL:Bank/Account:1.0") && said[0].contains("corba.example.org"), "{}", said[0]);
    assert!(said[1].starts_with("IOR:") && said[2].contains("@corba.example.org:2809/accounts"), "{said:?}");
}

#[test]
fn corba_tools() {
    Walk::guide("corba-tools.md")
        .put("--duration 10s", "--duration 1s")
        .put("--rate 500 --connections 8", "--rate 50 --connections 8 --duration 1s --tolerance 10s")
        .go();
}

#[test]
fn http2() {
    Walk::guide("http2.md")
        .put("orders", "web")
        .put("protocol = \"h2\"", "protocol = \"http1\"")
        .put("grpc = \"shop.Orders\"", "http = \"/healthz\"")
        .skip("curl --http2 https://", OTHER_HOST)
        .go();
}

#[test]
fn lottery() {
    let why = "the daemons of the five minutes have no settings; tests of the lottery do it";
    Walk::guide("lottery.md")
        .config(usize::MAX)
        .with(&WEB.replace("10.0.0.1:80", "10.0.0.1:8080").replace("10.0.0.2:80", "10.0.0.2:8080"))
        .skip("plimsoll lottery drain --control", why)
        .skip("plimsoll lottery undrain --control", why)
        .skip("curl -d", why)
        .skip("plimsoll lottery status --host", OTHER_HOST)
        .skip("plimsoll lottery drain --host", OTHER_HOST)
        .skip("plimsoll lottery disable web --host", OTHER_HOST)
        .skip("plimsoll lottery set web", OTHER_HOST)
        .skip("plimsoll lottery set ttl", OTHER_HOST)
        .skip("plimsoll lottery keys rotate --host", OTHER_HOST)
        .skip("plimsoll lottery keys rotate --clients", OTHER_HOST)
        .go();
}

#[test]
fn dns() {
    let server = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let runs = Walk::guide("dns.md")
        .place("10.0.0.9:53", server)
        .put("@10.0.0.9 ", &format!("@127.0.0.1 -p {} ", server.port()))
        .done();
    let said: Vec<&str> = runs.iter().map(|(_, run)| run.out.as_str()).collect();
    assert!(said[0] == "127.0.0.1\n" && said[1].matches("127-0-0-1.web.example.").count() == 2, "{said:?}");
}
