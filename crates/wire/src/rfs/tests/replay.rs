use super::*;

fn report(member: u16, incarnation: u32, seq: u32) -> Report {
    let (services, ids) = (Vec::new(), Vec::new());
    Report { member, incarnation, seq, state: Standing::Up, digest: 0, services, ids, heard: vec![] }
}

#[test]
fn a_report_counts_once_and_not_after_a_newer_one() {
    let mut replay = Replay::new(10);
    for (incarnation, seq, seen) in [
        (5, 7, Seen::Fresh),
        (5, 7, Seen::Stale),
        (5, 6, Seen::Stale),
        // Some were lost.
        (5, 10, Seen::Fresh),
        (5, 8, Seen::Stale),
        (4, 100, Seen::Stale),
        // The member restarted, and counts from the beginning.
        (6, 0, Seen::Fresh),
        (5, 11, Seen::Stale),
        (6, 0, Seen::Stale),
        (u32::MAX, u32::MAX, Seen::Fresh),
        (0, 0, Seen::Stale),
    ] {
        assert_eq!(replay.see(&report(1, incarnation, seq)), seen, "{incarnation}, {seq}");
    }
    assert_eq!(replay.see(&report(2, 0, 0)), Seen::Fresh, "another member");
}

#[test]
fn who_is_remembered_is_bounded() {
    let mut replay = Replay::new(2);
    assert!(replay.is_empty());
    assert_eq!(
        [1, 2, 3].map(|member| replay.see(&report(member, 1, 1))),
        [Seen::Fresh, Seen::Fresh, Seen::NoPlace]
    );
    assert_eq!(replay.len(), 2);
    assert_eq!(replay.see(&report(1, 1, 1)), Seen::Stale, "nobody was forgotten for the third");
    assert_eq!(replay.see(&report(2, 1, 2)), Seen::Fresh);
    replay.retain(|member| member != 1);
    assert_eq!([3, 1].map(|member| replay.see(&report(member, 1, 1))), [Seen::Fresh, Seen::NoPlace]);
    assert_eq!(Replay::new(0).see(&report(1, 1, 1)), Seen::NoPlace);
}

#[test]
fn gossip_counts_once_in_whichever_order() {
    let mut recent = Recent::new(2);
    for (seq, seen) in [
        (10, Seen::Fresh),
        (10, Seen::Stale),
        (9, Seen::Fresh),
        (9, Seen::Stale),
        (73, Seen::Fresh),
        // Among the last 64.
        (11, Seen::Fresh),
        (10, Seen::Stale),
        // Older than those.
        (8, Seen::Stale),
        (u32::MAX, Seen::Fresh),
        (73, Seen::Stale),
    ] {
        assert_eq!(recent.see(11, seq), seen, "{seq}");
    }
    // Another incarnation, another member; then there is no room for the first.
    assert_eq!(recent.see(12, 10), Seen::Fresh);
    assert_eq!(recent.see(21, 10), Seen::Fresh);
    assert_eq!(recent.see(12, 10), Seen::Stale);
    assert_eq!(recent.see(11, 73), Seen::Fresh);
}

#[test]
fn who_was_not_heard_of_for_longest_is_forgotten_first() {
    // The numbers of incarnations have no order: neither the lowest nor the highest is dropped first.
    for lives in [[10, 20, 30], [30, 20, 10], [20, 30, 10]] {
        let mut recent = Recent::new(3);
        for life in lives {
            assert_eq!(recent.see(life, 5), Seen::Fresh);
        }
        assert_eq!(recent.see(lives[0], 6), Seen::Fresh, "the first is heard of again");
        assert_eq!(recent.see(lives[1], 5), Seen::Stale, "what is sent again counts for nothing");
        assert_eq!(recent.see(40, 1), Seen::Fresh);
        assert_eq!(
            [lives[0], lives[2], 40].map(|life| recent.see(life, 1 + 4 * u32::from(life != 40))),
            [Seen::Stale, Seen::Stale, Seen::Stale]
        );
        assert_eq!(recent.see(lives[1], 5), Seen::Fresh, "that one was forgotten");
    }
}
