//! REPORT: the state of a daemon, several times a second.

use plimsoll_brain::lottery::{Hearsay, Report, Share, Standing};

use super::bytes::{Reader, count};
use super::{Refused, Unwritable, option};

pub(super) fn write(report: &Report, out: &mut Vec<u8>) -> Result<(), Unwritable> {
    let services = count("services", report.services.len())?;
    let ids = count("requests", report.ids.len())?;
    out.extend_from_slice(&report.member.to_be_bytes());
    out.extend_from_slice(&report.incarnation.to_be_bytes());
    out.extend_from_slice(&report.seq.to_be_bytes());
    out.push(state(report.state));
    out.extend_from_slice(&report.digest.to_be_bytes());
    out.extend_from_slice(&[services, ids]);
    write_shares(&report.services, out);
    report.ids.iter().for_each(|id| out.extend_from_slice(&id.to_be_bytes()));
    if report.heard.is_empty() {
        return Ok(());
    }
    let heard = count("members heard", report.heard.len())?;
    for said in &report.heard {
        count("services", said.services.len())?;
    }
    option::write(option::HEARD, out, |out| {
        out.push(heard);
        for Hearsay { member, incarnation, seq, state: standing, services } in &report.heard {
            out.extend_from_slice(&member.to_be_bytes());
            out.extend_from_slice(&incarnation.to_be_bytes());
            out.extend_from_slice(&seq.to_be_bytes());
            // The count fits into a byte: `count` checked it.
            out.extend_from_slice(&[state(*standing), services.len() as u8]);
            write_shares(services, out);
        }
    });
    Ok(())
}

fn write_shares(shares: &[Share], out: &mut Vec<u8>) {
    for Share { service, capacity, weight, load, in_flight } in shares {
        out.extend_from_slice(&service.to_be_bytes());
        for number in [capacity, weight, load, in_flight] {
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
}

fn state(standing: Standing) -> u8 {
    match standing {
        Standing::Joining => 0,
        Standing::Up => 1,
        Standing::Draining => 2,
        Standing::Leaving => 3,
    }
}

pub(super) fn read(mut reader: Reader<'_>) -> Result<Report, Refused> {
    let member = reader.u16()?;
    let incarnation = reader.u32()?;
    let seq = reader.u32()?;
    let state = read_state(&mut reader)?;
    let digest = reader.u64()?;
    let (services, ids) = (reader.u8()?, reader.u8()?);
    let services = reader.list(services, read_share)?;
    let ids = reader.list(ids, Reader::u64)?;
    let mut heard = Vec::new();
    option::read(reader, |number, value| {
        if number != option::HEARD {
            return Ok(false);
        }
        if !heard.is_empty() {
            return Err(Refused::Malformed("what was heard is told twice"));
        }
        heard = read_heard(value)?;
        Ok(true)
    })?;
    Ok(Report { member, incarnation, seq, state, digest, services, ids, heard })
}

fn read_heard(mut value: Reader<'_>) -> Result<Vec<Hearsay>, Refused> {
    let count = value.u8()?;
    let heard = value.list(count, |value| {
        let (member, incarnation, seq) = (value.u16()?, value.u32()?, value.u32()?);
        let state = read_state(value)?;
        let services = value.u8()?;
        Ok(Hearsay { member, incarnation, seq, state, services: value.list(services, read_share)? })
    })?;
    match count > 0 && value.is_empty() {
        true => Ok(heard),
        false => Err(Refused::Malformed("what was heard is not as long as it says")),
    }
}

fn read_state(reader: &mut Reader<'_>) -> Result<Standing, Refused> {
    Ok(match reader.u8()? {
        0 => Standing::Joining,
        1 => Standing::Up,
        2 => Standing::Draining,
        3 => Standing::Leaving,
        _ => return Err(Refused::Malformed("a member is in no known state")),
    })
}

fn read_share(reader: &mut Reader<'_>) -> Result<Share, Refused> {
    Ok(Share {
        service: reader.u32()?,
        capacity: reader.u16()?,
        weight: reader.u16()?,
        load: reader.u16()?,
        in_flight: reader.u16()?,
    })
}
