//! Overload with members that report nothing of themselves and work on for clients that have gone.

use serde_json::Value;

use crate::sharing::asked_by;
use crate::stage::{Balancer, Load, Member, Run, curl, listening, until, web};

/// The options of one of two members of two processors, which serve 200 requests a second in all.
const MEMBER: [&str; 5] = ["--cores", "2", "--service", "exp:20ms", "--ignore-cancel"];

/// Asserts that nothing is rejected where three of the four processors are busy: three clients ask, each when
/// it has its last answer. While the machine stands still no more requests come.
#[track_caller]
fn served_below_capacity(balancer: &Balancer) {
    asked_by(balancer.address(), 3, 300);
    assert_eq!(balancer.rejected("shed"), 0);
}

/// Returns the number of requests that a balancer has not answered yet, those in the wait queue included.
/// With a constant arrival rate the response time is in proportion to it.
pub(crate) fn under_way(balancer: &Balancer) -> u64 {
    let group = balancer.group("web");
    let members = group["members"].as_array().unwrap().iter();
    let in_flight: u64 = members.map(|member| member["in_flight"].as_u64().unwrap()).sum();
    in_flight + group["queued"].as_u64().unwrap()
}

#[test]
fn what_cannot_be_served_is_refused_and_the_rest_is_served_soon() {
    let members = Member::several(4, &MEMBER);
    let addresses: Vec<_> = members.iter().map(|member| member.address).collect();
    let balancer = Balancer::start(&web(&addresses[..2], ""));
    // The other balancer lets all requests wait, before as many members, at the same time.
    let patient = Balancer::start(&web(&addresses[2..], "strategy = \"least_connections\"\n"));

    served_below_capacity(&balancer);

    // In twelve seconds 720 requests too many come: without a limit they wait for two seconds on average.
    let mut load = Load::start(balancer.address(), "GET", 260.0);
    let all = Load::start(patient.address(), "GET", 260.0);
    load.more(3_100);
    let shed = balancer.rejected("shed");
    let [few, many] = [&balancer, &patient].map(under_way);
    let (record, all) = (load.stop(), all.stop());
    let left = all.due - all.ok;
    assert!(2 * shed >= left, "{shed} of {} refused, where {left} of {} are too many", record.due, all.due);
    eprintln!(
        "{shed} refused, {} answered and {few} under way; {} and {many} where all wait",
        record.ok, all.ok
    );
    assert!(2 * record.ok >= all.ok, "{} are answered in place of {}", record.ok, all.ok);
    assert!(3 * few < many, "{few} are under way, where all wait {many}");
    let told = |kind: &str| Run::plimsoll(&["events"], balancer.folder().path()).out.contains(kind);
    assert!(told("  refuses  "), "{}", Run::plimsoll(&["events"], balancer.folder().path()).out);
    // Both members rejected requests for the group's limit at that moment: both together had what they can
    // work on.
    let refused = |member: &Value| member["refused"]["group_full"].as_u64().unwrap_or(0);
    let group = balancer.group("web");
    let counts: Vec<u64> = group["members"].as_array().unwrap().iter().map(refused).collect();
    assert!(counts.iter().all(|count| *count > 0), "{counts:?} of {shed}");
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
    // Leases are not requests.
    served_below_capacity(&balancer);
    let mut load = Load::start(balancer.address(), "GET", 260.0);
    until("what is too much is refused", || {
        load.more(100);
        balancer.rejected("shed") >= 200
    });
    drop(load.stop());
}

#[test]
fn the_urgent_are_served_where_others_are_refused() {
    let members = Member::several(2, &MEMBER);
    let addresses: Vec<_> = members.iter().map(|member| member.address).collect();
    let balancer = Balancer::start(&listening("priority = \"Priority\"", &addresses, ""));
    served_below_capacity(&balancer);

    let told = |urgency: u8, outcome: &str| {
        let labels = format!("group=\"web\",urgency=\"{urgency}\",outcome=\"{outcome}\"");
        balancer.metric(&format!("plimsoll_urgency_waits_total{{{labels}}}"))
    };
    // The arrival rate is 1.3 times the capacity, and a fifth of all requests are marked as urgent. After the
    // machine has stood still, all requests that are due come at once, which is too much for the urgent, too;
    // it does not stand still most of the time.
    let mut usual = Load::start(balancer.address(), "GET", 208.0);
    let urgent = Load::with(balancer.address(), "GET", &[("Priority", "u=1, i")], 52.0);
    let mut window = || {
        let counts = || [1, 3].map(|urgency| told(urgency, "refused"));
        let before = counts();
        usual.more(480);
        let after = counts();
        // The figures are shares of the requests that came: about 120 and 480.
        ((after[0] - before[0]) / 120.0, (after[1] - before[1]) / 480.0)
    };
    let refused: Vec<(f64, f64)> = (0..7).map(|_| window()).collect();
    drop((usual.stop(), urgent.stop()));
    let goes_first = |(urgent, usual): &&(f64, f64)| *usual > 0.05 && *urgent < usual / 10.0;
    assert!(refused.iter().filter(goes_first).count() >= 4, "{refused:.3?} refused");
    assert!(told(1, "served") > 0.0 && told(0, "served") == 0.0);
}
