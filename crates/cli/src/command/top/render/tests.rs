use std::collections::BTreeMap;
use std::time::Instant;

use plimsoll_brain::EventKind;
use plimsoll_brain::status::{
    BindingStatus, GroupRecent, LoadExplanation, LoadLine, MemberLoadLine, MemberRecent, RecentSecond,
    StatusReport,
};

use super::super::poll::PollResult;
use super::*;
use crate::control::sample_status;

fn poll_result(status: StatusReport) -> PollResult {
    PollResult {
        at: Instant::now(),
        unix_ms: 1_795_195_840_000,
        balancer_name: "unix:/run/plimsoll.sock".into(),
        status,
        recent: BTreeMap::new(),
        explanations: BTreeMap::new(),
        events: Vec::new(),
    }
}

fn entry(seq: u64, reason: &str) -> EventEntry {
    EventEntry {
        seq,
        unix_ms: 1_795_195_840_000 + seq * 1000,
        kind: EventKind::Ejected,
        group: "web".into(),
        member: Some("10.0.0.3:80".into()),
        why: reason.into(),
        inputs: BTreeMap::from([("failures".into(), 5.0)]),
    }
}

/// Returns two looks a second apart, with something in every column.
fn view() -> TopView {
    let mut status = sample_status();
    let first = poll_result(status.clone());
    let web = &mut status.groups[0];
    web.load_line = Some(LoadLine {
        requests_per_second: 120.0,
        capacity: Some(200.0),
        headroom: Some(0.4),
        ..LoadLine::default()
    });
    web.rejected = BTreeMap::from([("shed".into(), 1200), ("timeout".into(), 3)]);
    let member = &mut web.members[0];
    member.requests += 250;
    member.failures += 1;
    member.moved = 4;
    member.alert_share = 0.2;
    member.load = Some(LoadExplanation { value: 0.7, age_seconds: 0.31 });
    member.load_effective = Some(0.7);
    let line = |used| MemberLoadLine { used: Some(used), capacity: Some(100.0), ..MemberLoadLine::default() };
    member.load_line = Some(line(0.7));
    web.members[1].load = Some(LoadExplanation { value: 0.31, age_seconds: 90.0 });
    // The member reports with its answers, which is later.
    web.members[1].said_age_seconds = Some(75.0);
    web.members[1].load_line = Some(line(0.31));
    status.listeners[1].group = "web".into();
    let binding = BindingStatus { member: "10.0.0.1:80".into(), bound: 1234, moved: 4 };
    status.listeners[1].bindings = vec![binding];
    let mut second = poll_result(status);
    second.at = first.at + Duration::from_secs(1);
    let recent = MemberRecent {
        name: "10.0.0.1:80".into(),
        requests_per_second: 25.0,
        failures_per_second: 0.5,
        moved: 3,
        p50: Some(0.008),
        p99: Some(0.038),
        reject_above: Some(0.6),
        alert_above: Some(0.9),
        ..MemberRecent::default()
    };
    let seconds = vec![RecentSecond { p50: Some(0.009), p99: Some(0.04), ..RecentSecond::default() }];
    second.recent = BTreeMap::from([("web".into(), GroupRecent { seconds, members: vec![recent] })]);
    let mut view = TopView::new(&None, SortOrder::Configured, Duration::from_secs(1));
    view.update(TopSnapshot::from_polls(&second, Some(&first)), &[entry(1, "5 failures in a row\x1b[2J")]);
    view
}

fn text(lines: &[StyledLine]) -> String {
    lines.iter().map(|line| format!("{}\n", line.paint(false).trim_end())).collect()
}

#[test]
fn the_picture() {
    let mut view = view();
    insta::assert_snapshot!(text(&view.lines(150, 20)));
    insta::assert_snapshot!(text(&view.lines(80, 20)));
}

#[test]
fn it_fits_whatever_the_size() {
    let mut view = view();
    for help in [false, true] {
        view.help = help;
        for width in 1..160 {
            for height in 1..40 {
                let lines = view.lines(width, height);
                assert!(lines.len() <= height, "{width} {height}: {}", lines.len());
                assert!(lines.iter().all(|line| line.width() <= width), "{width} {height}");
            }
        }
    }
}

#[test]
fn nothing_steers_the_terminal_and_colour_only_adds() {
    let mut view = view();
    let uncolored: String = view.lines(150, 20).iter().map(|line| line.paint(false)).collect();
    assert!(!uncolored.contains('\x1b'));
    let painted: String = view.lines(150, 20).iter().map(|line| line.paint(true)).collect();
    let mut stripped = painted;
    for code in ["0", "1", "2", "31", "32", "33"] {
        stripped = stripped.replace(&format!("\x1b[{code}m"), "");
    }
    assert_eq!(stripped, uncolored);
}

#[test]
fn keys_change_what_is_shown() {
    let mut view = view();
    let first = |view: &mut TopView| text(&view.lines(150, 30)).lines().nth(3).unwrap().to_owned();
    assert!(first(&mut view).starts_with("10.0.0.1:80"));
    for key in [KeyPress::Sort, KeyPress::Sort] {
        view.handle_key(key);
    }
    assert_eq!(view.sort, SortOrder::State);
    assert!(first(&mut view).starts_with("[fd00::5]:80"), "{}", first(&mut view));
    view.handle_key(KeyPress::Group);
    assert_eq!(view.group.as_deref(), Some("web"));
    view.handle_key(KeyPress::Group);
    let rendered = text(&view.lines(150, 30));
    assert!(rendered.contains("game servers") && !rendered.contains("10.0.0.1:80"), "{rendered}");
    view.handle_key(KeyPress::Group);
    assert_eq!(view.group, None);
    view.handle_key(KeyPress::Help);
    assert!(text(&view.lines(150, 30)).contains("sort members"));
    view.handle_key(KeyPress::Close);
    view.handle_key(KeyPress::Pause);
    assert!(text(&view.lines(150, 30)).contains("PAUSED"));
}

#[test]
fn what_does_not_fit_is_reached_by_moving() {
    let mut view = view();
    let before = text(&view.lines(150, 10));
    assert!(before.contains("lines above") && !before.contains("games.internal"), "{before}");
    for _ in 0..100 {
        view.handle_key(KeyPress::PageDown);
    }
    let after = text(&view.lines(150, 10));
    assert!(after.contains("games.internal"), "{after}");
    view.handle_key(KeyPress::Up);
    assert_ne!(text(&view.lines(150, 10)), after, "one key moves back at once");
}

#[test]
fn rates_and_times_are_of_late() {
    let view = view();
    let web = &view.snapshot.groups[0];
    let row = &web.members[0];
    assert_eq!((row.requests_per_second, row.errors_per_second, row.bindings), (Some(25.0), 0.5, Some(1234)));
    assert_eq!((row.p99, row.sheds_lately, web.p99), (Some(0.038), 3, Some(0.04)));
    assert_eq!(web.shed, 1200);
    // The mark that is given as a load is at the place of that load.
    assert!(row.load.load.reject.is_some_and(|limit| (limit - 0.6).abs() < 1e-9), "{row:?}");
    // Without values by the second the rate is taken between two looks, unless another process counts from 0.
    let (mut old, mut new) = (poll_result(sample_status()), poll_result(sample_status()));
    new.at = old.at + Duration::from_secs(1);
    new.status.groups[0].members[0].requests += 250;
    let rate =
        |old: &PollResult| TopSnapshot::from_polls(&new, Some(old)).groups[0].members[0].requests_per_second;
    assert_eq!(rate(&old), Some(250.0));
    old.status.pid = 1;
    assert_eq!(rate(&old), None);
}

#[test]
fn a_load_line_that_is_a_range_has_no_percentage() {
    let mut view = view();
    let web = &mut view.snapshot.groups[0];
    (web.capacity, web.headroom, web.range) = (None, None, Some((84.6, 512.0)));
    let rendered = text(&view.lines(200, 20));
    assert!(rendered.contains("load line 85 to 512/s") && !rendered.contains("below it"), "{rendered}");
}

#[test]
fn a_balancer_that_is_lost_is_said_so() {
    let mut view = view();
    view.poll_error = Some("cannot reach unix:/run/plimsoll.sock".into());
    assert!(text(&view.lines(150, 20)).contains("‼ cannot reach unix:/run/plimsoll.sock"));
}

#[test]
fn the_columns_are_those_of_the_dashboard() {
    let mut view = view();
    let rendered = text(&view.lines(200, 20));
    let heads: Vec<&str> =
        rendered.lines().find(|line| line.starts_with("member")).unwrap().split_whitespace().collect();
    assert_eq!(heads, COLUMNS.map(str::to_lowercase));
}
