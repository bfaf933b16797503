//! The addresses of a member with a host name, and the one that works.
//!
//! Connection attempts begin with the address that worked last; if it does not answer, the next one is tried
//! (RFC 8305 without racing). Health checks prefer the addresses that the name has now. An address that the
//! name no longer has is used until one of these has passed a check.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::net::socket::is_out_of_resources;

/// The address of a member whose name has none: no server is there.
pub const NO_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The addresses of one member.
#[derive(Debug)]
pub struct MemberAddresses {
    /// The name's addresses, followed by one former address, if any.
    list: Box<[SocketAddr]>,
    /// The number of addresses that the name has.
    resolved_len: usize,
    /// The index of the address that worked last.
    best: AtomicUsize,
}

impl PartialEq for MemberAddresses {
    /// Compares the settings only; the working address is not one.
    fn eq(&self, other: &Self) -> bool {
        (&self.list, self.resolved_len) == (&other.list, other.resolved_len)
    }
}

impl MemberAddresses {
    /// Creates the list of a name's addresses. `first` is preferred while it works, even if the name no
    /// longer has it. Returns `None` if there is no address at all.
    pub fn new(resolved: &[SocketAddr], preferred: Option<SocketAddr>) -> Option<Self> {
        let mut list = resolved.to_vec();
        let best = preferred.map_or(0, |preferred| {
            list.iter().position(|address| *address == preferred).unwrap_or_else(|| {
                list.push(preferred);
                list.len() - 1
            })
        });
        let (resolved_len, best) = (resolved.len(), AtomicUsize::new(best));
        (!list.is_empty()).then(|| Self { list: list.into(), resolved_len, best })
    }

    /// Returns the addresses that the name has.
    pub fn resolved(&self) -> &[SocketAddr] {
        &self.list[..self.resolved_len]
    }

    /// Returns the address that worked last.
    pub fn best(&self) -> SocketAddr {
        self.list[self.best_index()]
    }

    fn best_index(&self) -> usize {
        self.best.load(Relaxed).min(self.list.len() - 1)
    }

    /// Connects to the first address that answers, beginning with the one that worked last, and remembers it
    /// as such. An address that has not answered when the caller gives up is not the first one of the next
    /// attempt.
    ///
    /// # Errors
    /// No address accepts a connection: the error of the first. Or the process lacks resources, which is no
    /// finding about the addresses.
    pub(crate) async fn reach<T>(
        &self,
        mut connect: impl AsyncFnMut(SocketAddr) -> io::Result<T>,
    ) -> io::Result<T> {
        let (start, count) = (self.best_index(), self.list.len());
        let mut first_error = None;
        for index in (start..start + count).map(|step| step % count) {
            let attempt = ConnectAttempt { addresses: self, index };
            let result = connect(self.list[index]).await;
            std::mem::forget(attempt);
            match result {
                Ok(connection) => {
                    self.best.store(index, Relaxed);
                    return Ok(connection);
                }
                Err(error) if is_out_of_resources(&error) => return Err(error),
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| io::Error::other("the name has no address")))
    }

    /// Returns the order of health checks, as indices: the name's addresses, beginning with the one that
    /// worked last, then the former address.
    pub(crate) fn check_order(&self) -> impl Iterator<Item = usize> + Send + use<> {
        let (best, resolved_len, total) = (self.best_index(), self.resolved_len, self.list.len());
        let start = if best < resolved_len { best } else { 0 };
        (start..start + resolved_len).map(move |offset| offset % resolved_len).chain(resolved_len..total)
    }

    /// Returns the address at an index.
    pub(crate) fn at(&self, index: usize) -> SocketAddr {
        self.list[index]
    }

    /// Records that the address at an index has passed a check, so it is the one that works.
    pub(crate) fn record_passed(&self, index: usize) {
        self.best.store(index, Relaxed);
    }
}

/// A connection attempt in progress.
struct ConnectAttempt<'a> {
    addresses: &'a MemberAddresses,
    index: usize,
}

impl Drop for ConnectAttempt<'_> {
    /// Moves on to the next address, as the attempt was abandoned.
    fn drop(&mut self) {
        let next = (self.index + 1) % self.addresses.list.len();
        // Unless another attempt has found a working address meanwhile.
        let _ = self.addresses.best.compare_exchange(self.index, next, Relaxed, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> SocketAddr {
        ([10, 0, 0, last], 80).into()
    }

    fn run<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
    }

    /// Returns the addresses that were tried if only those in `works` answer, and whether a connection was
    /// made.
    fn try_reach(addresses: &MemberAddresses, works: &[u8]) -> (Vec<SocketAddr>, bool) {
        let mut asked = Vec::new();
        let made = run(addresses.reach(async |address| {
            asked.push(address);
            match works.iter().any(|one| at(*one) == address) {
                true => Ok(()),
                false => Err(io::ErrorKind::ConnectionRefused.into()),
            }
        }));
        (asked, made.is_ok())
    }

    #[test]
    fn the_next_is_tried_and_the_one_that_works_is_remembered() {
        let addresses = MemberAddresses::new(&[at(1), at(2), at(3)], None).unwrap();
        assert_eq!(try_reach(&addresses, &[2]), (vec![at(1), at(2)], true));
        assert_eq!(addresses.best(), at(2));
        assert_eq!(try_reach(&addresses, &[1]), (vec![at(2), at(3), at(1)], true));
        assert_eq!(try_reach(&addresses, &[]), (vec![at(1), at(2), at(3)], false));
        assert_eq!(addresses.best(), at(1), "that none works says nothing of one");
    }

    #[test]
    fn what_the_process_lacks_is_no_reason_to_try_another() {
        let addresses = MemberAddresses::new(&[at(1), at(2)], None).unwrap();
        let mut asked = 0;
        let lacks = || io::Error::from(rustix::io::Errno::MFILE);
        let made = run(addresses.reach(async |_| {
            asked += 1;
            Err::<(), _>(lacks())
        }));
        assert!(made.is_err() && asked == 1);
    }

    #[test]
    fn one_that_is_given_up_is_not_the_first_next_time() {
        let addresses = MemberAddresses::new(&[at(1), at(2)], None).unwrap();
        drop(Box::pin(addresses.reach(async |_| Ok(()))));
        assert_eq!(addresses.best(), at(1), "nothing was begun");
        run(async {
            let mut pending_connect =
                Box::pin(addresses.reach(async |_| std::future::pending::<io::Result<()>>().await));
            assert!(
                std::future::poll_fn(|cx| std::task::Poll::Ready(pending_connect.as_mut().poll(cx)))
                    .await
                    .is_pending()
            );
        });
        assert_eq!(addresses.best(), at(2));
    }

    #[test]
    fn one_that_has_passed_stays_until_another_has() {
        let addresses = MemberAddresses::new(&[at(2), at(3)], Some(at(1))).unwrap();
        let run_check = |passing: &[u8]| {
            let is_passing = |index: &usize| passing.iter().any(|last| at(*last) == addresses.at(*index));
            let index = addresses.check_order().find(is_passing)?;
            addresses.record_passed(index);
            Some(addresses.at(index))
        };
        assert_eq!((addresses.best(), addresses.resolved()), (at(1), &[at(2), at(3)][..]));
        assert_eq!((run_check(&[1]), addresses.best()), (Some(at(1)), at(1)));
        assert_eq!((run_check(&[]), addresses.best()), (None, at(1)));
        assert_eq!((run_check(&[1, 3]), addresses.best()), (Some(at(3)), at(3)));
        assert_eq!(
            addresses.check_order().map(|index| addresses.at(index)).collect::<Vec<_>>(),
            [at(3), at(2), at(1)]
        );
        assert!(MemberAddresses::new(&[], None).is_none());
    }
}
