//! LOOK and DRUM: a non-member, such as a balancer, asks a daemon for the candidates of a service and their
//! shares.
//!
//! A LOOK is as long as the longest part of a DRUM, and requests one part.

use plimsoll_brain::lottery::{CandidateEntry, CandidateQuery, CandidateSet};

use super::byte_reader::{ByteReader, list_count};
use super::{DatagramDecodeError, DatagramEncodeError, address, option};

pub(super) fn write_query(query: &CandidateQuery, out: &mut Vec<u8>) {
    out.extend_from_slice(&query.service.to_be_bytes());
    out.extend_from_slice(&query.part.to_be_bytes());
}

pub(super) fn read_query(id: u64, mut reader: ByteReader<'_>) -> Result<CandidateQuery, DatagramDecodeError> {
    let service = reader.u32()?;
    let part = reader.u16()?;
    option::skip(reader)?;
    Ok(CandidateQuery { id, service, part })
}

pub(super) fn write(set: &CandidateSet, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
    if set.part >= set.parts {
        return Err(DatagramEncodeError::Contradiction(NO_PART));
    }
    let members = list_count("members", set.candidates.len())?;
    out.extend_from_slice(&set.service.to_be_bytes());
    out.extend_from_slice(&set.part.to_be_bytes());
    out.extend_from_slice(&set.parts.to_be_bytes());
    out.push(members);
    for CandidateEntry { member, capacity, weight, address, endpoint } in &set.candidates {
        for number in [member, capacity, weight] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        address::write(*address, out);
        address::write_near(*endpoint, address.ip(), out);
    }
    Ok(())
}

pub(super) fn read(id: u64, mut reader: ByteReader<'_>) -> Result<CandidateSet, DatagramDecodeError> {
    let service = reader.u32()?;
    let (part, parts) = (reader.u16()?, reader.u16()?);
    if part >= parts {
        return Err(DatagramDecodeError::Malformed(NO_PART));
    }
    let count = reader.u8()?;
    let candidates = reader.list(count, |reader| {
        let (member, capacity, weight) = (reader.u16()?, reader.u16()?, reader.u16()?);
        let address = address::read(reader)?;
        let endpoint = address::read_near(reader, address.ip())?;
        Ok(CandidateEntry { member, capacity, weight, address, endpoint })
    })?;
    option::skip(reader)?;
    Ok(CandidateSet { id, service, part, parts, candidates })
}

const NO_PART: &str = "a part of a drum has a number that is not among its parts";
