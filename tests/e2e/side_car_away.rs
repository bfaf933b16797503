//! Clients were redirected by a balancer to a member's own address (307). A side-car that knows where the
//! group is sends them back when the member is under alert, and the group redirects them to another member.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::side_car::SideCar;
use crate::stage::{Answer, Balancer, Script, Wire, curl, listening, members_list, until};

/// A group of two, each behind a side-car at an address of its own, whose loads are those that the test
/// reports.
struct Group {
    balancer: Balancer,
    side_cars: [SideCar; 2],
    /// The addresses where the agents take numbers.
    agents: [SocketAddr; 2],
}

impl Group {
    fn start(rebind: &str) -> Self {
        // The load of a host counts for the members there, so that the test need not know a port before it is
        // open.
        let hosts = ["127.0.0.2", "127.0.0.3"];
        let listener = format!("binding = \"on_demand\"\nrebind = \"{rebind}\"\n");
        let rest = "strategy = \"first_available\"\n[group.monitor]\nmetric = \"load\"\n";
        let first = hosts.map(|host| SocketAddr::new(host.parse().unwrap(), 9));
        let text = listening(&listener, &first, rest);
        let balancer = Balancer::start(&text);
        let (home, reports) = (balancer.url(""), format!("http://{}", balancer.reports()));
        let side_cars = [0, 1].map(|number| {
            let name = ["one", "other"][number];
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len());
            let place = format!("{}:0={}", hosts[number], Script::answering(answer).address);
            let report = ["-m", hosts[number], "-r", &reports, "--interval", "100ms"];
            SideCar::start(&place, &[&report[..], &["--listen=127.0.0.1:0", "--group-url", &home]].concat())
        });
        let public = |side_car: &SideCar| {
            format!("{{ address = \"{0}\", public = \"http://{0}\" }}", side_car.address)
        };
        let members = format!("[{}, {}]", public(&side_cars[0]), public(&side_cars[1]));
        balancer.reload(&text.replace(&members_list(&first), &members));
        let agents = side_cars.each_ref().map(|side_car| {
            let line = side_car.process.line("listening agent ");
            line.split_once("listening agent ").unwrap().1.split(": ").next().unwrap().parse().unwrap()
        });
        Self { balancer, side_cars, agents }
    }

    /// Reports these loads to the agents again and again while `act` runs.
    fn under<R>(&self, loads: [f64; 2], act: impl FnOnce() -> R) -> R {
        /// A guard that ends the reports, also if the test fails.
        struct Ends<'a>(&'a AtomicBool);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    for (agent, load) in self.agents.iter().zip(loads) {
                        let body = format!("load={load}");
                        let told = ask(
                            *agent,
                            &format!("POST /v1/report HTTP/1.1\r\nContent-Length: {}\r\n", body.len()),
                            &body,
                        );
                        assert!(told.status < 300, "{}", told.text());
                    }
                    // sleeps: paces who tells
                    thread::sleep(Duration::from_millis(50));
                }
            });
            let _ends = Ends(&over);
            act()
        })
    }
}

/// Asks on a connection of its own; `request` is without the host and the empty line.
fn ask(address: SocketAddr, request: &str, body: &str) -> Answer {
    let mut wire = Wire::connect(address);
    wire.send(format!("{request}Host: {address}\r\n\r\n{body}"));
    wire.answer().unwrap()
}

#[test]
fn clients_leave_the_loaded_member_for_the_group_and_then_the_other_one() {
    let group = Group::start("redirect");
    let [one, other] = group.side_cars.each_ref().map(|side_car| side_car.address);
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\n");
    // The clients come as if the balancer had redirected them there.
    let mut clients: Vec<Wire> = (0..20).map(|_| Wire::connect(one)).collect();
    let mut left = 0;
    group.under([1.2, 0.2], || {
        until("clients that are with the other one", || {
            for client in &mut clients {
                client.send(format!("POST /a?b=c HTTP/1.1\r\nHost: {one}\r\nContent-Length: 2\r\n\r\nhi"));
                let answer = client.answer().unwrap();
                if answer.status == 200 {
                    assert_eq!((answer.text().as_str(), answer.field("connection")), ("one", None));
                    continue;
                }
                assert_eq!((answer.status, answer.field("connection")), (307, Some("close")));
                assert_eq!(answer.field("location"), Some(group.balancer.url("/a?b=c").as_str()));
                client.closed();
                // The client goes where it is redirected, and is not redirected again, least of all back.
                let there = ask(group.balancer.address(), &get("/a?b=c"), "");
                assert_eq!(there.status, 200);
                left = if there.text() == "other" { left + 1 } else { 0 };
                *client = Wire::connect(one);
            }
            left >= 5
        });
        // A common client (curl) does the same, on one connection until one answer closes it.
        let url = format!("http://{one}/[1-30]");
        until("a client that is sent elsewhere", || {
            let got = curl(&["-L", "--rate", "30/s", &url], b"");
            assert_eq!(got.code, Some(0), "{}", got.talk);
            let said = String::from_utf8(got.body).unwrap();
            let served = |name: &str| said.matches(name).count();
            assert_eq!(3 * served("one") + 5 * served("other"), said.len(), "{said}");
            served("other") > 0
        });
    });
    // No member has a failure for it.
    for member in [one, other] {
        assert_eq!(group.balancer.member(member)["failures"], 0);
    }
}

#[test]
fn who_comes_through_the_balancer_notices_nothing_of_it() {
    let group = Group::start("redirect");
    let [one, _] = group.side_cars.each_ref().map(|side_car| side_car.address);
    let mut client = Wire::connect(group.balancer.address());
    let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", group.balancer.address());
    let mut round = || {
        client.send(&request);
        let answer = client.answer().unwrap();
        // The balancer itself redirects a client to the other member's address when it is that member's turn.
        let location = answer.field("location").unwrap_or_default().to_owned();
        assert!(answer.status == 200 || location.starts_with("http://127.0.0.3:"), "{answer:?}");
    };
    round();
    group.under([1.2, 0.2], || {
        group.side_cars[0].process.line("of the connections to go elsewhere");
        (0..200).for_each(|_| round());
    });
    assert_eq!(group.balancer.member(one)["failures"], 0);
}

#[test]
fn who_comes_through_the_balancer_goes_where_the_side_car_of_its_member_has_it_go() {
    let group = Group::start("agent");
    let mut clients: Vec<Wire> = (0..8).map(|_| Wire::connect(group.balancer.address())).collect();
    let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", group.balancer.address());
    let mut round = || {
        let answers = clients.iter_mut().map(|client| {
            client.send(&request);
            let answer = client.answer().unwrap();
            assert_eq!((answer.status, answer.field("connection")), (200, None));
            answer.text()
        });
        answers.filter(|who| who == "other").count()
    };
    assert_eq!(round(), 0, "the strategy has the first one serve");
    group.under([1.2, 0.2], || until("clients that are with the other one", || round() >= 2));
    let [one, other] = group.side_cars.each_ref().map(|side_car| side_car.address);
    for member in [one, other] {
        assert_eq!(group.balancer.member(member)["failures"], 0);
    }
    assert!(group.balancer.member(one)["moved"].as_u64().unwrap() >= 2);
}
