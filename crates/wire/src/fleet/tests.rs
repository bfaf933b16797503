use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::rfs::DatagramKey;

fn keys() -> KeyRing {
    KeyRing::new(DatagramKey::new(7, &[9; 32]))
}

fn entry() -> impl Strategy<Value = MemberEntry> {
    let numbers = any::<(u64, u32, u32, u32, u32, u32, u8)>();
    let times = (0.0_f32..1e6, 0.0_f32..1e6, 0.0_f32..1e6);
    let reading = (any::<u32>(), 0.0_f32..1e6, times, any::<bool>(), any::<u32>());
    let reading = reading.prop_map(|(in_flight, knee, (work, mean_in_flight, sojourn), open, age)| {
        (Reading { in_flight, knee, work, mean_in_flight, sojourn, slot: false, open }, age)
    });
    let optional = (
        option::of(any::<u32>()),
        option::of(any::<(bool, u32)>()),
        option::of(reading),
        option::of((0.0_f32..1e9, any::<bool>(), any::<u32>())),
    );
    (numbers, optional).prop_map(|(numbers, (ejected, check, reading, load))| {
        let (member, in_flight, mean, waiting, rate, latency, suspicion) = numbers;
        let load = load.map(|(value, of_host, age)| MonitorLoad { value, of_host, age });
        MemberEntry {
            member,
            in_flight,
            mean,
            waiting,
            rate,
            latency,
            suspicion,
            ejected,
            check,
            reading,
            load,
        }
    })
}

fn datagram() -> impl Strategy<Value = FleetDatagram> {
    let section = (any::<(u64, u32)>(), vec(entry(), 0..7))
        .prop_map(|((group, rate), entries)| GroupSection { group, rate, entries });
    let report = ("[a-z0-9.-]{0,64}", vec(section, 0..3))
        .prop_map(|(name, sections)| FleetPayload::Report { name, report: FleetReport { sections } });
    let payload = prop_oneof![
        vec(any::<u8>(), 0..MAX_MEMBERSHIP_LEN).prop_map(FleetPayload::Membership),
        report,
        Just(FleetPayload::Leave)
    ];
    let v4 = any::<([u8; 4], u16)>().prop_map(SocketAddr::from);
    let v6 = any::<([u8; 16], u16)>().prop_map(SocketAddr::from);
    (prop_oneof![v4, v6], any::<(u32, u32)>(), payload)
        .prop_map(|(from, (incarnation, seq), payload)| FleetDatagram { from, incarnation, seq, payload })
}

/// A datagram around these bytes, with a tag that is right.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    keys().seal(0, &mut out);
    out
}

proptest! {
    #[test]
    fn what_is_written_is_read_again_and_is_as_long_as_it_was_said_to_be(datagram in datagram()) {
        let mut out = vec![1, 2, 3];
        let written = datagram.encode(&keys(), &mut out);
        if let FleetPayload::Report { report, .. } = &datagram.payload && report.size() > MAX_REPORT_BYTES {
            prop_assert!(written.is_err());
            prop_assert_eq!(&out[..], &[1, 2, 3][..]);
            return Ok(());
        }
        prop_assert!(written.is_ok() && out.len() - 3 <= MAX_REPORT_LEN);
        prop_assert_eq!(&FleetDatagram::decode(&keys(), &out[3..]).unwrap(), &datagram);
        if let FleetPayload::Report { name, report } = &datagram.payload {
            let head = if datagram.from.is_ipv4() { HEADER_LEN - 12 } else { HEADER_LEN };
            prop_assert_eq!(out.len() - 3, head + 1 + name.len() + report.size() + TRAILER_LEN);
        }
    }

    #[test]
    fn a_bit_that_is_not_right_is_found(datagram in datagram(), bit in any::<proptest::sample::Index>()) {
        let mut out = Vec::new();
        if datagram.encode(&keys(), &mut out).is_ok() {
            let bit = bit.index(out.len() * 8);
            out[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(FleetDatagram::decode(&keys(), &out).is_err());
        }
    }

    #[test]
    fn nothing_that_is_read_panics_and_it_says_one_thing(bytes in vec(any::<u8>(), 0..200), kind in 0_u8..4) {
        let mut datagram_bytes = vec![0x50, 0x46, 1, kind, 0, 0, 0, 1, 0, 0, 0, 1, 4, 0, 1, 127, 0, 0, 1];
        datagram_bytes.extend_from_slice(&bytes);
        if let Ok(datagram) = FleetDatagram::decode(&keys(), &sealed(&datagram_bytes)) {
            let mut encoded = Vec::new();
            datagram.encode(&keys(), &mut encoded).unwrap();
            prop_assert_eq!(encoded, sealed(&datagram_bytes));
        }
    }
}

#[test]
fn what_is_of_the_lottery_is_refused_though_its_tag_is_right() {
    let mut bytes = Vec::new();
    let payload = vec![0; 20];
    let gossip = crate::rfs::GossipDatagram { member: 1, incarnation: 2, seq: 3, payload };
    crate::rfs::EncodeDatagram::encode(&gossip, &keys(), &mut bytes).unwrap();
    assert_eq!(
        FleetDatagram::decode(&keys(), &bytes),
        Err(DatagramDecodeError::Malformed("it does not begin with PF"))
    );
}

#[test]
fn what_is_sealed_with_a_key_for_clients_is_refused() {
    let client = DatagramKey::for_role(crate::rfs::KeyRole::Client, 8, &[8; 32]);
    let leave = FleetDatagram {
        from: "10.0.0.1:7946".parse().unwrap(),
        incarnation: 1,
        seq: 1,
        payload: FleetPayload::Leave,
    };
    let mut bytes = Vec::new();
    leave.encode(&KeyRing::new(client.clone()), &mut bytes).unwrap();
    let key_ring = keys().with_key(client).unwrap();
    assert_eq!(FleetDatagram::decode(&key_ring, &bytes), Err(DatagramDecodeError::NotPermitted));
}

#[test]
fn short_names_and_numbers_are_of_one_form() {
    for number in [0, 1, 127, 128, 16_383, 16_384, u32::MAX] {
        let mut out = Vec::new();
        write_varint(number, &mut out);
        assert_eq!(out.len(), plimsoll_brain::fleet::varint_size(number));
        assert_eq!(FleetReader(&out).read_varint(), Ok(number));
    }
    for bad in [&[0x80, 0][..], &[0xff; 5], &[0xff, 0xff, 0xff, 0xff, 0x10], &[0x80]] {
        assert!(FleetReader(bad).read_varint().is_err(), "{bad:?}");
    }
}
