//! Members send their clients back to the group themselves (`examples/corba-omniorb-shed`), and the balancer
//! handles clients that come straight back.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::stage::{Orb, OrbClient, OrbMember, found, shedding, until};

/// Ends a member's alert and returns the number of clients that the member has sent away so far, which it
/// prints then.
#[track_caller]
fn sent(member: &OrbMember) -> usize {
    let said = || {
        let lines = member.process.lines();
        let count = |line: &String| line.strip_prefix("no alert, sent away ")?.parse().ok();
        lines.iter().filter_map(count).collect::<Vec<usize>>()
    };
    let before = said().len();
    member.process.signal(Signal::USR2);
    found("the end of the alert", || said().get(before).copied())
}

#[test]
fn a_member_sheds_and_its_client_is_bound_anew() {
    for orb in Orb::here() {
        let (members, group) = shedding(2, "on_demand");
        let client = OrbClient::start(orb, &group.ior, "loop 600 --interval 30");
        // Counts the alerts of each member. A client goes once for each alert, to the other member, and does
        // not come back in vain.
        let mut alerts = [0, 0];
        for _ in 0..4 {
            let seen = client.calls().len();
            let seen = client.until("an answer", seen, |call| !call.who().is_empty());
            let bound = client.calls()[seen - 1].who().to_owned();
            let at = usize::from(bound == "m1");
            alerts[at] += 1;
            members[at].process.signal(Signal::USR1);
            client.until("the other member", seen, |call| call.who() != bound);
            assert_eq!(sent(&members[at]), alerts[at], "{orb:?} {}", client.process);
        }
        assert!(client.calls().iter().all(|call| call.exception().is_none()), "{}", client.process);
    }
}

#[test]
fn all_members_shed_and_the_storm_is_capped() {
    let (members, group) = shedding(2, "on_demand");
    let client = OrbClient::start(Orb::Omni, &group.ior, "loop 600 --interval 10");
    let seen = client.until("an answer", 0, |call| !call.who().is_empty());
    let begun = Instant::now();
    members.iter().for_each(|member| member.process.signal(Signal::USR1));
    // The storm lasts for two seconds, and longer where that is not enough. Each member that gets the alert
    // once more prints how many clients it has sent away so far.
    until("both shed for a time", || {
        members.iter().for_each(|member| member.process.signal(Signal::USR1));
        let away = |member: &OrbMember| {
            let lines = member.process.lines();
            let count = |line: &String| line.strip_prefix("alert, sent away ")?.parse::<usize>().ok();
            lines.iter().filter_map(count).next_back().unwrap_or(0)
        };
        members.iter().all(|member| away(member) > 0) && begun.elapsed() >= Duration::from_secs(2)
    });
    let forwards: usize = members.iter().map(sent).sum();
    let seconds = begun.elapsed().as_secs_f64();
    assert!(forwards >= 2, "both shed: {forwards}");
    // bound: a slow machine makes it less
    assert!((forwards as f64) < 50.0 * seconds, "{forwards} forwards in {seconds} s");
    let seen = seen.max(client.calls().len());
    client.until("an answer when it is over", seen, |call| !call.who().is_empty());
    let wrong = |name: &str| name != "TRANSIENT";
    assert!(!client.calls().iter().filter_map(|call| call.exception()).any(wrong), "{}", client.process);
}

/// A balancer that the machine lets stand still sees the alert later: one of five attempts must succeed.
#[test]
fn many_clients_leave_a_member_at_once() {
    const CLIENTS: usize = 8;
    let mut all = Vec::new();
    while all.len() < 5 && !all.iter().any(|sent| *sent <= 2 * CLIENTS) {
        all.push(sent_away(CLIENTS));
    }
    // No client was sent to the member in vain again and again: each came back once, or twice before the
    // balancer had seen the alert.
    assert!(all.iter().any(|sent| *sent <= 2 * CLIENTS), "{all:?} sent away, {CLIENTS} clients");
}

/// Lets so many clients leave one of two members; returns how often that member has sent one away.
#[track_caller]
fn sent_away(clients: usize) -> usize {
    let (members, group) = shedding(2, "on_demand");
    let clients: Vec<OrbClient> =
        (0..clients).map(|_| OrbClient::start(Orb::Omni, &group.ior, "loop 600 --interval 20")).collect();
    for client in &clients {
        client.until("an answer", 0, |call| !call.who().is_empty());
    }
    members[0].process.signal(Signal::USR1);
    for client in &clients {
        let seen = client.calls().len();
        client.until("the other member", seen, |call| call.who() == "m1");
        assert!(client.calls().iter().all(|call| call.exception().is_none()), "{}", client.process);
    }
    sent(&members[0])
}
