//! REPORT: the state of a daemon, several times a second.

use plimsoll_brain::lottery::{NodeReport, NodeState, RelayedReport, ServiceState};

use super::byte_reader::{ByteReader, list_count};
use super::{DatagramDecodeError, DatagramEncodeError, option};

pub(super) fn write(report: &NodeReport, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
    let services = list_count("services", report.services.len())?;
    let ids = list_count("requests", report.ids.len())?;
    out.extend_from_slice(&report.member.to_be_bytes());
    out.extend_from_slice(&report.incarnation.to_be_bytes());
    out.extend_from_slice(&report.seq.to_be_bytes());
    out.push(state_code(report.state));
    out.extend_from_slice(&report.digest.to_be_bytes());
    out.extend_from_slice(&[services, ids]);
    write_services(&report.services, out);
    report.ids.iter().for_each(|id| out.extend_from_slice(&id.to_be_bytes()));
    if report.heard.is_empty() {
        return Ok(());
    }
    let relayed_count = list_count("members heard", report.heard.len())?;
    for relayed in &report.heard {
        list_count("services", relayed.services.len())?;
    }
    option::write(option::RELAYED, out, |out| {
        out.push(relayed_count);
        for RelayedReport { member, incarnation, seq, state, services } in &report.heard {
            out.extend_from_slice(&member.to_be_bytes());
            out.extend_from_slice(&incarnation.to_be_bytes());
            out.extend_from_slice(&seq.to_be_bytes());
            // The count fits into a byte: `count` checked it.
            out.extend_from_slice(&[state_code(*state), services.len() as u8]);
            write_services(services, out);
        }
    });
    Ok(())
}

fn write_services(services: &[ServiceState], out: &mut Vec<u8>) {
    for ServiceState { service, capacity, weight, load, in_flight } in services {
        out.extend_from_slice(&service.to_be_bytes());
        for number in [capacity, weight, load, in_flight] {
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
}

fn state_code(state: NodeState) -> u8 {
    match state {
        NodeState::Joining => 0,
        NodeState::Up => 1,
        NodeState::Draining => 2,
        NodeState::Leaving => 3,
    }
}

pub(super) fn read(mut reader: ByteReader<'_>) -> Result<NodeReport, DatagramDecodeError> {
    let member = reader.u16()?;
    let incarnation = reader.u32()?;
    let seq = reader.u32()?;
    let state = read_state(&mut reader)?;
    let digest = reader.u64()?;
    let (services, ids) = (reader.u8()?, reader.u8()?);
    let services = reader.list(services, read_service)?;
    let ids = reader.list(ids, ByteReader::u64)?;
    let mut relayed = Vec::new();
    option::read(reader, |number, value| {
        if number != option::RELAYED {
            return Ok(false);
        }
        if !relayed.is_empty() {
            return Err(DatagramDecodeError::Malformed("what was heard is told twice"));
        }
        relayed = read_relayed(value)?;
        Ok(true)
    })?;
    Ok(NodeReport { member, incarnation, seq, state, digest, services, ids, heard: relayed })
}

fn read_relayed(mut value: ByteReader<'_>) -> Result<Vec<RelayedReport>, DatagramDecodeError> {
    let count = value.u8()?;
    let relayed = value.list(count, |value| {
        let (member, incarnation, seq) = (value.u16()?, value.u32()?, value.u32()?);
        let state = read_state(value)?;
        let services = value.u8()?;
        Ok(RelayedReport { member, incarnation, seq, state, services: value.list(services, read_service)? })
    })?;
    match count > 0 && value.is_empty() {
        true => Ok(relayed),
        false => Err(DatagramDecodeError::Malformed("what was heard is not as long as it says")),
    }
}

fn read_state(reader: &mut ByteReader<'_>) -> Result<NodeState, DatagramDecodeError> {
    Ok(match reader.u8()? {
        0 => NodeState::Joining,
        1 => NodeState::Up,
        2 => NodeState::Draining,
        3 => NodeState::Leaving,
        _ => return Err(DatagramDecodeError::Malformed("a member is in no known state")),
    })
}

fn read_service(reader: &mut ByteReader<'_>) -> Result<ServiceState, DatagramDecodeError> {
    Ok(ServiceState {
        service: reader.u32()?,
        capacity: reader.u16()?,
        weight: reader.u16()?,
        load: reader.u16()?,
        in_flight: reader.u16()?,
    })
}
