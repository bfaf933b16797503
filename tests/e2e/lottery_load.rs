//! The load of a host's services: the load of each alone, and settings that are changed while daemons run.

use std::net::SocketAddr;

use serde_json::Value;

use crate::lottery::{Cluster, got};
use crate::stage::{Run, Script, curl_status, until};

/// Returns what `lottery status` reports of a service.
fn service(cluster: &Cluster, socket: &str, name: &str) -> Value {
    let status = told(cluster, socket, &["status", "-o", "json"]).json();
    let services = status["services"].as_array().unwrap();
    services.iter().find(|service| service["name"] == name).unwrap().clone()
}

fn told(cluster: &Cluster, socket: &str, what: &[&str]) -> Run {
    let control = cluster.control(socket);
    Run::plimsoll(
        &[&["lottery"], what, &control.each_ref().map(String::as_str)].concat(),
        cluster.folder.path(),
    )
}

/// Starts a server that shows this page.
fn page_of(text: &str) -> Script {
    Script::answering(format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    ))
}

/// Returns two services beside one daemon, each with a page of its own, and a port whose connections are
/// counted.
fn two_services(cluster: &Cluster, pages: [SocketAddr; 2], held: u16) -> String {
    let service = |name: &str, port: u16, rest: String| {
        format!("[[service]]\nname = \"{name}\"\nserver = \"127.0.0.1:{port}\"\ncapacity = 100\n{rest}\n")
    };
    let page = |page: SocketAddr| {
        format!(
            "scrape = \"http://{page}/\"\nmetrics = [\"in_flight=jobs{{kind=\\\"run\\\"}}\"]\nload = \
             \"in_flight / 10\""
        )
    };
    format!(
        "member = 1\nlisten = \"127.0.0.1:0\"\nkeys = \"keys\"\nslow_start = \"0s\"\nstatus = \
         \"127.0.0.1:0\"\n\
         [admin]\ncontrol = \"unix:{}\"\n{}{}{}{}",
        cluster.folder.join("one.sock").display(),
        service("web", 1, page(pages[0])),
        service("mail", 2, page(pages[1])),
        service("news", 3, format!("port = {held}\nload = \"connections / 4\"")),
        service("told", 4, "load = \"in_flight / 10\"".into()),
    )
}

#[test]
fn each_service_has_a_load_of_its_own() {
    let mut cluster = Cluster::new("127.0.0.1");
    let page =
        |jobs: u32| format!("# TYPE jobs gauge\njobs{{kind=\"run\"}} {jobs}\njobs{{kind=\"wait\"}} 99\n");
    let pages = [2, 8].map(|jobs| page_of(&page(jobs)));
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let connections: Vec<_> =
        (0..2).map(|_| std::net::TcpStream::connect(held.local_addr().unwrap()).unwrap()).collect();
    let places = [pages[0].address, pages[1].address];
    let file = two_services(&cluster, places, held.local_addr().unwrap().port());
    cluster.folder.write("one.toml", file);
    cluster.run(&["lottery", "--config", "one.toml"]);
    let load = |name: &str| service(&cluster, "one.sock", name)["load"].as_f64();
    let in_flight = |name: &str| service(&cluster, "one.sock", name)["in_flight"].as_u64();
    let near = |load: Option<f64>, wanted: f64| load.is_some_and(|load| (load - wanted).abs() < 0.05);
    until("each by its own page", || near(load("web"), 0.2) && near(load("mail"), 0.8));
    assert_eq!((in_flight("web"), in_flight("mail")), (Some(2), Some(8)));
    // Both ends of a connection on loopback have that port, one of them as its own.
    until("by the connections of its port", || near(load("news"), connections.len() as f64 / 4.0));
    // A number that names no service belongs to none of several; one that names a service belongs to it.
    let tell = |said: &str| {
        let target = format!("http://{}/v1/report", cluster.daemons[0].status);
        assert_eq!(curl_status(&["-d", said, &target], b""), 204);
    };
    tell("name=in_flight&value=70");
    tell("name=told.in_flight&value=5");
    until("what was told of it", || near(load("told"), 0.5) && in_flight("told") == Some(5));
    assert!(near(load("web"), 0.2), "{:?}", load("web"));
    // Over control a report names the service.
    let socket = cluster.folder.join("one.sock");
    let body = r#"{"group": "told", "values": {"in_flight": 9}}"#;
    let args = ["--unix-socket", socket.to_str().unwrap(), "-d", body, "http://x/v1/report"];
    assert_eq!(curl_status(&args, b""), 204);
    until("what was told over control", || in_flight("told") == Some(9));
}

#[test]
fn settings_and_services_are_changed_while_it_runs() {
    let mut cluster = Cluster::new("127.0.0.1");
    for (name, server) in [("one.sock", "web=127.0.0.1:1"), ("two.sock", "web=127.0.0.1:2")] {
        let control = cluster.control(name);
        let control = control.each_ref().map(String::as_str);
        cluster.join(&[&["--service", server, "--slow-start", "0s"], &control[..]].concat());
    }
    cluster.wait();
    let share = || got(&cluster.picks(&[0, 1], &["-n", "300"]), "127.0.0.1:2");
    until("both serve alike", || (90..210).contains(&share()));
    let tell = |what: &[&str]| cluster.tell("two.sock", what).err;
    assert_eq!(
        tell(&["set", "web.capacity=900"]),
        "~ service web: capacity 100 -> 900\nuntil the next reload\n"
    );
    until("nine of ten", || share() > 230);
    assert_eq!(tell(&["set", "ttl=2s"]), "~ ttl: 0ns -> 2s\nuntil the next reload\n");
    let status = told(&cluster, "two.sock", &["status", "-o", "json"]).json();
    assert_eq!((&status["ttl_seconds"], &status["services"][0]["capacity"]), (&2.0.into(), &900.into()));
    // On a machine that is slow referrals are to be preferred.
    assert!(status["prefer_referral"].is_boolean() && status["counts"]["forgotten"] == 0, "{status}");
    for (what, why) in [
        ("ttl=66s", "more than 65s"),
        ("mail.capacity=4", "no service mail; there are: web"),
        ("listen=x", "there are ttl, slow_start, rate"),
    ] {
        let run = told(&cluster, "two.sock", &["set", what]);
        assert!(run.code == Some(2) && run.err.contains(why), "{:?} {}", run.code, run.err);
    }
    // One service is taken out of the drum, and then all of them.
    assert_eq!(tell(&["disable", "web"]), "~ service web: disabled\n");
    until("nobody is sent there", || share() == 0);
    assert_eq!(service(&cluster, "two.sock", "web")["enabled"], false);
    assert_eq!(told(&cluster, "two.sock", &["status"]).code, Some(1), "not all is well");
    tell(&["reload"]);
    assert_eq!(service(&cluster, "two.sock", "web")["capacity"], 100, "what the command line said");
    assert_eq!(service(&cluster, "two.sock", "web")["enabled"], false, "it stays so");
    assert_eq!(tell(&["enable", "web"]), "~ service web: enabled\n");
    until("it serves again", || share() > 0);
    assert_eq!(tell(&["disable"]), "~ daemon: disabled\n");
    until("it is drained", || cluster.daemons[1].number("lottery_draining") == Some(1.0));
    assert_eq!(tell(&["enable"]), "~ daemon: enabled\n");
    until("it takes part", || share() > 0);
}

#[test]
fn another_capacity_of_the_only_server_keeps_no_client_without_one() {
    let mut cluster = Cluster::new("127.0.0.1");
    cluster.join(&[]);
    let control = cluster.control("two.sock");
    let control = control.each_ref().map(String::as_str);
    cluster.join(&[&["--service", "web=127.0.0.1:2", "--slow-start", "0s"], &control[..]].concat());
    cluster.wait();
    for capacity in [50, 200, 400, 10] {
        cluster.tell("two.sock", &["set", &format!("web.capacity={capacity}")]);
        assert_eq!(got(&cluster.picks(&[0], &["-n", "50"]), "127.0.0.1:2"), 50);
    }
}
