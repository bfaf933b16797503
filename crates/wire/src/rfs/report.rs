//! REPORT: how a daemon is, several times a second.

use plimsoll_brain::lottery::{Report, Share, Standing};

use super::bytes::{Reader, count};
use super::{Refused, Unwritable, option};

pub(super) fn write(report: &Report, out: &mut Vec<u8>) -> Result<(), Unwritable> {
    let services = count("services", report.services.len())?;
    let ids = count("requests", report.ids.len())?;
    out.extend_from_slice(&report.member.to_be_bytes());
    out.extend_from_slice(&report.incarnation.to_be_bytes());
    out.extend_from_slice(&report.seq.to_be_bytes());
    out.push(match report.state {
        Standing::Joining => 0,
        Standing::Up => 1,
        Standing::Draining => 2,
        Standing::Leaving => 3,
    });
    out.extend_from_slice(&report.digest.to_be_bytes());
    out.extend_from_slice(&[services, ids]);
    for Share { service, capacity, weight, load, in_flight } in &report.services {
        out.extend_from_slice(&service.to_be_bytes());
        for number in [capacity, weight, load, in_flight] {
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
    report.ids.iter().for_each(|id| out.extend_from_slice(&id.to_be_bytes()));
    Ok(())
}

pub(super) fn read(mut reader: Reader<'_>) -> Result<Report, Refused> {
    let member = reader.u16()?;
    let incarnation = reader.u32()?;
    let seq = reader.u32()?;
    let state = match reader.u8()? {
        0 => Standing::Joining,
        1 => Standing::Up,
        2 => Standing::Draining,
        3 => Standing::Leaving,
        _ => return Err(Refused::Malformed("a member is in no known state")),
    };
    let digest = reader.u64()?;
    let (services, ids) = (reader.u8()?, reader.u8()?);
    let services = reader.list(services, |reader| {
        Ok(Share {
            service: reader.u32()?,
            capacity: reader.u16()?,
            weight: reader.u16()?,
            load: reader.u16()?,
            in_flight: reader.u16()?,
        })
    })?;
    let ids = reader.list(ids, Reader::u64)?;
    option::skip(reader)?;
    Ok(Report { member, incarnation, seq, state, digest, services, ids })
}
