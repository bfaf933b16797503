//! More than the members can do, where they say nothing of themselves and work on for clients that have gone.

use crate::stage::{Balancer, Load, Member, Run, curl, listening, until, web};

/// Two members of two processors, 200 requests a second in all.
const MEMBER: [&str; 5] = ["--cores", "2", "--service", "exp:20ms", "--ignore-cancel"];

/// Nothing is refused at three fifths of the capacity. All that is due comes at once when the machine has stood still for half a second,
/// and is too much then: of three times, one must do.
#[track_caller]
fn served_below_capacity(balancer: &Balancer) {
    let mut said = Vec::new();
    for _ in 0..3 {
        let before = balancer.rejected("shed");
        let mut load = Load::start(balancer.address(), "GET", 120.0);
        load.more(400);
        let record = load.stop();
        let refused = balancer.rejected("shed") - before;
        if (refused, record.failures(), record.cut) == (0, 0, 0) {
            return;
        }
        said.push((refused, record.failed));
    }
    panic!("refused, and failed: {said:?}");
}

#[test]
fn what_cannot_be_served_is_refused_and_the_rest_is_served_soon() {
    let members = Member::several(2, &MEMBER);
    let addresses: Vec<_> = members.iter().map(|member| member.address).collect();
    let balancer = Balancer::start(&web(&addresses, ""));

    served_below_capacity(&balancer);

    // Twelve seconds, in which 720 requests too many come: without a limit they wait for two seconds on average.
    let mut load = Load::start(balancer.address(), "GET", 260.0);
    load.more(3_100);
    let shed = balancer.rejected("shed");
    let record = load.stop();
    assert!((200..1_200).contains(&shed), "{shed} of {} refused", record.due);
    let usual = record.service.quantile(0.5);
    assert!(usual.as_secs_f64() < 0.6, "half of what is answered takes more than {usual:?}");
    let told = |kind: &str| Run::plimsoll(&["events"], balancer.folder().path()).out.contains(kind);
    assert!(told("  refuses  "), "{}", Run::plimsoll(&["events"], balancer.folder().path()).out);
    until("it is told that it is over", || told("  refuses none  "));
}

#[test]
fn clients_that_go_to_members_themselves_turn_no_limit_off() {
    let members = Member::several(2, &MEMBER);
    let addresses: Vec<_> = members.iter().map(|member| member.address).collect();
    let xds = "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"xds\"\ngroup = \"web\"\n";
    let balancer = Balancer::start(&format!("{}\n{xds}", web(&addresses, "")));
    let url = format!("http://{}/v1/groups/web/bind", balancer.reports());
    for _ in 0..20 {
        let lease = curl(&["-d", "{\"lease_seconds\": 600}", &url], b"");
        assert!(lease.code == Some(0) && lease.body.starts_with(b"{\"member\""), "{}", lease.talk);
    }
    // Leases are no requests.
    served_below_capacity(&balancer);
    let mut load = Load::start(balancer.address(), "GET", 260.0);
    load.more(3_100);
    let shed = balancer.rejected("shed");
    let record = load.stop();
    assert!((200..1_200).contains(&shed), "{shed} of {} refused", record.due);
}

#[test]
fn the_urgent_are_served_where_others_are_refused() {
    let members = Member::several(2, &MEMBER);
    let addresses: Vec<_> = members.iter().map(|member| member.address).collect();
    let balancer = Balancer::start(&listening("priority = \"Priority\"", &addresses, ""));
    served_below_capacity(&balancer);

    // Thirteen come where ten can be served, and a fifth of all say that they are urgent.
    let mut usual = Load::start(balancer.address(), "GET", 208.0);
    let mut urgent = Load::with(balancer.address(), "GET", &[("Priority", "u=1, i")], 52.0);
    usual.more(2_400);
    urgent.more(1);
    let (usual, urgent) = (usual.stop(), urgent.stop());
    let told = |urgency: u8, outcome: &str| {
        let labels = format!("group=\"web\",urgency=\"{urgency}\",outcome=\"{outcome}\"");
        balancer.metric(&format!("plimsoll_urgency_waits_total{{{labels}}}"))
    };
    let share = |urgency: u8, of: u64| told(urgency, "refused") / of as f64;
    let refused = (share(1, urgent.due), share(3, usual.due));
    assert!(refused.1 > 0.1, "it is no overload: {refused:?} refused");
    assert!(refused.0 < refused.1 / 10.0, "{refused:?} refused");
    assert!(told(1, "served") > 0.0 && told(0, "served") == 0.0);
}
