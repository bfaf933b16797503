//! The event log: as an array, as a stream, resumed.

use plimsoll_admin::EventEntry;

use crate::script::{Answer, entry, open, until};

#[test]
fn the_log_as_an_array() {
    let open = open();
    (1..=3).for_each(|seq| open.script.tell(seq));
    for answer in [open.show("/events?follow=0"), open.ask("GET", "/events", "Accept: application/json\r\n")]
    {
        let entries: Vec<EventEntry> = serde_json::from_value(answer.json()).unwrap();
        assert_eq!(entries, [entry(1), entry(2), entry(3)]);
    }
    let later: Vec<EventEntry> =
        serde_json::from_value(open.show("/events?since=2&follow=0").json()).unwrap();
    assert_eq!(later, [entry(3)]);
}

#[test]
fn a_stream_replays_and_goes_on() {
    let open = open();
    (1..=2).for_each(|seq| open.script.tell(seq));
    let mut stream = open.follow("/events", "");
    assert_eq!(until(&mut stream, "content-type: "), "text/event-stream");
    assert_eq!(until(&mut stream, "id: "), "1");
    assert_eq!(serde_json::from_str::<EventEntry>(&until(&mut stream, "data: ")).unwrap(), entry(1));
    assert_eq!(until(&mut stream, "id: "), "2");
    open.script.tell(3);
    assert_eq!(until(&mut stream, "id: "), "3");
}

#[test]
fn a_stream_is_resumed_where_it_broke() {
    let open = open();
    (1..=4).for_each(|seq| open.script.tell(seq));
    assert_eq!(until(&mut open.follow("/events?since=2", ""), "id: "), "3");
    // The header is newer than the address that the browser repeats.
    assert_eq!(until(&mut open.follow("/events?since=1", "Last-Event-ID: 3\r\n"), "id: "), "4");
    // A number from before a restart: everything is new.
    assert_eq!(until(&mut open.follow("/events", "Last-Event-ID: 900\r\n"), "id: "), "1");
}

#[test]
fn who_lags_is_told_and_goes_on() {
    let open = open();
    (1..=9).for_each(|seq| open.script.tell(seq));
    let mut stream = open.follow("/events?since=2", "");
    assert_eq!(until(&mut stream, "event: "), "lagged");
    assert_eq!(until(&mut stream, "data: "), r#"{"missed":2}"#);
    assert_eq!(until(&mut stream, "id: "), "5");
    // One who asks for what there is has missed nothing.
    let mut stream = open.follow("/events", "");
    assert_eq!(until(&mut stream, "retry: "), "2000");
    assert_eq!(until(&mut stream, ""), "");
    assert_eq!(until(&mut stream, ""), "id: 5");
}

#[test]
fn a_stream_ends_with_the_plane_after_the_last_event() {
    let open = open();
    open.script.tell(1);
    let mut stream = open.follow("/events", "");
    assert_eq!(until(&mut stream, "id: "), "1");
    open.script.tell(2);
    drop(open.admin);
    assert_eq!(until(&mut stream, "id: "), "2");
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut stream, &mut rest).unwrap();
    assert!(rest.ends_with("\n\n") && !rest.contains("id: "), "{rest}");
}

#[test]
fn a_bad_question_is_refused() {
    let open = open();
    for (query, what) in [("since=yesterday", "since"), ("since=-1", "since"), ("tail=5", "tail")] {
        let answer: Answer = open.show(&format!("/events?{query}"));
        assert_eq!(answer.status, 400, "{query}");
        assert!(answer.error().starts_with(what), "{query}");
    }
}
