//! xDS: clients of gRPC that choose for themselves are told how often to choose whom, and report what they did.
//!
//! A listener serves groups by their names: `xds:///web` is group `web`. What such a client asks for follows from the name alone
//! (`resource`), but for the endpoints: each member in use is a locality of its own, since that is what gRPC's round robin weighs,
//! and its weight is its share of the requests by the group's strategy (`scales`). A client is told again when that has changed: at
//! once, but no more than twenty times a second (`board`), and never before it has said what it makes of what it was told last
//! (`session`). So nothing piles up for one that is slow, and it holds up nobody.
//!
//! By its reports (`reports`) a client's requests count as what they are: work of the members, in flight and done, as if it had come
//! through this process. No request of other listeners passes here.

mod board;
mod discover;
mod reports;
mod resource;
mod scales;
mod serve;
mod session;
mod stream;

pub(crate) use board::Side;
pub(crate) use serve::serve;

/// Bytes of a client's message: the names of a thousand groups, a report on two thousand members. What it is unfolded to is a
/// hundred times as much at worst, one at a time on each core.
const MESSAGE: usize = 256 * 1024;

/// What a client said, for people: its beginning, on one line.
fn said(text: &str) -> String {
    const MOST: usize = 300;
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut said: String = text.chars().take(MOST).map(plain).collect();
    if text.chars().nth(MOST).is_some() {
        said.push('…');
    }
    said
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_clients_say_stays_on_a_line_and_ends() {
        assert_eq!(super::said("a\nb\u{1b}[0m"), "a b [0m");
        assert_eq!(super::said(&"ä".repeat(1000)).chars().count(), 301);
    }
}
