use super::*;

/// Returns the example with that name without its trailer.
fn example(name: &str) -> Vec<u8> {
    let (_, mut bytes, _) = golden::all().into_iter().find(|(found, ..)| *found == name).unwrap();
    bytes.truncate(bytes.len() - TRAILER_LEN);
    bytes
}

/// Decodes the example with other bytes at an offset.
fn patched(name: &str, at: usize, bytes: &[u8]) -> Result<LotteryMessage, DatagramDecodeError> {
    let mut example = example(name);
    example[at..at + bytes.len()].copy_from_slice(bytes);
    resealed(&example)
}

/// Decodes the example with bytes appended.
fn with_suffix(name: &str, suffix: &[u8]) -> Result<LotteryMessage, DatagramDecodeError> {
    resealed(&[&example(name)[..], suffix].concat())
}

fn malformed_reason(result: Result<LotteryMessage, DatagramDecodeError>) -> &'static str {
    match result {
        Err(DatagramDecodeError::Malformed(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn headers_that_are_not_ours_are_refused() {
    assert_eq!(malformed_reason(patched("COMMIT", 0, b"RG")), "it does not begin with RF");
    assert_eq!(malformed_reason(patched("COMMIT", 2, &[2])), "only version 1 is spoken here");
    for kind in [0, 10, 255] {
        assert_eq!(malformed_reason(patched("COMMIT", 3, &[kind])), "it is of no known kind");
    }
    assert_eq!(malformed_reason(patched("COMMIT", 4, &[1, 0])), "a critical flag is unknown");
    assert!(patched("COMMIT", 4, &[0, 255]).is_ok(), "other flags mean nothing yet");
    for name in ["COMMIT", "REPORT"] {
        assert_eq!(malformed_reason(patched(name, 15, &[1])), "it has an id, though its kind has none");
    }
}

#[test]
fn a_datagram_is_as_long_as_it_says() {
    for length in [0, 58, 60, u16::MAX] {
        let mut bytes = example("COMMIT");
        bytes[6..8].copy_from_slice(&length.to_be_bytes());
        keys().seal(0, &mut bytes);
        assert_eq!(malformed_reason(read(&bytes)), "it is not as long as it says", "{length}");
    }
}

#[test]
fn what_is_to_be_answered_has_room_for_it() {
    let shortened = |name: &str, len: usize| resealed(&example(name)[..len - TRAILER_LEN]);
    assert_eq!(malformed_reason(shortened("REQUEST", 127)), "it leaves too little room for its answer");
    assert_eq!(malformed_reason(shortened("FETCH", 1199)), "it leaves too little room for its answer");
}

#[test]
fn only_a_report_is_longer_than_1200_bytes() {
    let padded = |name: &str, total: usize| {
        let value = total - TRAILER_LEN - example(name).len() - 4;
        with_suffix(name, &[&[0, 0, (value >> 8) as u8, value as u8][..], &vec![0; value]].concat())
    };
    for name in ["REQUEST", "ANSWER", "COMMIT", "TABLE"] {
        assert!(padded(name, 1200).is_ok(), "{name}");
        assert_eq!(malformed_reason(padded(name, 1201)), "it is longer than its kind may be", "{name}");
    }
    assert!(padded("REPORT", 1400).is_ok());
    assert_eq!(padded("REPORT", 1401), Err(DatagramDecodeError::Size(1401)));
}

#[test]
fn options_are_skipped_if_they_say_so_and_left_out() {
    for (name, _, message) in golden::all() {
        // These already have the maximum length.
        if ["FETCH", "LOOK"].contains(&name) {
            continue;
        }
        for option in [&[0x12, 0x34, 0, 2, 7, 7][..], &[0, 0, 0, 0], &[0x80, 0, 0, 1, 9], &[0x7f, 0xff, 0, 0]]
        {
            let reread = with_suffix(name, option).unwrap();
            if let LotteryMessage::Request(again) = &reread {
                assert_eq!(usize::from(again.max_answer_bytes), 128 + option.len());
            }
            assert_eq!(roomless(reread), roomless(message.clone()), "{name}");
        }
        assert_eq!(
            malformed_reason(with_suffix(name, &[0x92, 0x34, 0, 0])),
            "a critical option is unknown",
            "{name}"
        );
        for cut in [&[0x12][..], &[0x12, 0x34], &[0x12, 0x34, 0], &[0x12, 0x34, 0, 1], &[0, 0, 0, 2, 0]] {
            assert_eq!(
                malformed_reason(with_suffix(name, cut)),
                "it ends in the middle of a value",
                "{name}, {cut:?}"
            );
        }
    }
    // The number of an answer's option has no meaning in another kind.
    assert!(with_suffix("COMMIT", &[0, 1, 0, 1, 0]).is_ok());
    assert_eq!(malformed_reason(with_suffix("COMMIT", &[0x80, 1, 0, 1, 0])), "a critical option is unknown");
}

#[test]
fn further_members_are_named_once_and_counted_right() {
    const ONE: [u8; 14] = [0, 1, 0, 10, 1, 0, 6, 4, 0, 80, 192, 0, 2, 1];
    assert_eq!(malformed_reason(with_suffix("ANSWER", &ONE)), "further members are named twice");
    // The last 35 of 92 bytes are the example's own option.
    let without_option = &example("ANSWER")[..92 - 35];
    let with_option = |option: &[u8]| resealed(&[without_option, option].concat());
    let Ok(LotteryMessage::Answer(answer)) = with_option(&ONE) else { panic!("an answer") };
    assert_eq!(answer.fallbacks, [FallbackMember { member: 6, endpoint: ([192, 0, 2, 1], 80).into() }]);
    let Ok(LotteryMessage::Answer(answer)) = with_option(&[&[0x80][..], &ONE[1..]].concat()) else {
        panic!("an answer")
    };
    assert_eq!(answer.fallbacks.len(), 1, "known, and so not skipped, whether critical or not");
    let mut none = ONE;
    none[4] = 0;
    assert_eq!(malformed_reason(with_option(&none)), "there are no further members, or too many");
    none[4] = 5;
    assert_eq!(malformed_reason(with_option(&none)), "there are no further members, or too many");
    none[4] = 2;
    assert_eq!(malformed_reason(with_option(&none)), "it ends in the middle of a value");
    let mut more = ONE.to_vec();
    more[3] += 1;
    more.push(0);
    assert_eq!(malformed_reason(with_option(&more)), "further members are fewer than there is space for");
}

#[test]
fn what_was_heard_is_told_once_and_counted_right() {
    let relayed_option = [&[0, 2, 0, 13, 1][..], &[0, 6, 0, 0, 0, 1, 0, 0, 0, 9, 1, 0]].concat();
    assert_eq!(malformed_reason(with_suffix("REPORT", &relayed_option)), "what was heard is told twice");
    // The last 29 bytes are the example's own option.
    let example = example("REPORT");
    let with_option = |option: &[u8]| resealed(&[&example[..example.len() - 29], option].concat());
    let Ok(LotteryMessage::Report(report)) = with_option(&relayed_option) else { panic!("a report") };
    let none = RelayedReport { member: 6, incarnation: 1, seq: 9, state: NodeState::Up, services: vec![] };
    assert_eq!(report.heard, [none]);
    let changed = |at: usize, value: u8| {
        let mut changed_option = relayed_option.clone();
        changed_option[at] = value;
        with_option(&changed_option)
    };
    assert_eq!(malformed_reason(changed(4, 0)), "what was heard is not as long as it says");
    assert_eq!(malformed_reason(changed(4, 2)), "it ends in the middle of a value");
    assert_eq!(malformed_reason(changed(15, 4)), "a member is in no known state");
    assert_eq!(malformed_reason(changed(16, 1)), "it ends in the middle of a value");
    let mut more = [&relayed_option[..], &[0]].concat();
    more[3] += 1;
    assert_eq!(malformed_reason(with_option(&more)), "what was heard is not as long as it says");
}

#[test]
fn values_that_mean_nothing_are_refused() {
    assert_eq!(malformed_reason(patched("REQUEST", 21, &[2])), "a request is of no known mode");
    assert_eq!(
        malformed_reason(patched("REQUEST", 35, &[0x03, 0xe9])),
        "there is more information than there may be"
    );
    assert_eq!(malformed_reason(patched("ANSWER", 20, &[4])), "an answer is of no known status");
    assert_eq!(malformed_reason(patched("REPORT", 26, &[4])), "a member is in no known state");
    assert_eq!(
        malformed_reason(patched("TABLE", 48, &[0x03, 0xe9])),
        "there is more information than there may be"
    );
    for part in [[0, 0, 0, 0], [0, 1, 0, 1], [0, 2, 0, 1]] {
        assert_eq!(
            malformed_reason(patched("DRUM", 20, &part)),
            "a part of a drum has a number that is not among its parts"
        );
        assert_eq!(
            malformed_reason(patched("TABLE", 20, &part)),
            "a part of a table has a number that is not among its parts"
        );
    }
}

#[test]
fn addresses_are_of_a_family_and_no_longer() {
    const AT: usize = 26;
    assert_eq!(malformed_reason(patched("ANSWER", AT, &[5])), "an address is of no known family");
    assert_eq!(malformed_reason(patched("TABLE", 31, &[0])), "an address is of no known family");
    assert_eq!(malformed_reason(patched("ANSWER", AT + 7, &[1])), "an address is longer than its family");
    assert_eq!(malformed_reason(patched("ANSWER", AT, &[0])), "an address is longer than its family");
    assert_eq!(malformed_reason(patched("TABLE", 45, &[5])), "an address is of no known family");
    let none = [0; 19];
    assert_eq!(
        malformed_reason(patched("ANSWER", AT, &none)),
        "an answer names a member and not where it is"
    );
    let mut busy = example("ANSWER");
    busy[20] = 1;
    busy[AT..AT + 19].copy_from_slice(&none);
    let Ok(LotteryMessage::Answer(answer)) = resealed(&busy) else { panic!("an answer") };
    assert_eq!((answer.status, answer.endpoint), (AnswerStatus::Busy, None));
    busy[AT + 2] = 1;
    assert_eq!(malformed_reason(resealed(&busy)), "an address is longer than its family");
    // It is encoded as received, not as the IPv4 address that it maps.
    let mut mapped = [0; 19];
    mapped[0] = 6;
    mapped[13..].copy_from_slice(&[255, 255, 192, 0, 2, 1]);
    let Ok(LotteryMessage::Answer(answer)) = patched("ANSWER", AT, &mapped) else { panic!("an answer") };
    assert_eq!(answer.endpoint.map(|endpoint| endpoint.is_ipv6()), Some(true));
}
