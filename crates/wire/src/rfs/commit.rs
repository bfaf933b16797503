//! COMMIT: a daemon reports requests that it has answered, so that the others do not answer them.

use plimsoll_brain::lottery::Commit;

use super::bytes::{Reader, count};
use super::{Refused, Unwritable, option};

pub(super) fn write(commit: &Commit, out: &mut Vec<u8>) -> Result<(), Unwritable> {
    let ids = count("requests", commit.ids.len())?;
    out.extend_from_slice(&commit.member.to_be_bytes());
    out.extend_from_slice(&commit.incarnation.to_be_bytes());
    out.push(ids);
    commit.ids.iter().for_each(|id| out.extend_from_slice(&id.to_be_bytes()));
    Ok(())
}

pub(super) fn read(mut reader: Reader<'_>) -> Result<Commit, Refused> {
    let member = reader.u16()?;
    let incarnation = reader.u32()?;
    let count = reader.u8()?;
    let ids = reader.list(count, Reader::u64)?;
    option::skip(reader)?;
    Ok(Commit { member, incarnation, ids })
}
