use super::*;

const OLD: &str = "1 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const NEW: &str = "2 FFEEDDCCBBAA99887766554433221100ffeeddccbbaa99887766554433221100";
const THIRD: &str = "3 0000000000000000000000000000000000000000000000000000000000000001";

fn file(lines: &[&str]) -> KeyRing {
    lines.join("\n").parse().unwrap()
}

fn sealed(keys: &KeyRing) -> Vec<u8> {
    let mut out = b"something before".to_vec();
    AnswerCommit { member: 1, incarnation: 1, ids: vec![1] }.encode(keys, &mut out).unwrap();
    out.split_off(16)
}

#[test]
fn a_rotation_leaves_no_gap() {
    // Each host is at one step or at the next.
    let steps = [file(&[OLD]), file(&[OLD, NEW]), file(&[NEW, OLD]), file(&[NEW])];
    for pair in steps.windows(2) {
        for (from, to) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            assert!(pair[to].open(&sealed(&pair[from])).is_ok(), "{:?} to {:?}", pair[from], pair[to]);
        }
    }
    assert_eq!(steps[3].open(&sealed(&steps[0])).err(), Some(DatagramDecodeError::UnknownKey(1)));
    assert_eq!(steps[0].open(&sealed(&steps[2])).err(), Some(DatagramDecodeError::UnknownKey(2)));
    let three = file(&[NEW, OLD, THIRD]);
    for (id, keys) in [(1, &steps[0]), (2, &steps[3]), (3, &file(&[THIRD]))] {
        assert_eq!(three.open(&sealed(keys)).map(|opened| opened.key_id()), Ok(id));
    }
}

#[test]
fn all_derive_the_same_whichever_seals() {
    let [first, second, third] =
        [&[OLD][..], &[OLD, NEW], &[NEW, THIRD, OLD]].map(|lines| file(lines).derive(b"plimsoll draw"));
    assert!(first == second && second == third);
    assert_ne!(first, file(&[OLD]).derive(b"plimsoll drawn"));
    assert_ne!(first, file(&[NEW]).derive(b"plimsoll draw"));
    // The output of `openssl dgst -sha256 -mac HMAC`.
    assert_eq!(first[..4], [0xe4, 0x09, 0xdf, 0x8e]);
}

#[test]
fn a_name_has_a_number() {
    // The output of sha256sum.
    assert_eq!([service_id("web"), service_id("")], [0x4b5e_57f6, 0xe3b0_c442]);
}

#[test]
fn another_secret_under_the_same_number_is_a_forgery() {
    let forger = OLD.replace("1f", "1e").parse::<KeyRing>().unwrap();
    assert_eq!(file(&[OLD]).open(&sealed(&forger)).err(), Some(DatagramDecodeError::Forged));
}

#[test]
fn the_number_of_the_key_is_under_the_tag() {
    let same = format!("{OLD}\n{}", OLD.replacen('1', "9", 1));
    let keys: KeyRing = same.parse().unwrap();
    let mut datagram = sealed(&keys);
    let id_offset = datagram.len() - 17;
    assert_eq!(datagram[id_offset], 1);
    datagram[id_offset] = 9;
    assert_eq!(keys.open(&datagram).err(), Some(DatagramDecodeError::Forged));
}

#[test]
fn nothing_is_read_before_the_tag_is_right() {
    // The other fields are wrong as well, but the tag is reported.
    for bytes in [vec![0; 36], vec![0xff; 1400], b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".to_vec()] {
        let error = keys().open(&bytes).err();
        assert!(matches!(error, Some(DatagramDecodeError::UnknownKey(_))), "{error:?}");
        let mut named = bytes.clone();
        let id_offset = named.len() - TRAILER_LEN;
        named[id_offset..id_offset + 4].copy_from_slice(&[0, 0, 0, 7]);
        assert_eq!(keys().open(&named).err(), Some(DatagramDecodeError::Forged));
    }
    for len in [0, 1, 16, 20, 35, 1401, 65_507] {
        assert_eq!(keys().open(&vec![0; len]).err(), Some(DatagramDecodeError::Size(len)));
    }
}

#[test]
fn other_protocols_may_be_sealed_too() {
    let mut datagram = b"before".to_vec();
    datagram.extend_from_slice(b"gossip of the members");
    keys().seal(6, &mut datagram);
    let opened = keys().open(&datagram[6..]).unwrap();
    assert_eq!((opened.bytes(), opened.key_id()), (&b"gossip of the members"[..], 7));
    assert_eq!(opened.message(), Err(DatagramDecodeError::Malformed("it does not begin with RF")));
    // Sealing nothing appends a trailer, for any `start`.
    let mut nothing = Vec::new();
    keys().seal(100, &mut nothing);
    assert_eq!(nothing.len(), TRAILER_LEN);
}

#[test]
fn no_secret_is_shown() {
    let keys = file(&[OLD, NEW]);
    assert_eq!(format!("{keys:?}"), "KeyRing { sealing: Key { id: 1, .. }, others: [Key { id: 2, .. }] }");
    assert_eq!(keys.ids().collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_file_of_keys_may_have_comments() {
    let text = format!("# of the cluster\r\n\r\n  {NEW} # from Monday\r\n\t{OLD}");
    let keys: KeyRing = text.parse().unwrap();
    assert_eq!(keys.ids().collect::<Vec<_>>(), [2, 1]);
    assert!(keys.open(&sealed(&file(&[NEW]))).is_ok());
    let marked: KeyRing = format!("\u{feff}{text}").parse().unwrap();
    assert_eq!(marked.ids().collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn a_file_of_keys_may_begin_with_a_mark_of_the_byte_order() {
    let keys: KeyRing = format!("\u{feff}{OLD}\n{NEW}\n").parse().unwrap();
    assert_eq!(keys.ids().collect::<Vec<_>>(), [1, 2]);
    // It is accepted at the beginning only.
    let bad = format!("{OLD}\n\u{feff}{NEW}\n").parse::<KeyRing>().unwrap_err();
    assert_eq!(bad.line, 2);
}

#[test]
fn a_bad_file_of_keys_is_refused_with_its_line_and_without_its_secret() {
    let secret = &OLD[2..];
    let refused = |text: &str| {
        let error = text.parse::<KeyRing>().map(|_| ()).unwrap_err();
        assert!(!error.to_string().contains("0b0c"), "{error}");
        (error.line, error.why)
    };
    let not_hex = "the secret is not 64 hexadecimal digits";
    let not_id = "the number of the key is not one";
    assert_eq!(refused(""), (1, "no key up to here, where the file ends"));
    assert_eq!(refused("# none\n\n# yet\n"), (3, "no key up to here, where the file ends"));
    assert_eq!(refused(&format!("{OLD}\n\nx {secret}")), (3, not_id));
    for id in ["+1", "-1", "0x1", "4294967296", secret] {
        assert_eq!(refused(&format!("{id} {secret}")), (1, not_id), "{id}");
    }
    assert_eq!(refused(&format!("{OLD}\n2")), (2, "the secret is missing"));
    assert_eq!(refused(&format!("2 {}", &secret[1..])), (1, not_hex));
    assert_eq!(refused(&format!("2 {secret}0")), (1, not_hex));
    assert_eq!(refused(&format!("2 {}g", &secret[1..])), (1, not_hex));
    assert_eq!(refused(&format!("2 {}é", &secret[2..])), (1, not_hex));
    assert_eq!(refused(&format!("{OLD} more")), (1, "something follows the secret"));
    assert_eq!(refused(&format!("{OLD}\n{OLD}")), (2, "two keys have the same number"));
    assert_eq!(refused(&[OLD, NEW, THIRD, &format!("4 {secret}")].join("\n")), (4, "more than three keys"));
}
