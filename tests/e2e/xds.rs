//! Stock clients of gRPC (grpcio, grpc-go) find members by xDS. They go there themselves, by the weights that
//! they get, and report their calls.

use std::net::SocketAddr;
use std::process::Command;

use crate::stage::{Balancer, Told, curl_status, go_tool, until};

/// The number of calls over which shares are measured.
const CALLS: f64 = 1000.0;

/// Three servers and a client, which follow the test's commands.
struct Grpc {
    program: Told,
    servers: Vec<SocketAddr>,
    /// The balancer's file.
    text: String,
}

impl Grpc {
    /// Starts the program on grpcio.
    fn python() -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/grpc/xds.py");
        Self::start(Command::new("/usr/bin/python3").arg(script))
    }

    /// Starts the program on grpc-go.
    fn go() -> Self {
        Self::start(&mut Command::new(go_tool("grpc-xds")))
    }

    fn start(program: &mut Command) -> Self {
        let (program, ports) = Told::start(program);
        let servers = ports.into_iter().map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        Self { program, servers, text: String::new() }
    }

    /// Returns each server's share of the next calls, however long they take; none may have failed so far.
    #[track_caller]
    fn shares(&mut self) -> Vec<f64> {
        let mut all = vec![0.0; self.servers.len()];
        until("so many calls", || {
            let said = self.program.tell("count 0.1");
            let counts: Vec<f64> = said.split(' ').map(|word| word.parse().unwrap()).collect();
            let (failed, counts) = counts.split_last().unwrap();
            assert!(*failed == 0.0, "calls failed: {said}");
            all.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
            all.iter().sum::<f64>() >= CALLS
        });
        let sum: f64 = all.iter().sum();
        all.iter().map(|count| count / sum).collect()
    }

    /// Starts a balancer that has the servers as members, with these capacities, and is this client's control
    /// plane.
    fn balancer(&mut self, capacities: [u32; 3], listener: &str, rest: &str) -> Balancer {
        let members: Vec<String> = self
            .servers
            .iter()
            .zip(capacities)
            .map(|(address, capacity)| format!("{{ address = \"{address}\", capacity = {capacity} }}"))
            .collect();
        self.text = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"xds\"\ngroup = \
             \"web\"\n{listener}\n[[group]]\nname = \"web\"\n\
             slow_start = \"0s\"\nmembers = [{}]\n{rest}",
            members.join(", ")
        );
        let balancer = Balancer::start(&self.text);
        self.program.tell(&format!("go {}", balancer.address()));
        balancer
    }
}

/// Defines tests for clients of both libraries.
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
    loads_and_alerts_count,
    a_balancer_that_is_killed_is_not_missed
);

fn a_balancer_that_is_killed_is_not_missed(mut grpc: Grpc) {
    let mut balancer = grpc.balancer([1, 1, 1], "", "strategy = \"weighted_round_robin\"\n");
    until("all are called alike", || grpc.shares().iter().all(|share| (share - 1.0 / 3.0).abs() < 0.05));
    balancer.process.kill();
    // Not one call fails: the last configuration stays in force.
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
    for _ in 0..2 {
        assert_eq!(balancer.run(&["drain", &heavy]).code, Some(0));
        until("nobody calls it any more, and the others are called by their weights", || {
            let shares = grpc.shares();
            shares[2] == 0.0 && (shares[1] - 2.0 / 3.0).abs() < 0.1
        });
        assert_eq!(balancer.run(&["undrain", &heavy]).code, Some(0));
        until("it is called again", || grpc.shares()[2] > 0.5);
    }
    balancer.reload(&grpc.text.replace("capacity = 5", "capacity = 1"));
    until("a reload counts as well", || (grpc.shares()[2] - 0.25).abs() < 0.07);
    grpc.shares();
}

fn a_slow_member_gets_less_because_clients_say_what_is_under_way_there(mut grpc: Grpc) {
    let balancer = grpc.balancer([1, 1, 1], "", "");
    for server in 0..2 {
        grpc.program.tell(&format!("delay {server} 5"));
    }
    grpc.program.tell("delay 2 100");
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

/// Starts a balancer whose members have reported three times that they are almost idle; returns a function
/// that reports other loads, too.
fn told(grpc: &mut Grpc, listener: &str, strategy: &str) -> (Balancer, impl Fn([f64; 3]) + use<>) {
    let rest = format!("strategy = {strategy}\n[group.monitor]\nmetric = \"cpu\"\ninterval = \"1s\"\n");
    let balancer = grpc.balancer([1, 1, 1], listener, &rest);
    let url = format!("http://{}/v1/report", balancer.reports());
    let servers = grpc.servers.clone();
    let report = move |loads: [f64; 3]| {
        for (server, load) in servers.iter().zip(loads) {
            // The answer has a body if the member is under alert.
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
    // One report can make a third of its sessions leave: the member is left with a quarter of all calls.
    until("its clients call others", || {
        report([0.02, 0.02, 1.0]);
        grpc.shares()[2] < 0.29
    });
    assert!(!balancer.events(grpc.servers[2], "alert_raised").is_empty());
}

fn loads_and_alerts_count(mut grpc: Grpc) {
    let strategy = "{ least_loaded = { critical = 0.5 } }";
    let (balancer, report) = told(&mut grpc, "binding = \"on_demand\"", strategy);
    for _ in 0..2 {
        // The report is repeated, or the loads would soon be stale.
        until("the least loaded is called", || {
            report([0.02, 0.02, 0.01]);
            grpc.shares()[2] > 0.0
        });
        until("nobody calls it any more", || {
            report([0.02, 0.02, 1.0]);
            grpc.shares()[2] == 0.0
        });
    }
    assert!(!balancer.events(grpc.servers[2], "alert_raised").is_empty());
    grpc.shares();
}
