//! The datagrams of balancers that act together: who is there, and what each sees (`docs/guide/fleet.md`).
//!
//! A datagram is a head, what it says, and the trailer of the lottery's datagrams ([`KeyRing`]), whose tag
//! only who has the key can make: it is checked before anything else is looked at. It begins with other bytes
//! than those of the lottery, so that one key may serve both. Numbers of fixed length are big-endian; others
//! have seven bits in each byte, the lowest first, and the eighth set but in the last.
//!
//! ```text
//! head     "PF", version 1, kind, life u32, count u32, family u8 (4 or 6), port u16, address of 4 or 16
//! MEMBERSHIP (1)  what the membership protocol says
//! REPORT (2)      length u8, name; sections up to the end:
//!   section       group u64, rate, words u8, words
//!   word          member u64, parts u8, suspicion u8, in flight, mean, waiting, rate, latency
//!     part 1      milliseconds that it is ejected yet
//!     part 2, 4   its check failed, passed: milliseconds ago
//!     part 8      reading: knee, work, mean, sojourn as f32; in flight; milliseconds ago
//!     part 64     the knee of the reading is a lower bound only
//!     part 16     load f32, milliseconds ago
//! FAREWELL (3)    nothing: its sender goes
//! ```

use std::net::{IpAddr, SocketAddr};

use plimsoll_brain::fleet::{
    FleetReport, GroupSection, MAX_REPORT_BYTES, MAX_SECTION_ENTRIES, MemberEntry, MonitorLoad,
};
use plimsoll_brain::meter::Reading;

use crate::rfs::{DatagramDecodeError, DatagramEncodeError, KeyRing, MAX_REPORT_LEN, TRAILER_LEN};

/// Begins every datagram: `PF`.
pub const MAGIC: u16 = 0x5046;

/// The version of the datagrams that are read and written here.
pub const VERSION: u8 = 1;

/// Bytes of the longest name.
pub const MAX_NAME_LEN: usize = 64;

/// Bytes of the longest head.
const HEADER_LEN: usize = 2 + 1 + 1 + 4 + 4 + 1 + 2 + 16;

/// Bytes that the membership protocol may say in one datagram.
pub const MAX_MEMBERSHIP_LEN: usize = MAX_REPORT_LEN - HEADER_LEN - TRAILER_LEN;

// The longest of all fits.
const _: () = assert!(HEADER_LEN + 1 + MAX_NAME_LEN + MAX_REPORT_BYTES + TRAILER_LEN <= MAX_REPORT_LEN);

/// One datagram.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetDatagram {
    /// The address of the sender.
    pub from: SocketAddr,
    /// Greater with each life of the sender.
    pub incarnation: u32,
    /// Counts the datagrams of its kind in a life.
    pub seq: u32,
    /// The content.
    pub payload: FleetPayload,
}

/// The content of a datagram.
#[derive(Clone, Debug, PartialEq)]
pub enum FleetPayload {
    /// The membership protocol's bytes, at most [`MAX_MEMBERSHIP_LEN`].
    Membership(Vec<u8>),
    /// The sender's report.
    Report {
        /// The sender's name, at most [`MAX_NAME_LEN`] bytes.
        name: String,
        /// The report, at most [`MAX_REPORT_BYTES`] bytes.
        report: FleetReport,
    },
    /// The sender leaves the fleet.
    Leave,
}

impl FleetDatagram {
    /// Appends it, sealed; after an error nothing was appended.
    ///
    /// # Errors
    /// It would be too long.
    pub fn encode(&self, keys: &KeyRing, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
        let start = out.len();
        out.extend_from_slice(&MAGIC.to_be_bytes());
        out.push(VERSION);
        out.push(match self.payload {
            FleetPayload::Membership(_) => 1,
            FleetPayload::Report { .. } => 2,
            FleetPayload::Leave => 3,
        });
        out.extend_from_slice(&self.incarnation.to_be_bytes());
        out.extend_from_slice(&self.seq.to_be_bytes());
        out.push(if self.from.is_ipv4() { 4 } else { 6 });
        out.extend_from_slice(&self.from.port().to_be_bytes());
        match self.from.ip() {
            IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
        }
        let result = match &self.payload {
            FleetPayload::Membership(membership) => {
                out.extend_from_slice(membership);
                check_count("bytes of membership", membership.len(), MAX_MEMBERSHIP_LEN)
            }
            FleetPayload::Report { name, report } => write_report(name, report, out),
            FleetPayload::Leave => Ok(()),
        };
        match result {
            Ok(()) => keys.seal(start, out),
            Err(_) => out.truncate(start),
        }
        result
    }

    /// Reads a datagram that came, after its tag was checked.
    ///
    /// # Errors
    /// It was not made with one of these keys, or says nothing that can be understood.
    pub fn decode(keys: &KeyRing, bytes: &[u8]) -> Result<Self, DatagramDecodeError> {
        let opened = keys.open(bytes)?;
        // There are no clients here.
        if opened.client().is_some() {
            return Err(DatagramDecodeError::NotPermitted);
        }
        let mut reader = FleetReader(opened.bytes());
        if u16::from_be_bytes(reader.array()?) != MAGIC {
            return Err(DatagramDecodeError::Malformed("it does not begin with PF"));
        }
        let [version, kind] = reader.array()?;
        if version != VERSION {
            return Err(DatagramDecodeError::Malformed("only version 1 is spoken here"));
        }
        let incarnation = u32::from_be_bytes(reader.array()?);
        let seq = u32::from_be_bytes(reader.array()?);
        let [family] = reader.array()?;
        let port = u16::from_be_bytes(reader.array()?);
        let ip = match family {
            4 => IpAddr::from(reader.array::<4>()?),
            6 => IpAddr::from(reader.array::<16>()?),
            _ => return Err(DatagramDecodeError::Malformed("an address of no known family")),
        };
        let from = SocketAddr::new(ip, port);
        let payload = match kind {
            1 => FleetPayload::Membership(reader.0.to_vec()),
            2 => read_report(&mut reader)?,
            3 if reader.0.is_empty() => FleetPayload::Leave,
            _ => return Err(DatagramDecodeError::Malformed("it is of no known kind")),
        };
        Ok(Self { from, incarnation, seq, payload })
    }
}

fn check_count(what: &'static str, count: usize, max: usize) -> Result<(), DatagramEncodeError> {
    if count <= max { Ok(()) } else { Err(DatagramEncodeError::TooMany { what, count, most: max }) }
}

fn write_report(name: &str, report: &FleetReport, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
    check_count("bytes of a name", name.len(), MAX_NAME_LEN)?;
    check_count("bytes of a report", report.size(), MAX_REPORT_BYTES)?;
    // It is at most 64.
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
    for section in &report.sections {
        check_count("words of a section", section.entries.len(), MAX_SECTION_ENTRIES)?;
        out.extend_from_slice(&section.group.to_be_bytes());
        write_varint(section.rate, out);
        // It is at most 255.
        out.push(section.entries.len() as u8);
        section.entries.iter().for_each(|entry| write_entry(entry, out));
    }
    Ok(())
}

const EJECTED: u8 = 1;
const FAILED: u8 = 2;
const PASSED: u8 = 4;
const READING: u8 = 8;
const LOAD: u8 = 16;
/// The load is of the whole host.
const OF_HOST: u8 = 32;
/// The knee of the reading is a lower bound only.
const OPEN: u8 = 64;
const KNOWN_FLAGS: u8 = EJECTED | FAILED | PASSED | READING | LOAD | OF_HOST | OPEN;

fn write_entry(entry: &MemberEntry, out: &mut Vec<u8>) {
    let flag_if = |present: bool, flag: u8| if present { flag } else { 0 };
    let flags = flag_if(entry.ejected.is_some(), EJECTED)
        | entry.check.map_or(0, |(passed, _)| if passed { PASSED } else { FAILED })
        | flag_if(entry.reading.is_some(), READING)
        | flag_if(entry.reading.is_some_and(|(reading, _)| reading.open), OPEN)
        | flag_if(entry.load.is_some(), LOAD)
        | flag_if(entry.load.is_some_and(|load| load.of_host), OF_HOST);
    out.extend_from_slice(&entry.member.to_be_bytes());
    out.extend_from_slice(&[flags, entry.suspicion]);
    for number in [entry.in_flight, entry.mean, entry.waiting, entry.rate, entry.latency] {
        write_varint(number, out);
    }
    if let Some(remaining) = entry.ejected {
        write_varint(remaining, out);
    }
    if let Some((_, age)) = entry.check {
        write_varint(age, out);
    }
    if let Some((reading, age)) = &entry.reading {
        for number in [reading.knee, reading.work, reading.mean_in_flight, reading.sojourn] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        write_varint(reading.in_flight, out);
        write_varint(*age, out);
    }
    if let Some(load) = entry.load {
        out.extend_from_slice(&load.value.to_be_bytes());
        write_varint(load.age, out);
    }
}

fn read_report(reader: &mut FleetReader<'_>) -> Result<FleetPayload, DatagramDecodeError> {
    let [len] = reader.array()?;
    let name = reader.take(len.into())?;
    let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= MAX_NAME_LEN);
    let name = name.ok_or(DatagramDecodeError::Malformed("a name is too long, or no text"))?.to_owned();
    if name.chars().any(char::is_control) {
        return Err(DatagramDecodeError::Malformed("a name has control characters"));
    }
    let mut report = FleetReport::default();
    while !reader.0.is_empty() {
        let group = u64::from_be_bytes(reader.array()?);
        let rate = reader.read_varint()?;
        let [count] = reader.array()?;
        let entries = (0..count).map(|_| read_entry(reader)).collect::<Result<_, _>>()?;
        report.sections.push(GroupSection { group, rate, entries });
    }
    Ok(FleetPayload::Report { name, report })
}

fn read_entry(reader: &mut FleetReader<'_>) -> Result<MemberEntry, DatagramDecodeError> {
    let member = u64::from_be_bytes(reader.array()?);
    let [flags, suspicion] = reader.array()?;
    // A part that is not known has a length that is not known.
    let contradicts = flags & (FAILED | PASSED) == FAILED | PASSED
        || flags & (LOAD | OF_HOST) == OF_HOST
        || flags & (READING | OPEN) == OPEN;
    if flags & !KNOWN_FLAGS != 0 || contradicts {
        return Err(DatagramDecodeError::Malformed("a word has parts that say nothing"));
    }
    let mut entry = MemberEntry {
        member,
        suspicion,
        in_flight: reader.read_varint()?,
        mean: reader.read_varint()?,
        waiting: reader.read_varint()?,
        rate: reader.read_varint()?,
        latency: reader.read_varint()?,
        ..MemberEntry::default()
    };
    if flags & EJECTED != 0 {
        entry.ejected = Some(reader.read_varint()?);
    }
    if flags & (FAILED | PASSED) != 0 {
        entry.check = Some((flags & PASSED != 0, reader.read_varint()?));
    }
    if flags & READING != 0 {
        let (knee, work) = (reader.read_f32()?, reader.read_f32()?);
        let (mean_in_flight, sojourn) = (reader.read_f32()?, reader.read_f32()?);
        let in_flight = reader.read_varint()?;
        let open = flags & OPEN != 0;
        let reading = Reading { in_flight, knee, work, mean_in_flight, sojourn, slot: false, open };
        entry.reading = Some((reading, reader.read_varint()?));
    }
    if flags & LOAD != 0 {
        let value = reader.read_f32()?;
        if value < 0.0 {
            return Err(DatagramDecodeError::Malformed("a load is below 0"));
        }
        entry.load = Some(MonitorLoad { value, of_host: flags & OF_HOST != 0, age: reader.read_varint()? });
    }
    Ok(entry)
}

fn write_varint(number: u32, out: &mut Vec<u8>) {
    let mut remaining = number;
    while remaining >= 0x80 {
        out.push(remaining as u8 | 0x80);
        remaining >>= 7;
    }
    out.push(remaining as u8);
}

struct FleetReader<'b>(&'b [u8]);

const TRUNCATED: DatagramDecodeError = DatagramDecodeError::Malformed("it ends in the middle of a value");

impl<'b> FleetReader<'b> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DatagramDecodeError> {
        let (array, rest) = self.0.split_first_chunk::<N>().ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(*array)
    }

    fn take(&mut self, count: usize) -> Result<&'b [u8], DatagramDecodeError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(taken)
    }

    fn read_varint(&mut self) -> Result<u32, DatagramDecodeError> {
        let mut number = 0_u64;
        for index in 0..5 {
            let [byte] = self.array()?;
            number |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                // As few bytes as it takes, so that nothing can be said in two ways.
                let is_shortest = byte != 0 || index == 0;
                let number = u32::try_from(number).ok().filter(|_| is_shortest);
                return number.ok_or(DatagramDecodeError::Malformed("a number is too long"));
            }
        }
        Err(DatagramDecodeError::Malformed("a number is too long"))
    }

    fn read_f32(&mut self) -> Result<f32, DatagramDecodeError> {
        let number = f32::from_be_bytes(self.array()?);
        if number.is_finite() {
            Ok(number)
        } else {
            Err(DatagramDecodeError::Malformed("a number is not finite"))
        }
    }
}

#[cfg(test)]
mod tests;
