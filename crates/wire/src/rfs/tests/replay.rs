use super::*;

fn report(member: u16, incarnation: u32, seq: u32) -> NodeReport {
    let (services, ids) = (Vec::new(), Vec::new());
    NodeReport { member, incarnation, seq, state: NodeState::Up, digest: 0, services, ids, heard: vec![] }
}

#[test]
fn a_report_counts_once_and_not_after_a_newer_one() {
    let mut replay = ReportReplayFilter::new(10);
    for (incarnation, seq, seen) in [
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
        assert_eq!(replay.check(&report(1, incarnation, seq)), seen, "{incarnation}, {seq}");
    }
    assert_eq!(replay.check(&report(2, 0, 0)), ReplayVerdict::Fresh, "another member");
}

#[test]
fn who_is_remembered_is_bounded() {
    let mut replay = ReportReplayFilter::new(2);
    assert!(replay.is_empty());
    assert_eq!(
        [1, 2, 3].map(|member| replay.check(&report(member, 1, 1))),
        [ReplayVerdict::Fresh, ReplayVerdict::Fresh, ReplayVerdict::Untracked]
    );
    assert_eq!(replay.len(), 2);
    assert_eq!(replay.check(&report(1, 1, 1)), ReplayVerdict::Stale, "nobody was forgotten for the third");
    assert_eq!(replay.check(&report(2, 1, 2)), ReplayVerdict::Fresh);
    replay.retain(|member| member != 1);
    assert_eq!(
        [3, 1].map(|member| replay.check(&report(member, 1, 1))),
        [ReplayVerdict::Fresh, ReplayVerdict::Untracked]
    );
    assert_eq!(ReportReplayFilter::new(0).check(&report(1, 1, 1)), ReplayVerdict::Untracked);
}

#[test]
fn gossip_counts_once_in_whichever_order() {
    let mut recent = GossipReplayFilter::new(2);
    for (seq, seen) in [
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
        assert_eq!(recent.check(11, seq), seen, "{seq}");
    }
    // Another incarnation, another member; then there is no room for the first.
    assert_eq!(recent.check(12, 10), ReplayVerdict::Fresh);
    assert_eq!(recent.check(21, 10), ReplayVerdict::Fresh);
    assert_eq!(recent.check(12, 10), ReplayVerdict::Stale);
    assert_eq!(recent.check(11, 73), ReplayVerdict::Fresh);
}

#[test]
fn who_was_not_heard_of_for_longest_is_forgotten_first() {
    // The numbers of incarnations have no order: neither the lowest nor the highest is dropped first.
    for lives in [[10, 20, 30], [30, 20, 10], [20, 30, 10]] {
        let mut recent = GossipReplayFilter::new(3);
        for life in lives {
            assert_eq!(recent.check(life, 5), ReplayVerdict::Fresh);
        }
        assert_eq!(recent.check(lives[0], 6), ReplayVerdict::Fresh, "the first is heard of again");
        assert_eq!(recent.check(lives[1], 5), ReplayVerdict::Stale, "what is sent again counts for nothing");
        assert_eq!(recent.check(40, 1), ReplayVerdict::Fresh);
        assert_eq!(
            [lives[0], lives[2], 40].map(|life| recent.check(life, 1 + 4 * u32::from(life != 40))),
            [ReplayVerdict::Stale, ReplayVerdict::Stale, ReplayVerdict::Stale]
        );
        assert_eq!(recent.check(lives[1], 5), ReplayVerdict::Fresh, "that one was forgotten");
    }
}
