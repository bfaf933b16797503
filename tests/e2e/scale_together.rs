//! Several balancers with one store and the same scaler: one of them decides, all use the members that it
//! started, and another takes over when it dies.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::scale::Mark;
use crate::stage::{Balancer, Etcd, Folder, Load, binary, free_port, until};

/// Returns a file that rejects no request, and waits for etcd, however late the machine is.
fn text(etcd: &Etcd, scaler: &str) -> String {
    format!(
        "[store]\netcd = \"/plimsoll/\"\n[etcd]\nendpoints = {}\ntimeout = \"20s\"\n[[listener]]\naddress = \
         \"127.0.0.1:0\"\n\
         group = \"web\"\n[[group]]\nname = \"web\"\nslow_start = \"0s\"\n\
         strategy = \"least_connections\"\ntimeouts = {{ connect = \"20s\" }}\nhealth = \
         {{ tcp = true, interval = \"100ms\" }}\n\
         [group.scaler]\ntarget = {{ headroom = 0.3 }}\ninterval = \"200ms\"\ncool_down = \
         {{ scale_out = \"0s\", scale_in = \"0s\" }}\n\
         stabilize = \"1s\"\ndrain = \"2s\"\n{scaler}",
        etcd.endpoints()
    )
}

fn scaler(balancer: &Balancer) -> Value {
    balancer.group("web")["scaler"].clone()
}

/// Returns the names of the members that can be used.
fn usable(balancer: &Balancer) -> Vec<String> {
    let group = balancer.group("web");
    let members = group["members"].as_array().unwrap().iter().filter(|member| member["state"] == "up");
    let mut names: Vec<String> = members.map(|member| member["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// Returns the ids of the processes that a balancer has started.
fn started(balancer: &Balancer) -> Vec<i32> {
    let scaler = scaler(balancer);
    let pid = |one: &Value| one["id"].as_str().unwrap().split('-').next().unwrap().parse().unwrap();
    scaler["started"].as_array().unwrap().iter().filter(|one| one["stage"] == "serving").map(pid).collect()
}

fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Orders two balancers: the one that decides is the first.
fn by_duty(two: [Balancer; 2]) -> [Balancer; 2] {
    let decides = |balancer: &Balancer| scaler(balancer)["decides"].is_null();
    until("one decides and the other knows", || decides(&two[0]) != decides(&two[1]));
    let [one, other] = two;
    if decides(&one) { [one, other] } else { [other, one] }
}

fn told(balancer: &Balancer, what: &str) {
    let run = balancer.run(&["set", "group", what]);
    assert_eq!(run.code, Some(0), "{what}: {}{}", run.out, run.err);
}

#[test]
fn one_decides_and_another_goes_on_when_it_is_killed() {
    let (mark, etcd) = (Mark::new(), Etcd::start(1));
    // The number is never more than an operator asks for.
    let config = text(&etcd, &format!("min = 2\nmax = 3\ncommand = {}\n", mark.command(&[])));
    let [mut first, second] = by_duty([Balancer::start(&config), Balancer::start(&config)]);
    until("two that serve, at both", || usable(&first).len() == 2 && usable(&second) == usable(&first));
    until("they are known to serve", || started(&first).len() == 2);
    assert_eq!(started(&second).len(), 0, "nobody is started twice");
    let shown = second.run(&["scale"]).out;
    assert!(shown.contains(" decides; seen from here: "), "{shown}");
    assert_eq!(second.metric("plimsoll_scaler_reason{group=\"web\",reason=\"elsewhere\"}"), 1.0);
    // The leader does what an operator sets at the other balancer.
    told(&second, "web.scaler.min=3");
    until("three at both", || usable(&first).len() == 3 && usable(&second) == usable(&first));
    until("the third is known to serve", || started(&first).len() == 3);
    let left = started(&first);
    let before = usable(&second);
    // The leader dies. Its processes live, and are used until another balancer decides, and after that.
    let mut load = Load::start(second.address(), "GET", 30.0);
    load.more(20);
    first.process.kill();
    until("the other decides", || scaler(&second)["decides"].is_null());
    load.more(40);
    load.stop_unharmed();
    assert_eq!((usable(&second), started(&second).len()), (before, 0));
    // A member that no balancer there can stop is replaced once it is gone.
    kill_process(Pid::from_raw(left[0]).unwrap(), Signal::KILL).unwrap();
    until("another in its place", || usable(&second).len() == 3 && started(&second).len() == 1);
    // A new balancer has all of them, and starts none.
    let third = Balancer::start(&config);
    until("it has them all", || usable(&third) == usable(&second));
    assert_eq!(started(&third).len(), 0);
}

/// Writes a program that starts and stops members anywhere: here as processes, each at a port of its own.
fn program(folder: &Folder, mark: &Mark) -> String {
    let (plimsoll, mark) = (binary().display().to_string(), mark.word());
    let ports: Vec<String> = (0..8).map(|_| free_port().to_string()).collect();
    let ports = ports.join(" ");
    let script = format!(
        "#!/bin/sh\nread order\nvalue() {{ echo \"$order\" | sed -n \
         \"s/.*\\\"$1\\\":\\\"*\\([^,\\\"}}]*\\).*/\\1/p\"; }}\n\
         if [ \"$(value action)\" = stop ]; then kill \"$(value id)\"; exit 0; fi\n\
         index=$(value index)\nset -- {ports}\nshift \"$index\"\nport=$1\n\
         setsid {plimsoll} member --listen 127.0.0.1:$port --name {mark} >/dev/null 2>&1 </dev/null &\n\
         echo \"{{\\\"address\\\": \\\"127.0.0.1:$port\\\", \\\"id\\\": \\\"$!\\\"}}\"\n"
    );
    folder.script("members", &script).display().to_string()
}

#[test]
fn members_that_a_program_started_are_those_of_whoever_decides_next() {
    let (mark, etcd, folder) = (Mark::new(), Etcd::start(1), Folder::new());
    let program = program(&folder, &mark);
    let config = text(&etcd, &format!("min = 2\nmax = 4\nexec = {{ command = [\"{program}\"] }}\n"));
    let [mut first, mut second] = by_duty([Balancer::start(&config), Balancer::start(&config)]);
    until("two that serve, at both", || usable(&first).len() == 2 && usable(&second) == usable(&first));
    until("they are known to serve", || started(&first).len() == 2);
    let left = started(&first);
    first.process.kill();
    until("the other has taken them over", || started(&second) == left);
    // The new leader can have them stopped: the last one that was started goes, and its requests end first.
    let mut load = Load::start(second.address(), "GET", 30.0);
    load.more(20);
    told(&second, "web.scaler.min=1");
    told(&second, "web.scaler.max=1");
    until("one of them has ended", || left.iter().filter(|pid| alive(**pid)).count() == 1);
    load.more(20);
    load.stop_unharmed();
    assert_eq!(usable(&second).len(), 1);
    // A balancer that is stopped while another is there leaves the members to that one.
    let third = Balancer::start(&config);
    until("it knows who decides", || !scaler(&third)["decides"].is_null() && usable(&third).len() == 1);
    second.process.signal(Signal::TERM);
    assert_eq!(second.process.end(), Some(0));
    until("it has taken over", || scaler(&third)["decides"].is_null() && started(&third).len() == 1);
    assert_eq!(left.iter().filter(|pid| alive(**pid)).count(), 1);
    let mut third = third;
    third.process.signal(Signal::TERM);
    assert_eq!(third.process.end(), Some(0));
    until("the last one stops them", || left.iter().all(|pid| !alive(*pid)));
}
