//! The structures of the header that describe a picked member.

use std::ffi::c_char;
use std::io::Write as _;
use std::mem::size_of;
use std::net::SocketAddr;

use ::plimsoll_client::{MAX_INFO, PickedMember};
use libc::{
    AF_INET, AF_INET6, in6_addr, sa_family_t, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t,
};

/// The constants `PLIMSOLL_FURTHER` and `PLIMSOLL_TEXT` of the header.
pub(crate) const FURTHER: usize = 4;
pub(crate) const TEXT: usize = 64;

/// A member, with the layout of the header.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct plimsoll_member {
    pub(crate) address: sockaddr_storage,
    pub(crate) address_len: socklen_t,
    pub(crate) number: u16,
    pub(crate) text: [c_char; TEXT],
}

/// An answer, with the layout of the header.
#[repr(C)]
pub struct plimsoll_answer {
    pub(crate) member: plimsoll_member,
    pub(crate) further: [plimsoll_member; FURTHER],
    pub(crate) further_len: usize,
    pub(crate) info_len: usize,
    pub(crate) info: [u8; MAX_INFO],
}

impl plimsoll_member {
    /// Creates the member at `address`.
    pub(crate) fn of(number: u16, address: SocketAddr) -> Self {
        member(number, address)
    }
}

impl plimsoll_answer {
    /// Writes a pick as an answer; cuts the list of further members and the information to their arrays.
    ///
    /// # Safety
    /// `answer` points to memory for a `plimsoll_answer`.
    pub(crate) unsafe fn write(answer: *mut Self, pick: &PickedMember) {
        let mut whole = Self {
            member: member(pick.member, pick.address),
            further: [NOBODY; FURTHER],
            further_len: pick.fallbacks.len().min(FURTHER),
            info_len: pick.info.len().min(MAX_INFO),
            info: [0; MAX_INFO],
        };
        for (place, (number, address)) in whole.further.iter_mut().zip(&pick.fallbacks) {
            *place = member(*number, *address);
        }
        for (place, byte) in whole.info.iter_mut().zip(&pick.info) {
            *place = *byte;
        }
        // SAFETY: by contract.
        unsafe { answer.write(whole) };
    }
}

const NOBODY: plimsoll_member = plimsoll_member {
    // SAFETY: the structure consists of numbers, for which all zeros is a valid value.
    address: unsafe { std::mem::zeroed() },
    address_len: 0,
    number: 0,
    text: [0; TEXT],
};

fn member(number: u16, address: SocketAddr) -> plimsoll_member {
    let mut member = plimsoll_member { number, ..NOBODY };
    let room = &raw mut member.address;
    member.address_len = match address {
        SocketAddr::V4(four) => {
            let four = sockaddr_in {
                sin_family: AF_INET as sa_family_t,
                sin_port: four.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(four.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: a `sockaddr_storage` is large enough and aligned for every socket address.
            unsafe { room.cast::<sockaddr_in>().write(four) };
            size_of::<sockaddr_in>() as socklen_t
        }
        SocketAddr::V6(six) => {
            let six = sockaddr_in6 {
                sin6_family: AF_INET6 as sa_family_t,
                sin6_port: six.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: in6_addr { s6_addr: six.ip().octets() },
                sin6_scope_id: six.scope_id(),
            };
            // SAFETY: as above.
            unsafe { room.cast::<sockaddr_in6>().write(six) };
            size_of::<sockaddr_in6>() as socklen_t
        }
    };
    let mut text = [0_u8; TEXT - 1];
    // The longest address has 58 characters.
    let _ = write!(&mut text[..], "{address}");
    for (place, byte) in member.text.iter_mut().zip(text) {
        *place = byte as c_char;
    }
    member
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_as_the_system_has_them() {
        for text in
            ["192.0.2.10:8080", "[2001:db8::7]:80", "[ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255]:65535"]
        {
            let address: SocketAddr = text.parse().unwrap();
            let member = member(7, address);
            let known: Vec<u8> = member.text.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
            assert_eq!(String::from_utf8(known).unwrap(), address.to_string());
            let room = &raw const member.address;
            let back: SocketAddr = if i32::from(member.address.ss_family) == AF_INET {
                assert_eq!(member.address_len as usize, size_of::<sockaddr_in>());
                // SAFETY: the address family identifies it as a `sockaddr_in`.
                let four = unsafe { room.cast::<sockaddr_in>().read() };
                (four.sin_addr.s_addr.to_ne_bytes(), u16::from_be(four.sin_port)).into()
            } else {
                // SAFETY: as above.
                let six = unsafe { room.cast::<sockaddr_in6>().read() };
                (six.sin6_addr.s6_addr, u16::from_be(six.sin6_port)).into()
            };
            assert_eq!(back, address);
        }
    }

    #[test]
    fn more_than_there_is_room_for_is_left_out() {
        let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let pick = PickedMember {
            member: 1,
            address,
            info: vec![9; MAX_INFO + 5],
            fallbacks: vec![(2, address); FURTHER + 1],
        };
        let mut answer = std::mem::MaybeUninit::uninit();
        // SAFETY: the memory is large enough.
        unsafe { plimsoll_answer::write(answer.as_mut_ptr(), &pick) };
        // SAFETY: the call above initialized it.
        let answer: plimsoll_answer = unsafe { answer.assume_init() };
        assert_eq!((answer.further_len, answer.info_len, answer.further[3].number), (FURTHER, MAX_INFO, 2));
    }
}
