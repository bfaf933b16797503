//! Members that send their clients back to the group themselves (`examples/corba-omniorb-shed`), and what the balancer
//! makes of clients that come straight back.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::stage::{Orb, OrbClient, OrbMember, shedding};

/// How often a member has sent a client away, as it says when its alert is over.
#[track_caller]
fn sent(member: &OrbMember) -> usize {
    member.process.signal(Signal::USR2);
    let line = member.process.line("no alert, sent away ");
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_member_sheds_and_its_client_is_bound_anew() {
    for orb in Orb::here() {
        let (members, group) = shedding(2, "on_demand");
        let client = OrbClient::start(orb, &group.ior, "loop 28 --interval 30");
        // The best of several: the machine may be busy with other tests.
        let limit = if orb == Orb::Omni { 20_000 } else { 100_000 };
        let mut times: Vec<u64> = Vec::new();
        while times.len() < 4 || times.len() < 16 && times.iter().all(|time| *time >= limit) {
            let seen = client.calls().len();
            let seen = client.until("an answer", seen, |call| !call.who().is_empty());
            let bound = client.calls()[seen - 1].who().to_owned();
            let member = &members[usize::from(bound == "m1")];
            member.process.signal(Signal::USR1);
            let seen = client.until("the other member", seen, |call| call.who() != bound);
            times.push(client.calls()[seen - 1].micros());
            member.process.signal(Signal::USR2);
        }
        assert!(client.calls().iter().all(|call| call.exception().is_none()), "{}", client.process);
        assert!(times.iter().any(|time| *time < limit), "{orb:?} {times:?} us");
    }
}

#[test]
fn all_members_shed_and_the_storm_is_capped() {
    let (members, group) = shedding(2, "on_demand");
    let client = OrbClient::start(Orb::Omni, &group.ior, "loop 50 --interval 10");
    let seen = client.until("an answer", 0, |call| !call.who().is_empty());
    members.iter().for_each(|member| member.process.signal(Signal::USR1));
    let begun = Instant::now();
    // What is counted is what happens in a time.
    std::thread::sleep(Duration::from_secs(2));
    let forwards: usize = members.iter().map(sent).sum();
    let seconds = begun.elapsed().as_secs_f64();
    assert!(forwards >= 2, "both shed: {forwards}");
    assert!((forwards as f64) < 50.0 * seconds, "{forwards} forwards in {seconds} s");
    let seen = seen.max(client.calls().len());
    client.until("an answer when it is over", seen, |call| !call.who().is_empty());
    let wrong = |name: &str| name != "TRANSIENT";
    assert!(!client.calls().iter().filter_map(|call| call.exception()).any(wrong), "{}", client.process);
}

/// A balancer that the machine lets stand still meanwhile sees it later: of three times, one must do.
#[test]
fn many_clients_leave_a_member_at_once() {
    const CLIENTS: usize = 8;
    let mut all = Vec::new();
    while all.len() < 3 && !all.iter().any(|sent| *sent <= 2 * CLIENTS) {
        all.push(sent_away(CLIENTS));
    }
    // None was sent to it in vain again and again: each came back once, or twice before the balancer had seen it.
    assert!(all.iter().any(|sent| *sent <= 2 * CLIENTS), "{all:?} sent away, {CLIENTS} clients");
}

/// So many clients leave one of two members; how often it has sent one away.
#[track_caller]
fn sent_away(clients: usize) -> usize {
    let (members, group) = shedding(2, "on_demand");
    let clients: Vec<OrbClient> =
        (0..clients).map(|_| OrbClient::start(Orb::Omni, &group.ior, "loop 28 --interval 20")).collect();
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
