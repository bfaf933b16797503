//! FETCH and TABLE: a new daemon requests the membership table, one part at a time.
//!
//! A FETCH is as long as the longest part, and requests one part: no response exceeds its request. Responders
//! split the table by [`NodeDescription::encoded_size`]. All daemons with the same table split it the same
//! way, so the parts may come from several of them.

use plimsoll_brain::lottery::{NodeDescription, ServiceOffer, TableFetch, TablePart};

use super::byte_reader::{ByteReader, list_count};
use super::request::{info_len, read_info};
use super::{DatagramDecodeError, DatagramEncodeError, address, option};

pub(super) fn write_fetch(fetch: &TableFetch, out: &mut Vec<u8>) {
    out.extend_from_slice(&fetch.generation.to_be_bytes());
    out.extend_from_slice(&fetch.part.to_be_bytes());
}

pub(super) fn read_fetch(id: u64, mut reader: ByteReader<'_>) -> Result<TableFetch, DatagramDecodeError> {
    let generation = reader.u32()?;
    let part = reader.u16()?;
    option::skip(reader)?;
    Ok(TableFetch { id, generation, part })
}

pub(super) fn write(table: &TablePart, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
    if table.part >= table.parts {
        return Err(DatagramEncodeError::Contradiction(NO_PART));
    }
    let members = list_count("members", table.members.len())?;
    out.extend_from_slice(&table.generation.to_be_bytes());
    out.extend_from_slice(&table.part.to_be_bytes());
    out.extend_from_slice(&table.parts.to_be_bytes());
    out.push(members);
    table.members.iter().try_for_each(|member| write_member(member, out))
}

pub(super) fn read(id: u64, mut reader: ByteReader<'_>) -> Result<TablePart, DatagramDecodeError> {
    let generation = reader.u32()?;
    let (part, parts) = (reader.u16()?, reader.u16()?);
    if part >= parts {
        return Err(DatagramDecodeError::Malformed(NO_PART));
    }
    let count = reader.u8()?;
    let members = reader.list(count, read_member)?;
    option::skip(reader)?;
    Ok(TablePart { id, generation, part, parts, members })
}

const NO_PART: &str = "a part of a table has a number that is not among its parts";

fn write_member(member: &NodeDescription, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
    out.extend_from_slice(&member.member.to_be_bytes());
    out.extend_from_slice(&member.incarnation.to_be_bytes());
    address::write(member.address, out);
    out.push(list_count("services", member.offers.len())?);
    for ServiceOffer { service, capacity, endpoint, info } in &member.offers {
        out.extend_from_slice(&service.to_be_bytes());
        out.extend_from_slice(&capacity.to_be_bytes());
        address::write_near(*endpoint, member.address.ip(), out);
        out.extend_from_slice(&info_len(info)?.to_be_bytes());
        out.extend_from_slice(info);
    }
    Ok(())
}

fn read_member(reader: &mut ByteReader<'_>) -> Result<NodeDescription, DatagramDecodeError> {
    let member = reader.u16()?;
    let incarnation = reader.u32()?;
    let address = address::read(reader)?;
    let count = reader.u8()?;
    let offers = reader.list(count, |reader| {
        let (service, capacity) = (reader.u32()?, reader.u16()?);
        let endpoint = address::read_near(reader, address.ip())?;
        Ok(ServiceOffer { service, capacity, endpoint, info: read_info(reader)?.into() })
    })?;
    Ok(NodeDescription { member, incarnation, address, offers })
}
