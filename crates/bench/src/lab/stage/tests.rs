//! The arguments of members.

use super::*;
use crate::lab::experiment::Mode;
use crate::lab::{fixture, plan};

#[test]
fn members_have_meters_if_they_or_the_balancers_level_say_so() {
    let experiment = fixture::experiment();
    let mut point = plan::points(&experiment, Mode::Full).remove(0);
    let mut members = experiment.members.first().clone();
    let said = |members: &Members, point: &Point, flag: &str| {
        told(members, Duration::ZERO, point).iter().any(|said| said == flag)
    };
    assert!(!said(&members, &point, "--meter"));
    point.balancer.agents = true;
    assert!(said(&members, &point, "--meter") && !said(&members, &point, "--iiop"));
    point.protocol = Protocol::Iiop;
    assert!(!said(&members, &point, "--meter") && said(&members, &point, "--iiop"));
    (members.meter, point.protocol) = (true, Protocol::Http);
    assert!(said(&members, &point, "--meter"));
}
