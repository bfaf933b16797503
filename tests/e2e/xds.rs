//! Stock clients of gRPC (grpcio, grpc-go) that find members by xDS: they go there themselves, as often as they are told, and report what they did.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Instant;

use crate::stage::{Balancer, Told, curl_status, go_tool, until};

/// Three servers and a client, which do as they are told.
struct Grpc {
    program: Told,
    servers: Vec<SocketAddr>,
    /// The balancer's file.
    text: String,
}

impl Grpc {
    /// grpcio's.
    fn python() -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/grpc/xds.py");
        Self::start(Command::new("/usr/bin/python3").arg(script))
    }

    /// grpc-go's.
    fn go() -> Self {
        Self::start(&mut Command::new(go_tool("grpc-xds")))
    }

    fn start(program: &mut Command) -> Self {
        let (program, ports) = Told::start(program);
        let servers = ports.into_iter().map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        Self { program, servers, text: String::new() }
    }

    /// Each server's share of the calls within half a second; none may have failed so far.
    #[track_caller]
    fn shares(&mut self) -> Vec<f64> {
        let said = self.program.tell("count 0.5");
        let counts: Vec<f64> = said.split(' ').map(|word| word.parse().unwrap()).collect();
        let (failed, counts) = counts.split_last().unwrap();
        assert!(*failed == 0.0, "calls failed: {said}");
        let all: f64 = counts.iter().sum();
        assert!(all > 50.0, "hardly any calls: {said}");
        counts.iter().map(|count| count / all).collect()
    }

    /// For how long a server has not been called.
    fn quiet(&mut self, server: usize) -> f64 {
        self.program.tell(&format!("last {server}")).parse().unwrap()
    }

    /// A balancer of which the servers are members, with these capacities, and which is this client's control plane.
    fn balancer(&mut self, capacities: [u32; 3], listener: &str, rest: &str) -> Balancer {
        let members: Vec<String> = self
            .servers
            .iter()
            .zip(capacities)
            .map(|(address, capacity)| format!("{{ address = \"{address}\", capacity = {capacity} }}"))
            .collect();
        self.text = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"xds\"\ngroup = \"web\"\n{listener}\n[[group]]\nname = \"web\"\n\
             slow_start = \"0s\"\nmembers = [{}]\n{rest}",
            members.join(", ")
        );
        let balancer = Balancer::start(&self.text);
        self.program.tell(&format!("go {}", balancer.address()));
        balancer
    }
}

/// The same for clients of both libraries.
macro_rules! of_both {
    ($($name:ident),*) => {
        mod grpcio {
            $(#[test]
            fn $name() {
                super::$name(super::Grpc::python());
            })*
        }
        mod grpc_go {
            $(#[test]
            fn $name() {
                super::$name(super::Grpc::go());
            })*
        }
    };
}

of_both!(
    a_stock_client_follows_weights_and_drains,
    a_slow_member_gets_less_because_clients_say_what_is_under_way_there,
    what_sessions_are_to_leave_gets_fewer_calls,
    loads_and_alerts_count_within_a_second,
    a_balancer_that_is_killed_is_not_missed
);

fn a_balancer_that_is_killed_is_not_missed(mut grpc: Grpc) {
    let mut balancer = grpc.balancer([1, 1, 1], "", "");
    until("all are called", || grpc.shares().iter().all(|share| *share > 0.1));
    balancer.process.kill();
    // Not one call fails: what was told goes on to hold.
    for _ in 0..4 {
        assert!(grpc.shares().iter().all(|share| *share > 0.1));
    }
}

fn a_stock_client_follows_weights_and_drains(mut grpc: Grpc) {
    let balancer = grpc.balancer([1, 2, 5], "", "strategy = \"weighted_round_robin\"\n");
    until("shares are as the capacities", || {
        let shares = grpc.shares();
        shares.iter().zip([0.125, 0.25, 0.625]).all(|(share, wanted)| (share - wanted).abs() < 0.05)
    });
    let heavy = grpc.servers[2].to_string();
    // The machine may have something else to do: of three times, one must do.
    let took = (0..3).map(|_| {
        let begun = Instant::now();
        assert_eq!(balancer.run(&["drain", &heavy]).code, Some(0));
        until("nobody calls it any more", || grpc.quiet(2) > 0.5);
        let gone = begun.elapsed().as_secs_f64() - grpc.quiet(2);
        let shares = grpc.shares();
        assert!(shares[2] == 0.0 && (shares[1] - 2.0 / 3.0).abs() < 0.1, "{shares:?}");
        let begun = Instant::now();
        assert_eq!(balancer.run(&["undrain", &heavy]).code, Some(0));
        until("it is called again", || grpc.quiet(2) < 0.1);
        (gone, begun.elapsed().as_secs_f64())
    });
    let took: Vec<(f64, f64)> = took.collect();
    assert!(took.iter().any(|(gone, _)| *gone < 1.0), "called for so many seconds after the drain: {took:?}");
    assert!(took.iter().any(|(_, back)| *back < 2.0), "called so many seconds after the undrain: {took:?}");
    balancer.reload(&grpc.text.replace("capacity = 5", "capacity = 1"));
    until("a reload counts as well", || (grpc.shares()[2] - 0.25).abs() < 0.07);
    grpc.shares();
}

fn a_slow_member_gets_less_because_clients_say_what_is_under_way_there(mut grpc: Grpc) {
    let balancer = grpc.balancer([1, 1, 1], "", "");
    for server in 0..2 {
        grpc.program.tell(&format!("delay {server} 5"));
    }
    grpc.program.tell("delay 2 50");
    until("reports come in", || {
        let group = balancer.group("web");
        let members = group["members"].as_array().unwrap().clone();
        members.iter().all(|member| member["requests"].as_u64() > Some(10))
            && members[2]["in_flight"].as_u64() >= Some(2)
    });
    until("it gets less than half of what the others get", || {
        let shares = grpc.shares();
        shares[2] < 0.5 * shares[0] && shares[2] < 0.5 * shares[1] && shares[2] > 0.0
    });
    let slow = balancer.member(grpc.servers[2]);
    assert_eq!(slow["failures"], 0, "{slow}");
    grpc.program.tell("stop");
    until("nothing is under way", || {
        let group = balancer.group("web");
        group["members"].as_array().unwrap().iter().all(|member| member["in_flight"] == 0)
    });
}

/// A balancer whose members have said three times that they have hardly anything to do, and a way to say something else.
fn told(grpc: &mut Grpc, listener: &str, strategy: &str) -> (Balancer, impl Fn([f64; 3]) + use<>) {
    let rest = format!("strategy = {strategy}\n[group.monitor]\nmetric = \"cpu\"\ninterval = \"1s\"\n");
    let balancer = grpc.balancer([1, 1, 1], listener, &rest);
    let url = format!("http://{}/v1/report", balancer.reports());
    let servers = grpc.servers.clone();
    let report = move |loads: [f64; 3]| {
        for (server, load) in servers.iter().zip(loads) {
            // The answer says so if the member is under alert.
            let status = curl_status(&["-d", &format!("member={server}&cpu={load}"), &url], b"");
            assert!(matches!(status, 200 | 204), "{status}");
        }
    };
    for _ in 0..3 {
        report([0.02; 3]);
    }
    (balancer, report)
}

fn what_sessions_are_to_leave_gets_fewer_calls(mut grpc: Grpc) {
    let (balancer, report) = told(&mut grpc, "binding = \"on_demand\"", "\"random\"");
    until("all get as much", || grpc.shares().iter().all(|share| (share - 1.0 / 3.0).abs() < 0.07));
    // A third of its sessions are to go by what one report can say: it is left with a quarter of all calls.
    until("its clients call others", || {
        report([0.02, 0.02, 1.0]);
        grpc.shares()[2] < 0.29
    });
    assert!(!balancer.events(grpc.servers[2], "alert_raised").is_empty());
}

fn loads_and_alerts_count_within_a_second(mut grpc: Grpc) {
    let strategy = "{ least_loaded = { critical = 0.5 } }";
    let (balancer, report) = told(&mut grpc, "binding = \"on_demand\"", strategy);
    // The machine may have something else to do: of three times, one must do.
    let took = (0..3).map(|_| {
        // Told again and again, or they would be stale before long.
        until("the least loaded is called", || {
            report([0.02, 0.02, 0.01]);
            grpc.quiet(2) < 0.1
        });
        let begun = Instant::now();
        until("nobody calls it any more", || {
            report([0.02, 0.02, 1.0]);
            grpc.quiet(2) > 0.5
        });
        begun.elapsed().as_secs_f64() - grpc.quiet(2)
    });
    let took: Vec<f64> = took.collect();
    assert!(took.iter().any(|took| *took < 1.0), "called for so many seconds after the report: {took:?}");
    assert!(!balancer.events(grpc.servers[2], "alert_raised").is_empty());
    grpc.shares();
}
