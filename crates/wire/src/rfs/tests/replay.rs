use super::*;

fn report(member: u16, incarnation: u32, seq: u32) -> NodeReport {
    let (services, ids) = (Vec::new(), Vec::new());
    NodeReport { member, incarnation, seq, state: NodeState::Up, digest: 0, services, ids, heard: vec![] }
}

#[test]
fn a_report_counts_once_and_not_after_a_newer_one() {
    let mut filter = ReportReplayFilter::new(10);
    for (incarnation, seq, expected) in [
        (5, 7, ReplayVerdict::Fresh),
        (5, 7, ReplayVerdict::Stale),
        (5, 6, ReplayVerdict::Stale),
        // Some were lost.
        (5, 10, ReplayVerdict::Fresh),
        (5, 8, ReplayVerdict::Stale),
        (4, 100, ReplayVerdict::Stale),
        // The member restarted, and counts from the beginning.
        (6, 0, ReplayVerdict::Fresh),
        (5, 11, ReplayVerdict::Stale),
        (6, 0, ReplayVerdict::Stale),
        (u32::MAX, u32::MAX, ReplayVerdict::Fresh),
        (0, 0, ReplayVerdict::Stale),
    ] {
        assert_eq!(filter.check(&report(1, incarnation, seq)), expected, "{incarnation}, {seq}");
    }
    assert_eq!(filter.check(&report(2, 0, 0)), ReplayVerdict::Fresh, "another member");
}

#[test]
fn who_is_remembered_is_bounded() {
    let mut filter = ReportReplayFilter::new(2);
    assert!(filter.is_empty());
    assert_eq!(
        [1, 2, 3].map(|member| filter.check(&report(member, 1, 1))),
        [ReplayVerdict::Fresh, ReplayVerdict::Fresh, ReplayVerdict::Untracked]
    );
    assert_eq!(filter.len(), 2);
    assert_eq!(filter.check(&report(1, 1, 1)), ReplayVerdict::Stale, "nobody was forgotten for the third");
    assert_eq!(filter.check(&report(2, 1, 2)), ReplayVerdict::Fresh);
    filter.retain(|member| member != 1);
    assert_eq!(
        [3, 1].map(|member| filter.check(&report(member, 1, 1))),
        [ReplayVerdict::Fresh, ReplayVerdict::Untracked]
    );
    assert_eq!(ReportReplayFilter::new(0).check(&report(1, 1, 1)), ReplayVerdict::Untracked);
}

#[test]
fn gossip_counts_once_in_whichever_order() {
    let mut filter = GossipReplayFilter::new(2);
    for (seq, expected) in [
        (10, ReplayVerdict::Fresh),
        (10, ReplayVerdict::Stale),
        (9, ReplayVerdict::Fresh),
        (9, ReplayVerdict::Stale),
        (73, ReplayVerdict::Fresh),
        // Among the last 64.
        (11, ReplayVerdict::Fresh),
        (10, ReplayVerdict::Stale),
        // Older than those.
        (8, ReplayVerdict::Stale),
        (u32::MAX, ReplayVerdict::Fresh),
        (73, ReplayVerdict::Stale),
    ] {
        assert_eq!(filter.check(11, seq), expected, "{seq}");
    }
    // Another incarnation, another member; then there is no room for the first.
    assert_eq!(filter.check(12, 10), ReplayVerdict::Fresh);
    assert_eq!(filter.check(21, 10), ReplayVerdict::Fresh);
    assert_eq!(filter.check(12, 10), ReplayVerdict::Stale);
    assert_eq!(filter.check(11, 73), ReplayVerdict::Fresh);
}

#[test]
fn who_was_not_heard_of_for_longest_is_forgotten_first() {
    // The numbers of incarnations have no order: neither the lowest nor the highest is dropped first.
    for incarnations in [[10, 20, 30], [30, 20, 10], [20, 30, 10]] {
        let mut filter = GossipReplayFilter::new(3);
        for incarnation in incarnations {
            assert_eq!(filter.check(incarnation, 5), ReplayVerdict::Fresh);
        }
        assert_eq!(filter.check(incarnations[0], 6), ReplayVerdict::Fresh, "the first reports again");
        assert_eq!(
            filter.check(incarnations[1], 5),
            ReplayVerdict::Stale,
            "what is sent again counts for nothing"
        );
        assert_eq!(filter.check(40, 1), ReplayVerdict::Fresh);
        assert_eq!(
            [incarnations[0], incarnations[2], 40]
                .map(|incarnation| filter.check(incarnation, 1 + 4 * u32::from(incarnation != 40))),
            [ReplayVerdict::Stale, ReplayVerdict::Stale, ReplayVerdict::Stale]
        );
        assert_eq!(filter.check(incarnations[1], 5), ReplayVerdict::Fresh, "that one was forgotten");
    }
}
