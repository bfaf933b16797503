//! The arguments of members.

use super::*;
use crate::lab::experiment::RunLength;
use crate::lab::{fixture, plan};

#[test]
fn members_have_meters_if_they_or_the_balancers_level_say_so() {
    let experiment = fixture::experiment();
    let mut point = plan::points(&experiment, RunLength::Full).remove(0);
    let mut members = experiment.members.first().clone();
    let has_flag = |members: &MemberGroup, point: &ExperimentPoint, flag: &str| {
        arguments_for(members, Duration::ZERO, point).iter().any(|argument| argument == flag)
    };
    assert!(!has_flag(&members, &point, "--meter"));
    point.balancer.has_agents = true;
    assert!(has_flag(&members, &point, "--meter") && !has_flag(&members, &point, "--iiop"));
    point.protocol = LoadProtocol::Iiop;
    assert!(!has_flag(&members, &point, "--meter") && has_flag(&members, &point, "--iiop"));
    (members.meter, point.protocol) = (true, LoadProtocol::Http);
    assert!(has_flag(&members, &point, "--meter"));
}
