use std::net::SocketAddr;

use plimsoll_brain::Time;
use plimsoll_brain::lottery::{self as brain, LotteryNode, MessageTarget, NodeConfig};

use super::*;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Creates a member with `services` services, each with `info` bytes of information.
fn member(number: u16, services: u32, info: usize) -> NodeDescription {
    let address_text = if number.is_multiple_of(2) { "10.0.0.1:7447" } else { "[2001:db8::1]:7447" };
    let endpoint_text = if number.is_multiple_of(3) { "10.0.0.1:80" } else { "[2001:db8::1]:80" };
    let offer = |service| ServiceOffer {
        service,
        capacity: 4,
        endpoint: address(endpoint_text),
        info: vec![service as u8; info].into(),
    };
    let offers = (0..services).map(offer).collect();
    NodeDescription { member: number, incarnation: 9, address: address(address_text), offers }
}

#[test]
fn the_brain_cuts_tables_as_the_bytes_do() {
    // Members of all sizes; one of them is too large for a part.
    let mut members: Vec<NodeDescription> =
        (2..400).map(|number| member(number, u32::from(number % 7), usize::from(number % 11) * 9)).collect();
    members.push(member(500, 60, 100));
    let key = brain::SipHashKey::new([1; 16]);
    let config = NodeConfig { rate: 0, ..NodeConfig::new(1, 1, address("10.0.0.1:7447"), vec![], key) };
    let mut daemon = LotteryNode::new(config, Time(0));
    assert!(members.iter().all(|member| daemon.member_up(member.clone())));
    let from = address("10.0.0.9:7447");
    let mut received_parts: Vec<Vec<NodeDescription>> = Vec::new();
    for part in 0.. {
        daemon.handle(Time(1), from, LotteryMessage::Fetch(TableFetch { id: 1, generation: 0, part }));
        let Some((MessageTarget::Address(_), message)) = daemon.poll_transmit() else { break };
        let Ok(LotteryMessage::Table(table)) = read(&written(&message).unwrap()) else { panic!() };
        assert_eq!(usize::from(table.part), received_parts.len());
        received_parts.push(table.members);
    }
    assert_eq!(
        received_parts.concat().len(),
        members.len(),
        "with the daemon itself, without the one that is too large"
    );
    for pair in received_parts.windows(2) {
        let pair_members = [&pair[0][..], &pair[1][..1]].concat();
        let fuller = LotteryMessage::Table(TablePart {
            id: 1,
            generation: 1,
            part: 0,
            parts: 1,
            members: pair_members,
        });
        assert!(written(&fuller).is_err(), "each is as full as it can be");
    }
}
